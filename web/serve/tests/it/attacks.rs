//! Tests of oversized heads, and of requests that two servers might parse differently (request
//! smuggling).

use std::io::Read;
use std::net::TcpStream;

use crate::harness::{Folder, TestServer};

/// A request that follows the tested one. Its response, `Hello, World!`, must never arrive.
const SMUGGLED: &str = "GET /plaintext HTTP/1.1\r\nhost: smuggled\r\n\r\n";

fn first_line(answer: &str) -> &str {
    answer
        .lines()
        .next()
        .unwrap_or("(closed without a response)")
}

#[test]
fn ambiguous_requests_are_refused() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let post = "POST /x HTTP/1.1\r\nhost: test\r\n";
    for (case, head) in [
        (
            "two lengths that differ",
            "content-length: 5\r\ncontent-length: 6\r\n\r\n",
        ),
        (
            "a list of lengths that differ",
            "content-length: 5, 6\r\n\r\n",
        ),
        ("a length with a sign", "content-length: +5\r\n\r\n"),
        ("a negative length", "content-length: -1\r\n\r\n"),
        ("a length in hex", "content-length: 0x10\r\n\r\n"),
        (
            "a length beyond 64 bits",
            "content-length: 99999999999999999999\r\n\r\n",
        ),
        ("a space before the colon", "content-length : 5\r\n\r\n"),
        ("a folded line", "x: a\r\n b\r\ncontent-length: 5\r\n\r\n"),
        ("a bare CR", "x: a\rcontent-length: 5\r\n\r\n"),
        ("a NUL", "x: a\0b\r\n\r\n"),
        ("a line without a colon", "rubbish\r\n\r\n"),
    ] {
        let answer = server.exchange(format!("{post}{head}{SMUGGLED}"));
        assert!(
            answer.starts_with("HTTP/1.1 400"),
            "{case}: {}",
            first_line(&answer)
        );
        assert!(!answer.contains("Hello, World!"), "{case}: {answer}");
    }
}

#[test]
fn transfer_codings_other_than_chunked_are_refused_and_the_connection_is_closed() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for coding in [
        "xchunked",
        "identity",
        "gzip, chunked",
        "chunked, identity",
        "chunked, chunked",
        "chunked\r\ntransfer-encoding: chunked",
    ] {
        let post = "POST /x HTTP/1.1\r\nhost: test\r\n";
        let head = format!("{post}transfer-encoding: {coding}\r\n\r\n0\r\n\r\n");
        let mut stream = server.connect_and_send(format!("{head}{SMUGGLED}"));
        let (answer, is_closed) = read_until_closed(&mut stream);
        assert!(is_closed, "{coding}");
        assert!(
            answer.starts_with("HTTP/1.1 501") && answer.contains("connection: close"),
            "{coding}: {answer}"
        );
        assert!(
            answer.ends_with("known here is chunked\n"),
            "{coding}: {answer}"
        );
    }
}

/// Returns all received bytes, and whether the server then closed the connection.
fn read_until_closed(stream: &mut TcpStream) -> (String, bool) {
    let mut bytes = Vec::new();
    let is_closed = stream.read_to_end(&mut bytes).is_ok();
    (String::from_utf8_lossy(&bytes).into_owned(), is_closed)
}

#[test]
fn a_url_that_is_too_long_is_named_as_the_reason() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let ask = |url_len: usize, field_len: usize| {
        let (path, field) = ("a".repeat(url_len), "y".repeat(field_len));
        let head = format!("GET /{path} HTTP/1.1\r\nhost: test\r\nx: {field}\r\n\r\n");
        let (answer, is_closed) = read_until_closed(&mut server.connect_and_send(head));
        assert!(is_closed, "{url_len}");
        answer
    };
    for url_len in [20_000, 60_000] {
        let answer = ask(url_len, 1);
        assert!(answer.starts_with("HTTP/1.1 414"), "{url_len}: {answer}");
        assert!(answer.ends_with("the URL is too long\n"), "{answer}");
    }
    // The head is too long, but not because of the URL alone.
    for (url_len, field_len) in [(10, 20_000), (10_000, 10_000)] {
        let answer = ask(url_len, field_len);
        assert!(answer.starts_with("HTTP/1.1 431"), "{url_len}: {answer}");
    }
}

#[test]
fn a_content_length_does_not_end_a_chunked_body() {
    // RFC 9112, section 6.1: Transfer-Encoding takes precedence over Content-Length. The first
    // chunk announces 0x5c bytes, more than arrive, so `GPOST` belongs to the body and is not a
    // second request, whatever the content length says.
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let answer = server.exchange(
        "POST /plaintext HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
         5c\r\nGPOST / HTTP/1.1\r\nhost: b\r\n\r\n",
    );
    // The body is incomplete, so the server answers at most the first request.
    assert!(answer.matches("HTTP/1.1").count() <= 1, "{answer}");
    assert!(server.is_healthy());
}

#[test]
fn invalid_chunk_sizes_end_the_connection() {
    let folder = Folder::new();
    let server = TestServer::with_service(&folder, |_| {}, body_reader());
    let post = "POST /x HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n";
    for (case, body) in [
        (
            "a size beyond 64 bits",
            "fffffffffffffffff\r\nx\r\n0\r\n\r\n",
        ),
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("a size that is not a number", "5g\r\nhello\r\n0\r\n\r\n"),
        ("a negative size", "-5\r\nhello\r\n0\r\n\r\n"),
        ("a chunk longer than its size", "3\r\nhello\r\n0\r\n\r\n"),
        (
            "an extension of 100 kB",
            &format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(100_000)),
        ),
    ] {
        let answer = server.exchange(format!("{post}{body}{SMUGGLED}"));
        assert!(!answer.contains("200 OK"), "{case}: {answer}");
        assert!(!answer.contains("Hello, World!"), "{case}: {answer}");
    }
    let post = post.replace("host: test", "host: test\r\nconnection: close");
    let answer = server.exchange(format!("{post}5\r\nhello\r\n0\r\n\r\n"));
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("read 5"),
        "{answer}"
    );
}

fn body_reader() -> axum::Router {
    use axum::routing::post;
    let read = |request: axum::extract::Request| async move {
        match axum::body::to_bytes(request.into_body(), usize::MAX).await {
            Ok(body) => (axum::http::StatusCode::OK, format!("read {}", body.len())),
            Err(_) => (axum::http::StatusCode::BAD_REQUEST, "broken".to_owned()),
        }
    };
    axum::Router::new().route("/x", post(read))
}

#[test]
fn a_single_line_feed_ends_a_line_as_rfc_9112_allows() {
    // Section 2.2: a recipient may recognise a single LF. The server does so in the whole head, so
    // the message can be read in only one way, and the position of its body is certain.
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let answer = server.exchange("GET /plaintext HTTP/1.1\nhost: test\nconnection: close\n\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(answer.matches("Hello, World!").count(), 1);
}

#[test]
fn malformed_request_lines_are_refused() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for line in [
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/9.9",
        "GET / HTTP/1.1 x",
        "G\0T / HTTP/1.1",
        "GET /\u{1} HTTP/1.1",
        "\u{16}\u{3}\u{1}TLS hello",
        "{}",
    ] {
        let answer = server.exchange(format!("{line}\r\nhost: test\r\n\r\n"));
        assert!(!answer.contains(" 200 "), "{line:?}: {answer}");
    }
    assert!(server.is_healthy());
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(100_000));
    let one_megabyte = "x".repeat(1_000_000);
    let accepted_statuses = &["400", "414", "431", "closed"][..];
    let get = "GET / HTTP/1.1\r\nhost: test\r\n";
    for (case, head, expected) in [
        ("200 fields", format!("{get}{many}\r\n"), &["431"][..]),
        (
            "a field of 100 kB",
            format!("{get}{long}\r\n"),
            accepted_statuses,
        ),
        (
            "a path of 1 MB",
            format!("GET /{one_megabyte} HTTP/1.1\r\nhost: test\r\n\r\n"),
            accepted_statuses,
        ),
        ("a method of 1 MB", one_megabyte.clone(), accepted_statuses),
    ] {
        let answer = server.exchange(head);
        let status = answer.split(' ').nth(1).unwrap_or("closed");
        assert!(
            expected.contains(&status),
            "{case}: {}",
            first_line(&answer)
        );
        assert!(server.is_healthy(), "{case}");
    }
}
