//! Tests of refused uploads. The client must get the response, although it is still sending.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use upshift_serve::Config;

use crate::harness::{Answer, Folder, TestServer, output_text, read_to_end, tool, wait_until};
use crate::http2::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, connect_http2, frame, header_block,
};

/// Encodes the head of `POST /page.txt` with a body of `length` bytes, on the stream `number`.
fn post(number: u32, length: usize) -> Vec<u8> {
    let block = header_block(
        "POST",
        "/page.txt",
        &[("content-length", &length.to_string())],
    );
    let flags = if length == 0 { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | flags, number, &block)
}

fn refusing_server(folder: &Folder) -> TestServer {
    folder.write("page.txt", "a page");
    TestServer::with_config(&folder.0, |config| config.limits.body_bytes = 20_000)
}

/// Reads frames until one satisfies `is_last`. Returns the kind and the stream of each frame.
fn read_to(stream: &mut TcpStream, is_last: impl Fn(&Frame) -> bool) -> Vec<(u8, u32)> {
    let mut kinds = Vec::new();
    loop {
        let frame = Frame::read(stream).expect("the connection ended");
        kinds.push((frame.kind, frame.stream));
        if is_last(&frame) {
            return kinds;
        }
    }
}

#[test]
fn a_refused_upload_over_http_2_is_answered_and_not_reset_while_it_arrives() {
    let folder = Folder::new();
    let server = refusing_server(&folder);
    // The first upload is too large; the second is refused because the path names a file.
    for (number, length) in [(1, 40_000), (3, 16_000)] {
        let mut stream = connect_http2(&server);
        stream.write_all(&post(number, length)).unwrap();
        let mut received = read_to(&mut stream, |frame| {
            frame.stream == number && frame.ends_stream()
        });
        // The client sends the whole body after it has received the response.
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
        // A reset of this stream would precede the response on the next stream.
        stream.write_all(&post(number + 2, 0)).unwrap();
        let next = |frame: &Frame| frame.stream == number + 2 && frame.ends_stream();
        received.extend(read_to(&mut stream, next));
        assert!(!received.contains(&(RST_STREAM, number)), "{length}");
    }
}

#[test]
fn an_upload_that_continues_is_reset_eventually() {
    let folder = Folder::new();
    let server = refusing_server(&folder);
    let mut stream = connect_http2(&server);
    stream.write_all(&post(1, 40_000)).unwrap();
    let received = read_to(&mut stream, |frame| {
        let is_reset = frame.kind == RST_STREAM;
        assert!(
            !is_reset || frame.payload == [0; 4],
            "the code of the reset is NO_ERROR"
        );
        is_reset
    });
    let first_on_stream = received.iter().find(|(_, number)| *number == 1);
    assert_eq!(
        first_on_stream,
        Some(&(HEADERS, 1)),
        "the response precedes the reset"
    );
}

#[test]
fn a_client_that_sends_the_whole_body_before_it_reads_gets_the_refusal() {
    let folder = Folder::new();
    let server = refusing_server(&folder);
    for (length, status) in [(1_200_000, 413), (15_000, 405)] {
        let upload_gets_refusal = || {
            let mut stream = server.connect();
            let head =
                format!("POST /page.txt HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            // After this time the response has arrived, and the server has shut down its sending
            // half.
            std::thread::sleep(Duration::from_millis(100));
            let sent = stream.write_all(&vec![b'x'; length]);
            sent.is_ok() && Answer::parse(read_to_end(&mut stream)).status == status
        };
        // The server closes the connection after a second, so a stalled client misses the response.
        wait_until("a whole upload with its refusal", upload_gets_refusal);
    }
}

/// Returns the statuses that curl reports for an upload of `length` bytes over HTTP/2 and HTTP/1.1.
fn statuses(folder: &Folder, server: &TestServer, length: usize) -> Option<[String; 2]> {
    let body = folder.write("body", vec![0; length]);
    let (data, url) = (format!("@{}", body.display()), server.url("/page.txt"));
    let status = |version| {
        let args = ["-sS", "--max-time", "20", version, "--data-binary", &data];
        let output = ["-o", "/dev/null", "-w", "%{http_code}", &url];
        tool("curl", &[&args[..], &output].concat()).map(|output| output_text(&output))
    };
    Some([status("--http2-prior-knowledge")?, status("--http1.1")?])
}

#[test]
fn curl_reports_the_status_of_a_refused_upload_over_both_versions() {
    let folder = Folder::new();
    let server = refusing_server(&folder);
    for (length, status) in [(1_200_000, "413"), (15_000, "405")] {
        let Some(statuses) = statuses(&folder, &server, length) else {
            return;
        };
        assert_eq!(statuses, [status; 2], "{length}");
    }
}

/// The service answers without reading the body. The client must still get the response.
#[test]
fn a_service_may_ignore_the_rest_of_an_upload() {
    let folder = Folder::new();
    let refuse = |_: axum::extract::Request| async { axum::http::StatusCode::FORBIDDEN };
    let app = axum::Router::new().fallback(refuse);
    let limit = |config: &mut Config| config.limits.body_bytes = 10_000_000;
    let server = TestServer::with_service(&folder, limit, app);
    if let Some(statuses) = statuses(&folder, &server, 1_200_000) {
        assert_eq!(statuses, ["403"; 2]);
    }
}
