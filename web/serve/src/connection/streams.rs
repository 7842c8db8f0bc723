//! The streams of an HTTP/2 connection by their numbers, to which `PRIORITY_UPDATE` frames refer.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::request::priority::Urgency;

/// Number of updates saved for streams that are not open yet.
const EARLY: usize = 32;
/// Number of updates accepted beyond those that requests earn.
const SPARE: u32 = 256;
/// Number of updates that each request earns.
const EACH: u32 = 16;

/// The streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
    /// Set while reading is stopped behind the head of a request that is to be handed out.
    stopped: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// Stream whose request is handed out next, if it is known.
    opened: Option<u32>,
    early: Vec<(u32, Urgency)>,
    /// Number of further updates that are accepted.
    left: u32,
}

impl Default for State {
    fn default() -> State {
        State {
            opened: None,
            early: Vec::new(),
            left: SPARE,
        }
    }
}

impl Streams {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether reading is stopped until a request has been handed out.
    pub(super) fn stops(&self, stops: bool) {
        self.stopped.store(stops, Relaxed);
    }

    /// Tells whether reading has stopped since the last call.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.swap(false, Relaxed)
    }

    /// Notes that the next request belongs to this stream.
    pub(crate) fn opened(&self, number: u32) {
        let mut state = self.state();
        state.opened = Some(number);
        state.left = (state.left + EACH).min(SPARE);
    }

    /// Takes the stream of a request that was handed out, and the urgency of an earlier update.
    pub(crate) fn take(&self) -> (Option<u32>, Option<Urgency>) {
        let mut state = self.state();
        let Some(number) = state.opened.take() else {
            return (None, None);
        };
        let early = state.early.iter().position(|(of, _)| *of == number);
        let early = early.map(|at| state.early.swap_remove(at).1);
        // Lower streams that were never opened never will be.
        state.early.retain(|(of, _)| *of > number);
        (Some(number), early)
    }

    /// Notes an update, which replaces all earlier ones of its stream. Returns false if the client
    /// has sent too many.
    pub(crate) fn may_update(&self) -> bool {
        let mut state = self.state();
        let left = state.left.checked_sub(1);
        state.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Saves an update until the request of its stream arrives.
    pub(crate) fn keep(&self, number: u32, urgency: Urgency) {
        let mut state = self.state();
        state.early.retain(|(of, _)| *of != number);
        if state.early.len() == EARLY {
            state.early.remove(0);
        }
        state.early.push((number, urgency));
    }
}
