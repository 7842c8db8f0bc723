//! Creates responses without hyper.
//!
//! hyper answers a malformed head itself. For an unknown transfer coding it sends 400, but RFC
//! 9112, section 6.1 requires 501. So the part of a head that arrives with the first bytes is
//! searched for a transfer coding, if the request may have a body; hyper receives no byte of a head
//! with an unknown coding.

use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;

/// Text of the answer to a request with a transfer coding other than `chunked`.
pub(crate) const UNKNOWN_CODING: &str = "the only transfer coding known here is chunked\n";

const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// Returns whether a head that begins with these bytes ends its list of transfer codings with a
/// coding other than `chunked`. The fields of GET and HEAD requests are not searched.
pub(super) fn has_unknown_coding(head: &[u8]) -> bool {
    if head.starts_with(b"GET ") || head.starts_with(b"HEAD ") {
        return false;
    }
    let mut lines = head.split_inclusive(|byte| *byte == b'\n');
    // Empty lines may precede a request (RFC 9112, section 2.2).
    let is_end = |line: &&[u8]| line.trim_ascii().is_empty();
    let _ = lines.by_ref().find(|line| !is_end(line));
    let fields = lines.take_while(|line| !is_end(line));
    let values = fields.filter_map(|line| {
        let (name, value) = line.split_at_checked(TRANSFER_ENCODING.len())?;
        let is_whole = value.ends_with(b"\n");
        (is_whole && name.eq_ignore_ascii_case(TRANSFER_ENCODING)).then_some(value)
    });
    values.last().is_some_and(|value| {
        let last = value.rsplit(|byte| *byte == b',').next().unwrap_or(value);
        !last.trim_ascii().eq_ignore_ascii_case(b"chunked")
    })
}

pub(super) fn refusal(status: StatusCode, text: &str) -> Bytes {
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

    #[test]
    fn the_last_coding_of_a_head_is_found() {
        for (fields, is_unknown) in [
            ("Transfer-Encoding: xchunked\r\n\r\n", true),
            ("x: y\ntransfer-ENCODING:\tidentity \n\n", true),
            ("Transfer-Encoding: chunked, gzip\r\n\r\n", true),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
                true,
            ),
            ("Transfer-Encoding: gzip,CHUNKED\r\n\r\n", false),
            ("Transfer-Encoding : xchunked\r\n\r\n", false),
            ("x: y\r\n\r\nTransfer-Encoding: x\r\n", false),
            ("Transfer-Encoding: chunk", false),
            ("", false),
        ] {
            for line in ["POST / HTTP/1.1\r\n", "\r\n\nPUT / HTTP/1.1\n"] {
                let head = format!("{line}{fields}");
                assert_eq!(has_unknown_coding(head.as_bytes()), is_unknown, "{head}");
            }
        }
        assert!(!has_unknown_coding(
            b"GET / HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n"
        ));
    }
}
