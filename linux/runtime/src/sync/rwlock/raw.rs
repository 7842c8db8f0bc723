//! The lock of an [`RwLock`](super::RwLock), without the value: its holders and its waiters.
//!
//! Invariants, under the lock of the state:
//!
//! * the holders are one writer or up to `max` readers;
//! * there is no room for the first waiter, because every step that removes a holder or a waiter
//!   lets in the waiters for which there is room. A newcomer enters at once only if it is more
//!   urgent than the first waiter;
//! * the writer counts this lock among its locks before `writer` names the writer, and until
//!   `writer` no longer does. So a level that was lent for this lock does not end when the writer
//!   releases another lock. Waiters lend to the writer, and withdraw the loan, under the lock of
//!   the state.
//!
//! A waiter *lends* its level to the writer, so the writer runs at least at that level until it
//! unlocks (priority inheritance). The lock names a writer by its runtime and its id, if it has
//! both. Only waiters of the same runtime lend to it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use upshift_core::{CoroutineId, Level};

use super::super::atomic::const_fn;
use super::super::lock::{Guard, Lock};
use super::super::wait_queue::{Key, WaitQueue};
use super::super::waker::LockSafeWaker;
use super::super::{TryLockError, may_proceed, waiting_level, wake};
use crate::context;

/// Names a coroutine: the number of its runtime, and its id. `None` outside a coroutine.
type Name = Option<(u64, CoroutineId)>;

/// The kind of access: shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

/// The lock without a value.
pub(super) struct Raw {
    /// Maximum number of readers at a time.
    max: u32,
    state: Lock<State>,
}

struct State {
    readers: u32,
    /// The writer that holds the lock, and its name.
    writer: Option<Name>,
    waiting: WaitQueue<Claim>,
}

/// The side and the name of a waiter; once granted, the name under which the waiter holds the lock.
#[derive(Clone, Copy)]
struct Claim {
    side: Side,
    name: Name,
}

impl State {
    /// Returns true if the present holders admit another holder on this side.
    fn has_room(&self, side: Side, max: u32) -> bool {
        self.writer.is_none()
            && match side {
                Side::Read => self.readers < max,
                Side::Write => self.readers == 0,
            }
    }

    /// Returns true if a newcomer of this level may enter before all waiters.
    fn may_enter(&self, side: Side, level: Level, max: u32) -> bool {
        self.has_room(side, max) && self.waiting.first().is_none_or(|(first, _)| level < first)
    }

    /// Makes the first waiter a holder, if there is room for it. Returns its waker.
    fn admit(&mut self, max: u32) -> Option<Waker> {
        if self.writer.is_none() {
            self.waiting.settle_first(|claim| {
                let (runtime, id) = claim.name?;
                context::level_of(runtime, id)
            });
        }
        let (_, claim) = self.waiting.first()?;
        if !self.has_room(claim.side, max) {
            return None;
        }
        let mut name = claim.name;
        match claim.side {
            Side::Read => self.readers += 1,
            Side::Write => {
                // The coroutine that queued may have ended, and its future may be elsewhere.
                name = name.filter(|&(runtime, id)| context::record_handover(runtime, id));
                self.writer = Some(name);
            }
        }
        let side = claim.side;
        let waker = self.waiting.pop(|_| Claim { side, name });
        self.lend_on();
        waker
    }

    /// Lends the level of the first waiter to a new writer, because the waiters have lent only to
    /// the former writer.
    fn lend_on(&self) {
        if let Some(Some((runtime, id))) = self.writer
            && let Some((level, claim)) = self.waiting.first()
            && claim.name.is_some_and(|(number, _)| number == runtime)
        {
            context::lend(runtime, id, level);
        }
    }

    /// Adjusts the loan of the writer after a waiter left or changed its level.
    fn update_loan(&self) {
        let Some(Some((runtime, id))) = self.writer else {
            return;
        };
        let level = match self.waiting.first() {
            None => None,
            Some((level, claim)) if claim.name.is_some_and(|(number, _)| number == runtime) => {
                Some(level)
            }
            // A waiter of another runtime has lent nothing, and waiters behind it may have lent.
            Some(_) => return,
        };
        context::set_loan(runtime, id, level);
    }
}

impl Raw {
    const_fn! {
        pub(super) const fn new(max: u32) -> Raw {
            Raw {
                max,
                state: Lock::new(State {
                    readers: 0,
                    writer: None,
                    waiting: WaitQueue::new(),
                }),
            }
        }
    }

    /// Returns a future that locks on this side.
    pub(super) fn enter(&self, side: Side) -> Entering<'_> {
        Entering {
            raw: self,
            side,
            key: None,
        }
    }

    /// Locks on this side, if the caller need not wait.
    pub(super) fn try_enter(&self, side: Side) -> Result<(), TryLockError> {
        let level = waiting_level();
        let mut state = self.state.lock();
        if !state.may_enter(side, level, self.max) {
            return Err(TryLockError::new());
        }
        self.add_holder(&mut state, side);
        Ok(())
    }

    /// Records the caller as a holder. The caller has checked that there is room.
    fn add_holder(&self, state: &mut State, side: Side) {
        match side {
            Side::Read => state.readers += 1,
            Side::Write => {
                state.writer = Some(claim_name());
                state.lend_on();
            }
        }
    }

    /// Unlocks on this side.
    pub(super) fn leave(&self, side: Side) {
        let mut state = self.state.lock();
        let name = match side {
            Side::Read => {
                state.readers -= 1;
                None
            }
            Side::Write => state.writer.take().flatten(),
        };
        self.admit(state);
        release_name(name);
    }

    /// Turns the writer into a reader; no other writer comes between.
    pub(super) fn downgrade(&self) {
        let mut state = self.state.lock();
        let name = state.writer.take().flatten();
        state.readers += 1;
        self.admit(state);
        release_name(name);
    }

    /// Lets in the waiters for which there is room, and wakes them.
    fn admit<'a>(&'a self, mut state: Guard<'a, State>) {
        while let Some(waker) = state.admit(self.max) {
            drop(state);
            wake(waker);
            state = self.state.lock();
        }
    }
}

/// Counts this lock among the caller's locks, and returns the caller's name.
fn claim_name() -> Name {
    let (runtime, id) = context::current_global_id()?;
    match context::record_lock(runtime) {
        context::LockOwner::Named(_) => Some((runtime, id)),
        _ => None,
    }
}

/// Removes this lock from the locks of the coroutine that `name` names.
fn release_name(name: Name) {
    if let Some((runtime, id)) = name {
        context::record_unlock(runtime, id);
    }
}

/// The future of [`Raw::enter`].
#[must_use = "futures do nothing unless awaited"]
pub(super) struct Entering<'a> {
    raw: &'a Raw,
    side: Side,
    key: Option<Key>,
}

impl Future for Entering<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (raw, side) = (self.raw, self.side);
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = raw.state.lock();
        let is_ready = match self.key {
            Some(key) => state.waiting.is_granted(key),
            None => state.may_enter(side, waiting_level(), raw.max),
        };
        if is_ready {
            if !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(key) = self.key.take() else {
                raw.add_holder(&mut state, side);
                return Poll::Ready(());
            };
            let granted = state
                .waiting
                .release(key)
                .granted
                .and_then(|claim| claim.name);
            if side == Side::Write && granted != context::current_global_id() {
                // The coroutine that queued is not the one that polls the future now. The lock has
                // to name the present one.
                state.writer = Some(claim_name());
                state.lend_on();
                release_name(granted);
            }
            return Poll::Ready(());
        }
        let level = context::level_to_lend().unwrap_or_default();
        let old_waker = match self.key {
            Some(key) => {
                let old_waker = state.waiting.refresh(key, level, &mut waker);
                state.update_loan();
                old_waker
            }
            None => {
                let claim = Claim {
                    side,
                    name: context::current_global_id(),
                };
                let waker = waker.take();
                self.key = Some(state.waiting.insert(level, claim, waker));
                if let Some(Some((runtime, id))) = state.writer {
                    context::lend_to_holder(runtime, id);
                }
                None
            }
        };
        // After a change of level another waiter may be the first.
        raw.admit(state);
        drop(old_waker);
        Poll::Pending
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else {
            return;
        };
        let mut state = self.raw.state.lock();
        let released = state.waiting.release(key);
        let mut name = None;
        match released.granted {
            Some(claim) if claim.side == Side::Write => {
                state.writer = None;
                name = claim.name;
            }
            Some(_) => state.readers -= 1,
            None => state.update_loan(),
        }
        self.raw.admit(state);
        release_name(name);
        drop(released.waker);
    }
}
