//! A minimal HTTP/2 client, which encodes and parses single frames.

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
/// Flags of a HEADERS frame that is a complete request without a body.
pub(crate) const END_STREAM_AND_HEADERS: u8 = END_STREAM | END_HEADERS;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Encodes a header block from HPACK's static table and literals that are not indexed; the host is
/// `x`.
pub(crate) fn header_block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut push_field = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    push_field(&[0x02], method);
    push_field(&[0x06], "http");
    push_field(&[0x04], path);
    push_field(&[0x01], "x");
    for (name, value) in fields {
        push_field(&[&[0, name.len() as u8], name.as_bytes()].concat(), value);
    }
    block
}

/// Encodes a GET without a body on a stream.
pub(crate) fn get(stream: u32, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(
        HEADERS,
        END_STREAM_AND_HEADERS,
        stream,
        &header_block("GET", path, fields),
    )
}

/// Opens a connection to the server and sends the preface and an empty SETTINGS frame.
pub(crate) fn connect_http2(server: &TestServer) -> TcpStream {
    handshake(server.connect())
}

/// Sends the preface and an empty SETTINGS frame on a connected stream.
pub(crate) fn handshake(mut stream: TcpStream) -> TcpStream {
    let timeout = Some(Duration::from_secs(10));
    stream.set_read_timeout(timeout).unwrap();
    stream.write_all(PREFACE).unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    stream
}

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Reads the next frame. Returns `None` at the end of the stream, or if it ends within a frame.
    pub(crate) fn read(reader: &mut impl Read) -> Option<Frame> {
        let mut header = [0; 9];
        reader.read_exact(&mut header).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        reader.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(stream);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// Returns whether the frame ends its stream.
    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

/// Parses the complete frames at the start of `bytes`. Also returns the number of bytes that they
/// occupy.
pub(crate) fn frames(bytes: &[u8]) -> (Vec<Frame>, usize) {
    let (mut rest, mut frames, mut length) = (bytes, Vec::new(), 0);
    while let Some(frame) = Frame::read(&mut rest) {
        length += 9 + frame.payload.len();
        frames.push(frame);
    }
    (frames, length)
}

/// Returns the error code of the first GOAWAY frame in `bytes`, if there is one.
pub(crate) fn goaway_error(bytes: &[u8]) -> Option<u32> {
    let (frames, _) = frames(bytes);
    let goaway = frames.iter().find(|frame| frame.kind == GOAWAY)?;
    let code = goaway.payload.get(4..8)?;
    Some(u32::from_be_bytes(code.try_into().unwrap()))
}
