//! Attacks with HTTP/2 frames.

use std::io::Write;
use std::time::Duration;

use crate::harness::{Folder, TestServer, read_until, rest};
use crate::http2::{
    CONTINUATION, DATA, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, WHOLE, WINDOW_UPDATE,
    block, frame, frames, get, goaway, open,
};

const ENHANCE_YOUR_CALM: u32 = 11;

#[test]
fn an_answer_to_head_has_no_body() {
    let folder = Folder::new();
    folder.write("a.txt", "a file");
    let server = TestServer::files(&folder.0);
    let mut stream = open(&server);
    let paths = ["/plaintext", "/a.txt", "/none", "/", "/matrix?n=2"];
    for (n, path) in paths.into_iter().enumerate() {
        let head = block("HEAD", path, &[]);
        let head = frame(HEADERS, WHOLE, 2 * n as u32 + 1, &head);
        stream.write_all(&head).unwrap();
    }
    // Answers to frames before a PING precede the answer to the PING.
    let count = |got: &[u8], kind: u8| {
        let (frames, _) = frames(got);
        frames.iter().filter(|frame| frame.kind == kind).count()
    };
    let mut got = read_until(&mut stream, |got| count(got, HEADERS) == paths.len());
    stream.write_all(&frame(PING, 0, 0, &[0; 8])).unwrap();
    got.extend(read_until(&mut stream, |more| {
        count(&[&got, more].concat(), PING) != 0
    }));
    let counts = [HEADERS, DATA, RST_STREAM].map(|kind| count(&got, kind));
    assert_eq!(counts, [paths.len(), 0, 0]);
}

/// Holds also for a client that uses `PRIORITY_UPDATE`, whose requests are handed out one by one.
#[test]
fn streams_reset_as_fast_as_they_are_opened_end_the_connection() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let uses = frame(SETTINGS, 0, 0, &[0, 9, 0, 0, 0, 1]);
    let resets = |n: u32| frame(RST_STREAM, 0, n, &8u32.to_be_bytes());
    let opened = (0..5000).map(|n| 2 * n + 1);
    let flood: Vec<u8> = opened
        .flat_map(|n| [get(n, "/plaintext", &[]), resets(n)].concat())
        .collect();
    for before in [Vec::new(), uses] {
        let answered = server.control.answered();
        let mut stream = open(&server);
        // The server may close before all bytes were sent.
        let _ = stream.write_all(&[&before[..], &flood].concat());
        let code = goaway(&rest(&mut stream));
        assert!(matches!(code, Some(ENHANCE_YOUR_CALM) | None), "{code:?}");
        server.wait_until_idle();
        assert!(server.is_healthy());
        let answered = server.control.answered() - answered;
        assert!(answered < 2500, "{answered} of 5000 were answered");
    }
}

#[test]
fn headers_that_never_end_are_cut_off() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let fields = [0u8, 1, b'a', 1, b'b'].repeat(2000);
    for (what, piece) in [
        ("20 MB of one head", frame(CONTINUATION, 0, 1, &fields)),
        (
            "a million empty frames",
            frame(CONTINUATION, 0, 1, &[]).repeat(500),
        ),
    ] {
        let mut stream = open(&server);
        let head = block("GET", "/plaintext", &[]);
        stream
            .write_all(&frame(HEADERS, END_STREAM, 1, &head))
            .unwrap();
        let is_cut = (0..2000).any(|_| stream.write_all(&piece).is_err());
        assert!(is_cut, "{what}");
        drop(stream);
        server.wait_until_idle();
    }
    assert!(server.is_healthy());
}

#[test]
fn a_header_compression_bomb_is_refused() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let mut stream = open(&server);
    // A field of 4000 bytes enters the table, then single bytes refer to it 4000 times.
    let mut block = block("GET", "/plaintext", &[]);
    block.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    block.extend(std::iter::repeat_n(b'b', 4000));
    block.extend(std::iter::repeat_n(0xbe, 4000));
    let _ = stream.write_all(&frame(HEADERS, WHOLE, 1, &block));
    let got = rest(&mut stream);
    assert!(!String::from_utf8_lossy(&got).contains("Hello, World!"));
    assert!(server.is_healthy());
}

#[test]
fn pings_and_settings_without_end_do_not_grow_memory() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for many in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let mut stream = open(&server);
        let patience = Some(Duration::from_millis(500));
        stream.set_write_timeout(patience).unwrap();
        // The answers are not read: the server must stop reading rather than store them.
        let many = many.repeat(10_000);
        let _ = (0..50).try_for_each(|_| stream.write_all(&many));
        drop(stream);
        assert!(server.is_healthy());
    }
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = resident.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(pages * 4096 < 1 << 30, "{} MiB are in use", pages / 256);
}

#[test]
fn malformed_frames_end_the_connection() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let large = vec![0; 20_000];
    let overflow = frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes());
    for (what, bytes) in [
        ("a DATA frame on stream 0", frame(DATA, 0, 0, b"x")),
        ("an even stream", get(2, "/plaintext", &[])),
        ("a frame larger than allowed", frame(DATA, 0, 1, &large)),
        ("a window that overflows", overflow.repeat(2)),
        ("a broken block", frame(HEADERS, WHOLE, 1, &[0xff; 20])),
        ("a PING of 7 bytes", frame(PING, 0, 0, &[0; 7])),
    ] {
        let mut stream = open(&server);
        let _ = stream.write_all(&bytes);
        let got = rest(&mut stream);
        assert!(goaway(&got).is_some_and(|code| code != 0), "{what}");
    }
    assert!(server.is_healthy());
}

#[test]
fn a_client_that_opens_no_window_for_its_request_is_cut_off() {
    const INITIAL_WINDOW_SIZE: u8 = 4;
    let folder = Folder::new();
    folder.write("big", vec![7; 1 << 20]);
    let server = TestServer::with(&folder.0, |config| {
        config.limits.write_timeout = Duration::from_millis(500);
    });
    let mut stream = open(&server);
    for (number, window) in [(1, 0u32), (3, 1000)] {
        let setting = [&[0, INITIAL_WINDOW_SIZE][..], &window.to_be_bytes()].concat();
        let setting = frame(SETTINGS, 0, 0, &setting);
        let asks = [setting, get(number, "/big", &[])].concat();
        stream.write_all(&asks).unwrap();
    }
    server.wait_for_requests(2);
    // The client reads, and sends PINGs.
    let mut pings = stream.try_clone().unwrap();
    let alive = std::thread::spawn(move || {
        while pings.write_all(&frame(PING, 0, 0, &[0; 8])).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    rest(&mut stream);
    alive.join().unwrap();
    server.wait_until_idle();
    server.wait_for_requests(0);
    assert!(server.is_healthy());
}
