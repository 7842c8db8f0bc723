//! Compression on the fly: the clients and files for which it is used, and the integrity of its
//! output.

use std::fmt::Write as _;
use std::io::Read;

use crate::harness::{Folder, TestServer, run_tool};

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

fn unpacked(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// HTTP/1.0 has no chunks: the body ends with the connection.
fn get(server: &TestServer, path: &str, more: &str) -> crate::harness::Answer {
    let head = format!("GET {path} HTTP/1.0\r\n{more}\r\n");
    let mut stream = server.connect_and_send(head);
    crate::harness::Answer::parse(crate::harness::rest(&mut stream))
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
    folder.write("made.css.gz", "made before");
    TestServer::with(&folder.0, |config| config.files.compress = true)
}

#[test]
fn texts_are_compressed_for_clients_that_accept_it() {
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
        assert!(unpacked(&answer.body) == text(lines), "{name}");
        let url = server.url(&format!("/{name}"));
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let args = ["-sS", version, "-H", "accept-encoding: gzip", &url];
            if let Some(output) = run_tool("curl", &args) {
                assert!(unpacked(&output.stdout) == text(lines), "{version}, {name}");
            }
        }
    }
    let head = server.ask("HEAD", "/a.html", GZIP);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-encoding"), Some("gzip"));
    assert_eq!(head.header("content-length"), None);
}

#[test]
fn others_get_files_as_they_are() {
    let folder = Folder::new();
    let server = server(&folder);
    for (path, more) in [
        ("/a.html", ""),
        ("/a.html", "accept-encoding: br, gzip;q=0\r\n"),
        ("/a.html", "accept-encoding: gzip;q=0.5, identity\r\n"),
        ("/small.txt", GZIP),
        ("/a.png", GZIP),
    ] {
        let answer = get(&server, path, more);
        assert_eq!(answer.header("content-encoding"), None, "{path} {more}");
        assert!(answer.header("content-length").is_some(), "{path} {more}");
    }
    // A file that was compressed beforehand is better.
    let made = get(&server, "/made.css", GZIP);
    assert_eq!(
        (made.header("content-encoding"), made.text().as_str()),
        (Some("gzip"), "made before")
    );
    assert!(made.header("content-length").is_some());
    // By default compression is off.
    let plain = TestServer::files(&folder.0);
    assert_eq!(
        get(&plain, "/a.html", GZIP).header("content-encoding"),
        None
    );
}

#[test]
fn its_tag_is_weak_and_parts_are_of_the_file() {
    let folder = Folder::new();
    let server = server(&folder);
    let squeezed = get(&server, "/a.html", GZIP);
    let weak = squeezed.header("etag").unwrap().to_owned();
    let plain = get(&server, "/a.html", "");
    let strong = plain.header("etag").unwrap().to_owned();
    assert!(
        weak.starts_with("W/\"") && strong.starts_with('"'),
        "{weak} {strong}"
    );
    assert_ne!(weak.trim_start_matches("W/"), strong);
    let status = |more: &str| {
        let answer = server.get("/a.html", more);
        let coding = answer.header("content-encoding").map(str::to_owned);
        (answer.status, coding, answer.body.len())
    };
    assert_eq!(status(&format!("{GZIP}if-none-match: {weak}\r\n")).0, 304);
    assert_eq!(status(&format!("{GZIP}if-none-match: {strong}\r\n")).0, 200);
    assert_eq!(status(&format!("if-none-match: {weak}\r\n")).0, 200);
    // Weak tags do not tell that files are equal byte by byte.
    assert_eq!(status(&format!("{GZIP}if-match: {weak}\r\n")).0, 412);
    let strip = weak.trim_start_matches("W/");
    assert_eq!(status(&format!("{GZIP}if-match: {strip}\r\n")).0, 412);
    assert_eq!(
        status(&format!("{GZIP}range: bytes=0-4\r\n")),
        (206, None, 5)
    );
    let of_squeezed = format!("{GZIP}range: bytes=0-4\r\nif-range: {weak}\r\n");
    assert_eq!(status(&of_squeezed), (200, None, text(100).len()));
}
