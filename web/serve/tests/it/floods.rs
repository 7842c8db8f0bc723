//! Tests with HTTP/2 frames that are sent one by one: responses to HEAD, floods, endless heads, and
//! frames that violate the protocol.

use std::io::Write;
use std::time::Duration;

use crate::harness::{Folder, TestServer, read_to_end, read_until};
use crate::http2::{
    CONTINUATION, DATA, END_STREAM, END_STREAM_AND_HEADERS, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, connect_http2, frame, frames, get, goaway_error, header_block,
};

const ENHANCE_YOUR_CALM: u32 = 11;

#[test]
fn a_response_to_head_has_no_body() {
    let folder = Folder::new();
    folder.write("a.txt", "a file");
    let server = TestServer::files(&folder.0);
    let mut stream = connect_http2(&server);
    let paths = ["/plaintext", "/a.txt", "/none", "/", "/matrix?n=2"];
    for (n, path) in paths.into_iter().enumerate() {
        let head = header_block("HEAD", path, &[]);
        let head = frame(HEADERS, END_STREAM_AND_HEADERS, 2 * n as u32 + 1, &head);
        stream.write_all(&head).unwrap();
    }
    // The responses to earlier requests precede the reply to a PING.
    let count = |got: &[u8], kind: u8| {
        let (frames, _) = frames(got);
        frames.iter().filter(|frame| frame.kind == kind).count()
    };
    let mut got = read_until(&mut stream, |got| count(got, HEADERS) == paths.len());
    stream.write_all(&frame(PING, 0, 0, &[0; 8])).unwrap();
    got.extend(read_until(&mut stream, |next| {
        count(&[&got, next].concat(), PING) != 0
    }));
    let counts = [HEADERS, DATA, RST_STREAM].map(|kind| count(&got, kind));
    assert_eq!(counts, [paths.len(), 0, 0]);
}

/// The server must end the connection. A client that uses `PRIORITY_UPDATE` is tested, too, because
/// its requests are passed on one by one.
#[test]
fn streams_reset_as_fast_as_they_are_opened_end_the_connection() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let settings = frame(SETTINGS, 0, 0, &[0, 9, 0, 0, 0, 1]);
    let reset = |n: u32| frame(RST_STREAM, 0, n, &8u32.to_be_bytes());
    let streams = (0..5000).map(|n| 2 * n + 1);
    let flood: Vec<u8> = streams
        .flat_map(|n| [get(n, "/plaintext", &[]), reset(n)].concat())
        .collect();
    for prefix in [Vec::new(), settings] {
        let answered = server.control.answered();
        let mut stream = connect_http2(&server);
        // The server may close before all bytes were sent.
        let _ = stream.write_all(&[&prefix[..], &flood].concat());
        let code = goaway_error(&read_to_end(&mut stream));
        assert!(matches!(code, Some(ENHANCE_YOUR_CALM) | None), "{code:?}");
        server.wait_until_idle();
        assert!(server.is_healthy());
        let answered = server.control.answered() - answered;
        // The server ends the connection early. The bound, half of the requests, leaves a margin.
        assert!(answered < 2500, "{answered} of 5000 were answered");
    }
}

#[test]
fn headers_that_never_end_are_cut_off() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let fields = [0u8, 1, b'a', 1, b'b'].repeat(2000);
    for (case, piece) in [
        ("20 MB of one head", frame(CONTINUATION, 0, 1, &fields)),
        (
            "a million empty frames",
            frame(CONTINUATION, 0, 1, &[]).repeat(500),
        ),
    ] {
        let mut stream = connect_http2(&server);
        let head = header_block("GET", "/plaintext", &[]);
        stream
            .write_all(&frame(HEADERS, END_STREAM, 1, &head))
            .unwrap();
        let is_cut = (0..2000).any(|_| stream.write_all(&piece).is_err());
        assert!(is_cut, "{case}");
        drop(stream);
        server.wait_until_idle();
    }
    assert!(server.is_healthy());
}

#[test]
fn a_header_compression_bomb_is_refused() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let mut stream = connect_http2(&server);
    // A field of 4000 bytes enters the dynamic table, and 4000 single bytes then refer to it.
    let mut block = header_block("GET", "/plaintext", &[]);
    block.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    block.extend(std::iter::repeat_n(b'b', 4000));
    block.extend(std::iter::repeat_n(0xbe, 4000));
    let _ = stream.write_all(&frame(HEADERS, END_STREAM_AND_HEADERS, 1, &block));
    let got = read_to_end(&mut stream);
    assert!(!String::from_utf8_lossy(&got).contains("Hello, World!"));
    assert!(server.is_healthy());
}

#[test]
fn endless_pings_and_settings_do_not_grow_memory() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for kind in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        let mut stream = connect_http2(&server);
        let timeout = Some(Duration::from_millis(500));
        stream.set_write_timeout(timeout).unwrap();
        // The client does not read the replies, so the server must stop reading rather than store
        // the replies.
        let many = kind.repeat(10_000);
        let _ = (0..50).try_for_each(|_| stream.write_all(&many));
        drop(stream);
        assert!(server.is_healthy());
    }
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = resident.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(pages * 4096 < 1 << 30, "{} MiB are in use", pages / 256);
}

#[test]
fn frames_that_violate_the_protocol_end_the_connection() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let large = vec![0; 20_000];
    let overflow = frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes());
    for (case, bytes) in [
        ("a DATA frame on stream 0", frame(DATA, 0, 0, b"x")),
        ("an even stream", get(2, "/plaintext", &[])),
        ("a frame larger than allowed", frame(DATA, 0, 1, &large)),
        ("a window that overflows", overflow.repeat(2)),
        (
            "a broken block",
            frame(HEADERS, END_STREAM_AND_HEADERS, 1, &[0xff; 20]),
        ),
        ("a PING of 7 bytes", frame(PING, 0, 0, &[0; 7])),
    ] {
        let mut stream = connect_http2(&server);
        let _ = stream.write_all(&bytes);
        let got = read_to_end(&mut stream);
        assert!(goaway_error(&got).is_some_and(|code| code != 0), "{case}");
    }
    assert!(server.is_healthy());
}

#[test]
fn a_client_that_opens_no_window_for_its_response_is_cut_off() {
    const INITIAL_WINDOW_SIZE: u8 = 4;
    let folder = Folder::new();
    folder.write("big", vec![7; 1 << 20]);
    let server = TestServer::with_config(&folder.0, |config| {
        config.limits.write_timeout = Duration::from_millis(500);
    });
    let mut stream = connect_http2(&server);
    for (number, window) in [(1, 0u32), (3, 1000)] {
        let setting = [&[0, INITIAL_WINDOW_SIZE][..], &window.to_be_bytes()].concat();
        let setting = frame(SETTINGS, 0, 0, &setting);
        let request = [setting, get(number, "/big", &[])].concat();
        stream.write_all(&request).unwrap();
    }
    server.wait_for_requests(2);
    // The client reads, and sends PINGs.
    let mut pings = stream.try_clone().unwrap();
    let ping_loop = std::thread::spawn(move || {
        while pings.write_all(&frame(PING, 0, 0, &[0; 8])).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    read_to_end(&mut stream);
    ping_loop.join().unwrap();
    server.wait_until_idle();
    server.wait_for_requests(0);
    assert!(server.is_healthy());
}
