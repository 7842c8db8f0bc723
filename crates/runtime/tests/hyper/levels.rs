//! Requests at levels of their own.

use std::io::{Read, Write};

use upshift::Level;

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

/// A reply is an operation of its request's level: it is handed to the kernel together with those of its equals, and not before the
/// next one of them is polled.
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
    // One each, and those for what arrives, were 220 and more.
    let most = (CONNECTIONS * ROUNDS * 3 / 4) as u64;
    assert!(enters < most, "{enters} enters, {most} at most");
}

/// A client that sends PINGs and reads the answers takes little of the CPU at the level of receiving.
#[test]
fn floods_are_received_beyond_the_level_of_receiving() {
    use upshift::{Driver, Preemption};
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
