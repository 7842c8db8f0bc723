//! The streams of a connection of HTTP/2 by their numbers, which `PRIORITY_UPDATE` frames refer to.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::request::priority::Urgency;

/// Updates kept of streams that are to come.
const EARLY: usize = 32;
/// Updates heeded beyond those that requests bring with them.
const SPARE: u32 = 256;
/// Updates that a request brings with it.
const EACH: u32 = 16;

/// The streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
    /// Reading has stopped behind the head of a request, for it to be handed out.
    stopped: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// The stream whose request is handed out next, if it is known.
    opened: Option<u32>,
    early: Vec<(u32, Urgency)>,
    /// So many more updates are heeded.
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

    /// Notes whether reading stops until a request has been handed out.
    pub(super) fn stops(&self, stops: bool) {
        self.stopped.store(stops, Relaxed);
    }

    /// Has reading stopped since the last call?
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.swap(false, Relaxed)
    }

    /// The next request is of this stream.
    pub(crate) fn opened(&self, number: u32) {
        let mut state = self.state();
        state.opened = Some(number);
        state.left = (state.left + EACH).min(SPARE);
    }

    /// A request has been handed out: its stream, and what an update has said of it.
    pub(crate) fn take(&self) -> (Option<u32>, Option<Urgency>) {
        let mut state = self.state();
        let Some(number) = state.opened.take() else {
            return (None, None);
        };
        let early = state.early.iter().position(|(of, _)| *of == number);
        let early = early.map(|at| state.early.swap_remove(at).1);
        // Streams below it that have not been opened never will be.
        state.early.retain(|(of, _)| *of > number);
        (Some(number), early)
    }

    /// The client says how urgent a stream is, in place of all that it has said before. False: it has said so too often.
    pub(crate) fn may_update(&self) -> bool {
        let mut state = self.state();
        let left = state.left.checked_sub(1);
        state.left = left.unwrap_or(0);
        left.is_some()
    }

    /// What it says is kept until the request of that stream comes.
    pub(crate) fn keep(&self, number: u32, urgency: Urgency) {
        let mut state = self.state();
        state.early.retain(|(of, _)| *of != number);
        if state.early.len() == EARLY {
            state.early.remove(0);
        }
        state.early.push((number, urgency));
    }
}
