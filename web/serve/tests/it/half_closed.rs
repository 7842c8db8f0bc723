//! Tests with clients that shut down their sending half after the request, as `nc -N` and some
//! health checks do.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use upshift_serve::Config;

use crate::harness::{Answer, Folder, TestServer, read_to_end, wait_until};

#[test]
fn a_file_is_sent_to_a_client_that_has_shut_down_its_sending_half() {
    let folder = Folder::new();
    // The size exceeds the buffers of both sockets.
    let big = vec![b'x'; 16 << 20];
    folder.write("big.bin", &big);
    folder.write("page.txt", "a page");
    let server = TestServer::files(&folder.0);
    for (path, length) in [
        ("/page.txt", 6),
        ("/big.bin", big.len()),
        ("/plaintext", 13),
        ("/matrix?n=3", 19),
    ] {
        for field in ["", "connection: close\r\n"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{field}\r\n");
            let mut stream = server.connect_and_send(request);
            stream.shutdown(Shutdown::Write).unwrap();
            let answer = Answer::parse(read_to_end(&mut stream));
            assert_eq!((answer.status, answer.body.len()), (200, length), "{path}");
        }
    }
    // The server answers all requests that arrived before the shutdown, and then closes the
    // connection.
    let mut stream = server.connect();
    let request = "GET /page.txt HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3);
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answers = String::from_utf8(read_to_end(&mut stream)).unwrap();
    assert_eq!(answers.matches("a page").count(), 3, "{answers}");
    server.wait_until_idle();
}

/// A client that shuts down its sending half while a handler runs has most likely gone, so the
/// handler must be dropped.
#[test]
fn a_handler_whose_client_has_gone_is_dropped_and_logged_as_499() {
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let folder = Folder::new();
    let log = folder.0.join("log");
    let (started, dropped) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (handler_started, handler_dropped) = (started.clone(), dropped.clone());
    let app = axum::Router::new().fallback(move || {
        let guard = SetOnDrop(handler_dropped.clone());
        handler_started.store(true, Ordering::SeqCst);
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }
    });
    let path = log.clone();
    let logs = |config: &mut Config| config.access_log = Some(path);
    let server = TestServer::with_service(&folder, logs, app);
    let stream = server.connect_and_send("GET /long HTTP/1.1\r\nhost: x\r\n\r\n");
    wait_until("the handler runs", || started.load(Ordering::SeqCst));
    stream.shutdown(Shutdown::Write).unwrap();
    wait_until("the handler is dropped", || dropped.load(Ordering::SeqCst));
    server.wait_until_idle();
    assert_eq!(server.end(), 0);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(
        log.contains("\"path\":\"/long\"") && log.contains("\"status\":499"),
        "{log}"
    );
}
