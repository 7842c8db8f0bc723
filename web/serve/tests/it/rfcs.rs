//! Tests of details that RFCs specify: request targets, relative links, dates, the end of a body,
//! and frames that end a connection.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use upshift_serve::Site;

use crate::harness::{Answer, Folder, TestServer, read_to_end, wait_until};
use crate::http2::{PRIORITY_UPDATE, SETTINGS, connect_http2, frame, goaway_error};
use crate::tls::{certificate, curl, tls_handshake};

const PROTOCOL_ERROR: u32 = 1;
const FRAME_SIZE_ERROR: u32 = 6;

#[test]
fn a_target_with_an_encoded_slash_is_redirected_because_links_would_resolve_wrongly() {
    let folder = Folder::new();
    folder.write("dir/f.txt", "f");
    folder.write("sub/deep/index.html", "deep");
    folder.write("a@b +ä/f.txt", "f");
    let server = TestServer::files(&folder.0);
    for (path, location) in [
        ("/dir%2F", "/dir/"),
        ("/dir%2f", "/dir/"),
        ("/dir%2F?q=1", "/dir/?q=1"),
        ("/dir%2F/", "/dir/"),
        ("/dir%2F.", "/dir/"),
        ("/dir/.", "/dir/"),
        ("/dir", "/dir/"),
        ("/sub%2Fdeep%2F", "/sub/deep/"),
        ("/sub%2Fdeep/", "/sub/deep/"),
        ("/sub%2Fdeep", "/sub/deep/"),
        ("/dir%2Ff.txt", "/dir/f.txt"),
        ("/%2F", "/"),
        ("/%2Fdir", "/dir/"),
        ("/a@b%20+%C3%A4", "/a@b%20+%C3%A4/"),
    ] {
        let answer = server.get(path, "");
        let to = answer.header("location");
        assert_eq!((answer.status, to), (308, Some(location)), "{path}");
        assert_eq!(server.get(location, "").status, 200, "{location}");
    }
    for (path, status) in [
        ("/dir/", 200),
        ("/dir//", 200),
        ("/dir/f.txt", 200),
        ("/dir/f.txt%2F", 404),
        ("/none%2F", 404),
        ("/%2e%2e%2F", 400),
        ("/", 200),
    ] {
        assert_eq!(server.get(path, "").status, status, "{path}");
    }
}

#[test]
fn a_target_that_is_neither_a_path_nor_in_absolute_form_is_refused() {
    let folder = Folder::new();
    folder.write("i.txt", "i");
    folder.write("*", "a star");
    folder.write("site/s.txt", "s");
    let site = Site {
        hosts: vec!["example.com".to_owned()],
        root: Some(folder.0.join("site")),
        ..Site::default()
    };
    let log = folder.0.join("log");
    let logs = log.clone();
    let with_sites = |config: &mut upshift_serve::Config| {
        config.site.push(site);
        config.access_log = Some(logs);
    };
    for server in [
        TestServer::files(&folder.0),
        TestServer::with_config(&folder.0, with_sites),
    ] {
        for (line, status) in [
            ("GET i.txt", "400"),
            ("GET healthz", "400"),
            ("HEAD x", "400"),
            ("GET localhost:80", "400"),
            ("GET example.com", "400"),
            ("GET *", "400"),
            ("POST example.com", "400"),
            ("OPTIONS example.com", "400"),
            ("CONNECT /i.txt", "400"),
            ("OPTIONS *", "405"),
            ("CONNECT other:443", "405"),
            ("GET /i.txt", "200"),
            ("GET http://other/i.txt", "200"),
            ("GET http://other", "200"),
            ("GET http://other?q", "200"),
        ] {
            let answer = server.response_to(&format!("{line} HTTP/1.1\r\nhost: other\r\n"));
            assert_eq!(answer.get(9..12), Some(status), "{line}: {answer}");
        }
        assert!(server.is_healthy());
    }
    let mut text = String::new();
    wait_until("the last request is in the log", || {
        text = std::fs::read_to_string(&log).unwrap();
        text.contains("\"path\":\"/healthz\"")
    });
    assert!(!text.contains("\"host\":\"example.com\""), "{text}");
}

#[test]
fn a_service_gets_no_request_whose_target_is_not_a_path() {
    let folder = Folder::new();
    let app = axum::Router::new().fallback(|| async { "served" });
    let server = TestServer::with_service(&folder, |_| {}, app);
    let response_to = |line: &str| server.response_to(&format!("{line} HTTP/1.1\r\nhost: x\r\n"));
    assert!(response_to("GET i.txt").starts_with("HTTP/1.1 400"));
    assert!(response_to("GET /i.txt").ends_with("served"));
    assert!(response_to("OPTIONS *").ends_with("served"));
}

fn time_at(seconds: i64) -> SystemTime {
    let span = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH - span
    } else {
        UNIX_EPOCH + span
    }
}

#[test]
fn a_time_in_the_future_or_before_the_epoch_is_not_sent_as_last_modified() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    let start_of_2040 = 2_208_988_800;
    let create = |name: &str, seconds: i64| {
        let path = folder.write(name, name);
        File::open(path)
            .unwrap()
            .set_modified(time_at(seconds))
            .unwrap();
    };
    for (name, seconds) in [
        ("future.txt", start_of_2040),
        ("epoch.txt", 0),
        ("old.txt", -315_619_200),
    ] {
        create(name, seconds);
        let path = format!("/{name}");
        let answer = server.get(&path, "");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("last-modified"), None, "{name}");
        // Conditions by date have no effect, but conditions by ETag have.
        let tag = answer.header("etag").unwrap();
        let same = server.get(&path, &format!("if-none-match: {tag}\r\n"));
        assert_eq!(same.status, 304, "{name}");
        for (field, status) in [
            ("if-modified-since: Fri, 01 Jan 2100 00:00:00 GMT", 200),
            ("if-unmodified-since: Thu, 01 Jan 1970 00:00:00 GMT", 200),
            (
                "range: bytes=0-0\r\nif-range: Sun, 01 Jan 2040 00:00:00 GMT",
                200,
            ),
        ] {
            let answer = server.get(&path, &format!("{field}\r\n"));
            assert_eq!(answer.status, status, "{name}: {field}");
        }
    }
    create("past.txt", 1);
    let answer = server.get("/past.txt", "");
    let first = "Thu, 01 Jan 1970 00:00:01 GMT";
    assert_eq!(answer.header("last-modified"), Some(first));
    folder.write("now.txt", "now");
    let answer = server.get("/now.txt", "");
    let date = |name| httpdate::parse_http_date(answer.header(name).unwrap()).unwrap();
    assert!(date("last-modified") <= date("date"), "{}", answer.head);
}

#[test]
fn a_response_of_http_1_0_whose_body_ends_with_the_connection_announces_the_close() {
    let folder = Folder::new();
    folder.write("big.txt", "a text. ".repeat(7500));
    let server = TestServer::with_config(&folder.0, |config| config.files.compress = true);
    let ask = |line: &str, fields: &str| {
        let head = format!("{line} HTTP/1.0\r\nconnection: keep-alive\r\n{fields}\r\n");
        let mut stream = server.connect_and_send(head);
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        Answer::parse(read_to_end(&mut stream))
    };
    let gzip = "accept-encoding: gzip\r\n";
    let answer = ask("GET /big.txt", gzip);
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert_eq!(answer.header("content-length"), None);
    assert_eq!(
        answer.header("connection"),
        Some("close"),
        "{}",
        answer.head
    );
    // The server closes this connection because the body is too large.
    let refused = ask("POST /big.txt", "content-length: 99999999999\r\n");
    assert_eq!(refused.status, 413);
    assert_eq!(
        refused.header("connection"),
        Some("close"),
        "{}",
        refused.head
    );
    // A response with a length or without a body leaves the connection open.
    for (line, fields) in [
        ("GET /big.txt", ""),
        ("HEAD /big.txt", ""),
        ("GET /none", ""),
        ("GET /big.txt", "if-none-match: *\r\n"),
    ] {
        let answer = ask(line, fields);
        let connection = answer.header("connection");
        assert_eq!(connection, Some("keep-alive"), "{line}: {}", answer.head);
    }
}

#[test]
fn updates_that_rfc_9218_forbids_end_the_connection() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for (stream, payload, code) in [
        (0, &b"\0\0\0\0u=1"[..], PROTOCOL_ERROR),
        (1, b"\0\0\0\x01u=1", PROTOCOL_ERROR),
        (0, b"\0\0\0\x02u=1", PROTOCOL_ERROR),
        (0, b"\x80\0\0\0u=1", PROTOCOL_ERROR),
        (0, b"\0\0", FRAME_SIZE_ERROR),
        (0, b"", FRAME_SIZE_ERROR),
    ] {
        // The bytes arrive in one piece, or one by one.
        for piece_size in [usize::MAX, 1] {
            let mut client = connect_http2(&server);
            let update = frame(PRIORITY_UPDATE, 0, stream, payload);
            // The server ignores bytes after the invalid frame.
            let bytes = [update, frame(SETTINGS, 0, 0, &[])].concat();
            for piece in bytes.chunks(piece_size.min(bytes.len())) {
                let _ = client.write_all(piece);
            }
            let received = read_to_end(&mut client);
            assert_eq!(
                goaway_error(&received),
                Some(code),
                "{stream}, {payload:?}: {received:?}"
            );
        }
    }
    // The smallest permitted frame has no effect on the connection.
    let mut client = connect_http2(&server);
    let update = frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01");
    client.write_all(&update).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert_eq!(goaway_error(&read_to_end(&mut client)), None);
    assert!(server.is_healthy());
}

#[test]
fn a_tls_client_that_offers_only_http_1_0_is_served() {
    let folder = Folder::new();
    let tls = certificate(&folder, "cert", &["first.test"]);
    let files = tls.clone();
    let server = TestServer::with_config(&folder.0, |config| config.tls = Some(files));
    let (mut client, mut stream) = tls_handshake(server.connect(), &tls, &["http/1.0"]);
    assert_eq!(client.alpn_protocol(), Some(&b"http/1.0"[..]));
    let mut stream = rustls::Stream::new(&mut client, &mut stream);
    stream
        .write_all(b"GET /plaintext HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    let _ = std::io::Read::read_to_string(&mut stream, &mut answer);
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    // If the client offers several names, the newest version is chosen.
    for (names, chosen) in [
        (&["http/1.0", "http/1.1"][..], "http/1.1"),
        (&["http/1.0", "http/1.1", "h2"], "h2"),
    ] {
        let (client, _) = tls_handshake(server.connect(), &tls, names);
        assert_eq!(client.alpn_protocol(), Some(chosen.as_bytes()));
    }
    let fields = ["--http1.0", "-w", "%{stderr}%{http_code}"];
    if let Some(output) = curl(
        &server,
        &tls.certificate,
        "first.test",
        &fields,
        "/plaintext",
    ) {
        assert_eq!(String::from_utf8_lossy(&output.stderr), "200");
    }
}
