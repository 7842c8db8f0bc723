//! Files: bytes, ranges, conditions, encodings, folders, and what must not be reached.

use crate::harness::{Folder, Running};

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 31 % 251) as u8).collect()
}

#[test]
fn files_of_all_sizes_come_as_they_are() {
    let folder = Folder::new();
    let server = Running::files(&folder.0);
    for size in [0, 1, 65_535, 65_536, 65_537, 1_000_003] {
        let name = format!("{size}.bin");
        folder.write(&name, bytes(size));
        let answer = server.get(&format!("/{name}"), "");
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert_eq!(answer.header("content-length"), Some(&*size.to_string()));
        assert!(answer.body == bytes(size), "{size}");
        let head = server.ask("HEAD", &format!("/{name}"), "");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), Some(&*size.to_string()));
    }
}

#[test]
fn ranges_of_small_and_large_files() {
    let folder = Folder::new();
    folder.write("x.bin", bytes(300_000));
    let server = Running::files(&folder.0);
    let answer = server.get("/x.bin", "range: bytes=100000-299998\r\n");
    assert_eq!(answer.status, 206, "{}", answer.head);
    assert_eq!(
        answer.header("content-range"),
        Some("bytes 100000-299998/300000")
    );
    assert!(answer.body == bytes(300_000)[100_000..299_999]);
    let answer = server.get("/x.bin", "range: bytes=-5\r\n");
    assert_eq!(answer.body, bytes(300_000)[299_995..]);
    let answer = server.get("/x.bin", "range: bytes=300000-\r\n");
    assert_eq!(answer.status, 416);
    assert_eq!(answer.header("content-range"), Some("bytes */300000"));
    let head = server.ask("HEAD", "/x.bin", "range: bytes=0-1\r\n");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some("300000"));
    let answer = server.get("/x.bin", "range: bytes=0-1,4-5\r\n");
    assert_eq!((answer.status, answer.body.len()), (200, 300_000));
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let folder = Folder::new();
    folder.write("a.css", "p {}");
    let server = Running::files(&folder.0);
    let first = server.get("/a.css", "");
    let tag = first.header("etag").unwrap().to_owned();
    let date = first.header("last-modified").unwrap().to_owned();
    assert_eq!(
        first.header("content-type"),
        Some("text/css; charset=utf-8")
    );
    let again = server.get("/a.css", &format!("if-none-match: {tag}\r\n"));
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(again.header("etag"), Some(&*tag));
    let again = server.get("/a.css", &format!("if-modified-since: {date}\r\n"));
    assert_eq!(again.status, 304);
    let part = server.get(
        "/a.css",
        &format!("range: bytes=0-0\r\nif-range: {tag}\r\n"),
    );
    assert_eq!(part.status, 206);
    folder.write("a.css", "p { color: red }");
    let changed = server.get("/a.css", &format!("if-none-match: {tag}\r\n"));
    assert_eq!(
        (changed.status, changed.text().as_str()),
        (200, "p { color: red }")
    );
    let whole = server.get(
        "/a.css",
        &format!("range: bytes=0-0\r\nif-range: {tag}\r\n"),
    );
    assert_eq!(whole.status, 200);
    assert_eq!(server.get("/a.css", "if-match: \"x\"\r\n").status, 412);
}

#[test]
fn precompressed_files_go_to_who_accepts_them() {
    let folder = Folder::new();
    folder.write("app.js", "plain");
    folder.write("app.js.gz", "zipped");
    folder.write("app.js.br", "brotli");
    folder.write("x.png", "png");
    folder.write("x.png.gz", "zipped png");
    let server = Running::files(&folder.0);
    for (accept, body, encoding) in [
        ("", "plain", None),
        ("accept-encoding: gzip\r\n", "zipped", Some("gzip")),
        ("accept-encoding: gzip, br\r\n", "brotli", Some("br")),
        ("accept-encoding: br;q=0, gzip\r\n", "zipped", Some("gzip")),
        ("accept-encoding: identity\r\n", "plain", None),
    ] {
        let answer = server.get("/app.js", accept);
        assert_eq!(answer.text(), body, "{accept}");
        assert_eq!(answer.header("content-encoding"), encoding);
        assert_eq!(answer.header("vary"), Some("accept-encoding"));
        assert_eq!(
            answer.header("content-type"),
            Some("text/javascript; charset=utf-8")
        );
    }
    // Never for what is compressed already.
    assert_eq!(
        server.get("/x.png", "accept-encoding: gzip\r\n").text(),
        "png"
    );
}

#[test]
fn folders_have_an_index_or_a_listing_or_nothing() {
    let folder = Folder::new();
    folder.write("with/index.html", "<p>index");
    folder.write("without/a & b.txt", "x");
    folder.write("without/.secret", "x");
    let server = Running::files(&folder.0);
    assert_eq!(server.get("/with/", "").text(), "<p>index");
    let answer = server.get("/with?q=1", "");
    assert_eq!(
        (answer.status, answer.header("location")),
        (308, Some("/with/?q=1"))
    );
    let answer = server.get("//with", "");
    assert_eq!(
        answer.header("location"),
        Some("/with/"),
        "not another host"
    );
    let listing = server.get("/without/", "").text();
    assert!(listing.contains("href=\"./a%20%26%20b.txt\""), "{listing}");
    assert!(!listing.contains("secret"), "{listing}");
    assert_eq!(server.get("/without/.secret", "").status, 404);
    let server = Running::with(&folder.0, |config| config.files.listing = false);
    assert_eq!(server.get("/without/", "").status, 404);
}

#[test]
fn nothing_outside_the_root_is_reached() {
    let folder = Folder::new();
    let secret = folder.write("secret.txt", "secret");
    folder.write("root/a.txt", "a");
    let root = folder.0.join("root");
    std::os::unix::fs::symlink(&secret, root.join("out.txt")).unwrap();
    std::os::unix::fs::symlink(&folder.0, root.join("up")).unwrap();
    std::os::unix::fs::symlink("../secret.txt", root.join("relative.txt")).unwrap();
    std::os::unix::fs::symlink("a.txt", root.join("inside.txt")).unwrap();
    std::os::unix::fs::symlink("/proc/self/root", root.join("magic")).unwrap();
    let server = Running::files(&root);
    for (path, status) in [
        ("/../secret.txt", 400),
        ("/%2e%2e/secret.txt", 400),
        ("/%2E%2E%2Fsecret.txt", 400),
        ("/..%2fsecret.txt", 400),
        ("/x/../../secret.txt", 400),
        ("/a.txt%00.html", 400),
        ("/%c0%ae%c0%ae/secret.txt", 400),
        ("/%252e%252e/secret.txt", 404),
        ("/..\\secret.txt", 404),
        ("/out.txt", 404),
        ("/up/secret.txt", 404),
        ("/relative.txt", 404),
        ("/magic/etc/passwd", 404),
        ("/a.txt/", 404),
        ("/a.txt/x", 404),
        ("/inside.txt", 200),
    ] {
        let answer = server.get(path, "");
        assert_eq!(answer.status, status, "{path}");
        assert!(!answer.text().contains("secret"), "{path}");
    }
    let listing = server.get("/", "").text();
    assert!(
        listing.contains("inside.txt") && !listing.contains("out.txt"),
        "{listing}"
    );
    // A target in absolute form names another host, not another file.
    let answer = server
        .talk("GET http://x/../../secret.txt HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[test]
fn what_is_no_file_is_not_read() {
    let folder = Folder::new();
    let made = std::process::Command::new("mkfifo")
        .arg(folder.0.join("pipe"))
        .status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: mkfifo is not there");
        return;
    }
    let server = Running::files(&folder.0);
    assert_eq!(server.get("/pipe", "").status, 404);
}

#[test]
fn files_are_only_read() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let server = Running::files(&folder.0);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer = server.ask(method, "/a.txt", "content-length: 0\r\n");
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("GET, HEAD")),
            "{method}"
        );
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_ends_the_response_early() {
    let folder = Folder::new();
    let path = folder.write("big.bin", vec![7; 64 << 20]);
    let server = Running::files(&folder.0);
    let mut stream = server.connect();
    std::io::Write::write_all(&mut stream, b"GET /big.bin HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(10)
        .unwrap();
    let got = crate::harness::rest(&mut stream);
    assert!(got.len() < 64 << 20, "{}", got.len());
    assert!(server.is_well());
}
