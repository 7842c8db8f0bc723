//! Connections: time-outs, many at once, and the end of the server.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::app::{Running, SLOW};

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let server = Running::start(1, |server| {
        server.header_timeout(Duration::from_millis(100))
    });
    for start in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: te", "PRI * HTTP/2"] {
        let began = Instant::now();
        server.talk(start);
        assert!(began.elapsed() < Duration::from_secs(15), "{start:?}");
    }
}

#[test]
fn requests_under_way_are_answered_before_the_server_ends() {
    let server = Running::start(2, |server| server);
    let mut slow = server.connect();
    let mut idle = server.connect();
    let silent = server.connect();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    let mut some = [0; 64];
    assert!(idle.read(&mut some).unwrap() > 0);
    slow.write_all(b"GET /slow HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    let began = Instant::now();
    while SLOW.load(Ordering::Relaxed) == 0 {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    server.end();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("slow"), "{answer}");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    drop(silent);
}

/// The default time for draining counts.
#[test]
fn clients_that_never_do_their_part_do_not_keep_the_server_from_ending() {
    let server = Running::start(1, |server| server);
    let mut half_a_head = server.connect();
    half_a_head.write_all(b"GET / HTT").unwrap();
    let mut second_head = server.connect();
    second_head
        .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    assert!(second_head.read(&mut [0; 64]).unwrap() > 0);
    second_head.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut reads_nothing = server.connect();
    // More than the buffers of both sockets hold.
    reads_nothing
        .write_all(b"GET /zeros?bytes=300000000 HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    reads_nothing.peek(&mut [0]).unwrap();
    let mut answers_no_ping = server.connect();
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    answers_no_ping.write_all(settings).unwrap();
    assert!(answers_no_ping.read(&mut [0; 64]).unwrap() > 0);
    server.end();
    let began = Instant::now();
    while !server.has_ended() {
        assert!(began.elapsed() < Duration::from_secs(60), "it waits");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn five_hundred_connections_are_served_at_once() {
    let server = Running::start(2, |server| server);
    let mut streams: Vec<_> = (0..500).map(|_| server.connect()).collect();
    for (id, stream) in streams.iter_mut().enumerate() {
        let request =
            format!("GET /items/{id} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
    }
    for (id, stream) in streams.iter_mut().enumerate() {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with(&format!("item {id}")), "{answer}");
    }
}
