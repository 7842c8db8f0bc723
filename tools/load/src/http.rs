//! Scans requests and builds replies for the plaintext service over HTTP/1.1 and HTTP/1.0, for all
//! servers of the benchmarks.
//!
//! [`answer`] turns received bytes into reply bytes. It is a pure function of its input, so after
//! an incomplete request the caller calls it again, with the unconsumed bytes followed by new ones.
//! It allocates only when `out` must grow. A request with a few headers costs about 100 ns, nearly
//! all of it in `httparse`. Each request is parsed, even if it equals the previous one, because the
//! servers that are compared under the same load also parse each request.
//!
//! The service is minimal: GET and HEAD of any path give the same text; the `Host` header is not
//! required; a request with a body is refused, because its bytes would be taken for the next
//! request.

use httparse::Status;
use std::mem::MaybeUninit;

/// The reply to an HTTP/1.1 request on a connection that stays open.
pub const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";

/// The reply to an HTTP/1.0 request that asks for `Connection: keep-alive`, because such clients
/// expect the header in the reply.
pub const REPLY_KEEP_ALIVE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\
    Content-Length: 13\r\nConnection: keep-alive\r\n\r\nHello, World!";

/// The last reply on a connection, to a request that asked for `Connection: close`, or was HTTP/1.0
/// without keep-alive.
pub const REPLY_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\
    Content-Length: 13\r\nConnection: close\r\n\r\nHello, World!";

/// The body of each reply; the replies to HEAD end before it.
pub const BODY: &[u8] = b"Hello, World!";

/// Longest request head, in bytes; a longer head is answered with status 431.
pub const MAX_HEAD: usize = 8 * 1024;

/// Largest number of header lines of a request; more are answered with status 431.
pub const MAX_HEADERS: usize = 64;

const BAD_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const METHOD_NOT_ALLOWED: &[u8] = b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";
const BODY_REFUSED: &[u8] =
    b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const HEAD_TOO_LARGE: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The result of [`answer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "consumed bytes must be dropped from the input, and `close` obeyed"]
pub struct Scan {
    /// Number of complete requests that were answered with the text (status 200).
    pub complete: usize,
    /// Number of bytes at the front of the input that were processed; keep the rest and append to
    /// it.
    pub consumed: usize,
    /// Set if the connection must be closed after the replies: the client asked for that, uses
    /// HTTP/1.0 without keep-alive, or sent a request that was refused.
    pub close: bool,
}

/// Answers the complete requests at the front of `input`, in order, by appending their replies to
/// `out`.
///
/// A malformed request, another method than GET and HEAD, a request with a body, or a head above
/// [`MAX_HEAD`] or [`MAX_HEADERS`] gets a status of 4xx and ends the connection (`close`); requests
/// before it are answered. At most `MAX_HEAD` bytes of an incomplete request remain unconsumed, so
/// a connection needs an input buffer of that size plus the size of a read.
///
/// ```
/// use upshift_load::http;
/// let mut out = Vec::new();
/// let scan = http::answer(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT", &mut out);
/// assert_eq!((scan.complete, scan.consumed, scan.close), (1, 27, false));
/// assert_eq!(out, http::REPLY);
/// ```
pub fn answer(input: &[u8], out: &mut Vec<u8>) -> Scan {
    let mut scan = Scan::default();
    while scan.consumed < input.len() {
        match request(&input[scan.consumed..]) {
            Parsed::Partial => break,
            Parsed::Request {
                len,
                reply,
                is_head,
                close,
            } => {
                let cut = if is_head { BODY.len() } else { 0 };
                out.extend_from_slice(&reply[..reply.len() - cut]);
                scan.complete += 1;
                scan.consumed += len;
                if close {
                    scan.close = true;
                    break;
                }
            }
            Parsed::Refused(reply) => {
                out.extend_from_slice(reply);
                scan.consumed = input.len();
                scan.close = true;
                break;
            }
        }
    }
    scan
}

/// The first request of the input.
enum Parsed {
    Partial,
    Request {
        len: usize,
        reply: &'static [u8],
        /// Set for a HEAD request, whose reply has no body.
        is_head: bool,
        close: bool,
    },
    Refused(&'static [u8]),
}

fn request(input: &[u8]) -> Parsed {
    let mut headers = [MaybeUninit::uninit(); MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    // A head that is incomplete after its first `MAX_HEAD` bytes is too large.
    let window = &input[..input.len().min(MAX_HEAD)];
    let len = match request.parse_with_uninit_headers(window, &mut headers) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if window.len() == MAX_HEAD => return Parsed::Refused(HEAD_TOO_LARGE),
        Ok(Status::Partial) => return Parsed::Partial,
        Err(httparse::Error::TooManyHeaders) => return Parsed::Refused(HEAD_TOO_LARGE),
        Err(_) => return Parsed::Refused(BAD_REQUEST),
    };
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Parsed::Refused(METHOD_NOT_ALLOWED),
    };
    let (mut close, mut keep) = (false, false);
    for header in request.headers.iter() {
        // The length excludes nearly every other header without reading its letters.
        match header.name.len() {
            10 if header.name.eq_ignore_ascii_case("connection") => {
                for token in header.value.split(|&b| b == b',') {
                    let token = token.trim_ascii();
                    close |= token.eq_ignore_ascii_case(b"close");
                    keep |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            14 if header.name.eq_ignore_ascii_case("content-length") => {
                let value = header.value.trim_ascii();
                if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
                    return Parsed::Refused(BAD_REQUEST);
                }
                if value.iter().any(|&b| b != b'0') {
                    return Parsed::Refused(BODY_REFUSED);
                }
            }
            17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                return Parsed::Refused(BODY_REFUSED);
            }
            _ => {}
        }
    }
    let is_http_1_0 = request.version == Some(0);
    let close = close || (is_http_1_0 && !keep);
    let reply = match (close, is_http_1_0) {
        (true, _) => REPLY_CLOSE,
        (false, true) => REPLY_KEEP_ALIVE,
        (false, false) => REPLY,
    };
    Parsed::Request {
        len,
        reply,
        is_head,
        close,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";

    fn answered(input: &[u8]) -> (Scan, Vec<u8>) {
        let mut out = Vec::new();
        let scan = answer(input, &mut out);
        (scan, out)
    }

    #[test]
    fn replies_state_the_length_of_their_body() {
        for reply in [REPLY, REPLY_KEEP_ALIVE, REPLY_CLOSE] {
            let mut headers = [httparse::EMPTY_HEADER; 8];
            let mut parsed = httparse::Response::new(&mut headers);
            let head = parsed.parse(reply).unwrap().unwrap();
            assert_eq!(&reply[head..], BODY);
            let length = parsed.headers.iter().find(|h| h.name == "Content-Length");
            assert_eq!(length.unwrap().value, BODY.len().to_string().as_bytes());
        }
    }

    #[test]
    fn pipelined_requests_are_answered_in_one_scan() {
        let (scan, out) = answered(&GET.repeat(16));
        assert_eq!(scan.complete, 16);
        assert_eq!(scan.consumed, 16 * GET.len());
        assert!(!scan.close);
        assert_eq!(out, REPLY.repeat(16));
    }

    #[test]
    fn a_request_may_be_cut_anywhere() {
        let three = GET.repeat(3);
        for cut in 0..=three.len() {
            let mut out = Vec::new();
            let first = answer(&three[..cut], &mut out);
            assert_eq!(first.complete, cut / GET.len());
            let second = answer(&three[first.consumed..], &mut out);
            assert_eq!(first.complete + second.complete, 3, "cut at {cut}");
            assert_eq!(out, REPLY.repeat(3));
        }
    }

    #[test]
    fn http_1_0_is_kept_open_only_when_asked() {
        let (scan, out) = answered(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        assert!(!scan.close && out == REPLY_KEEP_ALIVE);
        let (scan, out) = answered(b"GET / HTTP/1.0\r\n\r\n");
        assert!(scan.close && out == REPLY_CLOSE);
    }

    #[test]
    fn connection_close_ends_the_scan() {
        let mut input = b"GET / HTTP/1.1\r\nconnection: foo, Close\r\n\r\n".to_vec();
        let first = input.len();
        input.extend_from_slice(GET);
        let (scan, out) = answered(&input);
        assert_eq!((scan.complete, scan.consumed), (1, first));
        assert!(scan.close && out == REPLY_CLOSE);
    }

    #[test]
    fn head_gets_no_body() {
        let (scan, out) = answered(b"HEAD / HTTP/1.1\r\n\r\n");
        assert_eq!(scan.complete, 1);
        assert_eq!(out, &REPLY[..REPLY.len() - BODY.len()]);
    }

    #[test]
    fn bad_requests_are_refused_and_the_connection_closed() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        for (input, status) in [
            (&b"\x16\x03\x01\x02\0"[..], "400"),
            (b"GET / HTTP/3.0\r\n\r\n", "400"),
            (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", "400"),
            (b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405"),
            (b"GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "413"),
            (
                b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "413",
            ),
            (many.as_bytes(), "431"),
        ] {
            let mut all = GET.to_vec();
            all.extend_from_slice(input);
            let (scan, out) = answered(&all);
            assert_eq!(scan.complete, 1);
            assert!(scan.close);
            let last = String::from_utf8(out[REPLY.len()..].to_vec()).unwrap();
            assert!(last.starts_with(&format!("HTTP/1.1 {status}")), "{last}");
        }
    }

    #[test]
    fn an_endless_head_is_refused_at_the_limit() {
        let mut input = b"GET / HTTP/1.1\r\nA: ".to_vec();
        input.resize(MAX_HEAD - 1, b'a');
        let (scan, out) = answered(&input);
        assert!(!scan.close && out.is_empty());
        input.push(b'a');
        let (scan, out) = answered(&input);
        assert!(scan.close && out == HEAD_TOO_LARGE);
    }
}
