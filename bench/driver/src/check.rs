//! The same bytes from every server, before any timing: whole replies are compared, pipelined and for a request cut in two.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use upshift_load::spin::{FRAME, Request};
use upshift_load::{http, matrix};

use crate::peers::{Peer, Program};
use crate::server::Server;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Says what is wrong with the replies of a server, if anything is.
pub(crate) fn same_bytes(peer: &Peer, program: &Program, is_matrix: bool) -> Result<(), String> {
    let server = Server::start(program, &["127.0.0.1:0".into()], Some(0))?;
    let mut stream = TcpStream::connect(server.addresses[0]).map_err(|e| e.to_string())?;
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))))
        .map_err(|e| e.to_string())?;
    let same = |got: &[u8], expected: &[u8]| {
        got == expected || (peer.header_order_free && sorted_lines(got) == sorted_lines(expected))
    };
    let (requests, replies) = if is_matrix { matrices() } else { pages() };
    let converse = |stream: &mut TcpStream, what: &str, parts: &[&[u8]], expected: &[u8]| {
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                sleep(Duration::from_millis(20));
            }
            stream.write_all(part).map_err(|e| format!("{what}: {e}"))?;
        }
        let mut got = vec![0; expected.len()];
        stream
            .read_exact(&mut got)
            .map_err(|e| format!("{what}: reply cut short or missing ({e})"))?;
        if same(&got, expected) {
            Ok(())
        } else {
            Err(format!("{what}: other bytes than expected"))
        }
    };
    for (request, reply) in requests.iter().zip(&replies) {
        converse(&mut stream, "one request", &[request], reply)?;
        for cut in [1, request.len() / 2, request.len() - 1] {
            let parts = [&request[..cut], &request[cut..]];
            converse(&mut stream, "a request cut in two", &parts, reply)?;
        }
    }
    let (all, expected) = (requests.concat(), replies.concat());
    converse(&mut stream, "pipelined", &[&all], &expected)?;
    let cut = all.len() - requests[0].len() / 2;
    let parts = [&all[..cut], &all[cut..]];
    converse(&mut stream, "pipelined and cut", &parts, &expected)
}

/// Says what is wrong with the replies of a spin server, if anything is: each request comes back once, in any order. The server
/// is started on `cpu` (any if `None`).
pub(crate) fn same_spin(program: &Program, cpu: Option<usize>) -> Result<(), String> {
    let server = Server::start(program, &["127.0.0.1:0".into()], cpu)?;
    let mut stream = TcpStream::connect(server.addresses[0]).map_err(|e| e.to_string())?;
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))))
        .map_err(|e| e.to_string())?;
    let mut requests: Vec<[u8; FRAME]> = (0..64)
        .map(|tag| Request {
            service: 500 * (tag % 7),
            level: 32 + tag as u8 % 3,
            tag: tag << 40 | tag,
        })
        .map(|request| request.bytes())
        .collect();
    requests.sort_unstable();
    let all = requests.as_flattened();
    for (what, cut, expected) in [
        ("one request", FRAME, &requests[..1]),
        ("a request cut in two", 1, &requests[..1]),
        ("pipelined", all.len(), &requests[..]),
        ("pipelined and cut", FRAME * 10 + 7, &requests[..]),
    ] {
        let bytes = expected.as_flattened();
        for (i, part) in [&bytes[..cut], &bytes[cut..]].iter().enumerate() {
            if i > 0 {
                sleep(Duration::from_millis(20));
            }
            stream.write_all(part).map_err(|e| format!("{what}: {e}"))?;
        }
        let mut got = vec![[0; FRAME]; expected.len()];
        stream
            .read_exact(got.as_flattened_mut())
            .map_err(|e| format!("{what}: reply cut short or missing ({e})"))?;
        got.sort_unstable();
        if got != expected {
            return Err(format!("{what}: other bytes than expected"));
        }
    }
    Ok(())
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

/// The header lines of a reply, sorted, without regard for the case of their names.
fn sorted_lines(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(reply).to_lowercase();
    let mut lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    lines.sort();
    lines
}
