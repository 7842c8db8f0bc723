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
        for extra_header in ["", "connection: close\r\n"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{extra_header}\r\n");
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

/// While a handler runs, the server takes a shutdown of the client's sending half as a sign that
/// the client has gone. It must drop the handler, and log the request with nginx's status 499 (the
/// client has closed the connection).
#[test]
fn a_handler_whose_client_has_gone_is_dropped_and_logged_as_499() {
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let folder = Folder::new();
    let log_path = folder.0.join("log");
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
    let access_log = log_path.clone();
    let enable_log = |config: &mut Config| config.access_log = Some(access_log);
    let server = TestServer::with_service(&folder, enable_log, app);
    let stream = server.connect_and_send("GET /long HTTP/1.1\r\nhost: x\r\n\r\n");
    wait_until("the handler runs", || started.load(Ordering::SeqCst));
    stream.shutdown(Shutdown::Write).unwrap();
    wait_until("the handler is dropped", || dropped.load(Ordering::SeqCst));
    server.wait_until_idle();
    assert_eq!(server.end(), 0);
    let log = std::fs::read_to_string(log_path).unwrap();
    assert!(
        log.contains("\"path\":\"/long\"") && log.contains("\"status\":499"),
        "{log}"
    );
}
