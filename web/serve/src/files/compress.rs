//! Compresses files while they are sent.
//!
//! A body compresses on demand and checks after each slice whether to yield, so no poll lasts
//! longer than for an uncompressed file. A compressor needs about 300 kB, so the number of
//! compressors is bounded, and each thread pools a few of them.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use flate2::{Compress, Compression, FlushCompress, Status};

use super::content::FileBody;

/// Number of bytes compressed between two yield points, which takes a few tens of microseconds.
const SLICE: usize = 4096;
/// Input bytes per deflate block. zlib encodes a whole block when the block ends. With the default
/// block size, this step would take several times as long as a slice.
const BLOCK: u64 = 8192;
/// Compression level. zlib's default of 6 takes more time for a negligible gain.
const LEVEL: u32 = 4;
/// Number of bytes handed out at once.
const PIECE: usize = 16 * 1024;
/// Number of concurrent compressions; further files are sent uncompressed.
const MAX_CONCURRENT: usize = 256;
/// Number of idle compressors that a thread keeps.
const MAX_POOLED: usize = 4;

static ACTIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static POOL: RefCell<Vec<Compress>> = const { RefCell::new(Vec::new()) };
}

/// A compressor, which returns to the pool of the thread that drops it.
pub(super) struct Compressor(Option<Compress>);

impl Compressor {
    pub(super) fn take() -> Option<Compressor> {
        if ACTIVE.fetch_add(1, Relaxed) >= MAX_CONCURRENT {
            ACTIVE.fetch_sub(1, Relaxed);
            return None;
        }
        let pooled = POOL.with_borrow_mut(Vec::pop);
        let new = || Compress::new_gzip(Compression::new(LEVEL), 15);
        Some(Compressor(Some(pooled.unwrap_or_else(new))))
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Relaxed);
        let Some(mut compress) = self.0.take() else {
            return;
        };
        // Fails if the thread is ending.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED {
                compress.reset();
                pool.push(compress);
            }
        });
    }
}

/// A file that is compressed on demand.
pub(crate) struct CompressedBody {
    file: FileBody,
    rest: Bytes,
    out: Vec<u8>,
    compressor: Compressor,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Reading,
    Finishing,
    Done,
}

impl CompressedBody {
    pub(super) fn new(file: FileBody, compressor: Compressor) -> CompressedBody {
        CompressedBody {
            file,
            rest: Bytes::new(),
            out: Vec::new(),
            compressor,
            state: State::Reading,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        while self.state != State::Done {
            if self.rest.is_empty() && self.state == State::Reading {
                match ready!(self.file.poll_chunk(cx)).transpose() {
                    Ok(Some(bytes)) => self.rest = bytes,
                    Ok(None) => self.state = State::Finishing,
                    Err(error) => {
                        self.state = State::Done;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
            if let Err(error) = self.compress_slice() {
                self.state = State::Done;
                return Poll::Ready(Some(Err(error)));
            }
            if self.state == State::Done || self.out.len() == self.out.capacity() {
                return Poll::Ready(Some(Ok(std::mem::take(&mut self.out).into())));
            }
            ready!(upshift::task::poll_piece(cx));
        }
        Poll::Ready(None)
    }

    fn compress_slice(&mut self) -> io::Result<()> {
        if self.out.capacity() == 0 {
            self.out.reserve_exact(PIECE);
        }
        let Some(compress) = &mut self.compressor.0 else {
            return Ok(());
        };
        let slice = &self.rest[..self.rest.len().min(SLICE)];
        let total_in = compress.total_in();
        let flush = if self.state == State::Finishing {
            FlushCompress::Finish
        } else if (total_in + slice.len() as u64).is_multiple_of(BLOCK) {
            FlushCompress::Sync
        } else {
            FlushCompress::None
        };
        let status = compress.compress_vec(slice, &mut self.out, flush);
        let status = status.map_err(io::Error::other)?;
        self.rest.advance((compress.total_in() - total_in) as usize);
        if status == Status::StreamEnd {
            self.state = State::Done;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_concurrent_compressions_is_bounded() {
        let all: Vec<_> = (0..MAX_CONCURRENT)
            .map_while(|_| Compressor::take())
            .collect();
        assert_eq!(all.len(), MAX_CONCURRENT);
        assert!(Compressor::take().is_none());
        drop(all);
        assert!(Compressor::take().is_some());
    }
}
