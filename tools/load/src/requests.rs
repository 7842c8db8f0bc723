//! Does the work of a plaintext server in user space: passes the bytes of each read to the scanner
//! that all servers share.
//!
//! A request that is cut by the end of a read is saved until its rest arrives; usually no byte is
//! copied. Each connection has one object, which allocates nothing once the reply buffer has grown.

use crate::http::answer;

/// The unanswered last bytes of a connection.
#[derive(Debug, Default)]
pub struct Requests {
    rest: Vec<u8>,
}

impl Requests {
    /// Takes the bytes of one read and appends the replies they complete to `out`. Returns false if
    /// the connection must be closed after these replies.
    #[must_use]
    pub fn feed(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> bool {
        let scan = if self.rest.is_empty() {
            let scan = answer(chunk, out);
            self.rest.extend_from_slice(&chunk[scan.consumed..]);
            scan
        } else {
            self.rest.extend_from_slice(chunk);
            let scan = answer(&self.rest, out);
            self.rest.drain(..scan.consumed);
            scan
        };
        !scan.close
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::REPLY;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn a_request_cut_anywhere_is_answered_once() {
        for cut in 1..GET.len() {
            let (mut requests, mut out) = (Requests::default(), Vec::new());
            assert!(requests.feed(&GET[..cut], &mut out));
            assert!(out.is_empty());
            assert!(requests.feed(&[&GET[cut..], GET].concat(), &mut out));
            assert_eq!(out, REPLY.repeat(2));
        }
    }
}
