//! Clients that read or send slowly but continuously are served to the end, over each protocol and
//! each kind of socket.
//!
//! A client that gets no CPU pauses, and may be cut off for it. So every client measures its own
//! pauses, and an attempt with a long pause is void.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use axum::routing::post;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use upshift_serve::{BindTo, Config};

use crate::harness::{Folder, TestServer, rest};
use crate::http2::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, SETTINGS, WINDOW_UPDATE, block,
    frame, frames, get, open, open_on,
};
use crate::tls::{certificate, shake_hands, shake_hands_on};

/// The time-outs of the server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Shortest duration of a client.
const MIN_CLIENT_TIME: Duration = Duration::from_secs(10);
/// Rate of a client, in bytes per second.
const RATE: u32 = 100_000;
/// Number of bytes read at full speed first: the kernel lets the server's socket hold megabytes
/// then.
const FULL_SPEED_BYTES: u64 = 8 << 20;
/// Number of bytes that exceeds the buffers of both sockets.
const FILE_SIZE: u64 = 30 << 20;
const ATTEMPTS: u32 = 5;

const MAX_WINDOW: u32 = (1 << 31) - 1;

/// The result of an attempt.
enum Outcome {
    Served,
    /// The client was cut off after this time.
    CutOff(Duration),
    /// The client paused for so long that the server may have cut it off.
    Paused(Duration),
}

/// Repeats an attempt until the client has not paused.
fn attempt(what: &str, mut client: impl FnMut() -> Outcome) {
    for _ in 0..ATTEMPTS {
        match client() {
            Outcome::Served => return,
            Outcome::CutOff(after) => panic!("{what}: cut off after {after:?}"),
            Outcome::Paused(time) => println!("{what}: the client paused for {time:?}"),
        }
    }
    println!("skipped: {what}: the client has no CPU for long times");
}

/// The steps of a client, and the time between them.
struct Pacing {
    began: Instant,
    last: Instant,
    longest: Duration,
}

impl Pacing {
    fn start() -> Pacing {
        let now = Instant::now();
        Pacing {
            began: now,
            last: now,
            longest: Duration::ZERO,
        }
    }

    /// A step is taken; the next one may come when `bytes` are due.
    fn step(&mut self, bytes: u64) {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        let due = self.began + Duration::from_secs(bytes) / RATE;
        std::thread::sleep(due.saturating_duration_since(now));
    }

    /// `served`: as long as the client went on.
    fn end(self, served: bool) -> Outcome {
        if served {
            Outcome::Served
        } else if self.longest > SERVER_TIMEOUT / 4 {
            Outcome::Paused(self.longest)
        } else {
            Outcome::CutOff(self.began.elapsed())
        }
    }
}

fn folder() -> Folder {
    let folder = Folder::new();
    let file = std::fs::File::create(folder.0.join("f")).unwrap();
    file.set_len(FILE_SIZE).unwrap();
    folder
}

fn set_short_timeouts(config: &mut Config) {
    config.limits.write_timeout = SERVER_TIMEOUT;
    config.limits.body_timeout = SERVER_TIMEOUT;
}

/// Reads [`FULL_SPEED_BYTES`] bytes, and then at [`RATE`] for as long as [`MIN_CLIENT_TIME`]. Calls
/// `on_read` after each read with the number of bytes so far.
///
/// When the server has closed the connection, the kernel goes on sending the megabytes that it
/// holds. So the server is asked whether it has.
fn read_slowly<S: Read>(
    server: &TestServer,
    stream: &mut S,
    mut on_read: impl FnMut(&mut S, u64),
) -> Outcome {
    let mut steps = Pacing::start();
    let (mut some, mut all) = ([0; 4096], 0);
    while steps.began.elapsed() < MIN_CLIENT_TIME {
        let Ok(count @ 1..) = stream.read(&mut some) else {
            return steps.end(false);
        };
        all += count as u64;
        on_read(stream, all);
        if all < FULL_SPEED_BYTES {
            steps = Pacing::start();
        } else {
            steps.step(all - FULL_SPEED_BYTES);
        }
        if server.control.connections() == 0 {
            return steps.end(false);
        }
    }
    steps.end(true)
}

const GET: &[u8] = b"GET /f HTTP/1.1\r\nhost: test\r\n\r\n";

#[test]
fn a_slow_reader_of_http_1_is_served() {
    let folder = folder();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    attempt("HTTP/1", || {
        let mut stream = narrow(&server);
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
    let server = TestServer::with(&folder.0, |config| {
        set_short_timeouts(config);
        config.listen.push(listens.into());
    });
    attempt("a Unix socket", || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(4 * SERVER_TIMEOUT)).unwrap();
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
    let server = TestServer::with(&folder.0, |config| {
        set_short_timeouts(config);
        config.tls = Some(files);
    });
    attempt("TLS", || {
        let (mut client, mut stream) = shake_hands_on(narrow(&server), &tls, &[]);
        let mut stream = rustls::Stream::new(&mut client, &mut stream);
        stream.write_all(GET).unwrap();
        read_slowly(&server, &mut stream, |_, _| {})
    });
}

/// A connection whose client has a small buffer.
fn narrow(server: &TestServer) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    // The window that the client offers at first depends on it.
    set_socket_recv_buffer_size(&socket, 65_536).unwrap();
    connect(&socket, &server.address).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(4 * SERVER_TIMEOUT)).unwrap();
    stream
}

/// Asks for the file on a new connection of HTTP/2 with a large window, and `window` for a stream.
fn request_http2(server: &TestServer, window: u32) -> TcpStream {
    let mut stream = open_on(narrow(server));
    let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
    let all = (MAX_WINDOW - 65_535).to_be_bytes();
    let frames = [
        frame(SETTINGS, 0, 0, &setting),
        frame(WINDOW_UPDATE, 0, 0, &all),
        get(1, "/f", &[]),
    ];
    stream.write_all(&frames.concat()).unwrap();
    stream
}

#[test]
fn a_slow_reader_of_http_2_is_served() {
    let folder = folder();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    attempt("HTTP/2", || {
        let mut stream = request_http2(&server, MAX_WINDOW);
        read_slowly(&server, &mut stream, |_, _| {})
    });
}

#[test]
fn a_slow_reader_of_http_2_that_opens_its_window_rarely_is_served() {
    // All that the window admits is in the sockets, so no write of the server waits.
    const WINDOW: u32 = 1 << 20;
    const HALF: u32 = WINDOW / 2;
    let folder = folder();
    let server = TestServer::with(&folder.0, set_short_timeouts);
    attempt("a window of HTTP/2", || {
        let mut stream = request_http2(&server, WINDOW);
        let mut opened = 0;
        read_slowly(&server, &mut stream, |stream, all| {
            if all >= opened + u64::from(HALF) {
                opened += u64::from(HALF);
                let update = frame(WINDOW_UPDATE, 0, 1, &HALF.to_be_bytes());
                stream.write_all(&update).unwrap();
            }
        })
    });
}

/// Takes the whole frames out of `came`, and returns how much DATA there was. Answers PINGs, and
/// opens the windows again.
fn answers(stream: &mut TcpStream, came: &mut Vec<u8>) -> u64 {
    let (mut data, mut answers) = (0, Vec::new());
    let (frames, length) = frames(came);
    came.drain(..length);
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
                answers.extend(frame(WINDOW_UPDATE, 0, 0, &length.to_be_bytes()));
            }
            (PING, 0) => answers.extend(frame(PING, ACK, 0, &payload)),
            _ => {}
        }
    }
    // A closed socket answers by a reset.
    let _ = stream.write_all(&answers);
    data
}

#[test]
fn a_slow_reader_of_http_2_gets_all_of_its_response_when_the_server_ends() {
    const LENGTH: u64 = 1 << 20;
    let folder = Folder::new();
    let file = std::fs::File::create(folder.0.join("f")).unwrap();
    file.set_len(LENGTH).unwrap();
    attempt("the end of the server", || {
        let server = TestServer::with(&folder.0, set_short_timeouts);
        let mut stream = request_http2(&server, MAX_WINDOW);
        let (mut some, mut came, mut all) = ([0; 4096], Vec::new(), 0);
        // The request is under way.
        stream.peek(&mut some).unwrap();
        server.control.drain();
        let mut steps = Pacing::start();
        while let Ok(count @ 1..) = stream.read(&mut some) {
            came.extend_from_slice(&some[..count]);
            all += answers(&mut stream, &mut came);
            steps.step(all / 2);
        }
        steps.end(all == LENGTH)
    });
}

/// A service that says how long a body is.
fn measures() -> axum::Router {
    axum::Router::new().route(
        "/",
        post(|body: String| async move { body.len().to_string() }),
    )
}

/// Sends in pieces, with pauses shorter than the limit; true: all of it was taken.
fn send_slowly(stream: &mut impl Write, bytes: &[u8], steps: &mut Pacing) -> bool {
    for piece in bytes.chunks(1000) {
        let sent = stream.write_all(piece).and_then(|()| stream.flush());
        match sent {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        let now = Instant::now();
        steps.longest = steps
            .longest
            .max((now - steps.last).saturating_sub(SERVER_TIMEOUT / 4));
        steps.last = now;
        std::thread::sleep(SERVER_TIMEOUT / 4);
    }
    true
}

#[test]
fn a_record_of_tls_that_comes_slowly_is_waited_for() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    attempt("a record", || {
        let files = tls.clone();
        let set = |config: &mut Config| {
            set_short_timeouts(config);
            config.tls = Some(files);
        };
        let server = TestServer::with_service(&folder, set, measures());
        let (mut client, mut stream) = shake_hands(&server, &tls);
        let head =
            "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 16000\r\n\r\n";
        client.writer().write_all(head.as_bytes()).unwrap();
        client.write_tls(&mut stream).unwrap();
        client.writer().write_all(&[b'x'; 16_000]).unwrap();
        let mut record = Vec::new();
        client.write_tls(&mut record).unwrap();
        let mut steps = Pacing::start();
        let mut answer = String::new();
        if send_slowly(&mut stream, &record, &mut steps) {
            let _ = rustls::Stream::new(&mut client, &mut stream).read_to_string(&mut answer);
        }
        steps.end(answer.starts_with("HTTP/1.1 200") && answer.ends_with("16000"))
    });
}

#[test]
fn a_frame_of_http_2_that_comes_slowly_is_waited_for() {
    let folder = Folder::new();
    attempt("a frame", || {
        let server = TestServer::with_service(&folder, set_short_timeouts, measures());
        let mut stream = open(&server);
        let head = frame(HEADERS, END_HEADERS, 1, &block("POST", "/", &[]));
        stream.write_all(&head).unwrap();
        let data = frame(DATA, END_STREAM, 1, &[b'x'; 16_000]);
        let mut steps = Pacing::start();
        let taken = send_slowly(&mut stream, &data, &mut steps);
        stream.set_read_timeout(Some(SERVER_TIMEOUT / 2)).unwrap();
        let answer = String::from_utf8_lossy(&rest(&mut stream)).into_owned();
        steps.end(taken && answer.contains("16000"))
    });
}
