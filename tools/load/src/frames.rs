//! Cuts the byte stream of a connection into frames of the matrix protocol, however the stream is
//! segmented.
//!
//! Each connection has one [`Frames`]. A frame costs one allocation and one copy. Its memory grows
//! with the bytes that arrive, so a client that only announces a large frame claims little memory.

use crate::matrix::{self, FrameError, HEADER};

/// Largest memory claimed for a frame before its bytes arrive.
const MAX_RESERVED: usize = 64 * 1024;

/// A payload and the order of its matrix.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Cells of the matrix.
    pub payload: Vec<u8>,
    /// Order of the matrix.
    pub n: usize,
}

impl Frame {
    /// Returns the frame of the reply: the square.
    #[must_use]
    pub fn square(&self) -> Vec<u8> {
        let mut reply = Vec::with_capacity(HEADER + self.payload.len());
        matrix::square(&self.payload, self.n, &mut reply);
        reply
    }
}

/// The frame that is being received.
#[derive(Debug, Default)]
pub struct Frames {
    head: [u8; HEADER],
    /// Number of bytes of `head` that have arrived; all of them while a payload is being received.
    head_len: usize,
    payload: Vec<u8>,
    /// Number of bytes of the payload that have not arrived.
    missing: usize,
    n: usize,
}

impl Frames {
    /// Takes bytes from the front of `chunk` to the end of a frame and returns the frame, or takes
    /// all bytes and returns `None`.
    ///
    /// # Errors
    /// Fails if the length is not that of a frame; then no later byte can be interpreted.
    pub fn next(&mut self, chunk: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if self.head_len < HEADER {
            let part = take(chunk, HEADER - self.head_len);
            self.head[self.head_len..self.head_len + part.len()].copy_from_slice(part);
            self.head_len += part.len();
            if self.head_len < HEADER {
                return Ok(None);
            }
            let length = u32::from_le_bytes(self.head);
            self.n = matrix::order(length)?;
            self.missing = length as usize;
            self.payload = Vec::with_capacity(self.missing.min(MAX_RESERVED));
        }
        let part = take(chunk, self.missing);
        self.payload.extend_from_slice(part);
        self.missing -= part.len();
        if self.missing > 0 {
            return Ok(None);
        }
        self.head_len = 0;
        Ok(Some(Frame {
            payload: std::mem::take(&mut self.payload),
            n: self.n,
        }))
    }

    /// Returns whether the position is between two frames.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        self.head_len == 0
    }
}

fn take<'a>(chunk: &mut &'a [u8], max: usize) -> &'a [u8] {
    let (part, rest) = chunk.split_at(max.min(chunk.len()));
    *chunk = rest;
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_complete_for_any_segmentation() {
        let stream = [
            matrix::frame(1, 1),
            matrix::frame(3, 2),
            matrix::frame(2, 3),
        ]
        .concat();
        for first in 0..=stream.len() {
            for second in [first, first + 1, stream.len()].map(|at| at.min(stream.len())) {
                let (mut frames, mut orders) = (Frames::default(), Vec::new());
                for mut chunk in [&stream[..first], &stream[first..second], &stream[second..]] {
                    while let Some(frame) = frames.next(&mut chunk).unwrap() {
                        assert_eq!(frame.payload.len(), matrix::payload_len(frame.n));
                        orders.push(frame.n);
                    }
                    assert!(chunk.is_empty());
                }
                assert_eq!(orders, [1, 3, 2]);
                assert!(frames.is_at_boundary());
            }
        }
    }

    #[test]
    fn an_invalid_length_is_refused_and_a_large_one_claims_little_memory() {
        for length in [0u32, 7, u32::MAX] {
            assert!(
                Frames::default()
                    .next(&mut &length.to_le_bytes()[..])
                    .is_err()
            );
        }
        let mut frames = Frames::default();
        let largest = matrix::payload_len(matrix::MAX_N) as u32;
        assert_eq!(frames.next(&mut &largest.to_le_bytes()[..]), Ok(None));
        assert!(frames.payload.capacity() <= MAX_RESERVED);
        assert!(!frames.is_at_boundary());
    }
}
