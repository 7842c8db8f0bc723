//! Tests of the budget for receiving. Whatever bytes a client sends, the server must answer urgent
//! requests of other clients meanwhile, and the polls of the client's connection must be short.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::{Folder, TestServer, read_until};
use crate::http2::{
    PING, PRIORITY, PRIORITY_UPDATE, SETTINGS, WINDOW_UPDATE, connect_http2, frame,
};

const UNKNOWN_FRAME: u8 = 0xee;

/// Shortest duration of a flood.
const FLOOD: Duration = Duration::from_millis(800);
const URGENT_REQUESTS: usize = 20;

/// A client that sends the same bytes repeatedly, and reads the responses.
struct Flood {
    stream: TcpStream,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Flood {
    fn start(stream: TcpStream, bytes: Vec<u8>) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut from, mut to) = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        let stopped = stop.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            let mut received = 0;
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                received += count as u64;
            }
            received
        });
        let writer = std::thread::spawn(move || {
            let mut sent = 0;
            while !stopped.load(Relaxed) && to.write_all(&bytes).is_ok() {
                sent += bytes.len() as u64;
            }
            sent
        });
        Flood {
            stream,
            stop,
            threads: vec![writer, reader],
        }
    }

    /// Ends the client. Returns the numbers of sent and of received bytes.
    fn end(self) -> [u64; 2] {
        self.stop.store(true, Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
        let mut threads = self.threads.into_iter();
        [(); 2].map(|()| threads.next().unwrap().join().unwrap())
    }
}

/// Returns the total duration and the number of the polls at `levels`.
fn polls(server: &TestServer, levels: &[u8]) -> (Duration, u64) {
    let metrics = server.handle.metrics();
    let all = metrics.levels.iter();
    all.filter(|entry| levels.contains(&entry.level.get()))
        .fold((Duration::ZERO, 0), |sum, entry| {
            (sum.0 + entry.run, sum.1 + entry.polls)
        })
}

/// Floods a server from `count` clients, and asserts that another client's urgent requests are
/// answered and that the flood takes little CPU time at the level of receiving.
fn flood(case: &str, count: usize, connect: fn(&TestServer) -> TcpStream, bytes: &[u8]) {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let receive_level = 2;
    let default_level = upshift_serve::Urgency::default().level().get();
    let clients: Vec<_> = (0..count)
        .map(|_| Flood::start(connect(&server), bytes.to_vec()))
        .collect();
    // After this time the clients have exhausted their initial budgets.
    std::thread::sleep(FLOOD / 4);
    let (started, before) = (Instant::now(), polls(&server, &[receive_level]));
    let all_before = polls(&server, &[receive_level, default_level]);
    let mut urgent = server.connect();
    let request = b"GET /plaintext HTTP/1.1\r\nhost: test\r\npriority: u=0\r\n\r\n";
    let mut answered = 0;
    while answered < URGENT_REQUESTS || started.elapsed() < FLOOD {
        urgent.write_all(request).unwrap();
        let got = read_until(&mut urgent, |got| got.ends_with(b"Hello, World!"));
        assert!(got.starts_with(b"HTTP/1.1 200"), "{case}: {got:?}");
        answered += 1;
        std::thread::sleep(Duration::from_millis(5));
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{case}: {answered} urgent requests in a minute"
        );
    }
    let (took, after) = (started.elapsed(), polls(&server, &[receive_level]));
    let receiving = after.0 - before.0;
    let (run, poll_count) = polls(&server, &[receive_level, default_level]);
    let mean_poll =
        (run - all_before.0) / u32::try_from((poll_count - all_before.1).max(1)).unwrap();
    let bytes: Vec<_> = clients.into_iter().map(Flood::end).collect();
    println!(
        "{case} x {count}: {answered} in {took:?}, {receiving:?} at the level of receiving, {mean_poll:?} a poll, {bytes:?}"
    );
    assert!(bytes.iter().all(|bytes| bytes[0] > 0), "{case}: {bytes:?}");
    // The bound is a fifth of the time and, for each connection, its initial budget of 1 ms and six
    // of its longest polls, during which a busy machine may have stopped the server. A longest poll
    // is assumed to take 20 times the mean.
    let longest = 20 * mean_poll;
    let bound = took / 5 + (Duration::from_millis(1) + 6 * longest) * count as u32;
    assert!(
        receiving < bound,
        "{case}: {receiving:?} of {took:?} at the level of receiving, more than {bound:?}"
    );
    // A poll ends before it has read all available bytes.
    assert!(mean_poll < took / 10, "{case}: a poll takes {mean_poll:?}");
    assert!(server.is_healthy(), "{case}");
}

/// Returns HTTP/2 frames that request nothing.
fn idle_frames() -> Vec<(&'static str, Vec<u8>)> {
    let table = |size: u32| {
        let entry = [&[0, 1][..], &size.to_be_bytes()].concat();
        frame(SETTINGS, 0, 0, &entry)
    };
    vec![
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("SETTINGS that change", [table(0), table(4096)].concat()),
        ("PING", frame(PING, 0, 0, &[0; 8])),
        // The window overflows only after 2³¹ of these frames.
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 16])),
        (
            "PRIORITY_UPDATE",
            frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=0"),
        ),
        ("an unknown frame", frame(UNKNOWN_FRAME, 0, 0, &[0; 8])),
    ]
}

#[test]
fn floods_of_frames_leave_the_cpu_to_urgent_requests() {
    for (case, bytes) in idle_frames() {
        flood(case, 1, connect_http2, &bytes.repeat(500));
    }
}

/// The floods consist of health checks, and of requests that are refused. Urgent requests of
/// another client must be answered meanwhile.
#[test]
fn floods_of_requests_leave_the_cpu_to_urgent_requests() {
    for (case, head) in [
        ("healthz", "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"),
        ("metrics", "GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n"),
        ("no host", "GET / HTTP/1.1\r\n\r\n"),
    ] {
        flood(case, 1, TestServer::connect, head.repeat(100).as_bytes());
    }
}

#[test]
fn many_floods_at_once_leave_the_cpu_to_urgent_requests() {
    let ping = frame(PING, 0, 0, &[0; 8]);
    flood("PING", 10, connect_http2, &ping.repeat(500));
    let request = "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n";
    flood(
        "healthz",
        10,
        TestServer::connect,
        request.repeat(100).as_bytes(),
    );
}

/// The server must receive from the client again when the client's budget has been refilled,
/// although more urgent work keeps the CPU busy.
#[test]
fn a_client_that_exhausted_its_budget_is_received_again_beside_a_request_that_computes() {
    let folder = Folder::new();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let work = move || {
        let stop = stopped.clone();
        async move {
            while !stop.load(Relaxed) {
                upshift::yield_if_needed().await;
            }
        }
    };
    let app = axum::Router::new()
        .route("/work", axum::routing::get(work))
        .route("/", axum::routing::get(|| async { "urgent" }));
    let server = TestServer::with_service(&folder, |_| {}, app);
    let mut busy =
        server.connect_and_send("GET /work HTTP/1.1\r\nhost: test\r\npriority: u=1\r\n\r\n");
    server.wait_for_requests(1);
    // The requests exceed the client's budget even in an optimized build. An urgent request follows
    // them.
    let flood = "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n".repeat(40);
    let urgent = "GET / HTTP/1.1\r\nhost: test\r\npriority: u=0\r\n\r\n";
    let mut client = server.connect_and_send(flood + urgent);
    let answers = read_until(&mut client, |got| got.ends_with(b"urgent"));
    assert!(answers.ends_with(b"urgent"), "{} bytes", answers.len());
    stop.store(true, Relaxed);
    let response = read_until(&mut busy, |got| {
        got.windows(4).any(|end| end == b"\r\n\r\n")
    });
    assert!(response.starts_with(b"HTTP/1.1 200"));
}
