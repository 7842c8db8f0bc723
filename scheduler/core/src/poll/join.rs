//! Awaiting a coroutine.
//!
//! The handle may publish one waiter, in one word of the control block: the id of the coroutine in whose poll it is awaited, if that is
//! of the same domain and is to be woken, else a boxed waker. While the state word says `WAITER` the field belongs to
//! the thread that exits the coroutine; while it does not, to the handle.
//!
//! An id needs no reference to what it names: if that has exited, or its slot has another tenant, there is nothing to wake. And the
//! exiting thread needs the control block no longer than to read it: it clears the field, and the handle, which may have seen the exit before, waits for
//! that, a few instructions, before it frees the control block, with the coroutine's own reference and its own.
//!
//! # Lending
//!
//! While a coroutine is blocked in the wait for a less urgent one, it lends that its level. A wait
//! has no future of its own: `timeout(d, &mut handle)` gives the wait up, keeps the handle and
//! tells no one, and the poll that gives up has polled the handle, too. So the rule is: **the last
//! poll before a coroutine blocks lends, and any other poll of a handle takes back.** A coroutine
//! that
//! has asked less urgent handles is polled once more before it blocks.
//!
//! Only the handle writes the level lent along it (`join_boost`), so no lock and no list is needed.
//! A wait that ends without a poll of the handle (`select!`, if the other branch was polled first,
//! or the end of the waiter while the handle is elsewhere) leaves the loan in place until the
//! handle is polled or dropped. A handle that is polled
//! with another waker than that of the coroutine around it (in a set of futures that polls those
//! that were woken) lends in each poll, and until the handle is dropped.
//! [`reprio`](crate::Domain::reprio) of an awaited coroutine wakes its waiter, whose poll decides
//! again.
//!
//! Cost: one test of a bit for a poll that asks no less urgent handle; else a poll more when it
//! blocks, and a change of level, O(1), for each handle.

use alloc::boxed::Box;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::task::{Context, Poll, Waker};

use crate::base::host::{Critical, Host};
use crate::base::id::CoroutineId;
use crate::coroutine::join_error::JoinError;
use crate::coroutine::state::Join;
use crate::coroutine::{BoxedWaker, Slot, catch_panic};
use crate::poll::cancel::CancelHandle;
use crate::poll::waker;
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::tables::table::id_of;
use crate::vcpu::shared::Shared;
use crate::vcpu::{Vcpu, release, wake};

/// The right to the result of a coroutine, one word. Dropping it detaches the coroutine; until then it keeps the control block, also when the
/// result has been taken.
#[must_use = "dropping the handle detaches the coroutine; say so with `detach`"]
pub struct JoinHandle<T, H: Host> {
    /// Its slot; plus [`TAKEN`] when the result has been taken.
    slot: NonNull<Slot<H>>,
    result: PhantomData<T>,
}

/// A bit that the address of a slot has not.
const TAKEN: usize = 1;

#[inline]
fn is_tagged<H: Host>(slot: NonNull<Slot<H>>) -> bool {
    slot.addr().get() & TAKEN != 0
}

#[inline]
fn untagged<H: Host>(slot: NonNull<Slot<H>>) -> NonNull<Slot<H>> {
    let slot = slot.as_ptr().map_addr(|address| address & !TAKEN);
    // SAFETY: slots are aligned to more than that bit.
    unsafe { NonNull::new_unchecked(slot) }
}

// SAFETY: the handle moves the result between threads, and nothing else.
unsafe impl<T: Send, H: Host> Send for JoinHandle<T, H> {}
// SAFETY: through a shared handle nothing but the id and atomics can be reached.
unsafe impl<T: Send, H: Host> Sync for JoinHandle<T, H> {}
impl<T, H: Host> Unpin for JoinHandle<T, H> {}

impl<T, H: Host> fmt::Debug for JoinHandle<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JoinHandle").field(&self.id()).finish()
    }
}

impl<T, H: Host> JoinHandle<T, H> {
    /// # Safety
    /// The slot's coroutine has the output `T` and its word counts this handle.
    pub(crate) unsafe fn new(slot: NonNull<Slot<H>>) -> JoinHandle<T, H> {
        JoinHandle {
            slot,
            result: PhantomData,
        }
    }

    #[inline]
    fn is_taken(&self) -> bool {
        is_tagged(self.slot)
    }

    #[inline]
    fn slot(&self) -> NonNull<Slot<H>> {
        untagged(self.slot)
    }

    #[inline]
    fn block(&self) -> &Slot<H> {
        // SAFETY: the handle's reference keeps it.
        unsafe { self.slot().as_ref() }
    }

    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.slot())
    }

    /// Lets the coroutine go its way.
    pub fn detach(self) {}

    /// Has it exited?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.block().word.is_exited()
    }

    /// Asks the coroutine to end: its future is dropped instead of polled again.
    /// A poll that is under way is finished first; it is asked to give way, so one that computes and asks
    /// ([`Vcpu::need_preempt`](crate::Vcpu::need_preempt)) ends soon, whatever else is ready. The handle then reports
    /// [`JoinError::Cancelled`], unless the coroutine was faster.
    pub fn cancel(&self) {
        let generation = self.block().word.generation();
        // SAFETY: the handle's reference keeps the control block.
        let _ = unsafe { wake::cancel_slot(self.slot(), generation) };
    }

    /// The right to cancel it, apart from the handle. `None` when the result has been taken.
    #[must_use]
    pub fn cancel_handle(&self) -> Option<CancelHandle<H>> {
        (!self.is_taken()).then(|| {
            self.block().word.retain();
            // SAFETY: the reference just taken.
            unsafe { CancelHandle::new(self.slot()) }
        })
    }

    /// Takes the result if it is there.
    fn try_take(&mut self) -> Option<Result<T, JoinError>> {
        let block = self.block();
        if self.is_taken() || !block.word.is_exited() {
            return None;
        }
        let mut result = MaybeUninit::<Result<T, JoinError>>::uninit();
        // SAFETY: exited, so the output is in place, and it is the handle's; it
        // is of type `T`, and taken once.
        let result = unsafe {
            block.take_output(block.vcpu().spawn_sites(), result.as_mut_ptr().cast());
            result.assume_init()
        };
        let taken = self.slot.as_ptr().map_addr(|address| address | TAKEN);
        // SAFETY: not null.
        self.slot = unsafe { NonNull::new_unchecked(taken) };
        Some(result)
    }
}

/// Gives back what the handle of a coroutine that has exited holds.
///
/// # Safety
/// It is the handle's reference, which has seen the exit, and the output is gone.
#[inline(never)]
unsafe fn release_exited<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: the handle's reference keeps it.
    let block = unsafe { slot.as_ref() };
    // Acquire: the exiting thread does not use the control block any more.
    if block.word.has_waiter_by_id() && !block.waiter.load(Acquire).is_null() {
        wait_for_exit(block);
    }
    // SAFETY: the handle's, and the coroutine's own where it is the handle's, too.
    unsafe { release::release_of_handle(slot) };
}

/// Another thread has exited the coroutine, and has not yet read what awaits it.
#[cold]
fn wait_for_exit<H: Host>(block: &Slot<H>) {
    let mut spins = 0;
    while !block.waiter.load(Acquire).is_null() {
        block.vcpu().shared().host.relax(spins);
        spins = spins.saturating_add(1);
    }
}

impl<T, H: Host> Future for JoinHandle<T, H> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it has returned the result.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.is_taken(),
            "a join handle is not polled after its result"
        );
        if let Some(result) = self.try_take() {
            return Poll::Ready(result);
        }
        let slot = self.slot();
        let block = self.block();
        let domain = block.vcpu().shared();
        let waiting = {
            let _critical = Critical::<H>::enter();
            let waiting = domain.here().and_then(Vcpu::current);
            if let Some(waiting) = waiting
                && !block.word.has_waiter()
                && let Some(id) = id_to_wake(waiting, cx.waker())
            {
                // The first poll, in a coroutine of the domain: nothing of users is here.
                block.waiter.store(id, Relaxed);
                if block.word.set_waiter(true) == Join::Done {
                    // SAFETY: we are in its poll, and hold a reference to the other.
                    unsafe { lend_from(domain, slot, Some(waiting), true) };
                    return Poll::Pending;
                }
            }
            waiting
        };
        if register(block, cx.waker(), waiting) == Join::Exited {
            return match self.try_take() {
                Some(result) => Poll::Ready(result),
                None => Poll::Pending,
            };
        }
        let _critical = Critical::<H>::enter();
        // SAFETY: we are in its poll, and hold a reference to the other.
        unsafe { lend_from(domain, slot, waiting, block.word.has_waiter_by_id()) };
        Poll::Pending
    }
}

/// Sets the level that a coroutine is lent whose handle has just been polled. `from`: the
/// coroutine of the domain in whose poll that was; `by_id`: its waker was used.
///
/// # Safety
/// As [`lend`], and `from` is being polled by the calling thread.
#[inline]
unsafe fn lend_from<H: Host>(
    domain: &Shared<H>,
    slot: NonNull<Slot<H>>,
    from: Option<NonNull<Slot<H>>>,
    by_id: bool,
) {
    let mut level = Slot::<H>::NO_BOOST;
    if let Some(from) = from {
        // SAFETY: it is being polled, hence alive.
        let from = unsafe { from.as_ref() };
        from.set_lends();
        let own = from.level().get();
        // The waiter was published before: see `StateWord::set_waiter`.
        // SAFETY: referenced, hence alive.
        let is_less_urgent = || own < unsafe { slot.as_ref() }.base.load(SeqCst);
        if !by_id || from.is_polled_to_lend() {
            level = own;
        } else if is_less_urgent() {
            from.set_has_asked(true);
        }
    }
    // SAFETY: passed on.
    unsafe { lend(domain, slot, level) };
}

/// Sets the level that an awaited coroutine is lent.
///
/// # Safety
/// The caller is the handle of the coroutine, or was until now, and holds a reference.
#[inline]
unsafe fn lend<H: Host>(domain: &Shared<H>, awaited: NonNull<Slot<H>>, level: u8) {
    // SAFETY: referenced, hence alive.
    let block = unsafe { awaited.as_ref() };
    let before = block.join_boost.load(Relaxed);
    if before == level {
        return;
    }
    block.join_boost.store(level, Relaxed);
    let effective = block.level().get();
    if level < effective || before <= effective {
        // SAFETY: passed on.
        unsafe { change_level(domain, awaited) };
    }
}

/// # Safety
/// As [`lend`].
#[inline(never)]
unsafe fn change_level<H: Host>(domain: &Shared<H>, awaited: NonNull<Slot<H>>) {
    // SAFETY: passed on.
    unsafe { domain.resettle(awaited, true) };
}

/// Wakes the waiter of a coroutine that has become less urgent, unless it lends already.
#[cold]
pub(crate) fn less_urgent<H: Host>(domain: &Shared<H>, awaited: &Slot<H>) {
    if awaited.join_boost.load(Relaxed) == Slot::<H>::NO_BOOST {
        // It may have given up, or exited, meanwhile.
        let waiter = awaited.waiter.load(Relaxed).addr() as u64;
        let _ = domain.wake(CoroutineId::from_u64(waiter));
    }
}

impl<T, H: Host> Drop for JoinHandle<T, H> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle goes.
        unsafe { let_go(self.slot) }
    }
}

/// The handle of a coroutine goes: one call, for it is in line wherever a handle may be dropped.
///
/// # Safety
/// It is the handle's reference, as [`JoinHandle::slot`] has it.
#[inline(never)]
unsafe fn let_go<H: Host>(handle: NonNull<Slot<H>>) {
    let slot = untagged(handle);
    match is_tagged(handle) {
        // SAFETY: it has seen the exit, and taken the output.
        true => unsafe { release_exited(slot) },
        // SAFETY: it has not taken the output.
        false => unsafe { leave(slot) },
    }
}

/// The handle of a coroutine goes, and leaves the output.
///
/// # Safety
/// It is the handle's reference.
#[inline(never)]
unsafe fn leave<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: the handle's reference keeps it.
    let block = unsafe { slot.as_ref() };
    let word = &block.word;
    if word.has_waiter() {
        // A waker that panics does not keep the handle's reference.
        let (_, waiter) = take_back(block);
        catch_panic::<H>(|| drop(waiter));
    }
    // Another thread takes a loan back at most.
    let lends = block.join_boost.load(Relaxed) != Slot::<H>::NO_BOOST;
    let dropped = if lends {
        word.drop_handle()
    } else {
        word.drop_handle_and_release()
    };
    match dropped {
        Join::Done if !lends => return,
        // SAFETY: we still hold the handle's reference.
        Join::Done => unsafe {
            lend(block.vcpu().shared(), slot, Slot::<H>::NO_BOOST);
        },
        // SAFETY: exited with the handle alive: the output is the handle's, and then its references.
        Join::Exited => unsafe {
            block.drop_output(block.vcpu().spawn_sites());
            return release_exited(slot);
        },
    }
    // SAFETY: the handle's reference.
    unsafe { release::release(slot) };
}

/// Publishes the waker of what awaits the coroutine: `waiting`, if that is in a coroutine of the domain.
fn register<H: Host>(block: &Slot<H>, new: &Waker, waiting: Option<NonNull<Slot<H>>>) -> Join {
    let word = &block.word;
    let id = waiting.and_then(|waiting| id_to_wake(waiting, new));
    if word.has_waiter() {
        let published = block.waiter.load(Relaxed);
        if id == Some(published) {
            // The same coroutine still; did it exit meanwhile?
            return if word.is_exited() {
                Join::Exited
            } else {
                Join::Done
            };
        }
        let (taken, waiter) = take_back(block);
        if taken == Join::Exited {
            return Join::Exited;
        }
        drop(waiter);
    }
    let packed = id.unwrap_or_else(|| Box::into_raw(Box::new(new.clone())).cast());
    block.waiter.store(packed, Relaxed);
    let set = word.set_waiter(id.is_some());
    if set == Join::Exited && id.is_none() {
        // SAFETY: a box, that was not published.
        drop(unsafe { take_waiter(block) });
    }
    set
}

/// Takes back what the handle has published, unless the coroutine has exited: a box, or an id, which is nothing to drop.
fn take_back<H: Host>(block: &Slot<H>) -> (Join, Option<BoxedWaker>) {
    let word = &block.word;
    let by_id = word.has_waiter_by_id();
    let taken = word.clear_waiter();
    let is_box = taken == Join::Done && !by_id;
    // SAFETY: a box that is the handle's again.
    (taken, is_box.then(|| unsafe { take_waiter(block) }))
}

/// The waker in the field.
///
/// # Safety
/// It is a box, and the caller's: not published, taken back, or published before an exit that the caller has made.
pub(crate) unsafe fn take_waiter<H: Host>(block: &Slot<H>) -> BoxedWaker {
    // SAFETY: packed by `register` from such a box, and unpacked once.
    unsafe { Box::from_raw(block.waiter.load(Relaxed).cast()) }
}

/// Wakes the coroutine that awaits this one, on which the caller makes no use any more.
///
/// # Safety
/// The caller has just exited it, on this vCPU or for it, and a waiter by id was published. It is in a critical section.
pub(crate) unsafe fn wake_by_id<H: Host>(vcpu: &Vcpu<H>, block: NonNull<Slot<H>>) {
    let id = {
        // SAFETY: the handle keeps it until the field is cleared.
        let waiter = unsafe { &block.as_ref().waiter };
        let id = waiter.load(Relaxed).addr();
        waiter.store(null_mut(), Release);
        CoroutineId::from_u64(id as u64)
    };
    // It may have exited, as what awaited it may have given up.
    let domain = vcpu.shared();
    let _ = domain.wake_from(domain.here(), id);
}

/// The id of the coroutine that is being polled, as the field has it, if its is the waker. Never null: no slot has index 0.
fn id_to_wake<H: Host>(waiting: NonNull<Slot<H>>, waker: &Waker) -> Option<*mut ()> {
    if waker::slot_of::<H>(waker) != Some(waiting) {
        return None;
    }
    let id = id_of(waiting).to_u64();
    // Where pointers have 32 bits it is boxed.
    usize::try_from(id).ok().map(without_provenance_mut)
}
