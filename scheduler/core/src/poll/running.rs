//! A coroutine that has been picked, and what becomes of it.
//!
//! [`Running`] is the ownership of a coroutine between its queue and the end of
//! its poll. It cannot be cloned or kept: it is polled, or dropped (then the
//! coroutine goes back to the tail of its level).

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::task::Context;

use crate::base::events::Step;
use crate::base::host::{Critical, Host};
use crate::base::id::CoroutineId;
use crate::base::kind::{Kind, State};
use crate::base::level::Level;
use crate::coroutine::state::{Begin, End, Exit, Release};
use crate::coroutine::{Ended, Slot, catch_panic};
use crate::poll::join;
use crate::poll::waker;
use crate::tables::table::id_of;
use crate::vcpu::{Vcpu, release};

/// What [`Executor::pick`](crate::Executor::pick) found.
#[must_use]
pub enum Picked<'a, H: Host> {
    /// A coroutine to poll.
    Poll(Running<'a, H>),
    /// A suspended coroutine: let the thread that holds its stack go on. Its
    /// poll ends there.
    Resume {
        /// Which.
        id: CoroutineId,
        /// Others of its level wait that have not used their quantum: it has been
        /// patient ([`Config::patience`](crate::Config::patience)) and is due a
        /// quantum.
        for_a_turn: bool,
    },
}

/// What a poll came to.
#[must_use]
pub enum Polled<'a, H: Host> {
    /// It wants to go on: give it to the next [`Executor::pick`](crate::Executor::pick).
    Yielded(Yielded<'a, H>),
    /// It waits for a wake.
    Blocked,
    /// It is done, or was cancelled, or has panicked.
    Exited,
}

/// A coroutine to be polled now. `!Send`: it is polled where it was picked. One may be kept while others are picked and
/// polled. One that is forgotten (`mem::forget`) is never polled again, and its domain waits for it when it
/// shuts down.
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
        // SAFETY: owned by `self`, hence alive.
        unsafe { self.coroutine.as_ref() }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> CoroutineId {
        id_of(self.coroutine)
    }

    /// Its effective level.
    #[must_use]
    pub fn level(&self) -> Level {
        self.block().level()
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.block().kind()
    }

    /// Was it spawned with [`Executor::spawn_pinned`](crate::Executor::spawn_pinned)?
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.block().is_pinned()
    }

    /// It has been kept while others were picked: from here on it is what is polled on its vCPU. [`Running::poll`] sees to that, too; a host
    /// whose polls may be [suspended](crate::Vcpu::suspend_current) calls this before they may be. One load for what was picked last.
    #[inline]
    pub fn make_current(&self) {
        if !self.vcpu.is_current(self.coroutine) {
            let _critical = Critical::<H>::enter();
            // SAFETY: it is ours, and in no queue.
            unsafe { self.vcpu.make_current(self.coroutine) };
        }
    }

    /// Polls it: once, or once more if it is about to block and awaits less urgent coroutines.
    /// A panic in it ends it and is reported by its join handle.
    // See `Vcpu::pick`.
    #[inline(always)]
    pub fn poll(self) -> Polled<'a, H> {
        let this = ManuallyDrop::new(self);
        let (vcpu, coroutine) = (this.vcpu, this.coroutine);
        let block = this.block();
        this.make_current();
        let began = vcpu.clock();
        let mut end = match block.word.begin_poll() {
            // SAFETY: we own it and have begun its poll.
            Begin::Poll => unsafe { poll_future(vcpu, coroutine) },
            // SAFETY: we own it, and it has not finished.
            Begin::Cancel => Some(unsafe { block.cancel(vcpu.spawn_sites()) }),
        };
        if end.is_none() && block.has_asked() {
            // SAFETY: as above, and it is pending.
            end = unsafe { poll_to_lend(vcpu, coroutine) };
        }
        if let Some(end) = end {
            // SAFETY: it is finished and ours.
            unsafe { exit(vcpu, coroutine, end, Some(began)) };
            return Polled::Exited;
        }
        // A poll that was suspended is over only when it has been resumed.
        let _critical = Critical::<H>::enter();
        if vcpu.is_watched(coroutine) {
            // SAFETY: it is ours.
            unsafe { vcpu.was_watched(coroutine, began) };
        }
        vcpu.stop();
        let mut again = Step::Yielded;
        let is_ready = block.has_woken_itself() || block.kind() == Kind::Switching || {
            // Before the coroutine is given away.
            block.set_state(State::Blocked);
            if vcpu.shared().host.is_tracing() && !block.word.will_go_on() {
                vcpu.trace(coroutine, Step::Blocked);
                again = Step::Ready;
            }
            block.word.end_poll() == End::Again
        };
        if is_ready {
            vcpu.trace(coroutine, again);
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

/// Polls the future of a coroutine. `None`: it is pending.
///
/// # Safety
/// The caller owns the coroutine and has begun its poll.
#[inline(always)]
unsafe fn poll_future<H: Host>(vcpu: &Vcpu<H>, coroutine: NonNull<Slot<H>>) -> Option<Ended> {
    // SAFETY: the coroutine's own reference outlives the poll.
    let waker = unsafe { waker::borrowed(coroutine) };
    let mut cx = Context::from_waker(&waker);
    // SAFETY: passed on.
    unsafe { coroutine.as_ref().poll(vcpu.spawn_sites(), &mut cx) }
}

/// Polls a coroutine that has asked less urgent handles once more if it is about to block: it lends
/// its level to those that this poll asks (see [`join`]).
///
/// # Safety
/// As [`poll_future`].
#[cold]
unsafe fn poll_to_lend<H: Host>(vcpu: &Vcpu<H>, coroutine: NonNull<Slot<H>>) -> Option<Ended> {
    // SAFETY: owned, hence alive.
    let block = unsafe { coroutine.as_ref() };
    block.set_has_asked(false);
    let goes_on = block.has_woken_itself() || block.word.will_go_on();
    if goes_on || block.kind() == Kind::Switching {
        return None;
    }
    block.set_polled_to_lend(true);
    // SAFETY: passed on.
    let end = unsafe { poll_future(vcpu, coroutine) };
    block.set_polled_to_lend(false);
    end
}

impl<H: Host> Drop for Running<'_, H> {
    fn drop(&mut self) {
        self.vcpu.stop();
        self.vcpu.trace(self.coroutine, Step::Yielded);
        // SAFETY: ours, and in no queue.
        unsafe { self.vcpu.locked().enqueue(self.coroutine) };
    }
}

/// A coroutine on its way back to its queue.
pub struct Yielded<'a, H: Host> {
    coroutine: NonNull<Slot<H>>,
    vcpu: &'a Vcpu<H>,
    not_send: PhantomData<*const ()>,
}

impl<H: Host> Yielded<'_, H> {
    /// Its effective level.
    #[inline]
    #[must_use]
    pub fn level(&self) -> Level {
        // SAFETY: owned by `self`, hence alive.
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
        // SAFETY: ours, in no queue, and polled there last.
        unsafe { self.vcpu.locked().enqueue_back(self.coroutine) };
    }
}

/// Exits a coroutine whose future is gone and whose output is in place. `began`: by
/// the end of its poll, which began at this tick.
///
/// Code of users (the destructor of an output that is not wanted, a waker that is not
/// of this crate) is still part of the poll: it may take long, and be suspended.
///
/// # Safety
/// The caller owns it.
#[inline]
pub(crate) unsafe fn exit<H: Host>(
    vcpu: &Vcpu<H>,
    coroutine: NonNull<Slot<H>>,
    end: Ended,
    began: Option<u64>,
) {
    // SAFETY: owned, hence alive until our reference is given back below.
    let block = unsafe { coroutine.as_ref() };
    let word = &block.word;
    let detached = word.is_detached();
    if detached {
        if end == Ended::Panicked {
            // SAFETY: it is ours.
            unsafe { vcpu.has_panicked(coroutine, began) };
        }
        // SAFETY: no handle is left, and none will be, so the output is ours.
        unsafe { block.drop_output(vcpu.spawn_sites()) };
    }
    // A poll that was suspended is over only when it has been resumed.
    let critical = Critical::<H>::enter();
    if let Some(began) = began
        && vcpu.is_watched(coroutine)
    {
        // SAFETY: it is ours.
        unsafe { vcpu.was_watched(coroutine, began) };
    }
    block.set_state(State::Exited);
    vcpu.trace(coroutine, Step::Exited);
    vcpu.counters.exited(end == Ended::Panicked);
    // Before others may free it, and use its slot again.
    if began.is_some() {
        vcpu.stop();
    }
    match word.exit(detached) {
        Exit::Alive => {}
        // SAFETY: the coroutine's own reference, the last one, was given back; the domain is that of the vCPU.
        Exit::Free => unsafe { release::finish(Release::Free, coroutine, vcpu.domain()) },
        // SAFETY: as above.
        Exit::FreeOrphan => unsafe {
            release::finish(Release::FreeOrphan, coroutine, vcpu.domain())
        },
        // SAFETY: the handle does not free it before the id is read, which is done here.
        Exit::WaiterById => unsafe { join::wake_by_id(vcpu, coroutine) },
        exit @ (Exit::Detached | Exit::Waiter) => {
            // The rest is still a part of the poll.
            if began.is_some() {
                vcpu.go_on(coroutine);
            }
            let critical = critical.outside(|| match exit {
                Exit::Waiter => {
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
            // SAFETY: the coroutine's own reference.
            unsafe { release::release(coroutine) };
            drop(critical);
        }
    }
}
