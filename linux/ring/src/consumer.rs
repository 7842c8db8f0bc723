//! The receiving half of a stream (a multishot operation), which belongs to the user's handle.
//!
//! Each completion of a stream reaches its handle as an *event* in a lock-free list, the inbox. The
//! consumer takes the events in order, requests more when the stream has stopped, and releases
//! everything when it is dropped. It may be used on any thread, by one thread at a time. On the
//! ring's thread, taking an event costs no atomic read-modify-write.

use crate::mailbox::Message;
use crate::operation::{Operation, Stored};
use crate::shared::Shared;
use crate::slot::{Kind, Slot, Wait};
use crate::stream::{STALLED, StreamOp, discard_connection, stream_of, take_unpooled};
use io_uring::cqueue;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

pub(crate) struct Consumer {
    slot: NonNull<Slot>,
    pub(crate) shared: NonNull<Shared>,
    unread: *const Slot,
}

// SAFETY: the data of a stream is `Send`. Any thread may access the slot and the shared memory
// under the rules of `slot.rs` and `shared.rs`, which the methods below follow.
unsafe impl Send for Consumer {}
// SAFETY: streams use their consumer only through `&mut self`, so threads that share a stream never
// use its consumer at the same time.
unsafe impl Sync for Consumer {}

impl Consumer {
    pub(crate) fn new(slot: &Slot, shared: NonNull<Shared>) -> Self {
        Self {
            slot: NonNull::from(slot),
            shared,
            unread: ptr::null(),
        }
    }

    fn slot(&self) -> &Slot {
        // SAFETY: this handle keeps the slot alive, so the pointer is valid.
        unsafe { self.slot.as_ref() }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: this handle keeps the shared memory alive, so the pointer is valid.
        unsafe { self.shared.as_ref() }
    }

    /// Returns the next event that is not `STALLED`, or an errno if the ring is gone. The event
    /// belongs to the caller.
    #[inline]
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<NonNull<Slot>, i32>> {
        // Wakers are user code, so they are cloned, woken and dropped outside of uses (`owner.rs`).
        let mut fresh = None;
        loop {
            if self.unread.is_null() && fresh.is_none() {
                fresh = self.slot().clone_for_wait(cx.waker());
            }
            let in_use = self.shared().begin_use();
            let is_owner = self.shared().is_owner();
            if let Some(event) = self.next_unread(is_owner) {
                // SAFETY: an event taken out of the inbox belongs to the consumer, so it is alive.
                if unsafe { event.as_ref() }.result.get() != STALLED {
                    return Poll::Ready(Ok(event));
                }
                self.free(event);
                if let Err(errno) = self.request() {
                    return Poll::Ready(Err(errno));
                }
                continue;
            }
            let wait = self.slot().wait(cx.waker(), &mut fresh, is_owner);
            drop(in_use);
            match wait {
                Wait::Waiting => return Poll::Pending,
                Wait::Ready => {}
                Wait::Busy => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Wait::NeedsClone => fresh = Some(cx.waker().clone()),
            }
        }
    }

    #[inline]
    fn next_unread(&mut self, is_owner: bool) -> Option<NonNull<Slot>> {
        if self.unread.is_null() {
            // Reverse the list, which is newest first.
            let mut event = self.slot().inbox.take(is_owner).cast_const();
            // SAFETY: events taken out of the inbox belong to the consumer, so they are alive.
            while let Some(current) = unsafe { event.as_ref() } {
                let next = current.next.replace(self.unread);
                self.unread = event;
                event = next;
            }
        }
        let event = NonNull::new(self.unread.cast_mut())?;
        // SAFETY: as above.
        self.unread = unsafe { event.as_ref() }.next.get();
        // Only the consumer writes `taken`, so no read-modify-write is needed.
        // SAFETY: the stream lives as long as its handle.
        let taken = &unsafe { stream_of(self.slot()) }.taken;
        taken.store(
            taken.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        Some(event)
    }

    /// Requests further events, after the stream has stopped. Returns an errno if the ring is gone.
    pub(crate) fn request(&self) -> Result<(), i32> {
        let (slot, shared) = (self.slot(), self.shared());
        let _use = shared.begin_use();
        if shared.is_owner() {
            shared.driver.arm(slot);
            return Ok(());
        }
        shared
            .post(Message::Arm(self.slot, slot.generation.get()))
            .map_err(|_| libc::ECANCELED)
    }

    /// Gives back the slot of an event.
    #[inline]
    pub(crate) fn free(&self, event: NonNull<Slot>) {
        let shared = self.shared();
        let _use = shared.begin_use();
        if shared.is_owner() {
            // SAFETY: slots live as long as `shared`.
            shared.driver.slab.give_back(unsafe { event.as_ref() });
        } else {
            // After the ring has ended, the slots need no bookkeeping, so `Closed` is ignored.
            let _ = shared.post(Message::Free {
                slot: event,
                releases_handle: false,
            });
        }
    }

    /// Releases the unread events after the ring has ended. The caller releases the handle itself.
    ///
    /// # Safety
    /// The mailbox has closed; called once.
    unsafe fn discard_all(slot: NonNull<Slot>, shared: NonNull<Shared>) {
        // SAFETY: the handle that is being released keeps slot and stream alive, and is
        // their only user.
        let (slot, stream) = unsafe { (slot.as_ref(), stream_of(slot.as_ref())) };
        for mut event in [stream.unread.get(), slot.inbox.take(false).cast_const()] {
            // SAFETY: as above.
            while let Some(current) = unsafe { event.as_ref() } {
                event = current.next.get();
                // SAFETY: the ring is gone, so the event belongs to the handle that is released.
                drop(unsafe { take_unpooled(current) });
                if cqueue::buffer_select(current.flags.get()).is_some() {
                    // SAFETY: an event with a buffer is a handle of its own, which ends here.
                    unsafe { Shared::leave(shared) };
                } else if slot.kind.get() == Kind::Accept {
                    discard_connection(current.result.get());
                }
            }
        }
        // SAFETY: the payload holds the stream, which is taken once, because it ends here.
        unsafe { Stored::<StreamOp>::take(slot.payload()) }.complete(0, 0);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let slot = self.slot;
        // SAFETY: this handle keeps the slot and the stream alive until `release`, its last act.
        // Until then only the consumer touches `unread`.
        unsafe {
            let in_use = self.shared().begin_use();
            stream_of(slot.as_ref()).unread.set(self.unread);
            let waker = slot.as_ref().forget_waker(self.shared().is_owner());
            Shared::release(
                self.shared,
                |driver| driver.abandon_stream(slot.as_ref()),
                Message::AbandonStream(slot),
                || Self::discard_all(slot, self.shared),
            );
            drop(in_use);
            drop(waker);
        }
    }
}
