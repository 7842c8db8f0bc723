//! Heads of HTTP/1 that the HTTP library refuses, with the status that fits.
//!
//! The library answers a head that it refuses by itself, with an empty body: 431 for a long URL as
//! for long fields, and 400 for an unknown transfer coding. The lines of a head are examined on
//! their way to the library, which alone decides; when it refuses, [`Heads::instead`] returns a
//! better answer.
//!
//! Cost: a search for the ends of the lines, and a comparison per line. Nothing is kept of a line
//! that has come as a whole.

use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;

/// How the library's own refusals begin; no other response is made like these.
const TOO_LARGE: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n";
const BAD: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n";
const CODING: &[u8] = b"transfer-encoding:";
/// Bytes kept of a line that has not come as a whole: a known coding fits.
const KEPT: usize = 48;

/// A look at the head that is being received.
#[derive(Debug)]
pub(crate) struct Heads {
    /// The longest head: the library refuses one of which so many bytes have come without an end.
    most: usize,
    /// Bytes of the request line, as far as it has come.
    request_line: usize,
    place: Place,
    /// The beginning of a line whose end has not come.
    part: [u8; KEPT],
    kept: usize,
    /// The last transfer coding is not `chunked`.
    unknown_coding: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    RequestLine,
    Fields,
    /// All of it has come.
    Body,
}

impl Heads {
    pub(crate) fn new(most: usize) -> Heads {
        Heads {
            most,
            request_line: 0,
            place: Place::RequestLine,
            part: [0; KEPT],
            kept: 0,
            unknown_coding: false,
        }
    }

    /// The next head begins.
    pub(crate) fn begin(&mut self) {
        *self = Heads::new(self.most);
    }

    /// Examines the next bytes of the client.
    pub(crate) fn look(&mut self, mut data: &[u8]) {
        while self.place != Place::Body && !data.is_empty() {
            let end = memchr::memchr(b'\n', data);
            let line = &data[..end.unwrap_or(data.len())];
            if self.place == Place::RequestLine {
                self.request_line += line.len();
            }
            if end.is_none() || self.kept != 0 {
                let count = line.len().min(KEPT - self.kept);
                self.part[self.kept..][..count].copy_from_slice(&line[..count]);
                self.kept += count;
            }
            let Some(end) = end else { return };
            match std::mem::take(&mut self.kept) {
                0 => self.end(line),
                kept => {
                    let part = self.part;
                    self.end(&part[..kept]);
                }
            }
            data = &data[end + 1..];
        }
    }

    /// A line is complete; of a long one, its beginning.
    fn end(&mut self, line: &[u8]) {
        let is_empty = matches!(line, [] | [b'\r']);
        match self.place {
            // Empty lines may stand before a request (RFC 9112, section 2.2).
            Place::RequestLine if is_empty => self.request_line = 0,
            Place::RequestLine => self.place = Place::Fields,
            _ if is_empty => self.place = Place::Body,
            _ => {
                if let Some((name, value)) = line.split_at_checked(CODING.len())
                    && name.eq_ignore_ascii_case(CODING)
                {
                    let last = value.rsplit(|byte| *byte == b',').next().unwrap_or(value);
                    self.unknown_coding = !last.trim_ascii().eq_ignore_ascii_case(b"chunked");
                }
            }
        }
    }

    /// Returns the answer to send in place of the library's, if these bytes are its refusal of the
    /// head and another status fits better.
    #[inline]
    pub(crate) fn instead(&self, bytes: &[u8]) -> Option<Bytes> {
        if self.request_line >= self.most && bytes.starts_with(TOO_LARGE) {
            return Some(refusal(StatusCode::URI_TOO_LONG, "the URL is too long\n"));
        }
        if self.unknown_coding && bytes.starts_with(BAD) {
            return Some(refusal(StatusCode::NOT_IMPLEMENTED, UNKNOWN_CODING));
        }
        None
    }
}

/// The answer to a request with another transfer coding than `chunked`.
pub(crate) const UNKNOWN_CODING: &str = "the only transfer coding known here is chunked\n";

/// Makes a whole response, after which the connection is closed.
pub(crate) fn refusal(status: StatusCode, text: &str) -> Bytes {
    let reason = status.canonical_reason().unwrap_or_default();
    let date = httpdate::fmt_http_date(SystemTime::now());
    let length = text.len();
    Bytes::from(format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\n\
         connection: close\r\ndate: {date}\r\n\r\n{text}",
        status.as_str()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses sent in place of the library's 431 and 400, for a head in parts of this size.
    fn instead(head: &[u8], size: usize) -> [Option<u16>; 2] {
        let mut heads = Heads::new(100);
        for part in head.chunks(size) {
            heads.look(part);
        }
        [TOO_LARGE, BAD].map(|refusal| {
            let answer = heads.instead(refusal)?;
            let text = String::from_utf8_lossy(&answer).into_owned();
            text.split(' ').nth(1)?.parse().ok()
        })
    }

    #[test]
    fn a_refused_head_gets_the_status_that_fits() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(100));
        let unended = format!("\r\n\r\nGET /{}", "a".repeat(200));
        let fields = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(200));
        let coded = |coding: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{coding}\r\n\r\n");
        for (head, expected) in [
            (long, [Some(414), None]),
            (format!("GET /{}", "a".repeat(95)), [Some(414), None]),
            (format!("GET /{}", "a".repeat(94)), [None, None]),
            (unended, [Some(414), None]),
            (fields, [None, None]),
            (coded("Transfer-Encoding: xchunked"), [None, Some(501)]),
            (coded("transfer-ENCODING:\tidentity "), [None, Some(501)]),
            (coded("Transfer-Encoding: chunked, gzip"), [None, Some(501)]),
            (
                coded(&format!("Transfer-Encoding: {}", "g".repeat(99))),
                [None, Some(501)],
            ),
            (coded("Transfer-Encoding: gzip,CHUNKED"), [None, None]),
            (coded("Transfer-Encoding : xchunked"), [None, None]),
            (coded("x: y\r\n\r\nTransfer-Encoding: x"), [None, None]),
        ] {
            for size in [1, 7, 1000] {
                assert_eq!(instead(head.as_bytes(), size), expected, "{size}: {head}");
            }
        }
    }

    #[test]
    fn what_is_no_refusal_of_the_library_is_left_alone() {
        let mut heads = Heads::new(100);
        heads.look(b"GET / HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n");
        let own = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 19\r\n\r\n";
        assert_eq!(heads.instead(own), None);
        heads.begin();
        heads.look(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(heads.instead(BAD), None);
    }
}
