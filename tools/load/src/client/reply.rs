//! Cuts the byte stream of a connection into replies and checks them.
//!
//! Replies are checked as they arrive, in the receive buffer; only an HTTP reply head that is cut
//! by the end of a read is copied. Every byte of every matrix reply is compared with the product
//! computed beforehand.

use super::plan::Work;
use crate::matrix;
use httparse::Status;

/// Longest HTTP reply head that is accepted, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// A request and its expected reply. Shared by connections.
pub(crate) struct Template {
    /// Copies of the request, one or more, so that several leave in one write.
    pub(crate) bytes: Vec<u8>,
    /// Length of one copy, in bytes.
    pub(crate) len: usize,
    /// Whole reply to a matrix; empty for HTTP.
    expected: Vec<u8>,
}

impl Template {
    /// Creates the request of variant `variant` of `work` to `host`, with copies for up to `depth`
    /// requests in flight.
    pub(crate) fn new(work: &Work, variant: u64, host: &str, depth: usize) -> Template {
        let (one, expected) = match work {
            Work::Matrix { n } => {
                let request = matrix::frame(*n, variant);
                let mut expected = Vec::new();
                matrix::square(&request[matrix::HEADER..], *n, &mut expected);
                (request, expected)
            }
            Work::Http { path, headers, .. } => {
                let mut request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n");
                for line in headers {
                    request.push_str(line);
                    request.push_str("\r\n");
                }
                request.push_str("\r\n");
                (request.into_bytes(), Vec::new())
            }
            // All requests differ.
            Work::Spin => (vec![0; crate::spin::FRAME], Vec::new()),
        };
        // One copy more than the depth, because a partial write leaves the stream in the middle of
        // the first copy.
        let copies = (256 * 1024 / one.len()).clamp(1, depth + 1);
        Template {
            len: one.len(),
            bytes: one.repeat(copies),
            expected,
        }
    }
}

/// The position in the replies of a connection.
#[derive(Default)]
pub(crate) struct Cursor {
    /// Matrix: number of bytes of the current reply that matched. HTTP: number of bytes of the
    /// current body still to come.
    position: usize,
    /// HTTP: first bytes of a head whose end has not arrived.
    head: Vec<u8>,
    /// HTTP: set if the current reply has a status other than 2xx.
    is_bad: bool,
}

/// Numbers of replies that end in a piece of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyCounts {
    /// Number of complete replies.
    pub(crate) complete: u64,
    /// Number of complete replies with a status other than 2xx.
    pub(crate) bad: u64,
}

/// The last HTTP reply head that was parsed.
///
/// A head ends at its own empty line, so bytes that begin with a head already parsed begin with
/// that very head, which need not be parsed again. This is correct for any server, and fast for a
/// server that sends the same head twice.
#[derive(Default)]
pub(crate) struct HeadMemo {
    bytes: Vec<u8>,
    head: Head,
}

#[derive(Clone, Copy, Default)]
struct Head {
    /// Length of the head, in bytes.
    len: usize,
    /// Length of the body, in bytes.
    body: usize,
    status: u16,
}

/// Checks the next bytes of the replies of a matrix server, and counts the replies that end there.
pub(crate) fn matrix(
    template: &Template,
    cursor: &mut Cursor,
    mut data: &[u8],
) -> Result<ReplyCounts, String> {
    let expected = &template.expected[..];
    let mut counts = ReplyCounts::default();
    while !data.is_empty() {
        let rest = &expected[cursor.position..];
        let (now, later) = data.split_at(rest.len().min(data.len()));
        if now != &rest[..now.len()] {
            let position =
                now.iter().zip(rest).take_while(|(a, b)| a == b).count() + cursor.position;
            return Err(if position < matrix::HEADER {
                format!(
                    "wrong reply: byte {position} of its length field is wrong; expected a length of {}",
                    expected.len() - matrix::HEADER
                )
            } else {
                let position = position - matrix::HEADER;
                format!(
                    "wrong reply: number {} of the product is wrong",
                    position / 8
                )
            });
        }
        cursor.position += now.len();
        if cursor.position == expected.len() {
            cursor.position = 0;
            counts.complete += 1;
        }
        data = later;
    }
    Ok(counts)
}

/// Parses the next bytes of the replies of an HTTP server, and counts the replies that end there.
pub(crate) fn http(
    memo: &mut HeadMemo,
    cursor: &mut Cursor,
    mut data: &[u8],
) -> Result<ReplyCounts, String> {
    let mut counts = ReplyCounts::default();
    loop {
        let body = cursor.position.min(data.len());
        data = &data[body..];
        if body > 0 {
            cursor.position -= body;
            if cursor.position == 0 {
                counts.count_reply(cursor);
            }
        }
        if data.is_empty() {
            return Ok(counts);
        }
        let head = if cursor.head.is_empty() {
            let Some(head) = memo.parse(data)? else {
                cursor.head.extend_from_slice(data);
                return Ok(counts);
            };
            data = &data[head.len..];
            head
        } else {
            let before = cursor.head.len();
            cursor.head.extend_from_slice(data);
            let Some(head) = memo.parse(&cursor.head)? else {
                return Ok(counts);
            };
            cursor.head.clear();
            // The head did not end in the saved part, so it ends in the new data.
            data = &data[head.len - before..];
            head
        };
        cursor.is_bad = !(200..300).contains(&head.status);
        cursor.position = head.body;
        if head.body == 0 {
            counts.count_reply(cursor);
        }
    }
}

impl ReplyCounts {
    /// Counts the reply that ends at the cursor.
    fn count_reply(&mut self, cursor: &Cursor) {
        self.complete += 1;
        self.bad += u64::from(cursor.is_bad);
    }
}

impl HeadMemo {
    /// Returns the status of the last head, for messages.
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    fn parse(&mut self, data: &[u8]) -> Result<Option<Head>, String> {
        if !self.bytes.is_empty() && data.starts_with(&self.bytes) {
            return Ok(Some(self.head));
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let len = match response.parse(data) {
            Ok(Status::Complete(len)) => len,
            Ok(Status::Partial) if data.len() > MAX_HEAD => {
                return Err(format!(
                    "wrong reply: its head is longer than {MAX_HEAD} bytes"
                ));
            }
            Ok(Status::Partial) => return Ok(None),
            Err(error) => return Err(format!("wrong reply: not HTTP/1.x ({error})")),
        };
        let status = response.code.unwrap_or_default();
        let body = response
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case("content-length"))
            .map(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
        let body = match body {
            Some(Some(body)) => body,
            None if matches!(status, 204 | 304) => 0,
            _ => {
                return Err(format!(
                    "reply of status {status} has no usable Content-Length: ask for a path that has one"
                ));
            }
        };
        self.head = Head { len, body, status };
        self.bytes.clear();
        self.bytes.extend_from_slice(&data[..len]);
        Ok(Some(self.head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http as service;

    fn pieces(stream: &[u8], size: usize) -> impl Iterator<Item = &[u8]> {
        stream.chunks(size)
    }

    fn template(n: usize) -> Template {
        Template::new(&Work::Matrix { n }, 1, "", 1)
    }

    #[test]
    fn matrix_replies_are_counted_for_any_segmentation() {
        let template = template(3);
        let stream = template.expected.repeat(5);
        for size in 1..=stream.len() {
            let mut cursor = Cursor::default();
            let complete: u64 = pieces(&stream, size)
                .map(|piece| matrix(&template, &mut cursor, piece).unwrap().complete)
                .sum();
            assert_eq!(complete, 5);
        }
    }

    #[test]
    fn every_wrong_byte_of_a_matrix_reply_is_found() {
        let template = template(2);
        for at in 0..template.expected.len() {
            let mut stream = template.expected.repeat(2);
            stream[template.expected.len() + at] ^= 1;
            let error = matrix(&template, &mut Cursor::default(), &stream).unwrap_err();
            let expected_part = if at < 4 { "length" } else { "product" };
            assert!(error.contains(expected_part), "{error}");
        }
    }

    #[test]
    fn http_replies_are_counted_for_any_segmentation() {
        let mut stream = service::REPLY.repeat(2);
        stream.extend_from_slice(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        stream.extend_from_slice(service::REPLY_KEEP_ALIVE);
        stream.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
        for size in 1..=stream.len() {
            let (mut cursor, mut memo) = (Cursor::default(), HeadMemo::default());
            let mut sum = ReplyCounts::default();
            for piece in pieces(&stream, size) {
                let counts = http(&mut memo, &mut cursor, piece).unwrap();
                sum.complete += counts.complete;
                sum.bad += counts.bad;
            }
            assert_eq!((sum.complete, sum.bad), (5, 1), "pieces of {size}");
        }
    }

    #[test]
    fn a_malformed_reply_is_an_error() {
        for (stream, expected_part) in [
            (&b"SSH-2.0-OpenSSH\r\n"[..], "not HTTP"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "Content-Length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "usable"),
        ] {
            let error = http(&mut HeadMemo::default(), &mut Cursor::default(), stream);
            assert!(error.unwrap_err().contains(expected_part));
        }
        let endless = [&b"HTTP/1.1 200 OK\r\nA: "[..], &[b'a'; MAX_HEAD]].concat();
        let error = http(&mut HeadMemo::default(), &mut Cursor::default(), &endless);
        assert!(error.unwrap_err().contains("longer"));
    }
}
