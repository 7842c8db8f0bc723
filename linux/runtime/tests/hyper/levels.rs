//! Requests at levels of their own.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use upshift::{Builder, Driver, Level, Preemption, Runtime};

use crate::app::Running;

fn levelled() -> Running {
    levelled_on(upshift::Runtime::builder().vcpus(1))
}

fn levelled_on(builder: upshift::Builder) -> Running {
    Running::on(builder, |server| {
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
    let server = levelled();
    let request = |path, more| format!("GET {path} HTTP/1.1\r\nhost: test\r\n{more}\r\n");
    let answers = server.talk(
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
fn streams_of_one_http2_connection_have_levels_of_their_own() {
    let server = levelled();
    let address = server.address;
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let client = crate::client::http2();
        for (path, level) in [("/level", "40"), ("/urgent/level", "1"), ("/level", "40")] {
            let uri = format!("http://{address}{path}").parse().unwrap();
            let response = client.get(uri).await.unwrap();
            assert_eq!(crate::client::text(response).await, level);
        }
    });
}

/// A reply is an operation of its request's level: it is handed to the kernel together with those
/// of its equals, and not before the next one of them is polled.
#[test]
fn replies_of_one_level_are_submitted_together() {
    const CONNECTIONS: usize = 16;
    const ROUNDS: usize = 10;
    // No turn of the ring but those that are asked for.
    let builder = upshift::Runtime::builder().vcpus(1);
    let server = levelled_on(builder.reap_interval(std::time::Duration::from_millis(10)));
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
    // One call for each reply, and those for requests, would be 220 and more.
    let most = (CONNECTIONS * ROUNDS * 3 / 4) as u64;
    assert!(enters < most, "{enters} enters, {most} at most");
}

/// A client that sends PINGs and reads the answers takes little CPU time at the level of receiving.
#[test]
fn floods_are_throttled() {
    let builder = || upshift::Runtime::builder().vcpus(1);
    flooded(builder());
    flooded(builder().driver(Driver::Readiness));
    flooded(builder().preemption(Preemption::Preferred));
}

fn flooded(builder: upshift::Builder) {
    use std::time::{Duration, Instant};
    let server = levelled_on(builder);
    let mut flood = server.connect();
    flood
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut answers = flood.try_clone().unwrap();
    let reads = std::thread::spawn(move || {
        let mut some = vec![0; 1 << 16];
        while let Ok(1..) = answers.read(&mut some) {}
    });
    let mut sends = flood.try_clone().unwrap();
    let writes = std::thread::spawn(move || {
        let pings = b"\0\0\x08\x06\0\0\0\0\0PINGPING".repeat(500);
        while sends.write_all(&pings).is_ok() {}
    });
    std::thread::sleep(Duration::from_millis(200));
    let received = || {
        let metrics = server.handle.metrics();
        let at = |level| metrics.levels.iter().find(|of| of.level.get() == level);
        at(3).map_or(Duration::ZERO, |of| of.run)
    };
    let (began, before) = (Instant::now(), received());
    let mut client = server.connect();
    let mut buffer = [0; 1024];
    for _ in 0..20 {
        let request = b"GET /urgent/level HTTP/1.1\r\nhost: test\r\n\r\n";
        client.write_all(request).unwrap();
        assert!(client.read(&mut buffer).unwrap() > 0);
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    let (took, receiving) = (began.elapsed(), received() - before);
    flood.shutdown(std::net::Shutdown::Both).unwrap();
    writes.join().unwrap();
    reads.join().unwrap();
    assert!(receiving < took / 3, "{receiving:?} of {took:?}");
}

/// Levels at which requests were received, in order.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<u8>>>);

impl Received {
    /// A server that receives at level 3, at 50 when throttled, and answers at level 8.
    fn by(&self, builder: Builder) -> Running {
        let received = self.clone();
        Running::on(builder, |server| {
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

const BLOCKING: &[u8] = b"GET /blocking HTTP/1.1\r\nhost: test\r\n\r\n";

fn answer(stream: &mut std::net::TcpStream) {
    let mut buffer = [0; 1024];
    let count = stream.read(&mut buffer).unwrap();
    assert!(buffer[..count].starts_with(b"HTTP/1.1 200"));
}

/// Its request waits for a thread: it is over in another poll than the one that has received it.
#[test]
fn a_connection_that_was_throttled_returns_to_the_level_of_receiving_after_its_request() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let received = Received::default();
        let server = received.by(Runtime::builder().vcpus(1).driver(driver));
        // They have their parts of the time.
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
            answer(&mut stream);
            if received.last() == 50 {
                was_throttled = true;
                break;
            }
        }
        assert!(
            was_throttled,
            "a connection that sends a head in thousands of pieces is throttled"
        );
        for _ in 0..10 {
            stream.write_all(BLOCKING).unwrap();
            answer(&mut stream);
            assert_eq!(received.last(), 3);
        }
    }
}

/// However long the functions wait for each other, and the threads for the CPU.
#[test]
fn clients_whose_requests_wait_for_blocking_functions_are_never_throttled() {
    const CONNECTIONS: usize = 80;
    const ROUNDS: usize = 20;
    for driver in [Driver::Auto, Driver::Readiness] {
        for preemption in [Preemption::Off, Preemption::Preferred] {
            let received = Received::default();
            let builder = Runtime::builder().vcpus(2).driver(driver);
            let server = received.by(builder.preemption(preemption));
            let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
            for _ in 0..ROUNDS {
                for stream in &mut streams {
                    stream.write_all(BLOCKING).unwrap();
                }
                streams.iter_mut().for_each(answer);
            }
            let levels = received.0.lock().unwrap();
            let throttled = levels.iter().filter(|level| **level != 3).count();
            assert_eq!((levels.len(), throttled), (CONNECTIONS * ROUNDS, 0));
        }
    }
}

/// The main coroutine, which runs the server, is at level 32; requests at level 8 keep the vCPU
/// busy until the new connection has its answer.
#[test]
fn connections_are_accepted_at_the_level_of_receiving() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for driver in [Driver::Auto, Driver::Readiness] {
        let server = Received::default().by(Runtime::builder().vcpus(1).driver(driver));
        let over = Arc::new(AtomicBool::new(false));
        let busy = {
            let over = over.clone();
            async move {
                let began = std::time::Instant::now();
                while !over.load(Ordering::Relaxed) {
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
        answer(&mut stream);
        over.store(true, Ordering::Relaxed);
        assert!(futures_lite::future::block_on(busy).unwrap());
    }
}
