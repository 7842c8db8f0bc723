//! Defines the matrix protocol: a request contains a square matrix, and the reply its wrapping
//! square.
//!
//! A frame is a `u32` little-endian byte length followed by n·n `u64`, little-endian, row-major.
//! The reply is the product of the matrix with itself modulo 2^64, in the same form. Frames may be
//! pipelined; replies keep the order.
//!
//! Invariant: [`order`] alone decides whether a length is valid, so no server allocates for a
//! length that it refuses. [`square`] costs n³ multiplications and allocates only its output; its
//! stack use is at most 8 KiB.

use std::fmt;

/// Number of bytes that precede the payload in a frame.
pub const HEADER: usize = 4;

/// Largest order that is accepted: a payload of 8 MiB.
///
/// A server that queues 16 frames in each direction, as the servers here do, holds at most about 33
/// such payloads for one connection.
pub const MAX_N: usize = 1024;

/// The reason why a byte length is not that of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The length is 0.
    Empty,
    /// The length is not 8·n·n bytes for any whole n; carries the length.
    NotSquare(u32),
    /// The length is above that of [`MAX_N`]; carries the length.
    TooLarge(u32),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Empty => {
                write!(f, "frame length is 0: send at least one number (8 bytes)")
            }
            FrameError::NotSquare(len) => write!(
                f,
                "frame length {len} is not 8*n*n bytes: send a square matrix of u64"
            ),
            FrameError::TooLarge(len) => write!(
                f,
                "frame length {len} is too large: send at most {} bytes (n = {MAX_N})",
                payload_len(MAX_N)
            ),
        }
    }
}

impl std::error::Error for FrameError {}

impl From<FrameError> for std::io::Error {
    fn from(error: FrameError) -> std::io::Error {
        std::io::Error::other(error)
    }
}

/// Returns the size in bytes of the payload for a matrix of order `n`.
pub const fn payload_len(n: usize) -> usize {
    8 * n * n
}

/// Returns the order n for a payload of `byte_len` bytes.
///
/// # Errors
///
/// Fails if the length is 0, not 8·n·n, or that of an order above [`MAX_N`].
///
/// ```
/// use upshift_load::matrix::{FrameError, order};
/// assert_eq!(order(8 * 20 * 20), Ok(20));
/// assert_eq!(order(u32::MAX), Err(FrameError::TooLarge(u32::MAX)));
/// ```
pub fn order(byte_len: u32) -> Result<usize, FrameError> {
    if byte_len == 0 {
        return Err(FrameError::Empty);
    }
    if byte_len as usize > payload_len(MAX_N) {
        return Err(FrameError::TooLarge(byte_len));
    }
    let n = (byte_len / 8).isqrt() as usize;
    if payload_len(n) == byte_len as usize {
        Ok(n)
    } else {
        Err(FrameError::NotSquare(byte_len))
    }
}

/// Appends the whole reply frame (header and product) for `payload`, a matrix of order `n`, to
/// `out`.
///
/// # Panics
///
/// If `n` is 0 or above [`MAX_N`], or `payload` is not 8·n·n bytes long. Take `n` from [`order`].
pub fn square(payload: &[u8], n: usize, out: &mut Vec<u8>) {
    assert!((1..=MAX_N).contains(&n), "order {n} is out of 1..={MAX_N}");
    assert_eq!(payload.len(), payload_len(n), "payload of order {n}");
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let start = out.len();
    out.resize(start + payload.len(), 0);
    let (cells, _) = payload.as_chunks::<8>();
    let (product, _) = out[start..].as_chunks_mut::<8>();
    // Short rows get a short row of sums, because clearing 8 KiB would cost more than a product of
    // order 8.
    if n <= 32 {
        multiply_rows::<32>(cells, n, product);
    } else {
        multiply_rows::<MAX_N>(cells, n, product);
    }
}

/// Computes the product row by row, in i-k-j order, with one row of sums of at most `W` on the
/// stack.
fn multiply_rows<const W: usize>(cells: &[[u8; 8]], n: usize, product: &mut [[u8; 8]]) {
    let mut sums = [0u64; W];
    let sums = &mut sums[..n];
    for (left, target) in cells.chunks_exact(n).zip(product.chunks_exact_mut(n)) {
        sums.fill(0);
        for (a, right) in left.iter().zip(cells.chunks_exact(n)) {
            let a = u64::from_le_bytes(*a);
            for (sum, b) in sums.iter_mut().zip(right) {
                *sum = sum.wrapping_add(a.wrapping_mul(u64::from_le_bytes(*b)));
            }
        }
        for (cell, sum) in target.iter_mut().zip(&*sums) {
            *cell = sum.to_le_bytes();
        }
    }
}

/// Creates a request frame of order `n` with numbers drawn from `seed`. Equal arguments give equal
/// bytes.
///
/// # Panics
///
/// If `n` is 0 or above [`MAX_N`].
pub fn frame(n: usize, seed: u64) -> Vec<u8> {
    assert!((1..=MAX_N).contains(&n), "order {n} is out of 1..={MAX_N}");
    let mut out = Vec::with_capacity(HEADER + payload_len(n));
    out.extend_from_slice(&(payload_len(n) as u32).to_le_bytes());
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mut state = seed;
    for _ in 0..n * n {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(payload: &[u8], n: usize) -> Vec<u8> {
        let cell = |i: usize, j: usize| {
            let at = 8 * (i * n + j);
            u64::from_le_bytes(payload[at..at + 8].try_into().unwrap())
        };
        let mut out = (payload.len() as u32).to_le_bytes().to_vec();
        for i in 0..n {
            for j in 0..n {
                let sum = (0..n).fold(0u64, |sum, k| {
                    sum.wrapping_add(cell(i, k).wrapping_mul(cell(k, j)))
                });
                out.extend_from_slice(&sum.to_le_bytes());
            }
        }
        out
    }

    #[test]
    fn square_equals_the_naive_product() {
        for n in (1..=40).chain([63, 64, 65, 100]) {
            let request = frame(n, n as u64);
            let mut out = b"kept".to_vec();
            square(&request[HEADER..], n, &mut out);
            assert_eq!(&out[..4], b"kept");
            assert_eq!(&out[4..], naive(&request[HEADER..], n), "n = {n}");
        }
    }

    #[test]
    fn square_wraps_around_on_overflow() {
        let payload = u64::MAX.to_le_bytes();
        let mut out = Vec::new();
        square(&payload, 1, &mut out);
        assert_eq!(out[HEADER..], 1u64.to_le_bytes());
    }

    #[test]
    fn order_accepts_only_the_sizes_of_square_matrices() {
        let mut expected = 1;
        for len in 1..=payload_len(50) as u32 {
            if len as usize == payload_len(expected) {
                assert_eq!(order(len), Ok(expected));
                expected += 1;
            } else {
                assert_eq!(order(len), Err(FrameError::NotSquare(len)));
            }
        }
        assert_eq!(order(payload_len(MAX_N) as u32), Ok(MAX_N));
    }

    #[test]
    fn order_refuses_empty_and_too_large_payloads() {
        assert_eq!(order(0), Err(FrameError::Empty));
        let over = payload_len(MAX_N) as u32 + 1;
        for len in [over, u32::MAX] {
            let error = order(len).unwrap_err();
            assert_eq!(error, FrameError::TooLarge(len));
            assert!(error.to_string().contains("send at most"));
        }
    }

    #[test]
    fn frames_differ_by_seed_and_repeat_by_seed() {
        assert_eq!(frame(8, 1), frame(8, 1));
        assert_ne!(frame(8, 1), frame(8, 2));
        assert_eq!(frame(8, 1).len(), HEADER + payload_len(8));
    }
}
