//! Tests of connections: time-outs, many connections, and the shutdown of the server.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::app::{SLOW_REQUESTS, TestServer};

#[test]
fn a_head_that_does_not_arrive_in_time_ends_the_connection() {
    let server = TestServer::start(1, |server| {
        server.header_timeout(Duration::from_millis(100))
    });
    for start in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: te", "PRI * HTTP/2"] {
        let began = Instant::now();
        server.exchange(start);
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "a connection that sent {start:?} did not end in time"
        );
    }
}

#[test]
fn running_requests_are_answered_before_the_server_ends() {
    let server = TestServer::start(2, |server| server);
    let mut slow = server.connect();
    let mut idle = server.connect();
    let silent = server.connect();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    let mut buffer = [0; 64];
    assert!(idle.read(&mut buffer).unwrap() > 0);
    slow.write_all(b"GET /slow HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    let began = Instant::now();
    while SLOW_REQUESTS.load(Ordering::Relaxed) == 0 {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "the slow request has not begun"
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

/// The server uses the default drain timeout.
#[test]
fn unresponsive_clients_do_not_prevent_the_end_of_the_server() {
    let server = TestServer::start(1, |server| server);
    let mut incomplete_head = server.connect();
    incomplete_head.write_all(b"GET / HTT").unwrap();
    let mut second_head = server.connect();
    second_head
        .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    assert!(second_head.read(&mut [0; 64]).unwrap() > 0);
    second_head.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut reads_no_body = server.connect();
    // The body exceeds the buffers of both sockets.
    reads_no_body
        .write_all(b"GET /zeros?bytes=300000000 HTTP/1.1\r\nhost: test\r\n\r\n")
        .unwrap();
    reads_no_body.peek(&mut [0]).unwrap();
    let mut answers_no_ping = server.connect();
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    answers_no_ping.write_all(settings).unwrap();
    assert!(answers_no_ping.read(&mut [0; 64]).unwrap() > 0);
    server.end();
    let began = Instant::now();
    while !server.has_ended() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the server has not ended"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn five_hundred_connections_are_served_at_once() {
    let server = TestServer::start(2, |server| server);
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
