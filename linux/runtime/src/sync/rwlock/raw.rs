//! What is inside, and what waits.
//!
//! Invariants, under the lock:
//!
//! * inside is one writer or up to `max` readers;
//! * the first that waits cannot be let in: every step that lets a holder out, or takes a
//!   waiter away, lets in what it can. A newcomer enters at once only if it is more urgent than
//!   the first that waits;
//! * the writer that is inside counts the lock among its own, from before `writer` names it
//!   until after: so what it is lent for one lock does not end with another. What waits lends
//!   to it, and takes back what it has lent, under the lock.
//!
//! A writer is named by its runtime and its id, if both have one; it is lent to by what waits
//! in the same runtime.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use upshift_core::{CoroutineId, Level};

use super::super::atomic::const_fn;
use super::super::lock::{Guard, Lock};
use super::super::spare::Spare;
use super::super::wait_queue::{Key, WaitQueue};
use super::super::{TryLockError, may_proceed, waiting_level, wake};
use crate::context;

/// A coroutine: the number of its runtime, and its id.
type Name = Option<(u64, CoroutineId)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

pub(super) struct Raw {
    max: u32,
    state: Lock<State>,
}

struct State {
    readers: u32,
    /// The writer that is inside; and whether it has a name.
    writer: Option<Name>,
    waiting: WaitQueue<Wish>,
}

/// What a waiter wants, and its name; when it is let in, the name that it gets.
#[derive(Clone, Copy)]
struct Wish {
    side: Side,
    name: Name,
}

impl State {
    fn has_room(&self, side: Side, max: u32) -> bool {
        self.writer.is_none()
            && match side {
                Side::Read => self.readers < max,
                Side::Write => self.readers == 0,
            }
    }

    /// May a newcomer of this level enter before all that wait?
    fn suffices(&self, side: Side, level: Level, max: u32) -> bool {
        self.has_room(side, max) && self.waiting.first().is_none_or(|(first, _)| level < first)
    }

    /// Lets the first that waits in, if there is room.
    fn admit(&mut self, max: u32) -> Option<Waker> {
        if self.writer.is_none() {
            self.waiting.settle_first(|wish| {
                let (runtime, id) = wish.name?;
                context::level_of(runtime, id)
            });
        }
        let (_, wish) = self.waiting.first()?;
        if !self.has_room(wish.side, max) {
            return None;
        }
        let mut name = wish.name;
        match wish.side {
            Side::Read => self.readers += 1,
            Side::Write => {
                // Its future may have moved on, and the coroutine be gone.
                name = name.filter(|&(runtime, id)| context::lock_granted(runtime, id));
                self.writer = Some(name);
            }
        }
        let side = wish.side;
        let waker = self.waiting.pop(|_| Wish { side, name });
        self.lend_on();
        waker
    }

    /// What still waits has lent to the writer before; this one may be new.
    fn lend_on(&self) {
        if let Some(Some((runtime, id))) = self.writer
            && let Some((level, wish)) = self.waiting.first()
            && wish.name.is_some_and(|(theirs, _)| theirs == runtime)
        {
            context::lend(runtime, id, level);
        }
    }

    /// A waiter has another level, or waits no more: what the writer is lent follows.
    fn lend_again(&self) {
        let Some(Some((runtime, id))) = self.writer else {
            return;
        };
        let level = match self.waiting.first() {
            None => None,
            Some((level, wish)) if wish.name.is_some_and(|(theirs, _)| theirs == runtime) => {
                Some(level)
            }
            // Its level is not known there; those behind it may have lent.
            Some(_) => return,
        };
        context::lend_again(runtime, id, level);
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

    pub(super) fn enter(&self, side: Side) -> Entering<'_> {
        Entering {
            raw: self,
            side,
            key: None,
        }
    }

    pub(super) fn try_enter(&self, side: Side) -> Result<(), TryLockError> {
        let level = waiting_level();
        let mut state = self.state.lock();
        if !state.suffices(side, level, self.max) {
            return Err(TryLockError::new());
        }
        self.take(&mut state, side);
        Ok(())
    }

    /// There is room, and the caller enters.
    fn take(&self, state: &mut State, side: Side) {
        match side {
            Side::Read => state.readers += 1,
            Side::Write => {
                state.writer = Some(take_name());
                state.lend_on();
            }
        }
    }

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
        give_name_back(name);
    }

    /// The writer becomes a reader; no other writer comes between.
    pub(super) fn downgrade(&self) {
        let mut state = self.state.lock();
        let name = state.writer.take().flatten();
        state.readers += 1;
        self.admit(state);
        give_name_back(name);
    }

    fn admit<'a>(&'a self, mut state: Guard<'a, State>) {
        while let Some(waker) = state.admit(self.max) {
            drop(state);
            wake(waker);
            state = self.state.lock();
        }
    }
}

/// The caller's name, with one lock more counted.
fn take_name() -> Name {
    let (runtime, id) = context::name()?;
    match context::lock_taken(runtime) {
        context::Taker::Named(_) => Some((runtime, id)),
        _ => None,
    }
}

fn give_name_back(name: Name) {
    if let Some((runtime, id)) = name {
        context::lock_released(runtime, id);
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
        let mut waker = Spare::of(cx.waker());
        let mut state = raw.state.lock();
        let here = match self.key {
            Some(key) => state.waiting.granted(key),
            None => state.suffices(side, waiting_level(), raw.max),
        };
        if here {
            if !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(key) = self.key.take() else {
                raw.take(&mut state, side);
                return Poll::Ready(());
            };
            let granted = state
                .waiting
                .release(key)
                .granted
                .and_then(|wish| wish.name);
            if side == Side::Write && granted != context::name() {
                // The future has moved to another coroutine.
                state.writer = Some(take_name());
                state.lend_on();
                give_name_back(granted);
            }
            return Poll::Ready(());
        }
        let level = context::level_to_lend().unwrap_or_default();
        let before = match self.key {
            Some(key) => {
                let before = state.waiting.refresh(key, level, &mut waker);
                state.lend_again();
                before
            }
            None => {
                let wish = Wish {
                    side,
                    name: context::name(),
                };
                let waker = waker.take();
                self.key = Some(state.waiting.insert(level, wish, waker));
                if let Some(Some((runtime, id))) = state.writer {
                    context::lend_to_holder(runtime, id);
                }
                None
            }
        };
        // A change of level may have made another one the first.
        raw.admit(state);
        drop(before);
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
            Some(wish) if wish.side == Side::Write => {
                state.writer = None;
                name = wish.name;
            }
            Some(_) => state.readers -= 1,
            None => state.lend_again(),
        }
        self.raw.admit(state);
        give_name_back(name);
        drop(released.waker);
    }
}
