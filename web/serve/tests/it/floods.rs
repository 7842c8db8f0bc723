//! HTTP/2 used against the server, frame by frame.

use std::io::Write;
use std::net::TcpStream;

use crate::harness::{Folder, Running, read_until, rest};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `GET /plaintext` by HPACK's static table and literals that are not indexed.
fn get_plaintext() -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, 10];
    block.extend_from_slice(b"/plaintext");
    block.extend_from_slice(&[0x01, 1, b'x']);
    block
}

pub(crate) fn open(server: &Running) -> TcpStream {
    open_on(server.connect())
}

pub(crate) fn open_on(mut stream: TcpStream) -> TcpStream {
    stream
        .set_read_timeout(Some(std::time::Duration::from_secs(10)))
        .unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    stream
}

/// The frames of a kind in what came: their streams and lengths.
fn frames(mut bytes: &[u8], kind: u8) -> Vec<(u32, usize)> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if head[3] == kind {
            found.push((u32::from_be_bytes(head[5..9].try_into().unwrap()), length));
        }
        bytes = rest.get(length..).unwrap_or_default();
    }
    found
}

/// The error code of the GOAWAY frame in what came, if there is one.
pub(crate) fn goaway(mut bytes: &[u8]) -> Option<u32> {
    while bytes.len() >= 9 {
        let length =
            usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        let (kind, payload) = (bytes[3], bytes.get(9..9 + length)?);
        if kind == GOAWAY {
            return payload
                .get(4..8)
                .map(|code| u32::from_be_bytes(code.try_into().unwrap()));
        }
        bytes = &bytes[9 + length..];
    }
    None
}

const ENHANCE_YOUR_CALM: u32 = 11;

#[test]
fn an_honest_stream_is_answered() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    let mut stream = open(&server);
    stream
        .write_all(&frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            1,
            &get_plaintext(),
        ))
        .unwrap();
    let answered = |got: &[u8]| String::from_utf8_lossy(got).contains("Hello, World!");
    let got = read_until(&mut stream, answered);
    assert!(answered(&got));
    assert_eq!(goaway(&got), None);
}

#[test]
fn an_answer_to_head_has_no_body() {
    let folder = Folder::new();
    folder.write("a.txt", "a file");
    let server = Running::files(&folder.0);
    let mut stream = open(&server);
    let paths = ["/plaintext", "/a.txt", "/none", "/", "/matrix?n=2"];
    for (n, path) in paths.into_iter().enumerate() {
        // `:method: HEAD` and `:path` as literals.
        let mut block = vec![0x02, 4];
        block.extend_from_slice(b"HEAD");
        block.extend_from_slice(&[0x86, 0x04, path.len() as u8]);
        block.extend_from_slice(path.as_bytes());
        block.extend_from_slice(&[0x01, 1, b'x']);
        let flags = END_STREAM | END_HEADERS;
        stream
            .write_all(&frame(HEADERS, flags, 2 * n as u32 + 1, &block))
            .unwrap();
    }
    // What is answered before a PING that comes later is before its answer.
    let all = |got: &[u8]| frames(got, HEADERS).len() == paths.len();
    let mut got = read_until(&mut stream, all);
    stream.write_all(&frame(PING, 0, 0, &[0; 8])).unwrap();
    let more = read_until(&mut stream, |more| {
        !frames(&[&got, more].concat(), PING).is_empty()
    });
    got.extend(more);
    assert!(all(&got));
    assert_eq!(frames(&got, DATA), []);
    assert_eq!(frames(&got, RST_STREAM), []);
}

#[test]
fn streams_reset_as_fast_as_they_are_opened_end_the_connection() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    let mut stream = open(&server);
    let mut flood = Vec::new();
    for n in 0..5000u32 {
        flood.extend(frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            2 * n + 1,
            &get_plaintext(),
        ));
        flood.extend(frame(RST_STREAM, 0, 2 * n + 1, &8u32.to_be_bytes()));
    }
    // It may close before all was sent.
    let _ = stream.write_all(&flood);
    let got = rest(&mut stream);
    assert!(
        matches!(goaway(&got), Some(ENHANCE_YOUR_CALM) | None),
        "{:?}",
        goaway(&got)
    );
    server.wait_until_idle();
    assert!(server.is_well());
    let answered = server.control.answered();
    assert!(
        answered < 2500,
        "{answered} of 5000 reset requests were answered"
    );
}

#[test]
fn headers_that_never_end_are_cut_off() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    let mut stream = open(&server);
    stream
        .write_all(&frame(HEADERS, END_STREAM, 1, &get_plaintext()))
        .unwrap();
    let piece = [0u8, 1, b'a', 1, b'b'].repeat(2000);
    let mut sent = 0;
    for _ in 0..2000 {
        if stream
            .write_all(&frame(CONTINUATION, 0, 1, &piece))
            .is_err()
        {
            break;
        }
        sent += piece.len();
    }
    assert!(sent < 2000 * piece.len(), "20 MB of one head were taken");
    drop(stream);
    server.wait_until_idle();
    assert!(server.is_well());
}

#[test]
fn empty_continuations_are_cut_off() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    let mut stream = open(&server);
    stream
        .write_all(&frame(HEADERS, END_STREAM, 1, &get_plaintext()))
        .unwrap();
    let many = frame(CONTINUATION, 0, 1, &[]).repeat(1000);
    let mut cut = false;
    for _ in 0..1000 {
        if stream.write_all(&many).is_err() {
            cut = true;
            break;
        }
    }
    assert!(cut, "a million empty frames were taken");
    assert!(server.is_well());
}

#[test]
fn a_bomb_of_header_compression_is_refused() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    let mut stream = open(&server);
    // A field of 4000 bytes goes into the table, then is named 4000 times by one byte.
    let mut block = get_plaintext();
    block.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    block.extend(std::iter::repeat_n(b'b', 4000));
    block.extend(std::iter::repeat_n(0xbe, 4000));
    let _ = stream.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block));
    let got = rest(&mut stream);
    assert!(!String::from_utf8_lossy(&got).contains("Hello, World!"));
    assert!(server.is_well());
}

#[test]
fn pings_and_settings_without_end_do_not_grow_memory() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    for kind in [PING, SETTINGS] {
        let mut stream = open(&server);
        stream
            .set_write_timeout(Some(std::time::Duration::from_millis(500)))
            .unwrap();
        let payload: &[u8] = if kind == PING { &[0; 8] } else { &[] };
        let many = frame(kind, 0, 0, payload).repeat(10_000);
        // The answers are not read: the server must stop to read rather than to store.
        for _ in 0..50 {
            if stream.write_all(&many).is_err() {
                break;
            }
        }
        drop(stream);
        assert!(server.is_well());
    }
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = resident.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(pages * 4096 < 1 << 30, "{} MiB are in use", pages / 256);
}

#[test]
fn frames_that_are_wrong_end_the_connection() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    for (what, bytes) in [
        ("a DATA frame on stream 0", frame(0, 0, 0, b"x")),
        (
            "an even stream",
            frame(HEADERS, END_STREAM | END_HEADERS, 2, &get_plaintext()),
        ),
        (
            "a frame larger than allowed",
            frame(0, 0, 1, &vec![0; 20_000]),
        ),
        (
            "a window that overflows",
            frame(8, 0, 0, &0x7fff_ffffu32.to_be_bytes()).repeat(2),
        ),
        (
            "a broken header block",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff; 20]),
        ),
        ("a PING of 7 bytes", frame(PING, 0, 0, &[0; 7])),
    ] {
        let mut stream = open(&server);
        let _ = stream.write_all(&bytes);
        let got = rest(&mut stream);
        assert!(goaway(&got).is_some_and(|code| code != 0), "{what}");
    }
    assert!(server.is_well());
}

#[test]
fn a_client_that_opens_no_window_for_what_it_asked_for_is_cut_off() {
    let folder = Folder::new();
    folder.write("plaintext", vec![7; 1 << 20]);
    let server = Running::with(&folder.0, |config| {
        config.limits.write_timeout = std::time::Duration::from_millis(500);
        // So that the file of this name is there.
        config
            .endpoints
            .retain(|endpoint| *endpoint == upshift_serve::Endpoint::Healthz);
    });
    let mut stream = open(&server);
    const INITIAL_WINDOW_SIZE: u8 = 4;
    for (n, window) in [0u32, 1000].into_iter().enumerate() {
        let mut setting = vec![0, INITIAL_WINDOW_SIZE];
        setting.extend_from_slice(&window.to_be_bytes());
        stream.write_all(&frame(SETTINGS, 0, 0, &setting)).unwrap();
        let id = 2 * n as u32 + 1;
        let head = frame(HEADERS, END_STREAM | END_HEADERS, id, &get_plaintext());
        stream.write_all(&head).unwrap();
    }
    server.wait_for_requests(2);
    // It reads, and says that it is there.
    let mut pings = stream.try_clone().unwrap();
    let alive = std::thread::spawn(move || {
        while pings.write_all(&frame(PING, 0, 0, &[0; 8])).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    rest(&mut stream);
    alive.join().unwrap();
    server.wait_until_idle();
    server.wait_for_requests(0);
    assert!(server.is_well());
}
