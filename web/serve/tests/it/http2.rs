//! HTTP/2, frame by frame.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::harness::TestServer;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY_UPDATE: u8 = 16;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// A request without a body, in one frame.
pub(crate) const WHOLE: u8 = END_STREAM | END_HEADERS;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Encodes a header block from HPACK's static table and literals that are not indexed; the host is
/// `x`.
pub(crate) fn block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut text = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    text(&[0x02], method);
    text(&[0x06], "http");
    text(&[0x04], path);
    text(&[0x01], "x");
    for (name, value) in fields {
        text(&[&[0, name.len() as u8], name.as_bytes()].concat(), value);
    }
    block
}

/// Encodes a GET without a body on a stream.
pub(crate) fn get(stream: u32, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &block("GET", path, fields))
}

pub(crate) fn open(server: &TestServer) -> TcpStream {
    open_on(server.connect())
}

pub(crate) fn open_on(mut stream: TcpStream) -> TcpStream {
    let patience = Some(Duration::from_secs(10));
    stream.set_read_timeout(patience).unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    stream
}

/// A received frame.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Reads the next frame; `None` at the end, or if no whole frame arrives.
    pub(crate) fn read(from: &mut impl Read) -> Option<Frame> {
        let mut head = [0; 9];
        from.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        from.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(stream);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// Tells whether the frame ends a response.
    pub(crate) fn ends(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// Returns the whole frames at the front of some bytes, and their length.
pub(crate) fn frames(bytes: &[u8]) -> (Vec<Frame>, usize) {
    let (mut rest, mut all, mut length) = (bytes, Vec::new(), 0);
    while let Some(frame) = Frame::read(&mut rest) {
        length += 9 + frame.payload.len();
        all.push(frame);
    }
    (all, length)
}

/// Returns the error code of the GOAWAY frame in some bytes, if there is one.
pub(crate) fn goaway(bytes: &[u8]) -> Option<u32> {
    let (frames, _) = frames(bytes);
    let goaway = frames.iter().find(|frame| frame.kind == GOAWAY)?;
    let code = goaway.payload.get(4..8)?;
    Some(u32::from_be_bytes(code.try_into().unwrap()))
}
