//! Uploads that are refused: the client gets the answer, although it is sending still.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use upshift_serve::Config;

use crate::floods::{DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame, open};
use crate::harness::{Answer, Folder, Running, rest, said, tool, until};

/// `POST /page.txt` with a length, by HPACK's static table and literals that are not indexed.
fn post(length: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04, 9];
    block.extend_from_slice(b"/page.txt");
    block.extend_from_slice(&[0x01, 1, b'x', 0x0f, 13, length.len() as u8]);
    block.extend_from_slice(length.as_bytes());
    block
}

fn refuses(folder: &Folder) -> Running {
    folder.write("page.txt", "a page");
    Running::with(&folder.0, |config| config.limits.body_bytes = 20_000)
}

/// Reads frames up to the end of a stream by the server: kind and payload of those of the stream.
fn frames_of(
    stream: &mut TcpStream,
    number: u32,
    ends: impl Fn(u8, u8) -> bool,
) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let [a, b, c, kind, flags, of @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).unwrap();
        if u32::from_be_bytes(of) == number {
            frames.push((kind, payload));
            if ends(kind, flags) {
                return frames;
            }
        }
    }
}

#[test]
fn a_refused_upload_over_http_2_is_answered_and_not_reset_while_it_comes() {
    let folder = Folder::new();
    let server = refuses(&folder);
    // Too large; and to a file, which takes none.
    for (number, length) in [(1, 40_000), (3, 16_000)] {
        let mut stream = open(&server);
        let head = frame(HEADERS, END_HEADERS, number, &post(&length.to_string()));
        stream.write_all(&head).unwrap();
        let over = |kind, flags| matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        let answer = frames_of(&mut stream, number, over);
        assert!(answer.iter().all(|(kind, _)| *kind != RST_STREAM));
        // All of it comes after the answer.
        let mut left = length;
        while left != 0 {
            let part = left.min(16_000);
            left -= part;
            let flags = if left == 0 { END_STREAM } else { 0 };
            let part = frame(DATA, flags, number, &vec![0; part]);
            stream.write_all(&part).unwrap();
        }
        // A reset of this stream would come before the answer of the next.
        let next = frame(HEADERS, END_HEADERS | END_STREAM, number + 2, &post("0"));
        stream.write_all(&next).unwrap();
        let mut reset = false;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let [a, b, c, kind, flags, of @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            stream.read_exact(&mut payload).unwrap();
            let of = u32::from_be_bytes(of);
            reset |= kind == RST_STREAM && of == number;
            if of == number + 2 && over(kind, flags) {
                break;
            }
        }
        assert!(!reset, "{length}");
    }
}

#[test]
fn an_upload_that_goes_on_is_reset_in_the_end() {
    let folder = Folder::new();
    let server = refuses(&folder);
    let mut stream = open(&server);
    let head = frame(HEADERS, END_HEADERS, 1, &post("40000"));
    stream.write_all(&head).unwrap();
    let frames = frames_of(&mut stream, 1, |kind, _| kind == RST_STREAM);
    let (_, code) = frames.last().unwrap();
    assert_eq!(code[..], [0; 4], "NO_ERROR");
    assert_eq!(frames[0].0, HEADERS, "after the answer");
}

#[test]
fn a_client_that_sends_all_before_it_reads_gets_the_refusal() {
    let folder = Folder::new();
    let server = refuses(&folder);
    for (length, status) in [(1_200_000, 413), (15_000, 405)] {
        let sends_all = || {
            let mut stream = server.connect();
            let head =
                format!("POST /page.txt HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            // The answer is there, and the server has closed its half.
            std::thread::sleep(Duration::from_millis(100));
            let sent = stream.write_all(&vec![b'x'; length]);
            sent.is_ok() && Answer::of(rest(&mut stream)).status == status
        };
        // A client that is stalled for a second is too late.
        until("a whole upload with its refusal", sends_all);
    }
}

#[test]
fn curl_reports_the_status_of_a_refused_upload_over_both_versions() {
    let folder = Folder::new();
    let server = refuses(&folder);
    for (length, status) in [(1_200_000, "413"), (15_000, "405")] {
        let body = folder.write("body", vec![0; length]);
        let data = format!("@{}", body.display());
        for version in ["--http2-prior-knowledge", "--http1.1"] {
            let url = server.url("/page.txt");
            let args = ["-sS", "--max-time", "20", version, "--data-binary", &data];
            let more = ["-o", "/dev/null", "-w", "%{http_code}", &url];
            let Some(output) = tool("curl", &[&args[..], &more].concat()) else {
                return;
            };
            assert_eq!(said(&output), status, "{version} {length}");
        }
    }
}

/// A service that answers without reading.
#[test]
fn a_service_may_leave_the_rest_of_an_upload() {
    let folder = Folder::new();
    let refuse = |_: axum::extract::Request| async { axum::http::StatusCode::FORBIDDEN };
    let app = axum::Router::new().fallback(refuse);
    let limit = |config: &mut Config| config.limits.body_bytes = 10_000_000;
    let server = Running::start(&folder.0, limit, |server| server.with_service(app));
    let body = folder.write("body", vec![0; 1_200_000]);
    let data = format!("@{}", body.display());
    for version in ["--http2-prior-knowledge", "--http1.1"] {
        let url = server.url("/page.txt");
        let args = ["-sS", "--max-time", "20", version, "--data-binary", &data];
        let more = ["-o", "/dev/null", "-w", "%{http_code}", &url];
        let Some(output) = tool("curl", &[&args[..], &more].concat()) else {
            return;
        };
        assert_eq!(said(&output), "403", "{version}");
    }
}
