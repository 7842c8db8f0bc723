//! Tests of the operator's error pages: their selection, and their effect on ranges, caches and
//! endpoints.

use std::path::Path;

use upshift_serve::{Config, Site};

use crate::harness::{Folder, TestServer, output_text, tool};

const NOT_FOUND: &str = "<h1>none</h1>";

/// Sets the error pages, as pairs of a status or a class of statuses and a path.
fn set_error_pages(config: &mut Config, pages: &[(&str, &str)]) {
    let entry = |(key, path): &(&str, &str)| ((*key).to_owned(), Path::new(path).to_owned());
    config.error_pages = pages.iter().map(entry).collect();
}

fn server(folder: &Folder, change: impl FnOnce(&mut Config)) -> TestServer {
    folder.write("root/404.html", NOT_FOUND);
    folder.write("root/a.txt", "a file");
    folder.write("later.txt", "later");
    folder.write("other.json", "{}");
    TestServer::with_config(&folder.0.join("root"), |config| {
        set_error_pages(
            config,
            &[
                ("404", "404.html"),
                ("50x", "../later.txt"),
                ("4xx", "../other.json"),
            ],
        );
        change(config);
    })
}

#[test]
fn a_page_is_sent_with_the_status_and_no_validators() {
    let folder = Folder::new();
    let server = server(&folder, |config| {
        config.files.cache_control = Some("max-age=9".into())
    });
    let answer = server.get("/nothing", "accept-encoding: gzip\r\nif-none-match: *\r\n");
    assert_eq!((answer.status, answer.text().as_str()), (404, NOT_FOUND));
    for (name, value) in [
        ("content-type", Some("text/html; charset=utf-8")),
        ("content-length", Some("13")),
        ("cache-control", Some("no-store")),
        ("etag", None),
        ("last-modified", None),
        ("accept-ranges", None),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
    let head = server.ask("HEAD", "/nothing", "");
    assert_eq!((head.status, head.body.len()), (404, 0));
    assert_eq!(head.header("content-length"), Some("13"));
    // A range applies only to a file.
    let part = server.get("/nothing", "range: bytes=0-1\r\n");
    assert_eq!((part.status, part.text().as_str()), (404, NOT_FOUND));
    let posted = server.ask("POST", "/a.txt", "content-length: 0\r\n");
    assert_eq!((posted.status, posted.text().as_str()), (405, "{}"));
    assert_eq!(posted.header("allow"), Some("GET, HEAD"));
    assert_eq!(posted.header("content-type"), Some("application/json"));
    // A direct request for the page is a request for a regular file.
    let page = server.get("/404.html", "");
    assert_eq!(
        (page.status, page.header("cache-control")),
        (200, Some("max-age=9"))
    );
    let args = [
        "-sS",
        "--http2-prior-knowledge",
        "-w",
        "%{http_code}",
        &server.url("/nothing"),
    ];
    if let Some(output) = tool("curl", &args) {
        assert_eq!(output_text(&output), format!("{NOT_FOUND}404"));
    }
}

#[test]
fn responses_without_an_error_keep_their_body() {
    let folder = Folder::new();
    let server = server(&folder, |_| {});
    let whole = server.get("/a.txt", "");
    assert_eq!(whole.text(), "a file");
    let tag = whole.header("etag").unwrap();
    let same = server.get("/a.txt", &format!("if-none-match: {tag}\r\n"));
    assert_eq!((same.status, same.body.len()), (304, 0));
    let part = server.get("/a.txt", "range: bytes=0-0\r\n");
    assert_eq!((part.status, part.text().as_str()), (206, "a"));
    // Endpoints keep their own messages, because programs read them.
    let invalid_matrix = server.get("/matrix?n=0", "");
    assert_eq!(
        (
            invalid_matrix.status,
            invalid_matrix.text().starts_with("n must")
        ),
        (400, true)
    );
}

#[test]
fn refusals_are_sent_with_error_pages() {
    let folder = Folder::new();
    let server = server(&folder, |config| {
        config.admission.in_flight = 1;
        config.limits.body_bytes = 10;
    });
    let large = server.ask("POST", "/", "content-length: 11\r\n");
    assert_eq!((large.status, large.text().as_str()), (413, "{}"));
    let no_host = server.exchange("GET / HTTP/1.1\r\nconnection: close\r\n\r\n");
    assert!(
        no_host.starts_with("HTTP/1.1 400") && no_host.ends_with("{}"),
        "{no_host}"
    );
    // The first request uses up the limit of one request in flight.
    let mut first = server.connect();
    std::io::Write::write_all(&mut first, b"GET /matrix?n=512 HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    server.wait_for_requests(1);
    let refused = server.get("/a.txt", "");
    assert_eq!((refused.status, refused.text().as_str()), (503, "later"));
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[test]
fn a_missing_page_gives_the_built_in_one_and_a_site_has_its_own_pages() {
    let folder = Folder::new();
    folder.write("b/404.html", "of b");
    let server = server(&folder, |config| {
        set_error_pages(config, &[("404", "nowhere.html")]);
        config.site = vec![Site {
            hosts: vec!["b.test".into()],
            root: Some(folder.0.join("b")),
            error_pages: Some([("404".to_owned(), "404.html".into())].into()),
            ..Site::default()
        }];
    });
    let request_to_b = "GET /nothing HTTP/1.1\r\nhost: b.test\r\nconnection: close\r\n\r\n";
    assert!(server.exchange(request_to_b).ends_with("\r\n\r\nof b"));
    assert_eq!(server.get("/nothing", "").text(), "there is no such file\n");
    // A reload reads the pages again.
    folder.write("root/nowhere.html", "now there");
    folder.write("b/404.html", "new of b");
    assert!(server.exchange(request_to_b).ends_with("\r\n\r\nof b"));
    server.control.reload().unwrap();
    assert_eq!(server.get("/nothing", "").text(), "now there");
    assert!(server.exchange(request_to_b).ends_with("\r\n\r\nnew of b"));
}
