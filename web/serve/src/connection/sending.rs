//! The order in which streams of an HTTP/2 connection send (RFC 9218, section 10).
//!
//! The HTTP library sends the data of its streams in turn, and each stream may give it 64 KiB. So
//! the order is established before: bodies hand out [`AHEAD`] bytes in all, then wait until the
//! connection has sent them as far as it may, and the first waiting stream resumes. That is the
//! most urgent stream; among equals the one that asked first, or each in turn if they are
//! incremental. The bound also limits the memory of responses that a client does not read.
//!
//! A stream without a flow-control window does not ask for a turn. Bytes that are stuck in the
//! library no longer count once the connection has sent all it may, so such a stream blocks no
//! other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use upshift::Level;

use crate::request::in_flight::Entry;

/// Bytes that may be handed out before the connection has sent them.
const AHEAD: usize = 64 * 1024;

/// The order of sending of one connection.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes handed out and perhaps not sent.
    ahead: usize,
    next: u64,
    waiting: Vec<Waiting>,
    /// Stream that was woken to resume and has not asked yet.
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

    /// Selects the stream that resumes now and returns its waker.
    fn call(&mut self) -> Option<Waker> {
        if self.ahead >= AHEAD || self.called.is_some() {
            return None;
        }
        let first = self.first()?;
        let first = self.waiting.swap_remove(first);
        self.called = Some((first.entry, first.place));
        Some(first.waker)
    }

    /// Forgets a woken stream, which has asked or has ended.
    fn forget(&mut self, entry: &Arc<Entry>) {
        if self
            .called
            .as_ref()
            .is_some_and(|(called, _)| Arc::ptr_eq(called, entry))
        {
            self.called = None;
        }
    }

    /// Tells whether no other stream precedes this one.
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

    /// Returns the next place in the order of requests.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    /// Waits until a request may hand out a piece. `place` is the place of the request.
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
                    // Incremental streams go behind the others.
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
        // A woken stream that has not been polled yet goes first.
        call(state);
        Poll::Pending
    }

    /// Keeps the turn for a request that was woken and hands out nothing yet: no later request
    /// overtakes it.
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

    /// Notes that a piece was handed out. Returns true if others wait until the connection has been
    /// polled.
    pub(crate) fn handed(&self, bytes: usize) -> bool {
        let mut state = self.state();
        state.ahead += bytes;
        let wait = state.ahead >= AHEAD && !state.waiting.is_empty();
        call(state);
        wait
    }

    /// Notes that the connection has written `bytes`.
    pub(crate) fn wrote(&self, bytes: usize) {
        let mut state = self.state();
        state.ahead = state.ahead.saturating_sub(bytes);
    }

    /// Notes that the connection was polled. `all` is set if it has sent all it may.
    pub(crate) fn polled(&self, all: bool) {
        let mut state = self.state();
        if all {
            state.ahead = 0;
        }
        call(state);
    }

    /// Removes a response that is over, perhaps in the middle: its bytes may be lost, and its turn
    /// passes to another.
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

/// Wakes the stream that resumes now.
fn call(mut state: MutexGuard<'_, State>) {
    let called = state.call();
    drop(state);
    if let Some(called) = called {
        called.wake();
    }
}
