//! Ends servers by signals and by commands.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::harness::{Folder, Server, TIMEOUT, output, read_all, wait_until};

#[test]
fn after_sigterm_current_requests_are_answered_new_connections_refused_and_the_status_is_0() {
    let folder = Folder::new();
    let patient = ["--drain-timeout", "60s", "--max-wait", "60s"];
    let server = Server::start(&folder, &patient);
    let address = server.address();
    // This client has sent only a part of a request head.
    let unfinished = TcpStream::connect(address).unwrap();
    unfinished.set_read_timeout(Some(TIMEOUT)).unwrap();
    let slow: Vec<_> = (0..4).map(|_| server.send("/matrix?n=400", "")).collect();
    // The test waits until all requests are accepted, because an unaccepted request is not in
    // progress.
    wait_until("requests under way", || {
        let metrics = server.get("/metrics", "");
        let count = |name: &str| {
            let line = format!("upshift_http_{name}{{level=\"28\"}} ");
            let mut counts = metrics.lines().filter_map(|text| text.strip_prefix(&line));
            counts.next().map_or(0, |count| count.parse().unwrap())
        };
        count("in_flight") + count("request_duration_seconds_count") >= 4_u64
    });
    server.signal("TERM");
    wait_until("the announcement", || {
        folder.read("stderr").contains("draining: ")
    });
    wait_until("a refusal", || TcpStream::connect(address).is_err());
    for stream in slow {
        let answer = read_all(stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"n\":400"), "{answer}");
    }
    let _ = unfinished.shutdown(Shutdown::Write);
    let (status, _) = server.end();
    assert_eq!(status, Some(0));
    let stderr_text = folder.read("stderr");
    assert!(
        stderr_text.contains("requests answered, 0 connections cut off"),
        "{stderr_text}"
    );
}

/// The server must end, and close these connections, after the default drain time. The other
/// time-outs would take longer.
#[test]
fn unresponsive_clients_do_not_prevent_the_end() {
    let folder = Folder::new();
    let big = std::fs::File::create(folder.0.join("big.bin")).unwrap();
    big.set_len(256 << 20).unwrap();
    let server = Server::start(
        &folder,
        &["--header-timeout", "10m", "--write-timeout", "10m"],
    );
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let half_a_head = connect(b"GET / HTT");
    let reads_nothing = connect(b"GET /big.bin HTTP/1.1\r\nhost: a\r\n\r\n");
    reads_nothing.peek(&mut [0]).unwrap();
    let answers_no_ping = connect(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    answers_no_ping.peek(&mut [0]).unwrap();
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
    let stderr_text = folder.read("stderr");
    assert!(stderr_text.contains("connections cut off"), "{stderr_text}");
    drop((half_a_head, reads_nothing, answers_no_ping));
}

#[test]
fn a_client_that_gets_no_cpu_while_the_server_ends_is_answered() {
    let folder = Folder::new();
    folder.write("index.html", "here");
    let server = Server::start(&folder, &["--drain-timeout", "60s"]);
    let ask = |mut stream: &TcpStream, text: &str| stream.write_all(text.as_bytes()).unwrap();
    let connect = || {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        ask(&stream, "GET /index.html HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut answer = Vec::new();
        while !answer.ends_with(b"here") {
            let mut piece = [0; 512];
            let count = stream.read(&mut piece).unwrap();
            assert_ne!(count, 0, "the connection was closed");
            answer.extend(&piece[..count]);
        }
        stream
    };
    let (late, slow) = (connect(), connect());
    ask(&slow, "GET /index.html HTTP/1.1\r\n");
    server.signal("TERM");
    wait_until("a refusal", || {
        TcpStream::connect(server.address()).is_err()
    });
    std::thread::sleep(Duration::from_millis(200));
    ask(&late, "GET /index.html HTTP/1.1\r\nhost: a\r\n\r\n");
    let answer = read_all(late);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    assert!(answer.contains("connection: close"), "{answer:?}");
    // A client that has sent only a part of a request may take longer.
    std::thread::sleep(Duration::from_millis(1300));
    ask(&slow, "host: a\r\n\r\n");
    let answer = read_all(slow);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_second_sigterm_ends_the_server_at_once() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    // An unfinished request head keeps the drain waiting.
    let mut unfinished = TcpStream::connect(server.address()).unwrap();
    unfinished.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    wait_until("the connection", || {
        server
            .get("/metrics", "")
            .contains("upshift_connections_open 2")
    });
    server.signal("TERM");
    wait_until("the announcement", || {
        folder.read("stderr").contains("draining: ")
    });
    server.signal("TERM");
    assert_eq!(server.end().0, Some(1));
}

#[test]
fn commands_reach_the_running_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--control", "control"]);
    let ask = |command| {
        let output = output(&folder, &["--control", "control", "--ask", command]);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(ask("status").contains("\"under_way\":0"));
    let mistake = ask("dance");
    assert!(
        mistake.starts_with("error: ") && mistake.contains("`help` lists them"),
        "{mistake}"
    );
    assert_eq!(ask("drain"), "ok: draining\n");
    assert_eq!(server.end().0, Some(0));
    assert!(!Path::new(&folder.0.join("control")).exists());
}
