//! Tests of malformed request heads. The server must answer or close the connection, and continue
//! to serve.

#[path = "../../src/fuzz.rs"]
#[allow(dead_code)]
mod mutate;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::harness::{Answer, Folder, TestServer};

fn site() -> (Folder, TestServer) {
    let folder = Folder::new();
    folder.write("site/a.txt", "0123456789".repeat(100));
    folder.write("site/b/index.html", "<p>here</p>");
    let server = TestServer::with_config(&folder.0.join("site"), |config| {
        config.files.compress = true;
        config.limits.header_timeout = Duration::from_secs(5);
        config.limits.body_timeout = Duration::from_secs(5);
    });
    (folder, server)
}

fn exchange(server: &TestServer, bytes: &[u8]) -> Vec<u8> {
    let mut stream = server.connect();
    // The server may have closed the connection before all bytes were sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(is_reset, "{error}");
    }
    answer
}

/// Asserts that the server still serves, and that none of its coroutines has panicked.
fn assert_is_sound(server: &TestServer) {
    assert!(server.is_healthy());
    let metrics = server.get("/metrics", "").text();
    let panicked = metrics
        .lines()
        .find(|line| line.contains("panicked_total") && !line.starts_with('#'));
    assert!(
        panicked.is_some_and(|line| line.ends_with(" 0")),
        "{panicked:?}"
    );
}

#[test]
fn mutated_heads_do_not_harm_the_server() {
    let (_folder, server) = site();
    let samples: [&[u8]; 6] = [
        b"GET /a.txt HTTP/1.1\r\nhost: test\r\nrange: bytes=1-5\r\naccept-encoding: gzip;q=0.5, br\r\nconnection: close\r\n\r\n",
        b"GET /b/ HTTP/1.0\r\nif-none-match: W/\"1\", *\r\nif-modified-since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n",
        b"POST /plaintext HTTP/1.1\r\nhost: [::1]:80\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nt: u\r\n\r\n",
        b"HEAD http://a.test/%61.txt?q#f HTTP/1.1\r\nhost: a.test\r\npriority: u=1, i\r\nexpect: 100-continue\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nupgrade: h2c\r\n\r\nabcGET /b HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /matrix?n=3 HTTP/1.1\r\nhost: a\r\nif-range: \"x\"\r\nrange: bytes=-0, 4-\r\n\r\n",
    ];
    let words = [
        "\r\n\r\n",
        "\r\n",
        "GET ",
        " HTTP/1.1",
        "content-length: ",
        "transfer-encoding: chunked\r\n",
        "host: a\r\n",
        "bytes=",
        "-",
        "%00",
        "/../",
        "%2e%2e/",
        "18446744073709551616",
        "0\r\n\r\n",
        "gzip",
        "*",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    mutate::fuzz("heads", &samples, &words, 600, |bytes| {
        let answer = exchange(&server, bytes);
        // The answer is HTTP/1, or HTTP/2 for a client that sends the preface.
        let first = Answer::parse(answer.clone());
        let is_http1 = answer.starts_with(b"HTTP/1.") && (100..600).contains(&first.status);
        assert!(
            answer.is_empty() || is_http1 || bytes.starts_with(b"PRI"),
            "{}",
            answer.escape_ascii()
        );
        let names: Vec<_> = first
            .head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name.to_owned())
            .collect();
        // Answers with the same status and header names count as the same behaviour.
        mutate::hash_of((first.status, names))
    });
    assert_is_sound(&server);
}
