//! Limits of clients: time, connections, bodies, requests per second.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use upshift_serve::Config;

use crate::harness::{Answer, Folder, TestServer, rest, wait_until};

fn set_short_timeouts(config: &mut Config) {
    let limits = &mut config.limits;
    limits.header_timeout = Duration::from_millis(500);
    limits.idle_timeout = Duration::from_millis(700);
    limits.body_timeout = Duration::from_millis(500);
    limits.write_timeout = Duration::from_millis(500);
}

#[test]
fn a_slow_head_is_cut_off() {
    let folder = Folder::new();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    let began = Instant::now();
    let mut stream = server.connect();
    for byte in b"GET / HTTP/1.1\r\nhost: test\r\nx: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(rest(&mut stream).is_empty());
    assert!(began.elapsed() < Duration::from_secs(60));
    server.wait_until_idle();
}

#[test]
fn a_silent_client_is_cut_off_before_and_after_a_request() {
    let folder = Folder::new();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    let mut silent = server.connect();
    let mut idle = server.connect_and_send("GET /plaintext HTTP/1.1\r\nhost: test\r\n\r\n");
    assert!(rest(&mut silent).is_empty());
    let answer = Answer::parse(rest(&mut idle));
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "Hello, World!")
    );
    server.wait_until_idle();
}

#[test]
fn a_slow_body_is_cut_off() {
    let folder = Folder::new();
    let app = axum::Router::new().route("/", axum::routing::post(|body: String| async { body }));
    let server = TestServer::with_service(&folder, set_short_timeouts, app);
    let mut stream =
        server.connect_and_send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n");
    let began = Instant::now();
    // The client is never silent for long, but far too slow.
    while began.elapsed() < Duration::from_secs(60) {
        if stream.write_all(b"x").is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(began.elapsed() < Duration::from_secs(60));
    server.wait_until_idle();
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let folder = Folder::new();
    // More bytes than the buffers of both sockets can be configured to hold.
    let big = std::fs::File::create(folder.0.join("big.bin")).unwrap();
    big.set_len(256 << 20).unwrap();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    let mut stream = server.connect_and_send("GET /big.bin HTTP/1.1\r\nhost: test\r\n\r\n");
    stream.peek(&mut [0]).unwrap();
    server.wait_until_idle();
    let got = rest(&mut stream).len();
    assert!(got < 256 << 20, "{got}");
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let folder = Folder::new();
    let server = TestServer::with(&folder.0, |config| config.limits.connections_per_peer = 4);
    let asks = || server.connect_and_send("GET /plaintext HTTP/1.1\r\nhost: test\r\n\r\n");
    let open: Vec<_> = (0..4).map(|_| asks()).collect();
    for stream in &open {
        stream.peek(&mut [0]).unwrap();
    }
    assert!(rest(&mut server.connect()).is_empty());
    drop(open);
    server.wait_until_idle();
    assert!(server.is_healthy());
}

/// Returns the number of polls of coroutines, except for those of the clock and of accepting.
fn polls(server: &TestServer) -> u64 {
    let metrics = server.handle.metrics();
    let levels = metrics.levels.iter();
    let of_clients = levels.filter(|level| level.level.get() > 1);
    of_clients.map(|level| level.polls).sum()
}

#[test]
fn idle_connections_cost_the_others_nothing() {
    let folder = Folder::new();
    let server = TestServer::with(&folder.0, |config| {
        config.limits.connections = 20_000;
        config.limits.connections_per_peer = 20_000;
        // Opening the connections may take any time.
        config.limits.header_timeout = Duration::ZERO;
    });
    let polls_of_hundred = || {
        let before = polls(&server);
        (0..100).for_each(|_| assert!(server.is_healthy()));
        polls(&server) - before
    };
    let alone = polls_of_hundred();
    // Both ends are in this process; the server has raised the limit to the hard one.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let count = most.map_or(10_000, |most| 10_000.min((most as usize - 500) / 2));
    let idle: Vec<_> = (0..count).map(|_| server.connect()).collect();
    wait_until("all are accepted", || server.control.connections() >= count);
    // Each connection has been polled after it was accepted.
    wait_until("requests take as many polls as without them", || {
        polls_of_hundred() < 3 * alone
    });
    assert!(server.control.connections() >= count);
    drop(idle);
    server.wait_until_idle();
}

#[test]
fn bodies_beyond_the_limit_are_refused() {
    let folder = Folder::new();
    let app = axum::Router::new().route(
        "/",
        axum::routing::post(|request: axum::extract::Request| async move {
            match axum::body::to_bytes(request.into_body(), usize::MAX).await {
                Ok(body) => (axum::http::StatusCode::OK, body.len().to_string()),
                Err(error) => (axum::http::StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
            }
        }),
    );
    let limit = |config: &mut Config| config.limits.body_bytes = 1000;
    let server = TestServer::with_service(&folder, limit, app);
    let told = server.talk("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1001\r\n\r\n");
    assert!(
        told.starts_with("HTTP/1.1 413") && told.contains("connection: close"),
        "{told}"
    );
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    let chunked = format!(
        "POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
    );
    assert!(
        server
            .talk(format!("{chunked}0\r\n\r\n"))
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        server
            .talk(format!("{chunked}{chunk}0\r\n\r\n"))
            .starts_with("HTTP/1.1 413")
    );
}

/// Further requests that compute would make a level wait longer. A file, or a text in memory, is
/// sent at once in its turn.
#[test]
fn files_are_served_regardless_of_the_wait_of_their_level() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let server = TestServer::with(&folder.0, |config| {
        config.admission.max_wait = Duration::from_millis(1);
    });
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let computes = async move {
        while !stopped.load(Ordering::Relaxed) {
            upshift::yield_if_needed().await;
        }
    };
    let hog = server.handle.spawn(computes, upshift::Level::at::<8>());
    let close = "host: x\r\nconnection: close\r\n\r\n";
    let ask = |path: &str| server.connect_and_send(format!("GET {path} HTTP/1.1\r\n{close}"));
    let mut waiting = vec![ask("/page.txt")];
    server.wait_for_requests(1);
    std::thread::sleep(Duration::from_millis(50));
    for path in ["/page.txt", "/plaintext", "/page.txt", "/none"] {
        waiting.push(ask(path));
        server.wait_for_requests(waiting.len());
    }
    assert_eq!(server.get("/matrix?n=2", "").status, 503);
    stop.store(true, Ordering::Relaxed);
    let answers = waiting.iter_mut().map(|stream| Answer::parse(rest(stream)));
    let statuses: Vec<_> = answers.map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 404]);
    drop(hog);
}

#[test]
fn requests_beyond_the_rate_get_429() {
    let folder = Folder::new();
    let server = TestServer::with(&folder.0, |config| config.limits.request_rate = 2);
    let answers: Vec<_> = (0..60).map(|_| server.get("/plaintext", "")).collect();
    let refused: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 429)
        .collect();
    assert!(answers[0].status == 200 && !refused.is_empty());
    assert_eq!(refused[0].header("retry-after"), Some("1"));
    assert!(server.is_healthy(), "the watching client is not limited");
}

#[test]
fn a_client_that_requests_much_and_reads_nothing_is_disconnected() {
    let folder = Folder::new();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    let mut stream = server.connect();
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    // Short answers, until neither socket has room: the current one then waits.
    let many = b"GET /plaintext HTTP/1.1\r\nhost: test\r\n\r\n".repeat(1000);
    while stream.write_all(&many).is_ok() {}
    server.wait_until_idle();
    // The server's end is closed: bytes sent to it are reset.
    let began = Instant::now();
    loop {
        match stream.write(b"x") {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => assert!(
                began.elapsed() < Duration::from_secs(30),
                "it is open still"
            ),
        }
    }
}
