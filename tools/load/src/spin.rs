//! Defines the spin protocol: a request names an amount of CPU time and a level, and the reply is
//! the request itself.
//!
//! A frame, in both directions, is [`FRAME`] bytes: three `u64`, little-endian: service time in ns
//! of CPU, level, tag. The server burns that CPU time (see [`Burner`](crate::Burner)) at that level
//! and sends the frame back. Frames may be pipelined; replies come in the order of completion, and
//! the tag, which the server ignores, distinguishes them.
//!
//! Invariant: [`Request::parse`] alone decides whether a frame is valid, so no server burns for a
//! frame that it refuses. No function allocates.

use std::fmt;

/// Number of bytes in a frame.
pub const FRAME: usize = 24;

/// Longest service time that is accepted, in ns: one minute.
pub const MAX_SERVICE: u64 = 60_000_000_000;

/// The least urgent level.
pub const MAX_LEVEL: u64 = 63;

/// A request, and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// CPU time to burn, in ns, at most [`MAX_SERVICE`].
    pub service: u64,
    /// Level at which to burn it, 0 (most urgent) to 63.
    pub level: u8,
    /// Tag with which the client distinguishes its requests.
    pub tag: u64,
}

/// The reason why a frame is not a request. Later bytes of the connection are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The service time is above [`MAX_SERVICE`]; carries the time, in ns.
    TooLong(u64),
    /// The level is above 63; carries the level.
    NoLevel(u64),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong(ns) => {
                write!(
                    f,
                    "a service time of {ns} ns is too long: ask for at most {MAX_SERVICE}"
                )
            }
            FrameError::NoLevel(level) => {
                write!(f, "there is no level {level}: ask for 0 to {MAX_LEVEL}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

impl Request {
    /// Parses the request in a frame.
    ///
    /// # Errors
    ///
    /// Fails if the service time or the level is out of range.
    ///
    /// ```
    /// use upshift_load::spin::{FrameError, Request};
    /// let request = Request { service: 500, level: 7, tag: u64::MAX };
    /// assert_eq!(Request::parse(&request.bytes()), Ok(request));
    /// assert_eq!(Request::parse(&[0xff; 24]), Err(FrameError::TooLong(u64::MAX)));
    /// ```
    pub fn parse(frame: &[u8; FRAME]) -> Result<Request, FrameError> {
        let (words, _) = frame.as_chunks::<8>();
        let [service, level, tag] = [0, 1, 2].map(|i| u64::from_le_bytes(words[i]));
        if service > MAX_SERVICE {
            return Err(FrameError::TooLong(service));
        }
        if level > MAX_LEVEL {
            return Err(FrameError::NoLevel(level));
        }
        Ok(Request {
            service,
            level: level as u8,
            tag,
        })
    }

    /// Returns the frame of this request.
    pub fn bytes(&self) -> [u8; FRAME] {
        let mut frame = [0; FRAME];
        for (word, value) in
            frame
                .chunks_exact_mut(8)
                .zip([self.service, self.level.into(), self.tag])
        {
            word.copy_from_slice(&value.to_le_bytes());
        }
        frame
    }
}

/// A cutter of the byte stream of a connection into requests, however the stream is segmented. Each
/// connection has one [`Frames`].
#[derive(Clone, Debug, Default)]
pub struct Frames {
    frame: [u8; FRAME],
    /// Number of bytes of `frame` that have arrived.
    filled: usize,
}

impl Frames {
    /// Takes bytes from the front of `chunk` to the end of a frame and returns its request, or
    /// takes all bytes and returns `None`.
    ///
    /// # Errors
    ///
    /// Fails if the frame is not a request; then close the connection.
    pub fn next(&mut self, chunk: &mut &[u8]) -> Result<Option<Request>, FrameError> {
        if self.filled == 0
            && let Some((frame, rest)) = chunk.split_first_chunk::<FRAME>()
        {
            *chunk = rest;
            return Request::parse(frame).map(Some);
        }
        let (part, rest) = chunk.split_at(chunk.len().min(FRAME - self.filled));
        self.frame[self.filled..][..part.len()].copy_from_slice(part);
        self.filled += part.len();
        *chunk = rest;
        if self.filled < FRAME {
            return Ok(None);
        }
        self.filled = 0;
        Request::parse(&self.frame).map(Some)
    }

    /// Returns whether the position is between two frames.
    pub fn is_at_boundary(&self) -> bool {
        self.filled == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tag: u64) -> Request {
        Request {
            service: 1000 + tag,
            level: (tag % 64) as u8,
            tag,
        }
    }

    #[test]
    fn frames_are_complete_for_any_segmentation() {
        let stream: Vec<u8> = (0..4).flat_map(|tag| request(tag).bytes()).collect();
        for first in 0..=stream.len() {
            for second in [first, first + 1, stream.len()].map(|at| at.min(stream.len())) {
                let (mut frames, mut tags) = (Frames::default(), 0);
                for mut chunk in [&stream[..first], &stream[first..second], &stream[second..]] {
                    while let Some(found) = frames.next(&mut chunk).unwrap() {
                        assert_eq!(found, request(tags));
                        tags += 1;
                    }
                    assert!(chunk.is_empty());
                }
                assert_eq!(tags, 4);
                assert!(frames.is_at_boundary());
            }
        }
    }

    #[test]
    fn the_bounds_are_accepted_and_nothing_beyond_them() {
        let frame = |words: [u64; 3]| {
            let mut frame = [0; FRAME];
            for (to, word) in frame.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            frame
        };
        assert!(Request::parse(&frame([MAX_SERVICE, 63, u64::MAX])).is_ok());
        assert!(Request::parse(&frame([0, 0, 0])).is_ok());
        let too_long = Request::parse(&frame([MAX_SERVICE + 1, 0, 0])).unwrap_err();
        assert_eq!(too_long, FrameError::TooLong(MAX_SERVICE + 1));
        let no_level = Request::parse(&frame([0, 64, 0])).unwrap_err();
        assert_eq!(no_level, FrameError::NoLevel(64));
        for error in [too_long, no_level] {
            assert!(error.to_string().contains("ask for"), "{error}");
        }
    }

    #[test]
    fn a_request_is_three_little_endian_words() {
        let bytes = Request {
            service: 0x0102,
            level: 3,
            tag: 0x0405_0607_0809_0a0b,
        }
        .bytes();
        assert_eq!(bytes[..3], [2, 1, 0]);
        assert_eq!(bytes[8..10], [3, 0]);
        assert_eq!(bytes[16..], [0x0b, 0x0a, 9, 8, 7, 6, 5, 4]);
    }
}
