//! Tests of the levels of requests, and of the level at which requests are received.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use upshift::{Builder, Driver, Level, Preemption, Runtime};

use crate::app::TestServer;

fn server_with_levels() -> TestServer {
    server_with_levels_on(upshift::Runtime::builder().vcpus(1))
}

fn server_with_levels_on(builder: upshift::Builder) -> TestServer {
    TestServer::start_on(builder, |server| {
        server.receive_level(Level::at::<3>()).levels(|request| {
            if request.uri().path().starts_with("/urgent") {
                Level::at::<1>()
            } else {
                Level::at::<40>()
            }
        })
    })
}

#[test]
fn each_request_of_a_connection_runs_at_its_level() {
    let server = server_with_levels();
    let request = |path, more| format!("GET {path} HTTP/1.1\r\nhost: test\r\n{more}\r\n");
    let answers = server.exchange(
        request("/level", "")
            + &request("/urgent/level", "")
            + &request("/level", "")
            + &request("/urgent/level", "connection: close\r\n"),
    );
    let levels: Vec<_> = answers
        .split("\r\n\r\n")
        .skip(1)
        .map(|body| body.split("HTTP/1.1").next().unwrap())
        .collect();
    assert_eq!(levels, ["40", "1", "40", "1"], "{answers}");
}

#[test]
fn streams_of_an_http2_connection_have_separate_levels() {
    let server = server_with_levels();
    let address = server.address;
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let client = crate::client::http2_client();
        for (path, level) in [("/level", "40"), ("/urgent/level", "1"), ("/level", "40")] {
            let uri = format!("http://{address}{path}").parse().unwrap();
            let response = client.get(uri).await.unwrap();
            assert_eq!(crate::client::body_text(response).await, level);
        }
    });
}

/// Sending a response is an operation at the level of its request. The vCPU polls all ready
/// requests of one level before it submits their responses, with one system call.
#[test]
fn responses_of_one_level_are_submitted_together() {
    const CONNECTIONS: usize = 16;
    const ROUNDS: usize = 10;
    // With this interval, the vCPU enters its ring only for submissions and waits.
    let builder = upshift::Runtime::builder().vcpus(1);
    let server = server_with_levels_on(builder.reap_interval(std::time::Duration::from_millis(10)));
    let mut first = server.connect();
    let mut others: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    let mut buffer = [0; 1024];
    let enters = || server.handle.metrics().vcpus[0].ring.enters;
    let before = enters();
    for _ in 0..ROUNDS {
        first
            .write_all(b"GET /block HTTP/1.1\r\nhost: test\r\n\r\n")
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        for other in &mut others {
            other
                .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
                .unwrap();
        }
        for stream in others.iter_mut().chain([&mut first]) {
            assert!(stream.read(&mut buffer).unwrap() > 0);
        }
    }
    let enters = enters() - before;
    // If each response had its own system call, their number alone would be CONNECTIONS * ROUNDS.
    // The bound leaves room for the system calls that receive the requests.
    let max_enters = (CONNECTIONS * ROUNDS * 3 / 4) as u64;
    assert!(enters < max_enters, "{enters} enters, {max_enters} at most");
}

/// A client that sends PINGs and reads the answers takes little CPU time at the level of receiving.
#[test]
fn floods_take_little_time_at_the_level_of_receiving() {
    let builder = || upshift::Runtime::builder().vcpus(1);
    check_flood(builder());
    check_flood(builder().driver(Driver::Readiness));
    check_flood(builder().preemption(Preemption::Preferred));
}

fn check_flood(builder: upshift::Builder) {
    use std::time::{Duration, Instant};
    let server = server_with_levels_on(builder);
    let mut flood = server.connect();
    flood
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut answers = flood.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut buffer_of_reader = vec![0; 1 << 16];
        while let Ok(1..) = answers.read(&mut buffer_of_reader) {}
    });
    let mut ping_sender = flood.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let pings = b"\0\0\x08\x06\0\0\0\0\0PINGPING".repeat(500);
        while ping_sender.write_all(&pings).is_ok() {}
    });
    std::thread::sleep(Duration::from_millis(200));
    let receive_time = || {
        let metrics = server.handle.metrics();
        let mut levels = metrics.levels.iter();
        let receiving = levels.find(|entry| entry.level.get() == 3);
        receiving.map_or(Duration::ZERO, |entry| entry.run)
    };
    let (began, before) = (Instant::now(), receive_time());
    let mut client = server.connect();
    let mut buffer = [0; 1024];
    for _ in 0..20 {
        let request = b"GET /urgent/level HTTP/1.1\r\nhost: test\r\n\r\n";
        client.write_all(request).unwrap();
        assert!(client.read(&mut buffer).unwrap() > 0);
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (elapsed, receiving) = (began.elapsed(), receive_time() - before);
    flood.shutdown(std::net::Shutdown::Both).unwrap();
    writer.join().unwrap();
    reader.join().unwrap();
    assert!(
        receiving < elapsed / 3,
        "receiving took {receiving:?} of {elapsed:?}"
    );
}

/// The levels at which a server has received its requests.
#[derive(Clone, Default)]
struct ReceiveLevels(Arc<Mutex<Vec<u8>>>);

impl ReceiveLevels {
    /// Starts a server that receives at level 3 and answers at level 8. A connection whose budget
    /// (the CPU time that it may use at level 3) is exhausted is received at level 50.
    fn start_server(&self, builder: Builder) -> TestServer {
        let received = self.clone();
        TestServer::start_on(builder, |server| {
            let server = server.receive_level(Level::at::<3>());
            let server = server.throttled_level(Level::at::<50>());
            server.levels(move |_| {
                let level = upshift::current_level().unwrap();
                received.0.lock().unwrap().push(level.get());
                Level::at::<8>()
            })
        })
    }

    fn last(&self) -> u8 {
        *self.0.lock().unwrap().last().unwrap()
    }
}

/// A request whose handler waits for a blocking function.
const BLOCKING: &[u8] = b"GET /blocking HTTP/1.1\r\nhost: test\r\n\r\n";

fn read_response(stream: &mut std::net::TcpStream) {
    let mut buffer = [0; 1024];
    let count = stream.read(&mut buffer).unwrap();
    assert!(buffer[..count].starts_with(b"HTTP/1.1 200"));
}

/// Each request waits for a blocking function, so that it does not end in the poll that received
/// it.
#[test]
fn a_connection_returns_to_the_level_of_receiving_after_its_request() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let received = ReceiveLevels::default();
        let server = received.start_server(Runtime::builder().vcpus(1).driver(driver));
        // The connections share the budget, so many connections make the share of each one small.
        let _others: Vec<_> = (0..20).map(|_| server.connect()).collect();
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        let mut was_throttled = false;
        for _ in 0..50 {
            stream
                .write_all(b"GET /blocking HTTP/1.1\r\nhost: test\r\nx: ")
                .unwrap();
            for _ in 0..20_000 {
                stream.write_all(b"x").unwrap();
            }
            stream.write_all(b"\r\n\r\n").unwrap();
            read_response(&mut stream);
            if received.last() == 50 {
                was_throttled = true;
                break;
            }
        }
        assert!(
            was_throttled,
            "a head in thousands of pieces was received at level 3"
        );
        for _ in 0..10 {
            stream.write_all(BLOCKING).unwrap();
            read_response(&mut stream);
            assert_eq!(received.last(), 3);
        }
    }
}

/// The time that a request waits for a blocking function is not counted as CPU time of its
/// connection, no matter how long it waits.
#[test]
fn requests_that_wait_for_blocking_functions_use_no_budget() {
    const CONNECTIONS: usize = 80;
    const ROUNDS: usize = 20;
    for driver in [Driver::Auto, Driver::Readiness] {
        for preemption in [Preemption::Off, Preemption::Preferred] {
            let received = ReceiveLevels::default();
            let builder = Runtime::builder().vcpus(2).driver(driver);
            let server = received.start_server(builder.preemption(preemption));
            let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
            for _ in 0..ROUNDS {
                for stream in &mut streams {
                    stream.write_all(BLOCKING).unwrap();
                }
                streams.iter_mut().for_each(read_response);
            }
            let levels = received.0.lock().unwrap();
            let throttled = levels.iter().filter(|level| **level != 3).count();
            assert_eq!((levels.len(), throttled), (CONNECTIONS * ROUNDS, 0));
        }
    }
}

/// The server's coroutine has level 32. Requests at level 8 keep the vCPU busy until the new
/// connection has its response.
#[test]
fn connections_are_accepted_at_the_level_of_receiving() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for driver in [Driver::Auto, Driver::Readiness] {
        let server =
            ReceiveLevels::default().start_server(Runtime::builder().vcpus(1).driver(driver));
        let stop = Arc::new(AtomicBool::new(false));
        let busy = {
            let stop = stop.clone();
            async move {
                let began = std::time::Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    if began.elapsed() > std::time::Duration::from_secs(15) {
                        return false;
                    }
                    upshift::yield_now().await;
                }
                true
            }
        };
        let busy = server.handle.spawn(busy, Level::at::<8>()).unwrap();
        let mut stream = server.connect();
        stream.write_all(BLOCKING).unwrap();
        read_response(&mut stream);
        stop.store(true, Ordering::Relaxed);
        assert!(futures_lite::future::block_on(busy).unwrap());
    }
}
