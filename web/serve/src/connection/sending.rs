//! Whose turn it is to send on a connection of HTTP/2 (RFC 9218, section 10).
//!
//! The HTTP library sends what its streams have given it in turn, and each may give it 64 KiB. So
//! the order is made before: bodies hand out [`AHEAD`] bytes in all, then wait until the connection has sent
//! what it may; the first of those that wait goes on. That is the most urgent one; of equals the one that
//! asked first, or, if they may be shown in part, each in turn. It also bounds what a connection holds of
//! responses that its client does not read.
//!
//! A stream that its client gives no window asks for nothing, and what is stuck in the library counts
//! no longer once the connection has sent all it may: such a stream holds up no other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use upshift::Level;

use crate::request::in_flight::Entry;

/// What may be handed out before the connection has sent it.
const AHEAD: usize = 64 * 1024;

/// The order of one connection.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Handed out, and perhaps not sent.
    ahead: usize,
    next: u64,
    waiting: Vec<Waiting>,
    /// Has been woken to go on, and has not asked yet.
    called: Option<(Arc<Entry>, u64)>,
}

#[derive(Debug)]
struct Waiting {
    entry: Arc<Entry>,
    place: u64,
    waker: Waker,
}

impl Waiting {
    fn order(&self) -> (Level, u64) {
        (self.entry.level(), self.place)
    }
}

impl State {
    fn first(&self) -> Option<usize> {
        (0..self.waiting.len()).min_by_key(|at| self.waiting[*at].order())
    }

    /// Which stream goes on now.
    fn call(&mut self) -> Option<Waker> {
        if self.ahead >= AHEAD || self.called.is_some() {
            return None;
        }
        let first = self.first()?;
        let first = self.waiting.swap_remove(first);
        self.called = Some((first.entry, first.place));
        Some(first.waker)
    }

    /// It is here, or gone.
    fn forget(&mut self, entry: &Arc<Entry>) {
        if self
            .called
            .as_ref()
            .is_some_and(|(called, _)| Arc::ptr_eq(called, entry))
        {
            self.called = None;
        }
    }

    /// Does no other stream go before?
    fn is_first(&self, mine: (Level, u64)) -> bool {
        let called = self.called.as_ref();
        let called = called.map(|(entry, place)| (entry.level(), *place));
        let waiting = self.first().map(|first| self.waiting[first].order());
        [called, waiting]
            .into_iter()
            .flatten()
            .all(|other| mine <= other)
    }
}

impl Sending {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the order of requests.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    /// May this request hand out a piece? `place` is its own.
    pub(crate) fn poll_turn(
        &self,
        cx: &mut Context<'_>,
        entry: &Arc<Entry>,
        place: &mut u64,
    ) -> Poll<()> {
        let mut state = self.state();
        state.forget(entry);
        if state.ahead < AHEAD && state.is_first((entry.level(), *place)) {
            state.waiting.retain(|one| !Arc::ptr_eq(&one.entry, entry));
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let listed = state.waiting.iter_mut();
        match listed
            .into_iter()
            .find(|one| Arc::ptr_eq(&one.entry, entry))
        {
            Some(one) => one.waker.clone_from(waker),
            None => {
                if entry.is_incremental() {
                    // Behind the others.
                    state.next += 1;
                    *place = state.next;
                }
                state.waiting.push(Waiting {
                    entry: entry.clone(),
                    place: *place,
                    waker: waker.clone(),
                });
            }
        }
        // A stream that has not been polled yet goes before.
        call(state);
        Poll::Pending
    }

    /// The turn has come to a request that hands nothing out yet, and has been woken to go on: none behind it goes before.
    pub(crate) fn keep_turn(&self, cx: &Context<'_>, entry: &Arc<Entry>, place: u64) {
        let mut state = self.state();
        if state.called.is_none() {
            state.called = Some((entry.clone(), place));
        } else {
            let (entry, waker) = (entry.clone(), cx.waker().clone());
            state.waiting.push(Waiting {
                entry,
                place,
                waker,
            });
        }
    }

    /// A piece has been handed out. True: others wait until the connection has been polled.
    pub(crate) fn handed(&self, bytes: usize) -> bool {
        let mut state = self.state();
        state.ahead += bytes;
        let wait = state.ahead >= AHEAD && !state.waiting.is_empty();
        call(state);
        wait
    }

    /// The connection has written so many bytes.
    pub(crate) fn wrote(&self, bytes: usize) {
        let mut state = self.state();
        state.ahead = state.ahead.saturating_sub(bytes);
    }

    /// The connection has been polled; `all`: what it may send, it has sent.
    pub(crate) fn polled(&self, all: bool) {
        let mut state = self.state();
        if all {
            state.ahead = 0;
        }
        call(state);
    }

    /// A response is over, perhaps in the middle: what it handed out may be gone, and its turn is another's.
    pub(crate) fn leave(&self, entry: &Arc<Entry>) {
        let mut state = self.state();
        state.forget(entry);
        state.waiting.retain(|one| !Arc::ptr_eq(&one.entry, entry));
        if state.waiting.is_empty() {
            return;
        }
        state.ahead = 0;
        call(state);
    }
}

/// Wakes the stream that goes on now.
fn call(mut state: MutexGuard<'_, State>) {
    let called = state.call();
    drop(state);
    if let Some(called) = called {
        called.wake();
    }
}
