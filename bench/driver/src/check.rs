//! Checks, before any timing, that all servers reply with the same bytes. Whole replies are
//! compared, for single requests, for requests sent in two parts, and for pipelined requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use upshift_load::spin::{FRAME, Request};
use upshift_load::{http, matrix};

use crate::peers::{GO_HTTP, Program};
use crate::server::Server;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Function that normalizes a reply for the comparison.
type Normalize = fn(&[u8]) -> Vec<u8>;

/// Checks the replies of a server; the error describes the difference.
pub(crate) fn same_bytes(id: &str, program: &Program, is_matrix: bool) -> Result<(), String> {
    let normalize: Normalize = if id == GO_HTTP {
        sorted_lines
    } else {
        <[u8]>::to_vec
    };
    let mut connection = Connection::start(program, Some(0), normalize)?;
    let (requests, replies) = if is_matrix { matrices() } else { pages() };
    for (request, reply) in requests.iter().zip(&replies) {
        connection.expect("one request", request, request.len(), reply)?;
    }
    // All requests for pages are equal, so one of them suffices.
    let distinct = if is_matrix { requests.len() } else { 1 };
    for (request, reply) in requests.iter().zip(&replies).take(distinct) {
        for cut in [1, request.len() / 2, request.len() - 1] {
            connection.expect("a request cut in two", request, cut, reply)?;
        }
    }
    let (all, expected) = (requests.concat(), replies.concat());
    connection.expect("pipelined", &all, all.len(), &expected)?;
    let cut = all.len() - requests[0].len() / 2;
    connection.expect("pipelined and cut", &all, cut, &expected)
}

/// Checks that a spin server answers each request once, in any order. The server is started on
/// `cpu` (any if `None`).
pub(crate) fn same_spin(program: &Program, cpu: Option<usize>) -> Result<(), String> {
    let mut connection = Connection::start(program, cpu, sorted_frames)?;
    let requests = (0..64).map(|tag| Request {
        service: 500 * (tag % 7),
        level: 32 + tag as u8 % 3,
        tag: tag << 40 | tag,
    });
    let requests: Vec<u8> = requests.flat_map(|request| request.bytes()).collect();
    let first_request = &requests[..FRAME];
    connection.expect("one request", first_request, FRAME, first_request)?;
    connection.expect("a request cut in two", first_request, 1, first_request)?;
    connection.expect("pipelined", &requests, requests.len(), &requests)?;
    connection.expect("pipelined and cut", &requests, FRAME * 10 + 7, &requests)
}

/// Checks that a server answers a request for a path with the expected body. If `expected` is
/// `None`, the server's body becomes the expected body.
pub(crate) fn same_body(
    server: SocketAddr,
    path: &str,
    headers: &str,
    expected: &mut Option<Vec<u8>>,
) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("GET {path}: {e}");
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    let timeout = Some(Duration::from_secs(5));
    stream.set_read_timeout(timeout).map_err(failed)?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
    let mut reply = Vec::new();
    stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.read_to_end(&mut reply))
        .map_err(failed)?;
    let head = reply.windows(4).position(|window| window == b"\r\n\r\n");
    let body = head.map(|end| reply.split_off(end + 4)).unwrap_or_default();
    if !reply.starts_with(b"HTTP/1.1 200") || body.is_empty() {
        return Err(format!("GET {path}: no reply with status 200 and a body"));
    }
    match expected {
        Some(expected) if *expected != body => {
            Err(format!("GET {path}: other bytes than expected"))
        }
        Some(_) => Ok(()),
        None => {
            *expected = Some(body);
            Ok(())
        }
    }
}

struct Connection {
    _server: Server,
    stream: TcpStream,
    normalize: Normalize,
}

impl Connection {
    fn start(
        program: &Program,
        cpu: Option<usize>,
        normalize: Normalize,
    ) -> Result<Connection, String> {
        let server = Server::start(program, &["127.0.0.1:0".into()], cpu)?;
        let stream = TcpStream::connect(server.addresses[0]).map_err(|e| e.to_string())?;
        let set = stream.set_nodelay(true);
        set.and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))))
            .map_err(|e| e.to_string())?;
        Ok(Connection {
            _server: server,
            stream,
            normalize,
        })
    }

    /// Sends `bytes`, and compares the reply with `expected`. The first `cut` bytes are sent first,
    /// and the rest, if any, 20 ms later. `request` describes the request in errors.
    fn expect(
        &mut self,
        request: &str,
        bytes: &[u8],
        cut: usize,
        expected: &[u8],
    ) -> Result<(), String> {
        let mut send = |part| {
            let sent = self.stream.write_all(part);
            sent.map_err(|e| format!("{request}: {e}"))
        };
        send(&bytes[..cut])?;
        if cut < bytes.len() {
            sleep(Duration::from_millis(20));
            send(&bytes[cut..])?;
        }
        let mut got = vec![0; expected.len()];
        let read = self.stream.read_exact(&mut got);
        read.map_err(|e| format!("{request}: reply cut short or missing ({e})"))?;
        if (self.normalize)(&got) == (self.normalize)(expected) {
            Ok(())
        } else {
            Err(format!("{request}: other bytes than expected"))
        }
    }
}

fn pages() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    (vec![REQUEST.to_vec(); 16], vec![http::REPLY.to_vec(); 16])
}

fn matrices() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    [1, 2, 8, 12, 20, 50]
        .map(|n| {
            let request = matrix::frame(n, n as u64);
            let mut reply = Vec::new();
            matrix::square(&request[matrix::HEADER..], n, &mut reply);
            (request, reply)
        })
        .into_iter()
        .unzip()
}

/// Returns the lines of a reply, sorted and in lower case.
fn sorted_lines(reply: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(reply).to_lowercase();
    let mut lines: Vec<&str> = text.split("\r\n").collect();
    lines.sort_unstable();
    lines.join("\n").into_bytes()
}

fn sorted_frames(bytes: &[u8]) -> Vec<u8> {
    let mut frames: Vec<&[u8]> = bytes.chunks(FRAME).collect();
    frames.sort_unstable();
    frames.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn checked(reply: &'static str, expected: &mut Option<Vec<u8>>) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut part = [0; 256];
            while !request.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..length]);
            }
            stream.write_all(reply.as_bytes()).unwrap();
        });
        let outcome = same_body(address, "/a", "", expected);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn every_reply_needs_status_200_and_the_first_body() {
        let mut expected = None;
        assert_eq!(checked("HTTP/1.1 200 OK\r\n\r\nabc", &mut expected), Ok(()));
        assert_eq!(expected.as_deref(), Some(&b"abc"[..]));
        assert_eq!(
            checked("HTTP/1.1 200 OK\r\nA: b\r\n\r\nabc", &mut expected),
            Ok(())
        );
        let other = checked("HTTP/1.1 200 OK\r\n\r\nabd", &mut expected);
        assert_eq!(other, Err("GET /a: other bytes than expected".into()));
        assert!(checked("HTTP/1.1 404 Not Found\r\n\r\nabc", &mut expected).is_err());
        assert!(checked("HTTP/1.1 200 OK\r\n\r\n", &mut None).is_err());
    }
}
