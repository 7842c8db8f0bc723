//! Tests of the file server: bytes, ranges, conditional requests, precompressed files, folders, and
//! paths that must not be reached.

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::fs::inotify;
use upshift::Level;

use crate::harness::{Answer, Folder, TestServer, wait_until};

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 31 % 251) as u8).collect()
}

#[test]
fn files_of_all_sizes_are_sent_unchanged() {
    let folder = Folder::new();
    let server = TestServer::files(&folder.0);
    for size in [
        0, 1, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537, 131_073, 1_000_003,
    ] {
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
fn ranges_of_a_file_are_sent_or_refused() {
    let folder = Folder::new();
    folder.write("x.bin", bytes(300_000));
    let server = TestServer::files(&folder.0);
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

const REQUEST: &[u8] = b"GET /x.txt HTTP/1.1\r\nhost: test\r\n\r\n";

#[test]
fn waiting_requests_share_a_file_that_one_of_them_opens() {
    let folder = Folder::new();
    let path = folder.write("x.txt", "0000");
    let server = TestServer::files(&folder.0);
    let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    // The kernel merges equal consecutive events. Closings are observed too, because they separate
    // the openings.
    let observed = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE;
    inotify::add_watch(&events, &path, observed).unwrap();
    // Requests are received at a more urgent level than that of this coroutine, and handled at a
    // less urgent one.
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let computation = async move {
        while !stopped.load(Relaxed) {
            upshift::yield_if_needed().await;
        }
    };
    let computing = server.handle.spawn(computation, Level::at::<4>());
    computing.unwrap().detach();
    let mut clients: Vec<_> = (0..32).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.write_all(REQUEST).unwrap();
    }
    while server.control.requests().len() < clients.len() {
        thread::sleep(Duration::from_millis(1));
    }
    folder.write("x.txt", "1111");
    stop.store(true, Relaxed);
    for client in &mut clients {
        assert_eq!(read_response(client, true).text(), "1111");
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&events, &mut buffer);
    let mut openings = 0;
    while let Ok(event) = reader.next() {
        openings += u32::from(event.events().contains(inotify::ReadFlags::OPEN));
    }
    // The test opens the file once for writing, and the server at least once. The server also
    // closes its cached files four times a second, so a slow machine sees a few more openings.
    assert!((2..10).contains(&openings), "{openings} openings");
}

#[test]
fn a_request_beside_many_others_sees_all_earlier_writes() {
    let folder = Folder::new();
    folder.write("x.txt", "0000");
    let server = TestServer::files(&folder.0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = server.connect();
                while !stop.load(Relaxed) {
                    client.write_all(REQUEST).unwrap();
                    read_response(&mut client, true);
                }
            });
        }
        let mut client = server.connect();
        for round in 1..=300 {
            let text = format!("{round:04}");
            folder.write("new", &text);
            std::fs::rename(folder.0.join("new"), folder.0.join("x.txt")).unwrap();
            client.write_all(REQUEST).unwrap();
            let body = read_response(&mut client, true).text();
            if body != text {
                stop.store(true, Relaxed);
            }
            assert_eq!(body, text);
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn an_unchanged_file_is_not_sent_again() {
    let folder = Folder::new();
    folder.write("a.css", "p {}");
    let server = TestServer::files(&folder.0);
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
fn precompressed_files_go_to_clients_that_accept_them() {
    let folder = Folder::new();
    folder.write("app.js", "plain");
    folder.write("app.js.gz", "zipped");
    folder.write("app.js.br", "brotli");
    folder.write("x.png", "png");
    folder.write("x.png.gz", "zipped png");
    let server = TestServer::files(&folder.0);
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
    // For a type that is compressed already, a precompressed file is not used.
    assert_eq!(
        server.get("/x.png", "accept-encoding: gzip\r\n").text(),
        "png"
    );
}

#[test]
fn a_folder_is_served_by_its_index_or_a_listing_or_not_at_all() {
    let folder = Folder::new();
    folder.write("with/index.html", "<p>index");
    folder.write("without/a & b.txt", "x");
    folder.write("without/.secret", "x");
    let server = TestServer::files(&folder.0);
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
        "the redirect names another host"
    );
    let listing = server.get("/without/", "").text();
    assert!(listing.contains("href=\"./a%20%26%20b.txt\""), "{listing}");
    assert!(!listing.contains("secret"), "{listing}");
    assert_eq!(server.get("/without/.secret", "").status, 404);
    let server = TestServer::with_config(&folder.0, |config| config.files.listing = false);
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
    let server = TestServer::files(&root);
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
    // The path of a target in absolute form is checked, too.
    let answer = server
        .exchange("GET http://x/../../secret.txt HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[test]
fn a_named_pipe_is_not_read() {
    let folder = Folder::new();
    let created = std::process::Command::new("mkfifo")
        .arg(folder.0.join("pipe"))
        .status();
    if !created.is_ok_and(|status| status.success()) {
        println!("skipped: mkfifo is not installed");
        return;
    }
    let server = TestServer::files(&folder.0);
    assert_eq!(server.get("/pipe", "").status, 404);
}

#[test]
fn methods_other_than_get_and_head_are_refused() {
    let folder = Folder::new();
    folder.write("a.txt", "a");
    let server = TestServer::files(&folder.0);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let answer = server.ask(method, "/a.txt", "content-length: 0\r\n");
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("GET, HEAD")),
            "{method}"
        );
    }
}

/// Reads to the end of the connection. Returns the number of bytes, and whether the server closed
/// the connection before the read timed out.
fn read_to_close(stream: &mut TcpStream) -> (usize, bool) {
    let mut buffer = [0; 65_536];
    let mut count = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (count, true),
            Ok(length) => count += length,
            Err(error) => return (count, error.kind() == ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_ends_the_response_early() {
    let folder = Folder::new();
    let path = folder.write("big.bin", vec![7; 64 << 20]);
    let server = TestServer::files(&folder.0);
    let mut stream = server.connect_and_send("GET /big.bin HTTP/1.1\r\nhost: x\r\n\r\n");
    std::thread::sleep(std::time::Duration::from_millis(200));
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(10)
        .unwrap();
    let (received, is_closed) = read_to_close(&mut stream);
    assert!(received < 64 << 20 && is_closed, "{received} bytes");
    assert!(server.is_healthy());
}

/// Reads the next response, including its body if it has one.
fn read_response(stream: &mut TcpStream, has_body: bool) -> Answer {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let mut answer = Answer::parse(bytes);
    let length = answer.header("content-length").unwrap_or("0");
    if has_body {
        answer.body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut answer.body).unwrap();
    }
    answer
}

#[test]
fn large_and_small_responses_follow_each_other_on_a_connection() {
    let folder = Folder::new();
    let big = bytes(3_000_007);
    folder.write("big.bin", &big);
    folder.write("small.bin", b"small");
    let server = TestServer::files(&folder.0);
    let tag = server.get("/big.bin", "range: bytes=0-0\r\n");
    let tag = format!("if-none-match: {}\r\n", tag.header("etag").unwrap());
    let requests = [
        ("GET", "big.bin", "", 200, &big[..]),
        ("HEAD", "big.bin", "", 200, &[]),
        ("GET", "small.bin", "", 200, b"small"),
        (
            "GET",
            "big.bin",
            "range: bytes=1-2000000\r\n",
            206,
            &big[1..=2_000_000],
        ),
        ("GET", "big.bin", &tag, 304, &[]),
        (
            "GET",
            "big.bin",
            "range: bytes=-16385\r\n",
            206,
            &big[2_983_622..],
        ),
        ("GET", "big.bin", "", 200, &big),
        ("GET", "missing.bin", "", 404, b"there is no such file\n"),
        ("GET", "big.bin", "", 200, &big),
    ];
    // The requests are sent all at once, or each after the response to the one before.
    for pipelined in [true, false] {
        let mut stream = server.connect();
        let mut writer = stream.try_clone().unwrap();
        let texts = requests.map(|(method, path, fields, _, _)| {
            format!("{method} /{path} HTTP/1.1\r\nhost: x\r\n{fields}\r\n")
        });
        if pipelined {
            stream.write_all(texts.concat().as_bytes()).unwrap();
        }
        for ((method, path, fields, status, body), text) in requests.iter().zip(&texts) {
            if !pipelined {
                writer.write_all(text.as_bytes()).unwrap();
            }
            let answer = read_response(&mut stream, *method == "GET");
            assert_eq!(answer.status, *status, "{method} {path} {fields}");
            assert!(answer.body == *body, "{method} {path} {fields}");
        }
    }
}

#[test]
fn a_slow_reader_gets_a_whole_file_that_leaves_the_page_cache_meanwhile() {
    use rustix::fs::{Advice, fadvise};
    let folder = Folder::new();
    let big = bytes(64 << 20);
    let path = folder.write("big.bin", &big);
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    // One page of the file leaves the page cache, or the whole file does, or no page does but the
    // server is drained.
    let page = std::num::NonZeroU64::new(4096);
    for evicted in [Some((40 << 20 | 0x9000, page)), Some((0, None)), None] {
        let server = TestServer::files(&folder.0);
        let mut stream = server.connect_and_send("GET /big.bin HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut received = vec![0; 1 << 20];
        stream.read_exact(&mut received).unwrap();
        // After this time the socket buffers are full.
        std::thread::sleep(std::time::Duration::from_millis(100));
        match evicted {
            Some((offset, length)) => fadvise(&file, offset, length, Advice::DontNeed).unwrap(),
            None => server.control.drain(),
        }
        let mut buffer = vec![0; 300_000];
        while received.len() < big.len() {
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "after {} bytes", received.len());
            received.extend_from_slice(&buffer[..count]);
        }
        let body = received
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap()
            + 4;
        let missing = body + big.len() - received.len();
        received.resize(body + big.len(), 0);
        let end = received.len() - missing;
        stream.read_exact(&mut received[end..]).unwrap();
        assert!(received[body..] == big);
        assert_eq!(server.end(), 0);
    }
}

#[test]
fn files_of_one_piece_are_sent_whether_cached_or_not() {
    use rustix::fs::{Advice, fadvise};
    let folder = Folder::new();
    let whole = bytes(50_000);
    let path = folder.write("one.bin", &whole);
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    let server = TestServer::files(&folder.0);
    let mut stream = server.connect();
    let mut requests = stream.try_clone().unwrap();
    // After a miss in the page cache, the server reads 64 pages at once.
    for n in 0..200 {
        if n % 90 == 40 {
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
        let (range, body) = match n % 3 {
            0 => ("range: bytes=1000-41000\r\n", &whole[1_000..=41_000]),
            _ => ("", &whole[..]),
        };
        write!(requests, "GET /one.bin HTTP/1.1\r\nhost: x\r\n{range}\r\n").unwrap();
        assert!(read_response(&mut stream, true).body == body, "{n}");
    }
}

#[test]
fn a_file_of_one_piece_that_shrinks_is_never_padded() {
    const REQUESTS: usize = 1_000;
    let folder = Folder::new();
    let path = folder.write("one.bin", vec![7; 60_000]);
    let server = TestServer::files(&folder.0);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    for _ in 0..4 {
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; 60_000], 0).unwrap();
        let mut stream = server.connect();
        let request = "GET /one.bin HTTP/1.1\r\nhost: x\r\n";
        let mut requests = format!("{request}\r\n").repeat(REQUESTS);
        requests.push_str(&format!("{request}connection: close\r\n\r\n"));
        stream.write_all(requests.as_bytes()).unwrap();
        // After this time the socket buffers are full.
        std::thread::sleep(std::time::Duration::from_millis(100));
        // Truncation within a page would zero the rest of the page, also in the socket buffers.
        file.set_len(0).unwrap();
        // Some responses are complete and later ones empty, or the connection ends within a
        // response.
        let mut buffer = vec![1; 1 << 20];
        let mut received = 0;
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            received += count;
            assert!(!buffer[..count].contains(&0), "after {received} bytes");
        }
        assert!(
            received > 60_000 && received < 60_000 * REQUESTS,
            "{received} bytes"
        );
    }
    assert!(server.is_healthy());
}

#[test]
fn a_reader_that_leaves_in_the_middle_of_a_large_file_frees_its_connection() {
    let folder = Folder::new();
    folder.write("big.bin", vec![7; 64 << 20]);
    let server = TestServer::files(&folder.0);
    for _ in 0..20 {
        let mut stream = server.connect_and_send("GET /big.bin HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.read_exact(&mut [0; 100_000]).unwrap();
    }
    server.wait_until_idle();
    assert!(server.is_healthy());
}

/// Deployments point a symbolic link to the next release, or create the folder again. In both
/// cases, the server must serve the new folder.
#[test]
fn a_folder_that_replaces_the_root_is_served_without_a_reload() {
    let folder = Folder::new();
    for release in ["r1", "r2"] {
        folder.write(&format!("{release}/page.txt"), release);
    }
    let (current, next) = (folder.0.join("current"), folder.0.join("next"));
    std::os::unix::fs::symlink("r1", &current).unwrap();
    let server = TestServer::files(&current);
    assert_eq!(server.get("/page.txt", "").text(), "r1");
    std::os::unix::fs::symlink("r2", &next).unwrap();
    std::fs::rename(&next, &current).unwrap();
    let is_served = |text: &str| server.get("/page.txt", "").text() == text;
    wait_until("the second release is served", || is_served("r2"));
    // Links in the folder still cannot lead out of it.
    std::os::unix::fs::symlink("../r1/page.txt", folder.0.join("r2/out.txt")).unwrap();
    assert_eq!(server.get("/out.txt", "").status, 404);
    std::fs::remove_dir_all(folder.0.join("r2")).unwrap();
    wait_until("nothing is served", || {
        server.get("/page.txt", "").status == 404
    });
    folder.write("r2/page.txt", "r2 again");
    wait_until("the new folder is served", || is_served("r2 again"));
    std::fs::rename(folder.0.join("r2"), folder.0.join("away")).unwrap();
    wait_until("the folder that was moved away is not served", || {
        server.get("/page.txt", "").status == 404
    });
}
