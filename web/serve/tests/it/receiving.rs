//! The work of a client at the level of receiving is bounded for any input: urgent requests of
//! others are answered meanwhile, and the polls of its connection are short.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::{Folder, TestServer, read_until};
use crate::http2::{PING, PRIORITY, PRIORITY_UPDATE, SETTINGS, WINDOW_UPDATE, frame, open};

const UNKNOWN: u8 = 0xee;

/// Shortest duration of a flood.
const FLOOD_TIME: Duration = Duration::from_millis(800);
/// Number of urgent requests during a flood.
const URGENT_REQUESTS: usize = 20;

/// A client that repeats the same bytes, and reads the answers.
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
        let reads = std::thread::spawn(move || {
            let mut some = vec![0; 1 << 16];
            let mut all = 0;
            while let Ok(count @ 1..) = from.read(&mut some) {
                all += count as u64;
            }
            all
        });
        let writes = std::thread::spawn(move || {
            let mut all = 0;
            while !stopped.load(Relaxed) && to.write_all(&bytes).is_ok() {
                all += bytes.len() as u64;
            }
            all
        });
        Flood {
            stream,
            stop,
            threads: vec![writes, reads],
        }
    }

    /// Returns the number of bytes sent and received.
    fn end(self) -> [u64; 2] {
        self.stop.store(true, Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
        let mut threads = self.threads.into_iter();
        [(); 2].map(|()| threads.next().unwrap().join().unwrap())
    }
}

/// Returns the time in polls of these levels, and their number.
fn polls(server: &TestServer, levels: &[u8]) -> (Duration, u64) {
    let metrics = server.handle.metrics();
    let of = metrics.levels.iter();
    of.filter(|entry| levels.contains(&entry.level.get()))
        .fold((Duration::ZERO, 0), |sum, of| {
            (sum.0 + of.run, sum.1 + of.polls)
        })
}

/// Lets `count` clients send the bytes, while others make urgent requests.
fn flood(what: &str, count: usize, connect: fn(&TestServer) -> TcpStream, bytes: &[u8]) {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let receive = 2;
    let beyond = upshift_serve::Urgency::default().level().get();
    let floods: Vec<_> = (0..count)
        .map(|_| Flood::start(connect(&server), bytes.to_vec()))
        .collect();
    // The clients have used up their initial budgets.
    std::thread::sleep(FLOOD_TIME / 4);
    let (began, before) = (Instant::now(), polls(&server, &[receive]));
    let all = polls(&server, &[receive, beyond]);
    let mut urgent = server.connect();
    let request = b"GET /plaintext HTTP/1.1\r\nhost: test\r\npriority: u=0\r\n\r\n";
    let mut answered = 0;
    while answered < URGENT_REQUESTS || began.elapsed() < FLOOD_TIME {
        urgent.write_all(request).unwrap();
        let got = read_until(&mut urgent, |got| got.ends_with(b"Hello, World!"));
        assert!(got.starts_with(b"HTTP/1.1 200"), "{what}: {got:?}");
        answered += 1;
        std::thread::sleep(Duration::from_millis(5));
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{what}: {answered} urgent requests in a minute"
        );
    }
    let (took, after) = (began.elapsed(), polls(&server, &[receive]));
    let receiving = after.0 - before.0;
    let (run, number) = polls(&server, &[receive, beyond]);
    let poll = (run - all.0) / u32::try_from((number - all.1).max(1)).unwrap();
    let bytes: Vec<_> = floods.into_iter().map(Flood::end).collect();
    println!(
        "{what} x {count}: {answered} in {took:?}, {receiving:?} at the level of receiving, {poll:?} a poll, {bytes:?}"
    );
    assert!(bytes.iter().all(|bytes| bytes[0] > 0), "{what}: {bytes:?}");
    // A tenth of the time, and for each connection its budget and six of its longest polls, in
    // which a busy machine may have stopped the server.
    let longest = 20 * poll;
    let bound = took / 5 + (Duration::from_millis(1) + 6 * longest) * count as u32;
    assert!(
        receiving < bound,
        "{what}: {receiving:?} of {took:?} at the level of receiving, more than {bound:?}"
    );
    // A poll ends before it has read all available bytes.
    assert!(poll < took / 10, "{what}: a poll takes {poll:?}");
    assert!(server.is_healthy(), "{what}");
}

/// Returns HTTP/2 frames that request nothing.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let table = |size: u32| {
        let entry = [&[0, 1][..], &size.to_be_bytes()].concat();
        frame(SETTINGS, 0, 0, &entry)
    };
    vec![
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("SETTINGS that change", [table(0), table(4096)].concat()),
        ("PING", frame(PING, 0, 0, &[0; 8])),
        // 2³¹ until the window overflows.
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 16])),
        (
            "PRIORITY_UPDATE",
            frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=0"),
        ),
        ("an unknown frame", frame(UNKNOWN, 0, 0, &[0; 8])),
    ]
}

#[test]
fn floods_of_frames_leave_the_cpu_to_urgent_requests() {
    for (what, bytes) in frames() {
        flood(what, 1, open, &bytes.repeat(500));
    }
}

/// Health checks, and requests that are refused.
#[test]
fn floods_of_requests_leave_the_cpu_to_urgent_requests() {
    for (what, head) in [
        ("healthz", "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"),
        ("metrics", "GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n"),
        ("no host", "GET / HTTP/1.1\r\n\r\n"),
    ] {
        flood(what, 1, TestServer::connect, head.repeat(100).as_bytes());
    }
}

#[test]
fn many_floods_at_once_leave_the_cpu_to_urgent_requests() {
    let ping = frame(PING, 0, 0, &[0; 8]);
    flood("PING", 10, open, &ping.repeat(500));
    let request = "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n";
    flood(
        "healthz",
        10,
        TestServer::connect,
        request.repeat(100).as_bytes(),
    );
}

/// Such a client is received when its budget allows it, and not only when more urgent work leaves
/// the CPU idle.
#[test]
fn a_connection_over_its_allowance_is_received_again_beside_a_request_that_computes() {
    let folder = Folder::new();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let work = move || {
        let stop = told.clone();
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
    // More than a budget holds in any build, all at once, and an urgent request behind it.
    let many = "GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n".repeat(40);
    let last = "GET / HTTP/1.1\r\nhost: test\r\npriority: u=0\r\n\r\n";
    let mut floods = server.connect_and_send(many + last);
    let answers = read_until(&mut floods, |got| got.ends_with(b"urgent"));
    assert!(answers.ends_with(b"urgent"), "{} bytes", answers.len());
    stop.store(true, Relaxed);
    let done = read_until(&mut busy, |got| {
        got.windows(4).any(|end| end == b"\r\n\r\n")
    });
    assert!(done.starts_with(b"HTTP/1.1 200"));
}
