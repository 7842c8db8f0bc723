//! Tests of compression while a file is sent: the clients and files for which it is used, and the
//! integrity of its output.

use std::fmt::Write as _;
use std::io::Read;

use crate::harness::{Folder, TestServer, tool};

const GZIP: &str = "accept-encoding: gzip\r\n";

fn text(lines: usize) -> String {
    (0..lines).fold(String::new(), |mut text, n| {
        let _ = writeln!(
            text,
            "line {n}: {:x}",
            n.wrapping_mul(2_654_435_761) % 65_521
        );
        text
    })
}

fn decompress(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// Sends a request of HTTP/1.0, which has no chunks, so the body ends with the connection.
fn get(server: &TestServer, path: &str, fields: &str) -> crate::harness::Answer {
    let head = format!("GET {path} HTTP/1.0\r\n{fields}\r\n");
    let mut stream = server.connect_and_send(head);
    crate::harness::Answer::parse(crate::harness::read_to_end(&mut stream))
}

fn server(folder: &Folder) -> TestServer {
    for (name, lines) in [
        ("a.html", 100),
        ("large.json", 40_000),
        ("small.txt", 3),
        ("a.png", 100),
    ] {
        folder.write(name, text(lines));
    }
    folder.write("made.css", text(100));
    folder.write("made.css.gz", "precompressed");
    TestServer::with_config(&folder.0, |config| config.files.compress = true)
}

#[test]
fn texts_are_compressed_for_clients_that_accept_gzip() {
    let folder = Folder::new();
    let server = server(&folder);
    for (name, lines) in [("a.html", 100), ("large.json", 40_000)] {
        let answer = get(&server, &format!("/{name}"), GZIP);
        assert_eq!(
            answer.header("content-encoding"),
            Some("gzip"),
            "{}",
            answer.head
        );
        assert_eq!(answer.header("vary"), Some("accept-encoding"));
        assert_eq!(answer.header("content-length"), None);
        assert_eq!(answer.header("accept-ranges"), None);
        assert!(answer.body.len() < text(lines).len() / 2);
        assert!(decompress(&answer.body) == text(lines), "{name}");
        let url = server.url(&format!("/{name}"));
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let args = ["-sS", version, "-H", "accept-encoding: gzip", &url];
            if let Some(output) = tool("curl", &args) {
                assert!(
                    decompress(&output.stdout) == text(lines),
                    "{version}, {name}"
                );
            }
        }
    }
    let head = server.ask("HEAD", "/a.html", GZIP);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-encoding"), Some("gzip"));
    assert_eq!(head.header("content-length"), None);
}

#[test]
fn other_clients_and_files_get_no_compression() {
    let folder = Folder::new();
    let server = server(&folder);
    for (path, fields) in [
        ("/a.html", ""),
        ("/a.html", "accept-encoding: br, gzip;q=0\r\n"),
        ("/a.html", "accept-encoding: gzip;q=0.5, identity\r\n"),
        ("/small.txt", GZIP),
        ("/a.png", GZIP),
    ] {
        let answer = get(&server, path, fields);
        assert_eq!(answer.header("content-encoding"), None, "{path} {fields}");
        assert!(answer.header("content-length").is_some(), "{path} {fields}");
    }
    // A precompressed file is preferred to compression on the fly.
    let precompressed = get(&server, "/made.css", GZIP);
    assert_eq!(
        (
            precompressed.header("content-encoding"),
            precompressed.text().as_str()
        ),
        (Some("gzip"), "precompressed")
    );
    assert!(precompressed.header("content-length").is_some());
    // By default compression is off.
    let plain = TestServer::files(&folder.0);
    assert_eq!(
        get(&plain, "/a.html", GZIP).header("content-encoding"),
        None
    );
}

#[test]
fn compressed_responses_have_weak_tags_and_ranges_refer_to_the_file() {
    let folder = Folder::new();
    let server = server(&folder);
    let compressed = get(&server, "/a.html", GZIP);
    let weak = compressed.header("etag").unwrap().to_owned();
    let plain = get(&server, "/a.html", "");
    let strong = plain.header("etag").unwrap().to_owned();
    assert!(
        weak.starts_with("W/\"") && strong.starts_with('"'),
        "{weak} {strong}"
    );
    assert_ne!(weak.trim_start_matches("W/"), strong);
    let status = |fields: &str| {
        let answer = server.get("/a.html", fields);
        let coding = answer.header("content-encoding").map(str::to_owned);
        (answer.status, coding, answer.body.len())
    };
    assert_eq!(status(&format!("{GZIP}if-none-match: {weak}\r\n")).0, 304);
    assert_eq!(status(&format!("{GZIP}if-none-match: {strong}\r\n")).0, 200);
    assert_eq!(status(&format!("if-none-match: {weak}\r\n")).0, 200);
    // `If-Match` compares strongly, so a weak tag never matches.
    assert_eq!(status(&format!("{GZIP}if-match: {weak}\r\n")).0, 412);
    let stripped = weak.trim_start_matches("W/");
    assert_eq!(status(&format!("{GZIP}if-match: {stripped}\r\n")).0, 412);
    assert_eq!(
        status(&format!("{GZIP}range: bytes=0-4\r\n")),
        (206, None, 5)
    );
    let range_if_compressed = format!("{GZIP}range: bytes=0-4\r\nif-range: {weak}\r\n");
    assert_eq!(status(&range_if_compressed), (200, None, text(100).len()));
}
