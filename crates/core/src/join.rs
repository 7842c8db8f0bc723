//! Awaiting a coroutine.
//!
//! The handle may publish one waker, in one word of the control block: the slot
//! of the waiting coroutine if the waker is one of ours, else a boxed waker with
//! the low bit set. While the state word says `WAITER` the field belongs to
//! the thread that exits the coroutine; while it does not, to the handle.
//!
//! Awaiting lends: the coroutine runs at the level of what awaits it, if that
//! is more urgent than its own, until the handle is dropped or the result taken.

use alloc::boxed::Box;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::ptr::{NonNull, null_mut};
use core::task::{Context, Poll, Waker};

use crate::coroutine::{BoxedWaker, Header, quietly};
use crate::domain::Inner;
use crate::host::{Critical, Host, Panic};
use crate::id::CoroutineId;
use crate::state::Join;
use crate::sync::Ordering::Relaxed;
use crate::table::Slot;
use crate::vcpu::Vcpu;
use crate::waker;

/// Why a coroutine has no result.
pub enum JoinError {
    /// It was cancelled, or its domain has shut down.
    Cancelled,
    /// It panicked, with this payload.
    Panicked(Payload),
}

/// What a panic threw; see [`JoinError::into_panic`].
pub struct Payload(Panic);

// SAFETY: by a shared reference it is looked at only for text, which is `Sync`.
unsafe impl Sync for Payload {}

impl Payload {
    pub(crate) fn new(panic: Panic) -> Payload {
        Payload(panic)
    }

    fn text(&self) -> Option<&str> {
        let string = || self.0.downcast_ref::<alloc::string::String>();
        let text = self.0.downcast_ref::<&'static str>().copied();
        text.or_else(|| string().map(|string| &**string))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl JoinError {
    /// Was it cancelled?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled)
    }

    /// Did it panic?
    #[must_use]
    pub fn is_panic(&self) -> bool {
        matches!(self, JoinError::Panicked(_))
    }

    /// What it threw.
    #[must_use]
    pub fn into_panic(self) -> Option<Panic> {
        match self {
            JoinError::Cancelled => None,
            JoinError::Panicked(Payload(panic)) => Some(panic),
        }
    }

    /// What it said when it panicked, if that was text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            JoinError::Cancelled => None,
            JoinError::Panicked(payload) => payload.text(),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.message()) {
            (JoinError::Cancelled, _) => f.write_str("the coroutine was cancelled"),
            (_, Some(message)) => write!(f, "the coroutine panicked: {message}"),
            (_, None) => f.write_str("the coroutine panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => f.write_str("Cancelled"),
            JoinError::Panicked(_) => write!(f, "Panicked({:?})", self.message()),
        }
    }
}

impl core::error::Error for JoinError {}

/// The right to the result of a coroutine. Dropping it detaches the coroutine.
#[must_use = "dropping the handle detaches the coroutine; say so with `detach`"]
pub struct JoinHandle<T, H: Host> {
    /// `None` when the result has been taken.
    slot: Option<NonNull<Slot<H>>>,
    id: CoroutineId,
    result: PhantomData<T>,
}

// SAFETY: the handle moves the result between threads, and nothing else.
unsafe impl<T: Send, H: Host> Send for JoinHandle<T, H> {}
// SAFETY: through a shared handle nothing but the id and atomics can be reached.
unsafe impl<T: Send, H: Host> Sync for JoinHandle<T, H> {}
impl<T, H: Host> Unpin for JoinHandle<T, H> {}

impl<T, H: Host> fmt::Debug for JoinHandle<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JoinHandle").field(&self.id).finish()
    }
}

impl<T, H: Host> JoinHandle<T, H> {
    /// # Safety
    /// The slot's coroutine has the output `T` and its word counts this handle.
    pub(crate) unsafe fn new(slot: NonNull<Slot<H>>, id: CoroutineId) -> JoinHandle<T, H> {
        JoinHandle {
            slot: Some(slot),
            id,
            result: PhantomData,
        }
    }

    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        self.id
    }

    /// Lets the coroutine go its way.
    pub fn detach(self) {}

    fn with_slot<R>(&self, f: impl FnOnce(&Slot<H>) -> R) -> Option<R> {
        // SAFETY: the handle's reference keeps slot and control block.
        self.slot.map(|slot| f(unsafe { slot.as_ref() }))
    }

    /// Has it exited?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.with_slot(|slot| slot.word.is_exited()).unwrap_or(true)
    }

    /// Asks the coroutine to end: its future is dropped instead of polled again.
    /// A poll that is under way is finished first; it is asked to give way, so one that computes and asks
    /// ([`Vcpu::need_preempt`](crate::Vcpu::need_preempt)) ends soon, whatever else is ready. The handle then reports
    /// [`JoinError::Cancelled`], unless the coroutine was faster.
    pub fn cancel(&self) {
        self.with_slot(|slot| {
            // SAFETY: the handle's reference keeps the control block.
            let _ = unsafe { waker::cancel_slot(slot, self.id.generation()) };
        });
    }

    /// The right to cancel it, apart from the handle. `None` when the result has been taken.
    #[must_use]
    pub fn cancel_handle(&self) -> Option<CancelHandle<H>> {
        self.slot.map(|slot| {
            // SAFETY: the handle's reference keeps the slot; one more is counted.
            unsafe { slot.as_ref() }.word.retain();
            CancelHandle { slot, id: self.id }
        })
    }

    /// Takes the result if it is there.
    fn try_take(&mut self) -> Option<Result<T, JoinError>> {
        let slot = self.slot?;
        // SAFETY: the handle's reference keeps slot and control block.
        let (word, header) = unsafe { (&slot.as_ref().word, slot.as_ref().header()) };
        if !word.is_exited() {
            return None;
        }
        self.slot = None;
        let mut result = MaybeUninit::<Result<T, JoinError>>::uninit();
        // SAFETY: exited, so the output is in place, and it is the handle's; it
        // is of type `T`; afterwards the handle's reference is given back.
        let result = unsafe {
            Header::take_output(header, result.as_mut_ptr().cast());
            waker::release(slot);
            result.assume_init()
        };
        Some(result)
    }
}

impl<T, H: Host> Future for JoinHandle<T, H> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it has returned the result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = self
            .slot
            .expect("a join handle is not polled after its result");
        if let Some(result) = self.try_take() {
            return Poll::Ready(result);
        }
        // SAFETY: the handle's reference keeps slot and control block.
        let header = unsafe { slot.as_ref().header().as_ref() };
        if register(header, cx.waker()) == Join::Exited {
            return match self.try_take() {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            };
        }
        let _critical = Critical::<H>::enter();
        let domain = header.vcpu().inner();
        if let Some(waiting) = domain.here().and_then(Vcpu::current) {
            // SAFETY: we are in its poll, and hold a reference to the other.
            unsafe {
                waiting.as_ref().set_lends();
                lend(domain, header, waiting.as_ref().level().get());
            }
        }
        Poll::Pending
    }
}

/// Sets what the awaiting coroutine lends. Touches no lock unless the effective
/// level may change.
///
/// # Safety
/// The caller holds a reference to the coroutine.
unsafe fn lend<H: Host>(domain: &Inner<H>, header: &Header<H>, level: u8) {
    let before = header.join_boost.load(Relaxed);
    if before == level {
        return;
    }
    header.join_boost.store(level, Relaxed);
    let effective = header.level().get();
    if level < effective || before <= effective {
        // The slot's pointer, which may reach the future, for it may be queued.
        // SAFETY: passed on.
        unsafe { domain.resettle(header.slot().header(), true) };
    }
}

impl<T, H: Host> Drop for JoinHandle<T, H> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        // SAFETY: the handle's reference keeps slot and control block.
        let (word, header) = unsafe { (&slot.as_ref().word, slot.as_ref().header()) };
        // SAFETY: as above.
        let control = unsafe { header.as_ref() };
        if word.has_waiter() && word.clear_waiter() == Join::Done {
            // A waker that panics does not keep the handle's reference.
            let waiter = take_waiter::<H>(control);
            quietly::<H>(|| drop(waiter));
        }
        // Only the handle writes it.
        let lends = control.join_boost.load(Relaxed) != Header::<H>::NO_BOOST;
        let dropped = if lends {
            word.drop_handle()
        } else {
            word.drop_handle_and_release()
        };
        match dropped {
            Join::Done if !lends => return,
            // SAFETY: we still hold the handle's reference.
            Join::Done => unsafe {
                lend(control.vcpu().inner(), control, Header::<H>::NO_BOOST);
            },
            // SAFETY: exited with the handle alive: the output is the handle's.
            Join::Exited => unsafe { Header::drop_output(header) },
        }
        // SAFETY: the handle's reference.
        unsafe { waker::release(slot) };
    }
}

/// The right to cancel a coroutine, and to see whether it has exited; from any thread. It
/// keeps the control block.
pub struct CancelHandle<H: Host> {
    slot: NonNull<Slot<H>>,
    id: CoroutineId,
}

// SAFETY: nothing but the id and atomics can be reached, as by a waker.
unsafe impl<H: Host> Send for CancelHandle<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for CancelHandle<H> {}

impl<H: Host> CancelHandle<H> {
    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        self.id
    }

    fn slot(&self) -> &Slot<H> {
        // SAFETY: our reference keeps it.
        unsafe { self.slot.as_ref() }
    }

    /// Has it exited?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.slot().word.is_exited()
    }

    /// As [`JoinHandle::cancel`].
    pub fn cancel(&self) {
        // SAFETY: our reference keeps the control block.
        let _ = unsafe { waker::cancel_slot(self.slot(), self.id.generation()) };
    }
}

impl<H: Host> Clone for CancelHandle<H> {
    fn clone(&self) -> CancelHandle<H> {
        self.slot().word.retain();
        CancelHandle {
            slot: self.slot,
            id: self.id,
        }
    }
}

impl<H: Host> Drop for CancelHandle<H> {
    fn drop(&mut self) {
        // SAFETY: it is our reference.
        unsafe { waker::release(self.slot) };
    }
}

impl<H: Host> fmt::Debug for CancelHandle<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelHandle").field(&self.id).finish()
    }
}

/// Publishes the waker of what awaits the coroutine.
fn register<H: Host>(header: &Header<H>, new: &Waker) -> Join {
    let word = &header.slot().word;
    if word.has_waiter() {
        let published = header.waiter.load(Relaxed);
        if waker::slot_of::<H>(new).is_some_and(|slot| slot.as_ptr().cast() == published) {
            // The same coroutine still; did it exit meanwhile?
            return if word.is_exited() {
                Join::Exited
            } else {
                Join::Done
            };
        }
        if word.clear_waiter() == Join::Exited {
            return Join::Exited;
        }
        drop(take_waiter::<H>(header));
    }
    let waiter = new.clone();
    let packed = match waker::slot_of::<H>(&waiter) {
        Some(slot) => {
            core::mem::forget(waiter);
            slot.as_ptr().cast::<()>()
        }
        None => Box::into_raw(Box::new(waiter))
            .cast::<()>()
            .map_addr(|address| address | 1),
    };
    header.waiter.store(packed, Relaxed);
    let set = word.set_waiter();
    if set == Join::Exited {
        drop(take_waiter::<H>(header));
    }
    set
}

/// Unpacks the field; the caller owns it.
fn take_waiter<H: Host>(header: &Header<H>) -> Option<Waker> {
    let packed = header.waiter.load(Relaxed);
    header.waiter.store(null_mut(), Relaxed);
    if packed.addr() & 1 == 1 {
        let boxed = packed.map_addr(|address| address & !1).cast::<Waker>();
        // SAFETY: packed by `register` from such a box.
        let boxed: BoxedWaker = unsafe { Box::from_raw(boxed) };
        return Some(*boxed);
    }
    let slot = NonNull::new(packed.cast::<Slot<H>>())?;
    // SAFETY: packed by `register` from a waker, whose reference it took over.
    Some(core::mem::ManuallyDrop::into_inner(unsafe {
        waker::borrowed(slot)
    }))
}

/// Wakes the coroutine that awaits this one. A waker that is not of this crate is
/// the caller's to wake, where code of users may run.
///
/// # Safety
/// The caller has just exited it, and a waiter was published.
pub(crate) unsafe fn wake_waiter<H: Host>(header: &Header<H>) -> Option<Waker> {
    let waiter = take_waiter::<H>(header)?;
    if waker::slot_of::<H>(&waiter).is_none() {
        return Some(waiter);
    }
    waiter.wake();
    None
}
