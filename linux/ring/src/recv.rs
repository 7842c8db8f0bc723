//! Multishot receive: one operation, many buffers.

use crate::consumer::Consumer;
use crate::mailbox::Message;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::stream::{UnpooledBuffer, take_unpooled};
use io_uring::cqueue;
use std::future::poll_fn;
use std::ops::Deref;
use std::ptr::NonNull;
use std::task::{Context, Poll};
use std::{fmt, io, slice};

/// A stream of the bytes that a socket receives, in the ring's buffers; made by
/// [`Ring::recv_multi`](crate::Ring::recv_multi).
///
/// An empty buffer marks the end of the stream; an error ends the stream, too. A stream whose
/// consumer is behind by [`Config::recv_window`](crate::Config::recv_window) buffers stops, and
/// resumes when the consumer has caught up. A stream that finds no free buffer allocates one or, if
/// some of its data is unread, stops in the same way. Neither case is visible to the consumer.
///
/// The stream may be polled and dropped on any thread. Dropping it cancels the receive; unread
/// buffers go back to the pool.
pub struct RecvMulti {
    state: State,
}

enum State {
    Open(Consumer),
    Failed(i32),
    Ended,
}

impl RecvMulti {
    #[inline]
    pub(crate) fn new(started: Result<&Slot, i32>, shared: NonNull<Shared>) -> Self {
        let state = match started {
            Ok(slot) => State::Open(Consumer::new(slot, shared)),
            Err(errno) => State::Failed(errno),
        };
        Self { state }
    }

    /// Returns the next buffer, empty at the end of the stream. Registers the waker of `cx` if
    /// there is none yet.
    ///
    /// # Errors
    ///
    /// The errno of `recv`, once; then the stream is at its end.
    #[inline]
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RecvBuf>> {
        let State::Open(consumer) = &mut self.state else {
            return Poll::Ready(self.closed());
        };
        let event = match consumer.poll_event(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(errno)) => {
                self.state = State::Failed(errno);
                return Poll::Ready(self.closed());
            }
            Poll::Ready(Ok(event)) => event,
        };
        // SAFETY: the event belongs to this stream. The pool of the event was made before the event
        // and lives as long as the shared memory.
        let (event_slot, shared) = unsafe { (event.as_ref(), consumer.shared.as_ref()) };
        // SAFETY: the event belongs to this stream.
        if let Some(unpooled) = unsafe { take_unpooled(event_slot) } {
            consumer.free(event);
            return Poll::Ready(Ok(RecvBuf::unpooled(unpooled)));
        }
        let buffer = cqueue::buffer_select(event_slot.flags.get());
        let pool = shared.driver.pools.get(event_slot.level.get());
        if let (Some(id), Some(pool)) = (buffer, pool) {
            return Poll::Ready(Ok(RecvBuf {
                handle: Some((event, consumer.shared)),
                unpooled: None,
                data: pool.buffer(id),
                length: event_slot.result.get().max(0) as usize,
            }));
        }
        let result = event_slot.result.get();
        consumer.free(event);
        self.state = if result < 0 {
            State::Failed(-result)
        } else {
            State::Ended
        };
        Poll::Ready(self.closed())
    }

    /// Waits for the next buffer, empty at the end of the stream.
    ///
    /// # Errors
    ///
    /// Those of [`poll_next`](Self::poll_next).
    ///
    /// # Cancellation safety
    ///
    /// This method is cancellation safe, because a buffer is either returned or stays in the
    /// stream.
    pub async fn next(&mut self) -> io::Result<RecvBuf> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    #[cold]
    fn closed(&mut self) -> io::Result<RecvBuf> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
            State::Open(_) | State::Ended => Ok(RecvBuf::empty()),
        }
    }
}

impl fmt::Debug for RecvMulti {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvMulti")
            .field("open", &matches!(self.state, State::Open(_)))
            .finish_non_exhaustive()
    }
}

/// Received bytes in one of the ring's buffers. Dropping it returns the buffer to the ring, on any
/// thread.
///
/// A buffer may outlive the ring. While a program holds all buffers of a pool, each receive of that
/// level allocates.
pub struct RecvBuf {
    handle: Option<(NonNull<Slot>, NonNull<Shared>)>,
    /// A buffer outside of the pool, made when the pool was empty.
    unpooled: Option<Box<UnpooledBuffer>>,
    data: NonNull<u8>,
    length: usize,
}

// SAFETY: the value has exclusive access to `length` bytes at `data`, and any thread may release
// the value's handle.
unsafe impl Send for RecvBuf {}
// SAFETY: shared references only read the bytes.
unsafe impl Sync for RecvBuf {}

impl RecvBuf {
    /// Creates a value without bytes and without a buffer.
    pub fn empty() -> Self {
        Self {
            handle: None,
            unpooled: None,
            data: NonNull::dangling(),
            length: 0,
        }
    }

    #[cold]
    fn unpooled(unpooled: Box<UnpooledBuffer>) -> Self {
        let bytes = NonNull::from(unpooled.0.as_slice());
        Self {
            handle: None,
            data: bytes.cast(),
            length: bytes.len(),
            unpooled: Some(unpooled),
        }
    }

    /// Removes the first `count` bytes from the view, or all if there are fewer.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        let count = count.min(self.length);
        // SAFETY: `count` is at most the length, so the pointer stays within the buffer.
        self.data = unsafe { self.data.add(count) };
        self.length -= count;
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the kernel has initialised this many bytes, and does not touch the buffer until
        // the buffer is returned.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for RecvBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBuf")
            .field("len", &self.length)
            .field("pooled", &self.unpooled.is_none())
            .finish_non_exhaustive()
    }
}

impl Drop for RecvBuf {
    #[inline]
    fn drop(&mut self) {
        if let Some((event, shared)) = self.handle {
            // SAFETY: the buffer is a handle, and does not touch the ring's memory afterwards.
            unsafe {
                Shared::release(
                    shared,
                    |driver| driver.recycle_event(event.as_ref()),
                    Message::Recycle(event),
                    || {},
                );
            }
        }
    }
}
