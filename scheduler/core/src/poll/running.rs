//! Polls a coroutine that was taken from the ready queues, and acts on the outcome.
//!
//! [`Running`] owns a coroutine from its removal from the queue to the end of its poll. If it is
//! dropped without a poll, the coroutine returns to the tail of its level.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::task::Context;

use crate::base::events::Step;
use crate::base::host::{Critical, Host};
use crate::base::id::CoroutineId;
use crate::base::kind::{Kind, State};
use crate::base::level::Level;
use crate::coroutine::state::{
    TransitionToBlocked, TransitionToExited, TransitionToFree, TransitionToRunning,
};
use crate::coroutine::{Ended, Slot, catch_panic};
use crate::poll::join;
use crate::poll::waker;
use crate::tables::table::id_of;
use crate::vcpu::{Vcpu, release};

/// Result of [`Executor::pick`](crate::Executor::pick).
#[must_use]
pub enum Picked<'a, H: Host> {
    /// A coroutine to poll.
    Poll(Running<'a, H>),
    /// A suspended coroutine. The host lets the thread that holds the coroutine's stack continue
    /// the poll and finish it.
    Resume {
        /// The coroutine.
        id: CoroutineId,
        /// True if coroutines of the same level wait that are not suspended. The suspended
        /// coroutine goes before them, for example because
        /// [`Config::suspended_delay`](crate::Config::suspended_delay) has passed, and should run
        /// for one turn only. Also true after
        /// [`Executor::pick_suspended`](crate::Executor::pick_suspended).
        for_a_turn: bool,
    },
}

/// Outcome of a poll.
#[must_use]
pub enum Polled<'a, H: Host> {
    /// The coroutine is ready again. Pass it to the next [`Executor::pick`](crate::Executor::pick).
    Yielded(Yielded<'a, H>),
    /// The coroutine waits for a wake.
    Blocked,
    /// The coroutine is done, was cancelled, or has panicked.
    Exited,
}

/// A coroutine to be polled now. `!Send`, because the coroutine is polled on the thread that picked
/// it. The value may be kept while other coroutines are picked and polled. If it is forgotten
/// (`mem::forget`), the coroutine is never polled again, and its domain waits for the coroutine at
/// shutdown.
pub struct Running<'a, H: Host> {
    vcpu: &'a Vcpu<H>,
    coroutine: NonNull<Slot<H>>,
    not_send: PhantomData<*const ()>,
}

impl<'a, H: Host> Running<'a, H> {
    pub(crate) fn new(vcpu: &'a Vcpu<H>, coroutine: NonNull<Slot<H>>) -> Running<'a, H> {
        Running {
            vcpu,
            coroutine,
            not_send: PhantomData,
        }
    }

    fn block(&self) -> &Slot<H> {
        // SAFETY: `self` owns the coroutine, so it is alive.
        unsafe { self.coroutine.as_ref() }
    }

    /// Returns the id of the coroutine.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.coroutine)
    }

    /// Returns the effective level of the coroutine.
    #[must_use]
    pub fn level(&self) -> Level {
        self.block().level()
    }

    /// Returns the kind of the coroutine.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.block().kind()
    }

    /// Returns true if the coroutine was spawned with
    /// [`Executor::spawn_pinned`](crate::Executor::spawn_pinned).
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.block().is_pinned()
    }

    /// Makes this the current coroutine of its vCPU again, if others have been picked since.
    /// [`Running::poll`] does so, too; a host whose polls may be
    /// [suspended](crate::Vcpu::suspend_current) calls this before suspension is possible. Costs
    /// one load if the coroutine is current already.
    #[inline]
    pub fn make_current(&self) {
        if !self.vcpu.is_current(self.coroutine) {
            let _critical = Critical::<H>::enter();
            // SAFETY: the coroutine is ours, and in no queue.
            unsafe { self.vcpu.make_current(self.coroutine) };
        }
    }

    /// Polls the coroutine: once, or once more if it is about to block and awaits less urgent
    /// coroutines. A panic in the poll ends the coroutine and is reported by its join handle.
    // Always inlined, for the reason given at `Vcpu::pick`.
    #[inline(always)]
    pub fn poll(self) -> Polled<'a, H> {
        let this = ManuallyDrop::new(self);
        let (vcpu, coroutine) = (this.vcpu, this.coroutine);
        let block = this.block();
        this.make_current();
        let began = vcpu.clock();
        let mut end = match block.word.begin_poll() {
            // SAFETY: we own the coroutine and have begun its poll.
            TransitionToRunning::Poll => unsafe { poll_future(vcpu, coroutine) },
            // SAFETY: we own the coroutine, and it has not finished.
            TransitionToRunning::Cancel => Some(unsafe { block.cancel(vcpu.spawn_sites()) }),
        };
        if end.is_none() && block.has_polled_handles() {
            // SAFETY: we own the coroutine, have begun its poll, and it is pending.
            end = unsafe { poll_to_lend(vcpu, coroutine) };
        }
        if let Some(end) = end {
            // SAFETY: the coroutine is finished and ours.
            unsafe { exit(vcpu, coroutine, end, Some(began)) };
            return Polled::Exited;
        }
        // From here on the poll cannot be suspended; if it was, it has been resumed.
        let _critical = Critical::<H>::enter();
        if vcpu.is_watched(coroutine) {
            // SAFETY: the coroutine is ours.
            unsafe { vcpu.report_watched_poll(coroutine, began) };
        }
        vcpu.stop();
        let mut ready_step = Step::Yielded;
        let is_ready = block.has_woken_itself() || block.kind() == Kind::Switching || {
            // Set before the coroutine is given away.
            block.set_state(State::Blocked);
            if vcpu.shared().host.is_tracing() && !block.word.will_run_again() {
                vcpu.trace(coroutine, Step::Blocked);
                ready_step = Step::Ready;
            }
            block.word.end_poll() == TransitionToBlocked::Again
        };
        if is_ready {
            vcpu.trace(coroutine, ready_step);
            Polled::Yielded(Yielded {
                coroutine,
                vcpu,
                not_send: PhantomData,
            })
        } else {
            Polled::Blocked
        }
    }
}

/// Returns `None` if the future is pending.
///
/// # Safety
/// The caller owns the coroutine and has begun its poll.
#[inline(always)]
unsafe fn poll_future<H: Host>(vcpu: &Vcpu<H>, coroutine: NonNull<Slot<H>>) -> Option<Ended> {
    // SAFETY: the coroutine's own reference outlives the poll.
    let waker = unsafe { waker::borrow(coroutine) };
    let mut cx = Context::from_waker(&waker);
    // SAFETY: the contract is the caller's.
    unsafe { coroutine.as_ref().poll(vcpu.spawn_sites(), &mut cx) }
}

/// Polls once more a coroutine that is about to block and has polled handles of less urgent
/// coroutines. In this poll it lends its level to these coroutines (see [`join`]).
///
/// # Safety
/// Same as [`poll_future`].
#[cold]
unsafe fn poll_to_lend<H: Host>(vcpu: &Vcpu<H>, coroutine: NonNull<Slot<H>>) -> Option<Ended> {
    // SAFETY: the caller owns the coroutine, so it is alive.
    let block = unsafe { coroutine.as_ref() };
    block.set_has_polled_handles(false);
    let runs_again = block.has_woken_itself() || block.word.will_run_again();
    if runs_again || block.kind() == Kind::Switching {
        return None;
    }
    block.set_polled_to_lend(true);
    // SAFETY: the contract is the caller's.
    let end = unsafe { poll_future(vcpu, coroutine) };
    block.set_polled_to_lend(false);
    end
}

impl<H: Host> Drop for Running<'_, H> {
    fn drop(&mut self) {
        self.vcpu.stop();
        self.vcpu.trace(self.coroutine, Step::Yielded);
        // SAFETY: the coroutine is ours, and in no queue.
        unsafe { self.vcpu.lock().enqueue(self.coroutine) };
    }
}

/// A coroutine that has yielded and returns to its queue with the next pick, or when dropped.
pub struct Yielded<'a, H: Host> {
    coroutine: NonNull<Slot<H>>,
    vcpu: &'a Vcpu<H>,
    not_send: PhantomData<*const ()>,
}

impl<H: Host> Yielded<'_, H> {
    /// Returns the effective level of the coroutine.
    #[inline]
    #[must_use]
    pub fn level(&self) -> Level {
        // SAFETY: `self` owns the coroutine, so it is alive.
        unsafe { self.coroutine.as_ref() }.level()
    }

    #[inline]
    pub(crate) fn is_of(&self, vcpu: &Vcpu<H>) -> bool {
        core::ptr::eq(self.vcpu, vcpu)
    }

    pub(crate) fn into_owned(self) -> NonNull<Slot<H>> {
        ManuallyDrop::new(self).coroutine
    }
}

impl<H: Host> Drop for Yielded<'_, H> {
    fn drop(&mut self) {
        // SAFETY: the coroutine is ours, in no queue, and was polled last on this vCPU.
        unsafe { self.vcpu.lock().enqueue_back(self.coroutine) };
    }
}

/// Exits a coroutine whose future has been dropped and whose output is stored. `began` is the tick
/// at which its last poll began; `None` if it ended without a poll.
///
/// This may call user code: the destructor of the output of a detached coroutine, or a waker of
/// another executor. Such code is still part of the poll, so it may take long, and be suspended.
///
/// # Safety
/// The caller owns the coroutine.
#[inline]
pub(crate) unsafe fn exit<H: Host>(
    vcpu: &Vcpu<H>,
    coroutine: NonNull<Slot<H>>,
    end: Ended,
    began: Option<u64>,
) {
    // SAFETY: the coroutine is owned, hence alive until our reference is released below.
    let block = unsafe { coroutine.as_ref() };
    let word = &block.word;
    let detached = word.is_detached();
    if detached {
        if end == Ended::Panicked {
            // SAFETY: the coroutine is ours.
            unsafe { vcpu.report_panic(coroutine, began) };
        }
        // SAFETY: no handle is left, and none will be made, so the output is ours.
        unsafe { block.drop_output(vcpu.spawn_sites()) };
    }
    // From here on the poll cannot be suspended; if it was, it has been resumed.
    let critical = Critical::<H>::enter();
    if let Some(began) = began
        && vcpu.is_watched(coroutine)
    {
        // SAFETY: the coroutine is ours.
        unsafe { vcpu.report_watched_poll(coroutine, began) };
    }
    block.set_state(State::Exited);
    vcpu.trace(coroutine, Step::Exited);
    vcpu.counters.record_exit(end == Ended::Panicked);
    // Stopped before another thread may free the coroutine and reuse its slot.
    if began.is_some() {
        vcpu.stop();
    }
    match word.exit(detached) {
        TransitionToExited::Alive => {}
        // SAFETY: the coroutine's own reference was the last, and is released; the domain is the
        // vCPU's.
        TransitionToExited::Free => unsafe {
            release::finish(TransitionToFree::Free, coroutine, vcpu.domain())
        },
        // SAFETY: the coroutine's own reference was the last, and the mark holds a count of the
        // domain.
        TransitionToExited::FreeOrphan => unsafe {
            release::finish(TransitionToFree::FreeOrphan, coroutine, vcpu.domain())
        },
        // SAFETY: we have just exited the coroutine, in a critical section, and its waiter is an
        // id. The handle frees the block only after `wake_by_id` has read the id.
        TransitionToExited::WaiterById => unsafe { join::wake_by_id(vcpu, coroutine) },
        exit @ (TransitionToExited::Detached | TransitionToExited::Waiter) => {
            // The user code below is still part of the poll.
            if began.is_some() {
                vcpu.continue_poll(coroutine);
            }
            let critical = critical.run_outside(|| match exit {
                TransitionToExited::Waiter => {
                    // SAFETY: the published waiter is ours after an exit.
                    let waiter = unsafe { join::take_waiter(block) };
                    catch_panic::<H>(|| (*waiter).wake());
                }
                // SAFETY: the handle has just gone, so the output is ours.
                _ => unsafe { block.drop_output(vcpu.spawn_sites()) },
            });
            if began.is_some() {
                vcpu.stop();
            }
            // SAFETY: the reference is the coroutine's own, and still held.
            unsafe { release::release(coroutine) };
            drop(critical);
        }
    }
}
