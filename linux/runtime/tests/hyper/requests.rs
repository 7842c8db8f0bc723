//! Tests of features that axum applications use, over HTTP/1.

use std::io::{BufRead, BufReader, Read, Write};

use crate::app::TestServer;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
}

fn post(path: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn extractors_state_and_middleware_work() {
    let server = TestServer::start(1, |server| server);
    let answer = server.exchange(get("/items/42"));
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("x-request: 0"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nitem 42"), "{answer}");
    let answer = server.exchange(get("/items/many"));
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("x-request: 1"), "{answer}");
    assert!(
        server
            .exchange(get("/nowhere"))
            .starts_with("HTTP/1.1 404 ")
    );
}

#[test]
fn json_is_parsed_and_sent() {
    let server = TestServer::start(1, |server| server);
    let answer = server.exchange(post("/add", "application/json", r#"{"a":40,"b":2}"#));
    assert!(
        answer.contains("content-type: application/json"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\n42"), "{answer}");
    let answer = server.exchange(post("/add", "application/json", "{"));
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = server.exchange(post("/add", "text/plain", "{}"));
    assert!(answer.starts_with("HTTP/1.1 415 "), "{answer}");
}

#[test]
fn server_sent_events_are_streamed() {
    let server = TestServer::start(1, |server| server);
    let answer = server.exchange(get("/ticks"));
    assert!(
        answer.contains("content-type: text/event-stream"),
        "{answer}"
    );
    for n in 0..3 {
        assert!(answer.contains(&format!("data: {n}\n\n")), "{answer}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = TestServer::start(1, |server| server);
    let mut requests = String::new();
    for id in 0..50 {
        requests += &format!("GET /items/{id} HTTP/1.1\r\nhost: test\r\n\r\n");
    }
    let answers = server.exchange(requests + &get("/"));
    let mut rest = &answers[..];
    for id in 0..50 {
        let body = format!("\r\n\r\nitem {id}");
        let position = rest
            .find(&body)
            .unwrap_or_else(|| panic!("{body} in {answers}"));
        rest = &rest[position + body.len()..];
    }
    assert!(rest.ends_with("hello"), "{rest}");
}

#[test]
fn a_large_body_is_uploaded_and_streamed_back() {
    let server = TestServer::start(2, |server| server);
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let mut stream = server.connect();
    let mut writer = stream.try_clone().unwrap();
    let sent = body.clone();
    let upload = std::thread::spawn(move || {
        let head = format!(
            "POST /echo HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            sent.len()
        );
        writer.write_all(head.as_bytes()).unwrap();
        writer.write_all(&sent).unwrap();
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    upload.join().unwrap();
    let body_start = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap()
        + 4;
    // The body may be chunked.
    let head = String::from_utf8_lossy(&answer[..body_start]).into_owned();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let payload = if head.contains("chunked") {
        decode_chunks(&answer[body_start..])
    } else {
        answer[body_start..].to_vec()
    };
    assert_eq!(payload.len(), body.len());
    assert!(payload == body, "the response differs from the upload");
}

fn decode_chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut line = String::new();
        bytes.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        if size == 0 {
            return all;
        }
        all.extend_from_slice(&bytes[..size]);
        bytes = &bytes[size + 2..];
    }
}

#[test]
fn a_slow_reader_gets_the_whole_response() {
    let server = TestServer::start(1, |server| server);
    let mut stream = server.connect();
    stream.write_all(get("/big").as_bytes()).unwrap();
    // The socket's buffers fill before the client reads.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut reader = BufReader::with_capacity(1000, stream);
    let mut answer = Vec::new();
    reader.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&[b'x'; 100]));
    assert!(answer.len() > 1 << 20, "only {} bytes", answer.len());
}

#[test]
fn a_streamed_body_of_many_pieces_is_complete() {
    let server = TestServer::start(1, |server| server);
    let mut stream = server.connect();
    stream
        .write_all(get("/zeros?bytes=5000000").as_bytes())
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let zeros = answer.iter().filter(|byte| **byte == 0).count();
    assert_eq!(zeros, 5_000_000);
}

#[test]
fn an_upload_that_is_cut_off_ends_only_its_connection() {
    let server = TestServer::start(1, |server| server);
    let mut stream = server.connect();
    stream
        .write_all(b"POST /length HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\nhalf")
        .unwrap();
    drop(stream);
    assert!(server.exchange(get("/")).ends_with("hello"));
}

#[test]
fn curl_is_served_over_both_versions() {
    let server = TestServer::start(1, |server| server);
    let address = server.address;
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let curl = std::process::Command::new("curl")
            .args(["-sS", "--max-time", "20", version])
            .args([
                "-H",
                "content-type: application/json",
                "-d",
                r#"{"a":1,"b":2}"#,
            ])
            .args(["-w", " %{http_version}", &format!("http://{address}/add")])
            .output();
        let Ok(output) = curl else {
            println!("skipped: curl is not installed");
            return;
        };
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() && output.status.code() == Some(2) {
            println!("skipped: this curl does not speak {version}");
            continue;
        }
        let expected = if version == "--http1.1" {
            "3 1.1"
        } else {
            "3 2"
        };
        assert_eq!(
            output_text,
            expected,
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
