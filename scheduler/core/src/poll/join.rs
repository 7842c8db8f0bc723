//! A join handle awaits a coroutine and takes its result.
//!
//! A handle may publish one waiter, in one word of the control block of the awaited coroutine. If
//! the handle is polled by a coroutine of the same domain, with that coroutine's own waker, the
//! waiter is the id of that coroutine. Otherwise it is a boxed waker. While `WAITER` is set in the
//! state word, the field belongs to the thread that exits the awaited coroutine; while `WAITER` is
//! clear, the field belongs to the handle.
//!
//! An id needs no reference to its coroutine. If the coroutine has exited, or the slot has another
//! tenant, no coroutine has to be woken. The exiting thread needs the control block only until it
//! has read the id and cleared the field. A handle that sees the exit earlier waits until the field
//! is clear, which takes a few instructions. Only then does it release its own reference and that
//! of the coroutine.
//!
//! # Lending
//!
//! A coroutine that is blocked on a less urgent one lends its level to that coroutine (priority
//! inheritance). The handle is not told when a wait ends. For example, `timeout(d, &mut handle)`
//! abandons the wait but keeps the handle, and the poll that abandons the wait has polled the
//! handle, too. So the rule is: **the last poll before a coroutine blocks lends, and any other poll
//! of a handle takes the loan back.** A coroutine that has polled handles of less urgent coroutines
//! is polled once more before it blocks.
//!
//! Only the handle writes the level that is lent through it (`join_boost`), so no lock and no list
//! is needed. If a wait ends without a poll of the handle, the loan stays until the handle is
//! polled or dropped. That happens in a `select!` whose other branch was polled first, or if the
//! waiter ends while the handle is elsewhere. A handle that is polled with a waker other than that
//! of the coroutine around it (as by a set of futures that polls only woken futures) lends in each
//! poll, until the handle is dropped. [`reprio`](crate::Domain::reprio) of an awaited coroutine
//! wakes its waiter, whose next poll decides again whether it lends.
//!
//! Cost: a poll that polls no handle of a less urgent coroutine tests one bit. Any other poll leads
//! to one more poll when the coroutine blocks, and to a change of level, which is O(1), for each
//! handle.

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
use crate::coroutine::state::HandleTransition;
use crate::coroutine::{BoxedWaker, Slot, catch_panic};
use crate::poll::cancel::CancelHandle;
use crate::poll::waker;
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::tables::table::id_of;
use crate::vcpu::shared::Shared;
use crate::vcpu::{Vcpu, release, wake};

/// An owned handle to the result of a coroutine. Dropping the handle detaches the coroutine. Until
/// then the handle keeps the control block alive, even after the result has been taken. A handle
/// is one word in size.
///
/// # Cancellation safety
/// Awaiting `&mut handle` is cancel safe: a wait that is abandoned leaves the coroutine running and
/// its result in place.
#[must_use = "dropping the handle detaches the coroutine; say so with `detach`"]
pub struct JoinHandle<T, H: Host> {
    /// Tagged with [`TAKEN`] when the result has been taken.
    slot: NonNull<Slot<H>>,
    result: PhantomData<T>,
}

/// A bit that is clear in the address of every slot.
const TAKEN: usize = 1;

#[inline]
fn is_tagged<H: Host>(slot: NonNull<Slot<H>>) -> bool {
    slot.addr().get() & TAKEN != 0
}

#[inline]
fn untagged<H: Host>(slot: NonNull<Slot<H>>) -> NonNull<Slot<H>> {
    let slot = slot.as_ptr().map_addr(|address| address & !TAKEN);
    // SAFETY: slots are aligned to 64 bytes, so the address without the lowest bit is not null.
    unsafe { NonNull::new_unchecked(slot) }
}

// SAFETY: the handle moves only the result between threads, and the result is `Send`.
unsafe impl<T: Send, H: Host> Send for JoinHandle<T, H> {}
// SAFETY: through a shared handle only the id and atomics can be reached.
unsafe impl<T: Send, H: Host> Sync for JoinHandle<T, H> {}
impl<T, H: Host> Unpin for JoinHandle<T, H> {}

impl<T, H: Host> fmt::Debug for JoinHandle<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JoinHandle").field(&self.id()).finish()
    }
}

impl<T, H: Host> JoinHandle<T, H> {
    /// # Safety
    /// The slot's coroutine has the output `T`, and its state word counts this handle.
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
        // SAFETY: the handle's reference keeps the slot.
        unsafe { self.slot().as_ref() }
    }

    /// Returns the id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.slot())
    }

    /// Drops the handle; the coroutine continues without it.
    pub fn detach(self) {}

    /// Returns true if the coroutine has exited.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.block().word.is_exited()
    }

    /// Asks the coroutine to end, so that its future is dropped instead of being polled again. A
    /// poll that is under way finishes first. This poll is asked to yield, so that a long poll that
    /// checks [`Vcpu::need_preempt`](crate::Vcpu::need_preempt) ends soon, even if nothing else is
    /// ready. The handle then returns [`JoinError::Cancelled`], unless the coroutine finished
    /// first.
    pub fn cancel(&self) {
        let generation = self.block().word.generation();
        // SAFETY: the handle's reference keeps the control block.
        let _ = unsafe { wake::cancel_slot(self.slot(), generation) };
    }

    /// Returns a handle that can cancel the coroutine, or `None` if the result has been taken.
    #[must_use]
    pub fn cancel_handle(&self) -> Option<CancelHandle<H>> {
        (!self.is_taken()).then(|| {
            self.block().word.retain();
            // SAFETY: the reference was just taken.
            unsafe { CancelHandle::new(self.slot()) }
        })
    }

    #[inline]
    fn try_take(&mut self) -> Option<Result<T, JoinError>> {
        let block = self.block();
        if self.is_taken() || !block.word.is_exited() {
            return None;
        }
        let mut result = MaybeUninit::<Result<T, JoinError>>::uninit();
        // SAFETY: the coroutine has exited, so the output is stored and belongs to the handle; it
        // has type `T`, and is taken once.
        let result = unsafe {
            block.take_output(block.vcpu().spawn_sites(), result.as_mut_ptr().cast());
            result.assume_init()
        };
        let tagged = self.slot.as_ptr().map_addr(|address| address | TAKEN);
        // SAFETY: a tagged address is not null.
        self.slot = unsafe { NonNull::new_unchecked(tagged) };
        Some(result)
    }
}

/// # Safety
/// The reference belongs to the handle, which has seen the exit, and the output is gone.
#[inline(never)]
unsafe fn release_exited<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: the handle's reference keeps the slot.
    let block = unsafe { slot.as_ref() };
    // Acquire: the exiting thread does not use the control block any more.
    if block.word.has_waiter_by_id() && !block.waiter.load(Acquire).is_null() {
        wait_for_exit(block);
    }
    // SAFETY: the reference is the handle's, and so is the coroutine's own if the waiter was an id.
    unsafe { release::release_handle(slot) };
}

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

    /// Polls for the result.
    ///
    /// # Panics
    /// Panics if polled again after it has returned the result.
    // Always inlined up to the result, because a result that is returned through memory is written
    // in parts and read as a whole, and the read waits for the writes.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.is_taken(),
            "a join handle must not be polled after it has returned the result"
        );
        if let Some(result) = self.try_take() {
            return Poll::Ready(result);
        }
        // SAFETY: the handle's reference keeps the slot, and its result has not been taken.
        if unsafe { wait(self.slot(), cx.waker()) } == HandleTransition::Done {
            return Poll::Pending;
        }
        match self.try_take() {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

/// Polls the handle of a coroutine that has not exited: publishes the waiter, and lends to the
/// coroutine.
///
/// # Safety
/// The reference is the handle's, and the result has not been taken.
#[inline(never)]
unsafe fn wait<H: Host>(slot: NonNull<Slot<H>>, waker: &Waker) -> HandleTransition {
    // SAFETY: the handle's reference keeps the slot.
    let block = unsafe { slot.as_ref() };
    let domain = block.vcpu().shared();
    let waiting = {
        let _critical = Critical::<H>::enter();
        let waiting = domain.here().and_then(Vcpu::current);
        if let Some(waiting) = waiting
            && !block.word.has_waiter()
            && let Some(id) = id_to_wake(waiting, waker)
        {
            // In the first poll, in a coroutine of the domain, no user code is involved.
            block.waiter.store(id, Relaxed);
            if block.word.set_waiter(true) == HandleTransition::Done {
                // SAFETY: we are in the poll of `waiting`, and hold a reference to the awaited
                // coroutine.
                unsafe { lend_from(domain, slot, Some(waiting), true) };
                return HandleTransition::Done;
            }
        }
        waiting
    };
    if register(block, waker, waiting) == HandleTransition::Exited {
        return HandleTransition::Exited;
    }
    let _critical = Critical::<H>::enter();
    // SAFETY: we are in the poll of `waiting`, and hold a reference to the awaited coroutine.
    unsafe { lend_from(domain, slot, waiting, block.word.has_waiter_by_id()) };
    HandleTransition::Done
}

/// Sets the level lent to a coroutine whose handle has just been polled. `from` is the coroutine of
/// the domain that polled the handle, and `by_id` is true if it used its own waker.
///
/// # Safety
/// Same as [`lend`], and `from` is being polled by the calling thread.
#[inline]
unsafe fn lend_from<H: Host>(
    domain: &Shared<H>,
    slot: NonNull<Slot<H>>,
    from: Option<NonNull<Slot<H>>>,
    by_id: bool,
) {
    let mut level = Slot::<H>::NO_BOOST;
    if let Some(from) = from {
        // SAFETY: the coroutine is being polled, hence alive.
        let from = unsafe { from.as_ref() };
        from.set_lends();
        let own_level = from.level().get();
        // The waiter was published before this load; see `StateWord::set_waiter`.
        // SAFETY: the caller holds a reference, so the slot is alive.
        let is_less_urgent = || own_level < unsafe { slot.as_ref() }.base.load(SeqCst);
        if !by_id || from.is_polled_to_lend() {
            level = own_level;
        } else if is_less_urgent() {
            from.set_has_polled_handles(true);
        }
    }
    // SAFETY: the contract is the caller's.
    unsafe { lend(domain, slot, level) };
}

/// # Safety
/// The caller is the handle of the coroutine, or is dropping the handle, and holds a reference.
#[inline]
unsafe fn lend<H: Host>(domain: &Shared<H>, awaited: NonNull<Slot<H>>, level: u8) {
    // SAFETY: the caller holds a reference, so the block is alive.
    let block = unsafe { awaited.as_ref() };
    let before = block.join_boost.load(Relaxed);
    if before == level {
        return;
    }
    block.join_boost.store(level, Relaxed);
    let effective = block.level().get();
    if level < effective || before <= effective {
        // SAFETY: the contract is the caller's.
        unsafe { change_level(domain, awaited) };
    }
}

/// # Safety
/// Same as [`lend`].
#[inline(never)]
unsafe fn change_level<H: Host>(domain: &Shared<H>, awaited: NonNull<Slot<H>>) {
    // SAFETY: the contract is the caller's.
    unsafe { domain.resettle(awaited, true) };
}

/// Wakes the waiter of a coroutine that has become less urgent, unless the waiter lends already.
#[cold]
pub(crate) fn wake_waiter_to_lend<H: Host>(domain: &Shared<H>, awaited: &Slot<H>) {
    if awaited.join_boost.load(Relaxed) == Slot::<H>::NO_BOOST {
        // The waiter may have given up, or exited, meanwhile.
        let waiter = awaited.waiter.load(Relaxed).addr() as u64;
        let _ = domain.wake(CoroutineId::from_u64(waiter));
    }
}

impl<T, H: Host> Drop for JoinHandle<T, H> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle is being dropped.
        unsafe { drop_handle(self.slot) }
    }
}

/// Drops a handle. Separate, and not inlined, because the destructor is inlined wherever a handle
/// may be dropped.
///
/// # Safety
/// `handle` is the field `slot` of a [`JoinHandle`], and the caller gives up the reference of that
/// handle.
#[inline(never)]
unsafe fn drop_handle<H: Host>(handle: NonNull<Slot<H>>) {
    let slot = untagged(handle);
    if is_tagged(handle) {
        // SAFETY: the handle has seen the exit, and taken the output.
        unsafe { release_exited(slot) }
    } else {
        // SAFETY: the handle has not taken the output.
        unsafe { drop_with_output(slot) }
    }
}

/// # Safety
/// The reference is the handle's.
#[inline(never)]
unsafe fn drop_with_output<H: Host>(slot: NonNull<Slot<H>>) {
    // SAFETY: the handle's reference keeps the slot.
    let block = unsafe { slot.as_ref() };
    let word = &block.word;
    if word.has_waiter() {
        // Even if the destructor of the waker panics, the handle's reference is released.
        let (_, waiter) = take_back_waiter(block);
        catch_panic::<H>(|| drop(waiter));
    }
    // No other thread adds a loan while the handle is being dropped.
    let lends = block.join_boost.load(Relaxed) != Slot::<H>::NO_BOOST;
    let dropped = if lends {
        word.drop_handle()
    } else {
        word.drop_handle_and_release()
    };
    match dropped {
        HandleTransition::Done if !lends => return,
        // SAFETY: we still hold the handle's reference.
        HandleTransition::Done => unsafe {
            lend(block.vcpu().shared(), slot, Slot::<H>::NO_BOOST);
        },
        // SAFETY: the coroutine exited while the handle was alive, so the output belongs to the
        // handle, and so do the references that are released.
        HandleTransition::Exited => unsafe {
            block.drop_output(block.vcpu().spawn_sites());
            return release_exited(slot);
        },
    }
    // SAFETY: the reference is the handle's, and still held.
    unsafe { release::release(slot) };
}

/// Publishes the waiter of a coroutine. `waiting` is the coroutine of the domain that is polling
/// the handle, if any. If the waker is that of `waiting`, its id is published, else a copy of the
/// waker.
fn register<H: Host>(
    block: &Slot<H>,
    new: &Waker,
    waiting: Option<NonNull<Slot<H>>>,
) -> HandleTransition {
    let word = &block.word;
    let id = waiting.and_then(|waiting| id_to_wake(waiting, new));
    if word.has_waiter() {
        let published = block.waiter.load(Relaxed);
        if id == Some(published) {
            // The waiter is still the same coroutine; the awaited one may have exited meanwhile.
            return if word.is_exited() {
                HandleTransition::Exited
            } else {
                HandleTransition::Done
            };
        }
        let (transition, waiter) = take_back_waiter(block);
        if transition == HandleTransition::Exited {
            return HandleTransition::Exited;
        }
        drop(waiter);
    }
    let packed = id.unwrap_or_else(|| Box::into_raw(Box::new(new.clone())).cast());
    block.waiter.store(packed, Relaxed);
    let set = word.set_waiter(id.is_some());
    if set == HandleTransition::Exited && id.is_none() {
        // SAFETY: the field holds a box, which was not published.
        drop(unsafe { take_waiter(block) });
    }
    set
}

/// Takes back the waiter that the handle has published, unless the coroutine has exited. A waiter
/// that is an id needs no drop, so only a box is returned.
fn take_back_waiter<H: Host>(block: &Slot<H>) -> (HandleTransition, Option<BoxedWaker>) {
    let word = &block.word;
    let by_id = word.has_waiter_by_id();
    let transition = word.clear_waiter();
    let is_box = transition == HandleTransition::Done && !by_id;
    // SAFETY: the field holds a box, which is the handle's again.
    (transition, is_box.then(|| unsafe { take_waiter(block) }))
}

/// # Safety
/// The field holds a box that belongs to the caller: not published, taken back, or published before
/// the caller exited the coroutine.
pub(crate) unsafe fn take_waiter<H: Host>(block: &Slot<H>) -> BoxedWaker {
    // SAFETY: `register` stored such a box, which is taken once.
    unsafe { Box::from_raw(block.waiter.load(Relaxed).cast()) }
}

/// Wakes the coroutine that awaits this one. The caller does not use the block after this.
///
/// # Safety
/// The calling thread is in a critical section and has just exited the coroutine, on this vCPU or
/// on its behalf. The published waiter was an id.
pub(crate) unsafe fn wake_by_id<H: Host>(vcpu: &Vcpu<H>, block: NonNull<Slot<H>>) {
    let id = {
        // SAFETY: the handle keeps the slot until the field is cleared.
        let waiter = unsafe { &block.as_ref().waiter };
        let id = waiter.load(Relaxed).addr();
        waiter.store(null_mut(), Release);
        CoroutineId::from_u64(id as u64)
    };
    // The waiter may have given up, or exited, meanwhile.
    let domain = vcpu.shared();
    let _ = domain.wake_from(domain.here(), id);
}

/// Returns the id of `waiting`, the coroutine that is being polled, as a value of the field
/// `waiter`. Returns `None` if `waker` is not its own. An id is never null, because no coroutine's
/// slot has index 0.
fn id_to_wake<H: Host>(waiting: NonNull<Slot<H>>, waker: &Waker) -> Option<*mut ()> {
    if waker::slot_of::<H>(waker) != Some(waiting) {
        return None;
    }
    let id = id_of(waiting).to_u64();
    // Where pointers have 32 bits, the waker is boxed.
    usize::try_from(id).ok().map(without_provenance_mut)
}
