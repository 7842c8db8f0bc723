//! The thread servers against clients that behave and clients that do not.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use upshift_load::spin::{FRAME, Request};
use upshift_load::threads::{MatrixServer, PlaintextServer, SpinServer};
use upshift_load::{Burner, http, matrix};

struct Running {
    addrs: Vec<SocketAddr>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Running {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addrs[0]).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn start(addrs: Vec<SocketAddr>, serve: impl FnOnce(Arc<AtomicBool>) + Send + 'static) -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let thread = std::thread::spawn(move || serve(flag));
    Running {
        addrs,
        stop,
        thread,
    }
}

fn matrix_server() -> Running {
    let server = MatrixServer::bind(&[any()]).unwrap();
    start(server.local_addrs().to_vec(), move |stop| {
        server.serve(stop).unwrap()
    })
}

fn plaintext_server() -> Running {
    let server = PlaintextServer::bind(&[any()]).unwrap();
    start(server.local_addrs().to_vec(), move |stop| {
        server.serve(stop).unwrap()
    })
}

fn spin_server() -> Running {
    let server = SpinServer::bind(&[any()], Burner::calibrate()).unwrap();
    start(server.local_addrs().to_vec(), move |stop| {
        server.serve(stop).unwrap()
    })
}

fn product(request: &[u8], n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    matrix::square(&request[matrix::HEADER..], n, &mut out);
    out
}

/// All that comes until the server closes; a reset counts as the end.
fn read_all(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn pipelined_frames_of_mixed_orders_are_answered_in_order() {
    let server = matrix_server();
    let stream = server.connect();
    let (mut sent, mut expected) = (Vec::new(), Vec::new());
    for (seed, n) in [3, 1, 20, 100, 2, 8]
        .into_iter()
        .cycle()
        .take(60)
        .enumerate()
    {
        let request = matrix::frame(n, seed as u64);
        expected.extend_from_slice(&product(&request, n));
        sent.extend_from_slice(&request);
    }
    let mut half = stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        half.write_all(&sent).unwrap();
        // The end of the input is no reason to drop what was asked before it.
        half.shutdown(Shutdown::Write).unwrap();
    });
    assert!(read_all(stream) == expected);
    writer.join().unwrap();
    server.end();
}

#[test]
fn a_bad_frame_closes_its_connection_only() {
    let server = matrix_server();
    let mut good = server.connect();
    for bad in [0u32, 12, 8 * 3, u32::MAX] {
        let mut stream = server.connect();
        let request = matrix::frame(4, 7);
        stream.write_all(&request).unwrap();
        stream.write_all(&bad.to_le_bytes()).unwrap();
        stream.write_all(b"and more").unwrap();
        assert_eq!(read_all(stream), product(&request, 4), "length {bad}");
    }
    let mut cut = server.connect();
    cut.write_all(&matrix::frame(4, 7)[..50]).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(cut).is_empty());

    let request = matrix::frame(5, 1);
    good.write_all(&request).unwrap();
    let mut reply = vec![0; request.len()];
    good.read_exact(&mut reply).unwrap();
    assert_eq!(reply, product(&request, 5));
    server.end();
}

#[test]
fn a_client_that_never_reads_is_held_back() {
    let server = matrix_server();
    let mut stream = server.connect();
    stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let request = matrix::frame(64, 1);
    // 16 frames in each queue and what the sockets hold; far below this.
    let blocked = (0..4000).any(|_| stream.write_all(&request).is_err());
    assert!(blocked, "the server swallowed 131 MB");
    server.end();
}

#[test]
fn stop_ends_idle_and_blocked_connections() {
    let server = matrix_server();
    let idle = server.connect();
    let mut asked = server.connect();
    let request = matrix::frame(2, 1);
    asked.write_all(&request).unwrap();
    asked.read_exact(&mut vec![0; request.len()]).unwrap();
    let begin = Instant::now();
    server.end();
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(read_all(idle).is_empty());
    assert!(read_all(asked).is_empty());
}

#[test]
fn a_server_listens_on_all_its_addresses() {
    let server = PlaintextServer::bind(&[any(), any()]).unwrap();
    let addrs = server.local_addrs().to_vec();
    let server = start(addrs.clone(), move |stop| server.serve(stop).unwrap());
    for addr in addrs {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut reply = vec![0; http::REPLY.len()];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, http::REPLY);
    }
    server.end();
    assert!(PlaintextServer::bind(&[]).is_err());
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let first = MatrixServer::bind(&[any()]).unwrap();
    let addr = first.local_addrs()[0];
    let error = MatrixServer::bind(&[addr]).err().unwrap();
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}

#[test]
fn plaintext_answers_requests_that_trickle_in() {
    let server = plaintext_server();
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3);
    for byte in &requests {
        stream.write_all(std::slice::from_ref(byte)).unwrap();
    }
    let mut reply = vec![0; 3 * http::REPLY.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, http::REPLY.repeat(3));
    server.end();
}

#[test]
fn plaintext_keeps_http_1_0_open_when_asked_and_closes_it_otherwise() {
    let server = plaintext_server();
    let mut stream = server.connect();
    for _ in 0..2 {
        stream
            .write_all(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
            .unwrap();
        let mut reply = vec![0; http::REPLY_KEEP_ALIVE.len()];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply, http::REPLY_KEEP_ALIVE);
    }
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(read_all(stream), http::REPLY_CLOSE);
    server.end();
}

#[test]
fn plaintext_refuses_an_endless_head_and_says_so() {
    let server = plaintext_server();
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nA: ").unwrap();
    // The server may close before all of it is written.
    let _ = stream.write_all(&vec![b'a'; 100_000]);
    let reply = read_all(stream);
    assert!(reply.starts_with(b"HTTP/1.1 431"), "{}", reply.len());
    server.end();
}

fn spin(tag: u64) -> [u8; FRAME] {
    let request = Request {
        service: 1000 * tag,
        level: tag as u8 % 64,
        tag,
    };
    request.bytes()
}

#[test]
fn spin_echoes_pipelined_frames_that_are_cut_anywhere() {
    let server = spin_server();
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    let requests: Vec<u8> = (0..50).flat_map(spin).collect();
    for piece in requests.chunks(31) {
        stream.write_all(piece).unwrap();
    }
    let mut replies = vec![0; requests.len()];
    stream.read_exact(&mut replies).unwrap();
    assert!(
        replies == requests,
        "one thread answers in order, with the same bytes"
    );
    server.end();
}

#[test]
fn spin_closes_a_connection_that_asks_for_what_is_out_of_range() {
    let server = spin_server();
    let mut good = server.connect();
    let level_64 = [&spin(1)[..8], &64u64.to_le_bytes(), &[0; 8]].concat();
    let cut = spin(2)[..23].to_vec();
    for bad in [vec![0xff; FRAME], level_64, cut] {
        let mut stream = server.connect();
        stream.write_all(&spin(3)).unwrap();
        stream.write_all(&bad).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(stream), spin(3));
    }
    good.write_all(&spin(4)).unwrap();
    let mut reply = [0; FRAME];
    good.read_exact(&mut reply).unwrap();
    assert_eq!(reply, spin(4));
    server.end();
}
