//! Decides the order in which the streams of an HTTP/2 connection send (RFC 9218, section 10).
//!
//! hyper sends the data of its streams round robin, and each stream may hand 64 KiB to hyper. So
//! the order is established above hyper. All bodies of a connection together hand out at most
//! [`MAX_UNSENT`] bytes. Then they wait until the connection has sent all of these bytes that flow
//! control allows. Then the first waiting stream resumes, which is the most urgent one. If several
//! streams are equally urgent, the earliest request comes first, unless the streams are
//! incremental, which take turns. The bound also limits the memory of responses that a client does
//! not read.
//!
//! A stream without a flow-control window blocks no other stream. It does not ask for a turn, and
//! its bytes that are stuck in hyper no longer count once the connection has sent all other bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use upshift::Level;

use crate::request::in_flight::Entry;

/// Number of bytes that may be handed out before the connection has sent them.
const MAX_UNSENT: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct SendOrder {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of bytes that were handed out and may not have been sent.
    unsent: usize,
    /// Position that was assigned last.
    last_position: u64,
    waiting: Vec<WaitingStream>,
    /// Stream that was woken to resume and has not asked for its turn yet.
    woken: Option<(Arc<Entry>, u64)>,
}

#[derive(Debug)]
struct WaitingStream {
    entry: Arc<Entry>,
    position: u64,
    waker: Waker,
}

impl WaitingStream {
    fn order(&self) -> (Level, u64) {
        (self.entry.level(), self.position)
    }
}

impl State {
    fn first(&self) -> Option<usize> {
        (0..self.waiting.len()).min_by_key(|index| self.waiting[*index].order())
    }

    fn select_next(&mut self) -> Option<Waker> {
        if self.unsent >= MAX_UNSENT || self.woken.is_some() {
            return None;
        }
        let first = self.first()?;
        let first = self.waiting.swap_remove(first);
        self.woken = Some((first.entry, first.position));
        Some(first.waker)
    }

    /// Clears `woken` if it is this stream, which has asked for its turn or has ended.
    fn clear_woken(&mut self, entry: &Arc<Entry>) {
        if self
            .woken
            .as_ref()
            .is_some_and(|(woken, _)| Arc::ptr_eq(woken, entry))
        {
            self.woken = None;
        }
    }

    fn is_first(&self, order: (Level, u64)) -> bool {
        let woken = self.woken.as_ref();
        let woken = woken.map(|(entry, position)| (entry.level(), *position));
        let waiting = self.first().map(|first| self.waiting[first].order());
        [woken, waiting]
            .into_iter()
            .flatten()
            .all(|other| order <= other)
    }
}

impl SendOrder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_position(&self) -> u64 {
        let mut state = self.state();
        state.last_position += 1;
        state.last_position
    }

    /// Waits until the request at `position` may hand out a piece.
    pub(crate) fn poll_turn(
        &self,
        cx: &mut Context<'_>,
        entry: &Arc<Entry>,
        position: &mut u64,
    ) -> Poll<()> {
        let mut state = self.state();
        state.clear_woken(entry);
        if state.unsent < MAX_UNSENT && state.is_first((entry.level(), *position)) {
            state
                .waiting
                .retain(|waiting| !Arc::ptr_eq(&waiting.entry, entry));
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let waiting = state.waiting.iter_mut();
        match waiting
            .into_iter()
            .find(|waiting| Arc::ptr_eq(&waiting.entry, entry))
        {
            Some(waiting) => waiting.waker.clone_from(waker),
            None => {
                if entry.is_incremental() {
                    // Incremental streams take turns.
                    state.last_position += 1;
                    *position = state.last_position;
                }
                state.waiting.push(WaitingStream {
                    entry: entry.clone(),
                    position: *position,
                    waker: waker.clone(),
                });
            }
        }
        // A stream that was woken and has not been polled yet goes first.
        wake_next(state);
        Poll::Pending
    }

    /// Keeps the turn for a request that was woken but hands out nothing yet, so that no later
    /// request overtakes it.
    pub(crate) fn keep_turn(&self, cx: &Context<'_>, entry: &Arc<Entry>, position: u64) {
        let mut state = self.state();
        if state.woken.is_none() {
            state.woken = Some((entry.clone(), position));
        } else {
            let (entry, waker) = (entry.clone(), cx.waker().clone());
            state.waiting.push(WaitingStream {
                entry,
                position,
                waker,
            });
        }
    }

    /// Notes that a piece was handed out. Returns true if other streams can resume only after a
    /// poll of the connection.
    pub(crate) fn note_handed_out(&self, bytes: usize) -> bool {
        let mut state = self.state();
        state.unsent += bytes;
        let must_wait = state.unsent >= MAX_UNSENT && !state.waiting.is_empty();
        wake_next(state);
        must_wait
    }

    pub(crate) fn note_write(&self, bytes: usize) {
        let mut state = self.state();
        state.unsent = state.unsent.saturating_sub(bytes);
    }

    /// Selects the next stream after a poll of the connection. `has_sent_all` is set if the
    /// connection has sent all bytes that flow control allows.
    pub(crate) fn after_poll(&self, has_sent_all: bool) {
        let mut state = self.state();
        if has_sent_all {
            state.unsent = 0;
        }
        wake_next(state);
    }

    /// Removes a response that has ended. If it has ended early, its bytes may be lost. Its turn
    /// passes to another response.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        let mut state = self.state();
        state.clear_woken(entry);
        state
            .waiting
            .retain(|waiting| !Arc::ptr_eq(&waiting.entry, entry));
        if state.waiting.is_empty() {
            return;
        }
        state.unsent = 0;
        wake_next(state);
    }
}

fn wake_next(mut state: MutexGuard<'_, State>) {
    let woken = state.select_next();
    drop(state);
    if let Some(woken) = woken {
        woken.wake();
    }
}
