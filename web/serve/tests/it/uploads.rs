//! Uploads that are refused: the client gets the answer, although it is sending still.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use upshift_serve::Config;

use crate::harness::{Answer, Folder, TestServer, output_text, rest, run_tool, wait_until};
use crate::http2::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, block, frame, open};

/// `POST /page.txt` with a length.
fn post(number: u32, length: usize) -> Vec<u8> {
    let block = block(
        "POST",
        "/page.txt",
        &[("content-length", &length.to_string())],
    );
    let flags = if length == 0 { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | flags, number, &block)
}

fn refuses(folder: &Folder) -> TestServer {
    folder.write("page.txt", "a page");
    TestServer::with(&folder.0, |config| config.limits.body_bytes = 20_000)
}

/// Reads up to a frame of a stream: the kinds and streams of all frames.
fn read_to(stream: &mut TcpStream, last: impl Fn(&Frame) -> bool) -> Vec<(u8, u32)> {
    let mut kinds = Vec::new();
    loop {
        let frame = Frame::read(stream).expect("a frame");
        kinds.push((frame.kind, frame.stream));
        if last(&frame) {
            return kinds;
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
        stream.write_all(&post(number, length)).unwrap();
        let mut came = read_to(&mut stream, |frame| frame.stream == number && frame.ends());
        // All of it comes after the answer.
        let body = vec![0; length];
        let mut parts = body.chunks(16_000).peekable();
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_none() {
                END_STREAM
            } else {
                0
            };
            stream.write_all(&frame(DATA, flags, number, part)).unwrap();
        }
        // A reset of this stream would come before the answer of the next.
        stream.write_all(&post(number + 2, 0)).unwrap();
        let next = |frame: &Frame| frame.stream == number + 2 && frame.ends();
        came.extend(read_to(&mut stream, next));
        assert!(!came.contains(&(RST_STREAM, number)), "{length}");
    }
}

#[test]
fn an_endless_upload_is_reset() {
    let folder = Folder::new();
    let server = refuses(&folder);
    let mut stream = open(&server);
    stream.write_all(&post(1, 40_000)).unwrap();
    let came = read_to(&mut stream, |frame| {
        let is_reset = frame.kind == RST_STREAM;
        assert!(!is_reset || frame.payload == [0; 4], "NO_ERROR");
        is_reset
    });
    let of_stream = came.iter().find(|(_, number)| *number == 1);
    assert_eq!(of_stream, Some(&(HEADERS, 1)), "after the answer");
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
            sent.is_ok() && Answer::parse(rest(&mut stream)).status == status
        };
        // A client that is stalled for a second is too late.
        wait_until("a whole upload with its refusal", sends_all);
    }
}

/// The status that curl reports for an upload of so many bytes, by both versions.
fn statuses(folder: &Folder, server: &TestServer, length: usize) -> Option<[String; 2]> {
    let body = folder.write("body", vec![0; length]);
    let (data, url) = (format!("@{}", body.display()), server.url("/page.txt"));
    let status = |version| {
        let args = ["-sS", "--max-time", "20", version, "--data-binary", &data];
        let more = ["-o", "/dev/null", "-w", "%{http_code}", &url];
        run_tool("curl", &[&args[..], &more].concat()).map(|output| output_text(&output))
    };
    Some([status("--http2-prior-knowledge")?, status("--http1.1")?])
}

#[test]
fn curl_reports_the_status_of_a_refused_upload_over_both_versions() {
    let folder = Folder::new();
    let server = refuses(&folder);
    for (length, status) in [(1_200_000, "413"), (15_000, "405")] {
        let Some(statuses) = statuses(&folder, &server, length) else {
            return;
        };
        assert_eq!(statuses, [status; 2], "{length}");
    }
}

/// A service that answers without reading.
#[test]
fn a_service_may_leave_the_rest_of_an_upload() {
    let folder = Folder::new();
    let refuse = |_: axum::extract::Request| async { axum::http::StatusCode::FORBIDDEN };
    let app = axum::Router::new().fallback(refuse);
    let limit = |config: &mut Config| config.limits.body_bytes = 10_000_000;
    let server = TestServer::with_service(&folder, limit, app);
    if let Some(statuses) = statuses(&folder, &server, 1_200_000) {
        assert_eq!(statuses, ["403"; 2]);
    }
}
