//! The frames of the matrix server: cut the stream of a connection into frames, square the matrix of a frame.
//!
//! One allocation and one copy per frame received, one allocation per reply. One [`Frames`] per connection.

use std::io;

use upshift_load::matrix;

/// Payload of a request: the numbers without the length.
pub type Payload = Vec<u8>;

/// Cuts the bytes of a connection into frames.
#[derive(Debug, Default)]
pub struct Frames {
    head: [u8; matrix::HEADER],
    head_len: usize,
    payload: Payload,
    missing: usize,
}

impl Frames {
    /// Takes bytes from the front of `chunk` up to the end of a frame, and returns that frame; `None` when `chunk` is
    /// used up first.
    ///
    /// # Errors
    ///
    /// The length is not one that [`matrix::order`] accepts: close the connection.
    pub fn next(&mut self, chunk: &mut &[u8]) -> io::Result<Option<Payload>> {
        if self.head_len < matrix::HEADER {
            let part = take(chunk, matrix::HEADER - self.head_len);
            self.head[self.head_len..][..part.len()].copy_from_slice(part);
            self.head_len += part.len();
            if self.head_len < matrix::HEADER {
                return Ok(None);
            }
            let length = u32::from_le_bytes(self.head);
            matrix::order(length).map_err(io::Error::other)?;
            self.missing = length as usize;
            self.payload = Vec::with_capacity(self.missing);
        }
        let part = take(chunk, self.missing);
        self.payload.extend_from_slice(part);
        self.missing -= part.len();
        if self.missing > 0 {
            return Ok(None);
        }
        self.head_len = 0;
        Ok(Some(std::mem::take(&mut self.payload)))
    }
}

fn take<'a>(chunk: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (part, rest) = chunk.split_at(most.min(chunk.len()));
    *chunk = rest;
    part
}

/// The reply frame of a payload that came from [`Frames::next`]; empty for any other length.
pub fn square(payload: &Payload) -> Vec<u8> {
    let mut reply = Vec::new();
    if let Ok(n) = matrix::order(payload.len() as u32) {
        matrix::square(payload, n, &mut reply);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_cut_anywhere_come_out_whole() {
        let stream = [matrix::frame(2, 1), matrix::frame(3, 2)].concat();
        for cut in 0..=stream.len() {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for mut chunk in [&stream[..cut], &stream[cut..]] {
                while let Some(frame) = frames.next(&mut chunk).unwrap() {
                    found.push(frame.len());
                }
            }
            assert_eq!(found, [32, 72]);
        }
    }

    #[test]
    fn a_length_that_is_no_square_is_refused() {
        assert!(Frames::default().next(&mut &[0; 4][..]).is_err());
        assert!(Frames::default().next(&mut &[0xff; 4][..]).is_err());
    }
}
