//! Tests of the socket through which another program views a running runtime: its replies, and its
//! limits on hostile clients.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use upshift::observe::{PROTOCOL, SocketName, View, sockets};
use upshift::{Level, Runtime};

fn own_sockets() -> Vec<SocketName> {
    let mut names = sockets().unwrap();
    names.retain(|socket| socket.pid == std::process::id());
    names
}

/// Returns a runtime that other programs can view, and the name of its socket.
fn observed_runtime() -> (Runtime, SocketName) {
    // One test at a time holds the lock. The value is true after the sockets of an earlier process
    // have been removed.
    static CLEARED: Mutex<bool> = Mutex::new(false);
    let mut cleared = CLEARED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*cleared {
        // A killed process with the same PID may have left sockets of the same names.
        for socket in own_sockets() {
            std::fs::remove_file(socket.path).unwrap();
        }
        *cleared = true;
    }
    let before = own_sockets();
    let builder = Runtime::builder().vcpus(1).name("seen").observe(true);
    let runtime = builder.build().unwrap();
    let mut new = own_sockets();
    new.retain(|socket| !before.contains(socket));
    // Another test may have dropped its runtime meanwhile, but no other test has built a runtime.
    assert_eq!(new.len(), 1);
    (runtime, new.remove(0))
}

fn attach(socket: &SocketName) -> UnixStream {
    let stream = UnixStream::connect(&socket.path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

fn ask(stream: &mut BufReader<UnixStream>, request: &str) -> String {
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line
}

#[test]
fn a_client_gets_a_snapshot_per_request() {
    let (runtime, socket) = observed_runtime();
    runtime.block_on(async {
        upshift::spawn(async {}, Level::at::<3>()).await.unwrap();
    });
    let mut client = BufReader::new(attach(&socket));
    let mut last = Duration::ZERO;
    for _ in 0..3 {
        let view: View = serde_json::from_str(&ask(&mut client, "metrics\n")).unwrap();
        assert_eq!(view.protocol, PROTOCOL);
        assert_eq!(view.pid, std::process::id());
        assert_eq!(view.name, "seen");
        assert_eq!(view.metrics.level(Level::at::<3>()).unwrap().polls, 1);
        assert!(view.metrics.uptime > last);
        last = view.metrics.uptime;
    }
    drop(runtime);
    assert!(!socket.path.exists());
    assert_eq!(client.read_line(&mut String::new()).unwrap(), 0);
}

#[test]
fn the_reply_has_the_documented_names() {
    let (runtime, socket) = observed_runtime();
    runtime.block_on(async {
        upshift::spawn(async {}, Level::at::<3>()).await.unwrap();
    });
    let reply = ask(&mut BufReader::new(attach(&socket)), "metrics\n");
    let json: serde_json::Value = serde_json::from_str(&reply).unwrap();
    for pointer in [
        "/protocol",
        "/pid",
        "/name",
        "/version",
        "/metrics/uptime_ns",
        "/metrics/coroutines/live",
        "/metrics/coroutines/blocked",
        "/metrics/levels/0/level",
        "/metrics/levels/0/polls",
        "/metrics/levels/0/run_ns",
        "/metrics/levels/0/starve_ns",
        "/metrics/levels/0/wait/0/2",
        "/metrics/vcpus/0/busy_ns",
        "/metrics/vcpus/0/parked_ns",
        "/metrics/vcpus/0/ring/enters",
        "/metrics/preemption/suspensions",
        "/metrics/blocking/threads",
        "/metrics/stalls/limit_ns",
        "/metrics/stalls/longest",
    ] {
        assert!(json.pointer(pointer).is_some(), "{pointer} in {reply}");
    }
}

#[test]
fn unknown_requests_are_refused_with_a_reason() {
    let (_runtime, socket) = observed_runtime();
    for request in ["hello\n", "\n", "metrics please\n", "GET / HTTP/1.1\r\n"] {
        let mut client = BufReader::new(attach(&socket));
        let reply = ask(&mut client, request);
        assert!(reply.starts_with("{\"error\":\"unknown request"), "{reply}");
        let mut rest = Vec::new();
        assert_eq!(client.read_to_end(&mut rest).unwrap_or(0), 0);
    }
    let mut client = attach(&socket);
    // The server may close the connection before all bytes are written.
    let _ = client.write_all(&[b'x'; 100_000]);
    let mut reply = String::new();
    let read = BufReader::new(client).read_line(&mut reply);
    assert!(
        read.is_err() || reply.is_empty() || reply.starts_with("{\"error\""),
        "{reply}"
    );
}

#[test]
fn a_client_that_does_not_read_is_dropped_and_delays_no_other_client() {
    let (_runtime, socket) = observed_runtime();
    let mut unread = attach(&socket);
    unread
        .set_write_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let writer = std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(30);
        // The client sends endless requests, and reads no reply.
        while Instant::now() < deadline {
            match unread.write_all(&b"metrics\n".repeat(8)) {
                Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return error.kind(),
            }
        }
        ErrorKind::TimedOut
    });
    let mut client = BufReader::new(attach(&socket));
    for _ in 0..5 {
        assert!(ask(&mut client, "metrics\n").contains("\"metrics\""));
    }
    let kind = writer.join().unwrap();
    assert!(
        matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
        "{kind:?}"
    );
    assert!(ask(&mut client, "metrics\n").contains("\"metrics\""));
}

#[test]
fn clients_beyond_the_limit_are_refused_until_others_leave() {
    let (_runtime, socket) = observed_runtime();
    let mut clients: Vec<_> = (0..8).map(|_| BufReader::new(attach(&socket))).collect();
    for client in &mut clients {
        assert!(ask(client, "metrics\n").contains("\"metrics\""));
    }
    let mut ninth = attach(&socket);
    assert_eq!(ninth.read(&mut [0; 16]).unwrap_or(0), 0);
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut client = BufReader::new(attach(&socket));
        let _ = client.get_mut().write_all(b"metrics\n");
        let mut line = String::new();
        if client.read_line(&mut line).is_ok() && line.contains("\"metrics\"") {
            break;
        }
        assert!(Instant::now() < deadline, "the client is still refused");
    }
}

#[test]
fn an_incomplete_request_and_a_thousand_connections_are_harmless() {
    let (_runtime, socket) = observed_runtime();
    let mut incomplete = attach(&socket);
    incomplete.write_all(b"metr").unwrap();
    for _ in 0..1000 {
        drop(UnixStream::connect(&socket.path));
    }
    let mut incomplete = BufReader::new(incomplete);
    assert!(ask(&mut incomplete, "ics\n").contains("\"metrics\""));
}

#[test]
fn a_recording_is_fetched_once_and_ends_with_its_client() {
    let (runtime, socket) = observed_runtime();
    let trace = runtime.handle().trace();
    let mut client = BufReader::new(attach(&socket));
    assert!(ask(&mut client, "record\n").contains("\"recording\":true"));
    assert!(trace.is_on());
    let mut other = BufReader::new(attach(&socket));
    assert!(ask(&mut other, "record\n").starts_with("{\"error\":\"a recording"));
    let id = runtime.block_on(async {
        let child = upshift::spawn(async {}, Level::at::<3>());
        let id = child.id();
        child.await.unwrap();
        id
    });
    let reply = ask(&mut client, "timeline\n");
    let recording: upshift::observe::Recording = serde_json::from_str(&reply).unwrap();
    assert_eq!(recording.protocol, PROTOCOL);
    assert_eq!(recording.timeline.name, "seen");
    let has_exited = recording.timeline.events.iter().any(|event| {
        matches!(event.kind, upshift::trace::EventKind::Coroutine(upshift::trace::Step::Exited, coroutine) if coroutine.id == id)
    });
    assert!(has_exited, "{reply}");
    assert!(!trace.is_on());
    // The client can start another recording, which ends with its connection.
    assert!(ask(&mut client, "record\n").contains("\"recording\":true"));
    assert!(trace.is_on());
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(20);
    while trace.is_on() {
        assert!(Instant::now() < deadline, "the recording has not ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut client = BufReader::new(attach(&socket));
    assert!(ask(&mut client, "timeline\n").starts_with("{\"error\":\"nothing was recorded"));
}
