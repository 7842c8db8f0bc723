//! A read on its way: first from the page cache, then through the ring.
//!
//! ```text
//!  Fresh ── worth a try ──► Cached ── all there ──► done
//!    │                        │  a piece is not cached
//!    └──────────────────────► Ring ── completion ─► done
//! ```

use std::future::Future;
use std::io;
use std::mem::replace;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use upshift_ring::{IoBufMut, Submission, op};

use super::{File, at_once, current_ioprio};
use crate::{context, coop};

/// What the kernel reads at once at most.
const LONGEST: usize = 0x7fff_f000;

/// Starts a read on the ring of the calling vCPU, at the level of the calling coroutine.
pub(super) fn start_read<B: IoBufMut>(
    read: op::ReadAt<B>,
) -> io::Result<Submission<op::ReadAt<B>>> {
    let read = read.ioprio(current_ioprio());
    context::try_with(|worker| worker.start_read(read))
}

/// Of [`File::read_at`]. A future that is dropped in the ring cancels its operation; before, nothing is in flight.
pub(super) struct Reading<'a, B> {
    file: &'a File,
    offset: u64,
    state: State<B>,
}

enum State<B> {
    Fresh(B),
    /// With so many bytes.
    Cached(B, u32),
    Ring(Submission<op::ReadAt<B>>),
    Taken,
}

// Nothing is pinned: the buffer of an operation in flight lies elsewhere.
impl<B> Unpin for Reading<'_, B> {}

impl<'a, B: IoBufMut> Reading<'a, B> {
    pub(super) fn new(file: &'a File, buffer: B, offset: u64) -> Reading<'a, B> {
        Reading {
            file,
            offset,
            state: State::Fresh(buffer),
        }
    }

    fn through_the_ring(&mut self, buffer: B, filled: u32) -> Result<(), (io::Error, B)> {
        if let Err(error) = context::try_with(|_| ()) {
            return Err((error, buffer));
        }
        let read = op::ReadAt::new(self.file.fd().clone(), buffer, self.offset);
        // SAFETY: so many bytes have been written, and there is room for more.
        let read = unsafe { read.behind(filled) };
        match start_read(read) {
            Ok(submission) => self.state = State::Ring(submission),
            Err(_) => {
                unreachable!("there is a worker, and a coroutine keeps its thread within a poll")
            }
        }
        Ok(())
    }
}

impl<B: IoBufMut> Future for Reading<'_, B> {
    type Output = (io::Result<usize>, B);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.state {
                State::Ring(submission) => {
                    let output = ready!(Pin::new(submission).poll(cx));
                    self.state = State::Taken;
                    return Poll::Ready(output);
                }
                State::Cached(..) => ready!(coop::poll_proceed(cx)),
                State::Fresh(_) | State::Taken => {}
            }
            match replace(&mut self.state, State::Taken) {
                State::Fresh(buffer) if self.file.is_tried() => {
                    self.state = State::Cached(buffer, 0);
                }
                State::Fresh(buffer) => {
                    if let Err((error, buffer)) = self.through_the_ring(buffer, 0) {
                        return Poll::Ready((Err(error), buffer));
                    }
                }
                State::Cached(mut buffer, filled) => {
                    let had = filled as usize;
                    let room = buffer.io_capacity().min(LONGEST);
                    let asked = at_once::piece(room - had);
                    let offset = self.offset;
                    let Some(count) = self.file.read_now(&mut buffer, had, asked, offset) else {
                        if let Err((error, buffer)) = self.through_the_ring(buffer, filled) {
                            return Poll::Ready((Err(error), buffer));
                        }
                        continue;
                    };
                    let filled = had + count;
                    let begin = self.offset + had as u64;
                    if filled == room || at_once::is_end(begin, count, asked) {
                        // SAFETY: so many bytes have been written, from the first one on.
                        unsafe { buffer.set_filled(filled) };
                        return Poll::Ready((Ok(filled), buffer));
                    }
                    self.state = State::Cached(buffer, filled as u32);
                }
                State::Ring(_) | State::Taken => panic!("a read was polled after completion"),
            }
        }
    }
}
