//! The handle of a one-shot operation, a future that resolves to the result.

use crate::mailbox::Message;
use crate::operation::{Operation, Stored};
use crate::shared::Shared;
use crate::slot::{Slot, Wait};
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

/// The handle of a started operation: a future that resolves to the operation's output.
///
/// It may be polled and dropped on any thread. Dropping it before completion cancels the operation
/// and disposes of its result (an accepted connection is closed); the buffers stay where they are
/// until the kernel is done with them.
///
/// If the ring has no slot left, the operation fails with EBUSY; after the ring's shutdown it fails
/// with ECANCELED. [`Operation::complete`] gets both errors as if the kernel had returned them.
///
/// # Cancellation safety
///
/// Dropping a submission loses its output; a read may have consumed data by then.
/// [`cancel`](Self::cancel) ends the operation early and still yields the output.
///
/// # Panics
///
/// When polled after completion.
#[must_use = "an operation is cancelled when its submission is dropped"]
pub struct Submission<T> {
    // No bound on `T` here. When the compiler checks whether a future with a `Submission` of a
    // `&'static` buffer is `Send`, a bound would make it require `Operation` for every lifetime,
    // and reject the future.
    state: State<T>,
}

enum State<T> {
    Slot(NonNull<Slot>, NonNull<Shared>),
    Refused(Box<Refused<T>>),
    Taken,
}

struct Refused<T> {
    op: T,
    result: i32,
    /// Completes the operation, since only its completion may release the resources it owns.
    dispose: fn(T, i32),
}

// SAFETY: the thread that has the handle takes or drops the operation, which must therefore be
// `Send`. Any thread may access the slot and the shared memory under the rules of `slot.rs` and
// `shared.rs`, which the methods below follow.
unsafe impl<T: Send> Send for Submission<T> {}
// SAFETY: methods with a shared reference only load an atomic word, so threads cannot race on it.
unsafe impl<T: Send> Sync for Submission<T> {}
// Moving the handle in memory does not move the operation, which lies in its slot or in a box.
impl<T> Unpin for Submission<T> {}

impl<T: Operation> Submission<T> {
    /// Creates the handle of `started`, a slot that holds a `T` and was started for this handle.
    #[inline]
    pub(crate) fn new(started: Result<&Slot, (T, i32)>, shared: NonNull<Shared>) -> Self {
        let state = match started {
            Ok(slot) => State::Slot(NonNull::from(slot), shared),
            Err((op, errno)) => State::Refused(Box::new(Refused {
                op,
                result: -errno,
                dispose: |op, result| drop(op.complete(result, 0)),
            })),
        };
        Self { state }
    }
}

impl<T> Submission<T> {
    /// Asks the kernel to end the operation early. The operation still completes, with success if
    /// the request came too late, and returns its buffers.
    pub fn cancel(&mut self) {
        if let State::Slot(slot, shared) = self.state {
            // SAFETY: this handle keeps the slot and the shared memory alive.
            let (slot, shared) = unsafe { (slot.as_ref(), shared.as_ref()) };
            let _use = shared.begin_use();
            if shared.is_owner() {
                shared.driver.cancel(slot);
            } else {
                let message = Message::Cancel(NonNull::from(slot), slot.generation.get());
                // If the mailbox is closed, the ring has ended and the operation has completed.
                let _ = shared.post(message);
            }
        }
    }

    /// Returns whether the output is available.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            // SAFETY: this handle keeps the slot alive.
            State::Slot(slot, _) => unsafe { slot.as_ref() }.inbox.has_arrived(),
            State::Refused(_) => true,
            State::Taken => false,
        }
    }
}

impl<T: Operation> Future for Submission<T> {
    type Output = T::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        if let State::Slot(slot, shared) = self.state {
            // SAFETY: this handle keeps the slot and the shared memory alive.
            let (slot_ref, shared_ref) = unsafe { (slot.as_ref(), shared.as_ref()) };
            if !slot_ref.inbox.has_arrived() && wait(slot_ref, shared_ref, cx.waker()).is_pending()
            {
                return Poll::Pending;
            }
            let (result, flags) = (slot_ref.result.get(), slot_ref.flags.get());
            self.state = State::Taken;
            // SAFETY: the operation is complete, so its payload belongs to this handle; it is taken
            // once.
            let op = unsafe { Stored::<T>::take(slot_ref.payload()) };
            // SAFETY: this handle does not use the slot and the shared memory again.
            unsafe { free(slot, shared) };
            return Poll::Ready(op.complete(result, flags));
        }
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Refused(refused) => {
                let Refused { op, result, .. } = *refused;
                Poll::Ready(op.complete(result, 0))
            }
            _ => panic!("a Submission was polled after completion"),
        }
    }
}

impl<T> Drop for Submission<T> {
    #[inline]
    fn drop(&mut self) {
        if let State::Refused(_) = self.state
            && let State::Refused(refused) = std::mem::replace(&mut self.state, State::Taken)
        {
            let Refused {
                op,
                result,
                dispose,
            } = *refused;
            dispose(op, result);
        }
        let State::Slot(slot, shared) = self.state else {
            return;
        };
        // SAFETY: this handle keeps the slot and the shared memory alive until it is released.
        let (slot_ref, shared_ref) = unsafe { (slot.as_ref(), shared.as_ref()) };
        if slot_ref.inbox.has_arrived() {
            // The operation is dropped outside of all uses, and the slot freed even if that panics.
            let dispose = slot_ref.table.get().dispose;
            let result = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the operation is complete, so its payload belongs to this handle.
                unsafe {
                    dispose(
                        slot_ref.payload(),
                        slot_ref.result.get(),
                        slot_ref.flags.get(),
                    )
                };
            }));
            // SAFETY: this handle does not use the slot and the shared memory again.
            unsafe { free(slot, shared) };
            if let Err(panic) = result {
                resume_unwind(panic);
            }
            return;
        }
        let waker = {
            let _use = shared_ref.begin_use();
            slot_ref.forget_waker(shared_ref.is_owner())
        };
        // SAFETY: the caller is a handle, and afterwards uses only the waker that it took out.
        unsafe {
            Shared::release(
                shared,
                |driver| driver.abandon(slot.as_ref()),
                Message::Abandon(slot),
                || {
                    // The ring completed all operations at its end.
                    let slot = slot.as_ref();
                    (slot.table.get().dispose)(slot.payload(), slot.result.get(), slot.flags.get());
                },
            );
        }
        drop(waker);
    }
}

/// Registers a waker with a slot, unless its result has arrived.
fn wait(slot: &Slot, shared: &Shared, waker: &Waker) -> Poll<()> {
    let mut clone = slot.clone_for_wait(waker);
    loop {
        let in_use = shared.begin_use();
        let outcome = slot.wait(waker, &mut clone, shared.is_owner());
        drop(in_use);
        match outcome {
            Wait::Waiting => return Poll::Pending,
            Wait::Ready => return Poll::Ready(()),
            Wait::Busy => {
                waker.wake_by_ref();
                return Poll::Pending;
            }
            Wait::NeedsClone => clone = Some(waker.clone()),
        }
    }
}

/// Returns an empty slot to the ring.
///
/// # Safety
/// The caller is the slot's handle, and touches neither the slot nor the shared memory afterwards.
#[inline]
unsafe fn free(slot: NonNull<Slot>, shared: NonNull<Shared>) {
    // SAFETY: the caller upholds the requirements of this call.
    unsafe {
        Shared::release(
            shared,
            |driver| driver.slab.give_back(slot.as_ref()),
            Message::Free {
                slot,
                releases_handle: true,
            },
            || {},
        );
    }
}

impl<T> fmt::Debug for Submission<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}
