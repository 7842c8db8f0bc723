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
