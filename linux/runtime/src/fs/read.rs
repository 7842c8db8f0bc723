//! A read in progress. It first copies from the page cache, and continues on the ring if a piece is
//! not cached.
//!
//! ```text
//!  Idle ── worth a try ──► Idle (tried) ── complete ─► done
//!    │                       │  a piece is not cached
//!    └─────────────────────► Ring ── completion ──► done
//! ```

use std::future::Future;
use std::io;
use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use upshift_ring::{IoBufMut, Submission, op};

use super::{File, cached, current_ioprio};
use crate::context;
use crate::coroutine::coop;

/// Largest number of bytes that the kernel reads at once.
const MAX_READ: usize = 0x7fff_f000;

/// Starts a read on the ring of the calling vCPU, at the level of the calling coroutine.
pub(super) fn start_read<B: IoBufMut>(
    read: op::ReadAt<B>,
) -> io::Result<Submission<op::ReadAt<B>>> {
    let read = read.ioprio(current_ioprio());
    context::try_with(|worker| worker.start_read(read))
}

/// The future of [`File::read_at`]. If it is dropped in the state `Ring`, the operation is
/// cancelled; before that state, nothing is in flight.
pub(super) struct Reading<'a, B> {
    file: &'a File,
    offset: u64,
    state: State<B>,
}

enum State<B> {
    Idle {
        buffer: B,
        filled: u32,
        /// Set once a read without the ring has been found worth a try.
        is_tried: bool,
    },
    Ring(Submission<op::ReadAt<B>>),
    Taken,
}

// The buffer of an operation in flight is not part of this future, so nothing is pinned.
impl<B> Unpin for Reading<'_, B> {}

impl<'a, B: IoBufMut> Reading<'a, B> {
    pub(super) fn new(file: &'a File, buffer: B, offset: u64) -> Reading<'a, B> {
        Reading {
            file,
            offset,
            state: State::Idle {
                buffer,
                filled: 0,
                is_tried: false,
            },
        }
    }

    /// Takes the buffer, and the number of bytes in it. Nothing is in flight.
    fn take(&mut self) -> (B, u32) {
        match replace(&mut self.state, State::Taken) {
            State::Idle { buffer, filled, .. } => (buffer, filled),
            State::Ring(_) | State::Taken => panic!("a read was polled after completion"),
        }
    }

    #[inline(never)]
    fn start_on_ring(&mut self) -> Result<(), (io::Error, B)> {
        let (buffer, filled) = self.take();
        if let Err(error) = context::try_with(|_| ()) {
            return Err((error, buffer));
        }
        let read = op::ReadAt::new(self.file.fd().clone(), buffer, self.offset);
        // SAFETY: the kernel has written the first `filled` bytes of the buffer, and there is room
        // for more.
        let read = unsafe { read.prefilled(filled) };
        match start_read(read) {
            Ok(submission) => self.state = State::Ring(submission),
            Err(_) => {
                unreachable!("there is a worker, and a coroutine keeps its thread within a poll")
            }
        }
        Ok(())
    }

    /// Copies the next cached piece. Returns true if the read is complete, and `None` if the
    /// remaining bytes must come through the ring.
    fn copy(&mut self) -> Option<bool> {
        let State::Idle { buffer, filled, .. } = &mut self.state else {
            return None;
        };
        let start = *filled as usize;
        let room = buffer.io_capacity().min(MAX_READ);
        let max = cached::piece(room - start);
        let count = self.file.read_now(buffer, start, max, self.offset)?;
        *filled = (start + count) as u32;
        Some(start + count == room || cached::is_end(self.offset + start as u64, count, max))
    }
}

impl<B: IoBufMut> Future for Reading<'_, B> {
    type Output = (io::Result<usize>, B);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let file = self.file;
        if let State::Idle { is_tried, .. } = &mut self.state
            && (*is_tried || file.is_tried())
        {
            *is_tried = true;
            loop {
                ready!(coop::poll_proceed(cx));
                match self.copy() {
                    Some(false) => {}
                    Some(true) => {
                        let (mut buffer, filled) = self.take();
                        // SAFETY: the kernel has written the first `filled` bytes.
                        unsafe { buffer.set_filled(filled as usize) };
                        return Poll::Ready((Ok(filled as usize), buffer));
                    }
                    None => break,
                }
            }
        }
        if !matches!(self.state, State::Ring(_))
            && let Err((error, buffer)) = self.start_on_ring()
        {
            return Poll::Ready((Err(error), buffer));
        }
        let State::Ring(submission) = &mut self.state else {
            unreachable!("the operation has just been started")
        };
        let output = ready!(Pin::new(submission).poll(cx));
        self.state = State::Taken;
        Poll::Ready(output)
    }
}
