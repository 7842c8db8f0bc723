//! Tests of the limits for clients: time-outs, connections, body sizes, requests per second.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use upshift_serve::Config;

use crate::harness::{Answer, Folder, TestServer, read_to_end, wait_until};

fn short_timeouts(config: &mut Config) {
    let limits = &mut config.limits;
    limits.header_timeout = Duration::from_millis(500);
    limits.idle_timeout = Duration::from_millis(700);
    limits.body_timeout = Duration::from_millis(500);
    limits.write_timeout = Duration::from_millis(500);
}

#[test]
fn a_client_that_sends_its_head_too_slowly_is_cut_off() {
    let folder = Folder::new();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    let started = Instant::now();
    let mut stream = server.connect();
    for byte in b"GET / HTTP/1.1\r\nhost: test\r\nx: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(read_to_end(&mut stream).is_empty());
    assert!(started.elapsed() < Duration::from_secs(60));
    server.wait_until_idle();
}

#[test]
fn a_silent_client_is_cut_off_before_and_after_a_request() {
    let folder = Folder::new();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    let mut silent = server.connect();
    let mut idle = server.connect_and_send("GET /plaintext HTTP/1.1\r\nhost: test\r\n\r\n");
    assert!(read_to_end(&mut silent).is_empty());
    let answer = Answer::parse(read_to_end(&mut idle));
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "Hello, World!")
    );
    server.wait_until_idle();
}

#[test]
fn a_client_that_sends_its_body_too_slowly_is_cut_off() {
    let folder = Folder::new();
    let app = axum::Router::new().route("/", axum::routing::post(|body: String| async { body }));
    let server = TestServer::with_service(&folder, short_timeouts, app);
    let mut stream =
        server.connect_and_send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n");
    let started = Instant::now();
    // The client is never silent for as long as the time-out, but its rate is far too low.
    while started.elapsed() < Duration::from_secs(60) {
        if stream.write_all(b"x").is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(started.elapsed() < Duration::from_secs(60));
    server.wait_until_idle();
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let folder = Folder::new();
    // The size exceeds the buffers of both sockets, however they are configured.
    let big = std::fs::File::create(folder.0.join("big.bin")).unwrap();
    big.set_len(256 << 20).unwrap();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    let mut stream = server.connect_and_send("GET /big.bin HTTP/1.1\r\nhost: test\r\n\r\n");
    stream.peek(&mut [0]).unwrap();
    server.wait_until_idle();
    let received = read_to_end(&mut stream).len();
    assert!(received < 256 << 20, "{received} bytes");
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let folder = Folder::new();
    let server =
        TestServer::with_config(&folder.0, |config| config.limits.connections_per_peer = 4);
    let request = || server.connect_and_send("GET /plaintext HTTP/1.1\r\nhost: test\r\n\r\n");
    let open: Vec<_> = (0..4).map(|_| request()).collect();
    for stream in &open {
        stream.peek(&mut [0]).unwrap();
    }
    assert!(read_to_end(&mut server.connect()).is_empty());
    drop(open);
    server.wait_until_idle();
    assert!(server.is_healthy());
}

/// Returns how often the coroutines that serve clients were polled. These coroutines have levels
/// above 1.
fn polls(server: &TestServer) -> u64 {
    let metrics = server.handle.metrics();
    let levels = metrics.levels.iter();
    let client_levels = levels.filter(|metrics| metrics.level.get() > 1);
    client_levels.map(|metrics| metrics.polls).sum()
}

#[test]
fn idle_connections_cause_no_polls() {
    let folder = Folder::new();
    let server = TestServer::with_config(&folder.0, |config| {
        config.limits.connections = 20_000;
        config.limits.connections_per_peer = 20_000;
        // Opening the connections may take any time.
        config.limits.header_timeout = Duration::ZERO;
    });
    let polls_of_100_requests = || {
        let before = polls(&server);
        (0..100).for_each(|_| assert!(server.is_healthy()));
        polls(&server) - before
    };
    let polls_without_idle = polls_of_100_requests();
    // Both ends of a connection count as files of this process. The server has raised the soft
    // limit to the hard limit. 500 files are left for everything else.
    let max_files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let count = max_files.map_or(10_000, |max| 10_000.min((max as usize - 500) / 2));
    let idle: Vec<_> = (0..count).map(|_| server.connect()).collect();
    wait_until("all connections are accepted", || {
        server.control.connections() >= count
    });
    // A connection is polled when it has been accepted, so the number falls after a moment.
    wait_until(
        "requests take about as many polls as without idle connections",
        || polls_of_100_requests() < 3 * polls_without_idle,
    );
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
    let response = server.exchange("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 1001\r\n\r\n");
    assert!(
        response.starts_with("HTTP/1.1 413") && response.contains("connection: close"),
        "{response}"
    );
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    let chunked = format!(
        "POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
    );
    assert!(
        server
            .exchange(format!("{chunked}0\r\n\r\n"))
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        server
            .exchange(format!("{chunked}{chunk}0\r\n\r\n"))
            .starts_with("HTTP/1.1 413")
    );
}

/// A further request that computes must be refused, since it would make its level wait longer. A
/// file or a text in memory must be sent, since this costs almost no computation.
#[test]
fn files_are_served_however_long_their_level_waits() {
    let folder = Folder::new();
    folder.write("page.txt", "a page");
    let server = TestServer::with_config(&folder.0, |config| {
        config.admission.max_wait = Duration::from_millis(1);
    });
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let computation = async move {
        while !stopped.load(Ordering::Relaxed) {
            upshift::yield_if_needed().await;
        }
    };
    let computing = server.handle.spawn(computation, upshift::Level::at::<8>());
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
    let answers = waiting
        .iter_mut()
        .map(|stream| Answer::parse(read_to_end(stream)));
    let statuses: Vec<_> = answers.map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 404]);
    drop(computing);
}

#[test]
fn requests_beyond_the_rate_get_429() {
    let folder = Folder::new();
    let server = TestServer::with_config(&folder.0, |config| config.limits.request_rate = 2);
    let answers: Vec<_> = (0..60).map(|_| server.get("/plaintext", "")).collect();
    let refused: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 429)
        .collect();
    assert!(answers[0].status == 200 && !refused.is_empty());
    assert_eq!(refused[0].header("retry-after"), Some("1"));
    assert!(server.is_healthy(), "health checks are not limited");
}

#[test]
fn a_client_that_sends_many_requests_and_reads_nothing_is_closed() {
    let folder = Folder::new();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    let mut stream = server.connect();
    stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    // The buffers of both sockets fill with short responses, until the server has to wait in the
    // middle of one.
    let many = b"GET /plaintext HTTP/1.1\r\nhost: test\r\n\r\n".repeat(1000);
    while stream.write_all(&many).is_ok() {}
    server.wait_until_idle();
    // The server's end is closed, so the kernel resets the connection when bytes arrive.
    let started = Instant::now();
    loop {
        match stream.write(b"x") {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => assert!(
                started.elapsed() < Duration::from_secs(30),
                "the connection is still open"
            ),
        }
    }
}
