//! Tests of clients that read or send slowly, but continuously. The server must serve them to the
//! end, over each protocol and each kind of socket.
//!
//! A client that gets no CPU time pauses, and the server may cut it off for the pause. So every
//! client measures its own pauses, and an attempt with a long pause does not count.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use axum::routing::post;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use upshift_serve::{BindTo, Config};

use crate::harness::{Folder, TestServer, read_to_end};
use crate::http2::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, SETTINGS, WINDOW_UPDATE,
    connect_http2, frame, frames, get, handshake, header_block,
};
use crate::tls::{certificate, connect_tls, tls_handshake};

/// Time-out of the server for reading and for writing.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Shortest time for which a client reads.
const DURATION: Duration = Duration::from_secs(10);
/// Rate of a client, in bytes per second.
const RATE: u32 = 100_000;
/// Number of bytes that a client first reads at full speed, so that the kernel enlarges the buffer
/// of the server's socket to megabytes.
const FAST_BYTES: u64 = 8 << 20;
/// Number of bytes that exceeds the buffers of both sockets.
const FILE_BYTES: u64 = 30 << 20;
/// Number of attempts after which the machine counts as too busy for the test.
const ATTEMPTS: u32 = 5;

/// Largest window that HTTP/2 permits, in bytes.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// Outcome of an attempt.
enum Outcome {
    Served,
    /// The client was cut off after this time.
    CutOff(Duration),
    /// The client paused for so long that the server may have cut it off.
    Paused(Duration),
}

/// Repeats an attempt while the client pauses for too long, and asserts that the client is served.
fn attempt(case: &str, mut run: impl FnMut() -> Outcome) {
    for _ in 0..ATTEMPTS {
        match run() {
            Outcome::Served => return,
            Outcome::CutOff(after) => panic!("{case}: cut off after {after:?}"),
            Outcome::Paused(time) => println!("{case}: the client paused for {time:?}"),
        }
    }
    println!("skipped: {case}: the machine gives the client too little CPU time");
}

/// Paces a client at [`RATE`], and records the longest time between two of its steps.
struct Pacer {
    started: Instant,
    last_step_at: Instant,
    longest_pause: Duration,
}

impl Pacer {
    fn start() -> Pacer {
        let now = Instant::now();
        Pacer {
            started: now,
            last_step_at: now,
            longest_pause: Duration::ZERO,
        }
    }

    /// Records a step, and sleeps until `bytes` bytes are due.
    fn step(&mut self, bytes: u64) {
        let now = Instant::now();
        self.longest_pause = self.longest_pause.max(now - self.last_step_at);
        self.last_step_at = now;
        let due = self.started + Duration::from_secs(bytes) / RATE;
        std::thread::sleep(due.saturating_duration_since(now));
    }

    /// Returns the outcome. `served` states whether the server served the client to the end.
    fn end(self, served: bool) -> Outcome {
        if served {
            Outcome::Served
        } else if self.longest_pause > TIMEOUT / 4 {
            Outcome::Paused(self.longest_pause)
        } else {
            Outcome::CutOff(self.started.elapsed())
        }
    }
}

fn folder() -> Folder {
    let folder = Folder::new();
    let file = std::fs::File::create(folder.0.join("f")).unwrap();
    file.set_len(FILE_BYTES).unwrap();
    folder
}

fn short_timeouts(config: &mut Config) {
    config.limits.write_timeout = TIMEOUT;
    config.limits.body_timeout = TIMEOUT;
}

/// Reads [`FAST_BYTES`] bytes at full speed, and then at [`RATE`] for [`DURATION`]. After each
/// read, calls `on_read` with the number of bytes so far.
///
/// When the server has closed the connection, the kernel still sends the megabytes in its buffer.
/// So the number of the server's connections is checked, too.
fn read_slowly<S: Read>(
    server: &TestServer,
    stream: &mut S,
    mut on_read: impl FnMut(&mut S, u64),
) -> Outcome {
    let mut pacer = Pacer::start();
    let (mut buffer, mut received) = ([0; 4096], 0);
    while pacer.started.elapsed() < DURATION {
        let Ok(count @ 1..) = stream.read(&mut buffer) else {
            return pacer.end(false);
        };
        received += count as u64;
        on_read(stream, received);
        if received < FAST_BYTES {
            pacer = Pacer::start();
        } else {
            pacer.step(received - FAST_BYTES);
        }
        if server.control.connections() == 0 {
            return pacer.end(false);
        }
    }
    pacer.end(true)
}

const GET: &[u8] = b"GET /f HTTP/1.1\r\nhost: test\r\n\r\n";

#[test]
fn a_slow_reader_of_http_1_is_served() {
    let folder = folder();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    attempt("HTTP/1", || {
        let mut stream = connect_with_small_buffer(&server);
        stream.write_all(GET).unwrap();
        read_slowly(&server, &mut stream, |_, _| {})
    });
}

#[test]
fn a_slow_reader_of_a_unix_socket_is_served() {
    let folder = folder();
    let path = folder.0.join("socket");
    let listens = BindTo::Unix {
        path: path.clone(),
        mode: None,
    };
    let server = TestServer::with_config(&folder.0, |config| {
        short_timeouts(config);
        config.listen.push(listens.into());
    });
    attempt("a Unix socket", || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
        stream.write_all(GET).unwrap();
        read_slowly(&server, &mut stream, |_, _| {})
    });
    drop(server);
}

#[test]
fn a_slow_reader_of_tls_is_served() {
    let folder = folder();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let files = tls.clone();
    let server = TestServer::with_config(&folder.0, |config| {
        short_timeouts(config);
        config.tls = Some(files);
    });
    attempt("TLS", || {
        let (mut client, mut stream) = tls_handshake(connect_with_small_buffer(&server), &tls, &[]);
        let mut stream = rustls::Stream::new(&mut client, &mut stream);
        stream.write_all(GET).unwrap();
        read_slowly(&server, &mut stream, |_, _| {})
    });
}

/// Opens a connection whose receive buffer is small.
fn connect_with_small_buffer(server: &TestServer) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    // The kernel derives the initial TCP window from this size.
    set_socket_recv_buffer_size(&socket, 65_536).unwrap();
    connect(&socket, &server.address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
    stream
}

/// Requests the file on a new HTTP/2 connection. The connection has the largest window, a stream
/// has `window`.
fn request_http2(server: &TestServer, window: u32) -> TcpStream {
    let mut stream = handshake(connect_with_small_buffer(server));
    let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
    let increment = (LARGEST_WINDOW - 65_535).to_be_bytes();
    let frames = [
        frame(SETTINGS, 0, 0, &setting),
        frame(WINDOW_UPDATE, 0, 0, &increment),
        get(1, "/f", &[]),
    ];
    stream.write_all(&frames.concat()).unwrap();
    stream
}

#[test]
fn a_slow_reader_of_http_2_is_served() {
    let folder = folder();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    attempt("HTTP/2", || {
        let mut stream = request_http2(&server, LARGEST_WINDOW);
        read_slowly(&server, &mut stream, |_, _| {})
    });
}

#[test]
fn a_slow_reader_of_http_2_that_opens_its_window_rarely_is_served() {
    // The socket buffers hold a whole window, so no write of the server blocks.
    const WINDOW: u32 = 1 << 20;
    const HALF: u32 = WINDOW / 2;
    let folder = folder();
    let server = TestServer::with_config(&folder.0, short_timeouts);
    attempt("a window of HTTP/2", || {
        let mut stream = request_http2(&server, WINDOW);
        let mut opened_bytes = 0;
        read_slowly(&server, &mut stream, |stream, received| {
            if received >= opened_bytes + u64::from(HALF) {
                opened_bytes += u64::from(HALF);
                let update = frame(WINDOW_UPDATE, 0, 1, &HALF.to_be_bytes());
                stream.write_all(&update).unwrap();
            }
        })
    });
}

/// Removes the complete frames from `received`, and returns the length of their DATA. Replies to
/// PINGs, and enlarges the windows by the received length.
fn handle_frames(stream: &mut TcpStream, received: &mut Vec<u8>) -> u64 {
    let (mut data, mut replies) = (0, Vec::new());
    let (frames, length) = frames(received);
    received.drain(..length);
    for Frame {
        kind,
        flags,
        payload,
        ..
    } in frames
    {
        let length = payload.len() as u32;
        match (kind, flags) {
            (DATA, _) if length > 0 => {
                data += u64::from(length);
                replies.extend(frame(WINDOW_UPDATE, 0, 0, &length.to_be_bytes()));
            }
            (PING, 0) => replies.extend(frame(PING, ACK, 0, &payload)),
            _ => {}
        }
    }
    // The server may have closed the connection.
    let _ = stream.write_all(&replies);
    data
}

#[test]
fn a_slow_reader_of_http_2_gets_its_whole_response_from_a_draining_server() {
    const LENGTH: u64 = 1 << 20;
    let folder = Folder::new();
    let file = std::fs::File::create(folder.0.join("f")).unwrap();
    file.set_len(LENGTH).unwrap();
    attempt("the end of the server", || {
        let server = TestServer::with_config(&folder.0, short_timeouts);
        let mut stream = request_http2(&server, LARGEST_WINDOW);
        let (mut buffer, mut received, mut data) = ([0; 4096], Vec::new(), 0);
        // The response has begun.
        stream.peek(&mut buffer).unwrap();
        server.control.drain();
        let mut pacer = Pacer::start();
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            received.extend_from_slice(&buffer[..count]);
            data += handle_frames(&mut stream, &mut received);
            // The client reads at twice the usual rate.
            pacer.step(data / 2);
        }
        pacer.end(data == LENGTH)
    });
}

/// Returns a service that answers with the length of the request's body.
fn length_service() -> axum::Router {
    axum::Router::new().route(
        "/",
        post(|body: String| async move { body.len().to_string() }),
    )
}

/// Sends `bytes` in pieces, with pauses shorter than the time-out. Returns whether the server
/// accepted all of them.
fn send_slowly(stream: &mut impl Write, bytes: &[u8], pacer: &mut Pacer) -> bool {
    for piece in bytes.chunks(1000) {
        let sent = stream.write_all(piece).and_then(|()| stream.flush());
        match sent {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        let now = Instant::now();
        pacer.longest_pause = pacer
            .longest_pause
            .max((now - pacer.last_step_at).saturating_sub(TIMEOUT / 4));
        pacer.last_step_at = now;
        std::thread::sleep(TIMEOUT / 4);
    }
    true
}

#[test]
fn a_tls_record_that_arrives_slowly_is_received() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    attempt("a record", || {
        let files = tls.clone();
        let set = |config: &mut Config| {
            short_timeouts(config);
            config.tls = Some(files);
        };
        let server = TestServer::with_service(&folder, set, length_service());
        let (mut client, mut stream) = connect_tls(&server, &tls);
        let head =
            "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 16000\r\n\r\n";
        client.writer().write_all(head.as_bytes()).unwrap();
        client.write_tls(&mut stream).unwrap();
        client.writer().write_all(&[b'x'; 16_000]).unwrap();
        let mut record = Vec::new();
        client.write_tls(&mut record).unwrap();
        let mut pacer = Pacer::start();
        let mut answer = String::new();
        if send_slowly(&mut stream, &record, &mut pacer) {
            let _ = rustls::Stream::new(&mut client, &mut stream).read_to_string(&mut answer);
        }
        pacer.end(answer.starts_with("HTTP/1.1 200") && answer.ends_with("16000"))
    });
}

#[test]
fn an_http_2_frame_that_arrives_slowly_is_received() {
    let folder = Folder::new();
    attempt("a frame", || {
        let server = TestServer::with_service(&folder, short_timeouts, length_service());
        let mut stream = connect_http2(&server);
        let head = frame(HEADERS, END_HEADERS, 1, &header_block("POST", "/", &[]));
        stream.write_all(&head).unwrap();
        let data = frame(DATA, END_STREAM, 1, &[b'x'; 16_000]);
        let mut pacer = Pacer::start();
        let accepted = send_slowly(&mut stream, &data, &mut pacer);
        stream.set_read_timeout(Some(TIMEOUT / 2)).unwrap();
        let answer = String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned();
        pacer.end(accepted && answer.contains("16000"))
    });
}
