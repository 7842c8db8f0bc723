//! Clients that close their sending half after the request, as `nc -N` and some health checks do.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use upshift_serve::Config;

use crate::harness::{Answer, Folder, TestServer, rest, wait_until};

#[test]
fn a_file_is_sent_to_a_client_that_has_closed_its_sending_half() {
    let folder = Folder::new();
    // More bytes than the buffers of both sockets hold at once.
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
        for close in ["", "connection: close\r\n"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{close}\r\n");
            let mut stream = server.connect_and_send(request);
            stream.shutdown(Shutdown::Write).unwrap();
            let answer = Answer::parse(rest(&mut stream));
            assert_eq!((answer.status, answer.body.len()), (200, length), "{path}");
        }
    }
    // All requests that were sent together are answered, and then the connection is closed.
    let mut stream = server.connect();
    let request = "GET /page.txt HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3);
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answers = String::from_utf8(rest(&mut stream)).unwrap();
    assert_eq!(answers.matches("a page").count(), 3, "{answers}");
    server.wait_until_idle();
}

/// A handler may take long, most likely for a client that is gone.
#[test]
fn a_service_is_not_asked_in_vain_and_the_log_says_so() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let folder = Folder::new();
    let log = folder.0.join("log");
    let (begun, dropped) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (begins, drops) = (begun.clone(), dropped.clone());
    let app = axum::Router::new().fallback(move || {
        let guard = Dropped(drops.clone());
        begins.store(true, Ordering::SeqCst);
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }
    });
    let path = log.clone();
    let logs = |config: &mut Config| config.access_log = Some(path);
    let server = TestServer::with_service(&folder, logs, app);
    let stream = server.connect_and_send("GET /long HTTP/1.1\r\nhost: x\r\n\r\n");
    wait_until("the handler runs", || begun.load(Ordering::SeqCst));
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
