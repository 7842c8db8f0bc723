//! Tests of request levels: their choice, their changes, and the refusal of the least urgent
//! requests under overload.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use upshift::Level;
use upshift_serve::Config;

use crate::harness::{Folder, TestServer, read_until, wait_until};

/// Returns a service that answers with the level of the request. `/work` computes until `stop` is
/// set, and answers with its last level.
fn app(stop: Arc<AtomicBool>) -> axum::Router {
    use axum::routing::get;
    let level = || async { upshift::current_level().unwrap().to_string() };
    let work = move || {
        let stop = stop.clone();
        async move {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
                upshift::yield_if_needed().await;
            }
            upshift::current_level().unwrap().to_string()
        }
    };
    axum::Router::new()
        .route("/work", get(work))
        .fallback(level)
}

fn server_with_app(configure: impl FnOnce(&mut Config)) -> (TestServer, Arc<AtomicBool>, Folder) {
    let folder = Folder::new();
    let stop = Arc::new(AtomicBool::new(false));
    let app = app(stop.clone());
    let server = TestServer::with_service(&folder, configure, app);
    (server, stop, folder)
}

#[test]
fn a_rule_takes_precedence_over_the_client_and_the_client_over_the_default() {
    let (server, _, _folder) = server_with_app(|config| {
        config.ceiling = 1;
        config.priority = [
            "POST /api=9",
            "/api=8",
            "header:x-tier:gold=7",
            "peer:10.0.0.0/8=6",
        ]
        .map(|rule| rule.parse().unwrap())
        .to_vec();
    });
    for (method, path, header, level) in [
        ("GET", "/x", "", "28"),
        ("GET", "/x", "priority: u=5\r\n", "44"),
        ("GET", "/x", "priority: u=5, i\r\n", "45"),
        ("GET", "/x", "priority: u=0\r\n", "12"),
        ("GET", "/api/x", "priority: u=0\r\n", "8"),
        ("POST", "/api/x", "content-length: 0\r\n", "9"),
        ("GET", "/x", "x-tier: gold\r\n", "7"),
        ("GET", "/x", "x-tier: tin\r\n", "28"),
    ] {
        assert_eq!(
            server.ask(method, path, header).text(),
            level,
            "{method} {path} {header}"
        );
    }
}

#[test]
fn the_operator_changes_the_levels_of_running_requests() {
    let (server, stop, _folder) = server_with_app(|_| {});
    let address = server.address;
    let clients: Vec<_> = (0..3)
        .map(|_| std::thread::spawn(move || request_until_close(address, "/work", "u=6")))
        .collect();
    server.wait_for_requests(3);
    let requests = server.control.requests();
    assert_eq!(requests.len(), 3);
    assert!(
        requests
            .iter()
            .all(|(_, level, ..)| *level == Level::at::<52>())
    );
    // The operator changes the level of one request, selected by its number. The rule that is added
    // below applies to a later request.
    assert!(server.control.reprio(requests[0].0, Level::at::<5>()));
    assert!(!server.control.reprio(u64::MAX, Level::at::<5>()));
    stop.store(true, Ordering::Relaxed);
    let mut levels: Vec<_> = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .map(|answer| answer.rsplit("\r\n").next().unwrap().to_owned())
        .collect();
    levels.sort();
    assert_eq!(levels, ["5", "52", "52"]);
    let reloaded = server
        .control
        .add_rule("/work=50".parse().unwrap())
        .unwrap();
    assert_eq!(reloaded.moved, 0, "no request is running any more");
    assert_eq!(server.get("/work", "priority: u=0\r\n").text(), "50");
}

#[test]
fn under_overload_only_the_least_urgent_requests_are_refused() {
    let (server, stop, _folder) = server_with_app(|config| {
        // Short enough to refuse starved requests soon, and long enough that a slow machine causes
        // no refusal.
        config.admission.max_wait = Duration::from_millis(300);
    });
    // An endless computation at level 28 makes all less urgent requests wait.
    let address = server.address;
    let computation = std::thread::spawn(move || request_until_close(address, "/work", "u=3"));
    server.wait_for_requests(1);
    let refusals = Arc::new(Mutex::new(Vec::new()));
    let mut background = Vec::new();
    wait_until("a request with u=7 is refused", || {
        let client_refusals = refusals.clone();
        background.push(std::thread::spawn(move || {
            let answer = request_until_close(address, "/x", "u=7");
            if answer.starts_with("HTTP/1.1 503") {
                client_refusals.lock().unwrap().push(answer);
            }
        }));
        std::thread::sleep(Duration::from_millis(150));
        !refusals.lock().unwrap().is_empty()
    });
    for _ in 0..20 {
        assert_eq!(server.get("/x", "priority: u=0\r\n").status, 200);
    }
    assert!(server.is_healthy());
    let refusal = refusals.lock().unwrap()[0].clone();
    assert!(refusal.contains("retry-after: 1"), "{refusal}");
    stop.store(true, Ordering::Relaxed);
    assert!(computation.join().unwrap().starts_with("HTTP/1.1 200"));
    for client in background {
        client.join().unwrap();
    }
    let metrics = server.get("/metrics", "").text();
    assert!(
        metrics.contains("upshift_http_refused_total{level=\"4\"} 0"),
        "{metrics}"
    );
    assert!(
        !metrics.contains("upshift_http_refused_total{level=\"60\"} 0"),
        "{metrics}"
    );
}

fn request_until_close(address: SocketAddr, path: &str, priority: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\npriority: {priority}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Size of a piece of the endless body, in bytes.
const PIECE: usize = 64 * 1024;

/// An endless body, which counts the pieces that were taken from it.
struct Endless(Arc<AtomicU64>);

impl http_body::Body for Endless {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        static BYTES: [u8; PIECE] = [0; PIECE];
        let piece = bytes::Bytes::from_static(&BYTES);
        Poll::Ready(Some(Ok(http_body::Frame::data(piece))))
    }
}

#[test]
fn each_poll_of_a_download_is_short() {
    let folder = Folder::new();
    let (pieces, max_pieces) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counters = (pieces.clone(), max_pieces.clone());
    let app = axum::Router::new().fallback(move || {
        let (pieces, max_pieces) = counters.clone();
        let counted = pieces.clone();
        async move {
            // A coroutine of the same level that is always ready runs between two polls of the
            // download.
            let observer = async move {
                let mut last = 0;
                while last < 1000 {
                    let now = counted.load(Ordering::Relaxed);
                    max_pieces.fetch_max(now - last, Ordering::Relaxed);
                    last = now;
                    upshift::yield_now().await;
                }
            };
            upshift::spawn(observer, upshift::Priority::Inherit).detach();
            axum::body::Body::new(Endless(pieces))
        }
    });
    let server = TestServer::with_service(&folder, |_| {}, app);
    let mut stream =
        server.connect_and_send("GET / HTTP/1.1\r\nhost: test\r\npriority: u=7\r\n\r\n");
    // The socket buffers fill first. The client reads the rest below.
    std::thread::sleep(Duration::from_millis(200));
    let mut buffer = vec![0; 1 << 20];
    wait_until("1100 pieces are sent", || {
        assert_ne!(stream.read(&mut buffer).unwrap(), 0);
        pieces.load(Ordering::Relaxed) > 1100
    });
    // A poll ends after 100 µs. In this time an idle machine sends five to ten pieces, and a loaded
    // machine fewer. Without that bound, a poll would fill the socket buffers with 60 pieces.
    let max_pieces = max_pieces.load(Ordering::Relaxed);
    assert!(
        (1..=30).contains(&max_pieces),
        "{max_pieces} pieces in one poll"
    );
    // More urgent requests are answered meanwhile.
    let mut other =
        server.connect_and_send("GET /healthz HTTP/1.1\r\nhost: test\r\npriority: u=0\r\n\r\n");
    let answer = read_until(&mut other, |bytes| bytes.ends_with(b"ok\n"));
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}
