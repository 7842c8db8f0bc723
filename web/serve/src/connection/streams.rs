//! Finds the streams of an HTTP/2 connection by their numbers, to which `PRIORITY_UPDATE` frames
//! refer.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::request::priority::Urgency;

/// Largest number of updates that are saved for streams that are not open yet.
const MAX_EARLY_UPDATES: usize = 32;
/// Largest number of updates that a client may send without new requests.
const UPDATE_BURST: u32 = 256;
/// Number of further updates that each request allows.
const UPDATES_PER_REQUEST: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
    /// Set while reading is stopped after the head of a request that hyper has to hand out.
    stopped: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// Stream whose request hyper hands out next, if it is known.
    opened: Option<u32>,
    early_updates: Vec<(u32, Urgency)>,
    updates_left: u32,
}

impl Default for State {
    fn default() -> State {
        State {
            opened: None,
            early_updates: Vec::new(),
            updates_left: UPDATE_BURST,
        }
    }
}

impl Streams {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Relaxed);
    }

    pub(super) fn take_stopped(&self) -> bool {
        self.stopped.swap(false, Relaxed)
    }

    pub(crate) fn note_opened(&self, number: u32) {
        let mut state = self.state();
        state.opened = Some(number);
        state.updates_left = (state.updates_left + UPDATES_PER_REQUEST).min(UPDATE_BURST);
    }

    /// Takes the stream of a request that was handed out, and the urgency of its early update.
    pub(crate) fn take_next(&self) -> (Option<u32>, Option<Urgency>) {
        let mut state = self.state();
        let Some(number) = state.opened.take() else {
            return (None, None);
        };
        let early_update = state
            .early_updates
            .iter()
            .position(|(stream, _)| *stream == number);
        let early_update = early_update.map(|index| state.early_updates.swap_remove(index).1);
        // Streams with lower numbers that were never opened can no longer be opened.
        state.early_updates.retain(|(stream, _)| *stream > number);
        (Some(number), early_update)
    }

    /// Returns `false` if the client has sent too many updates.
    pub(crate) fn count_update(&self) -> bool {
        let mut state = self.state();
        let updates_left = state.updates_left.checked_sub(1);
        state.updates_left = updates_left.unwrap_or(0);
        updates_left.is_some()
    }

    /// Saves an update until the request of its stream arrives; it replaces an earlier update.
    pub(crate) fn save_update(&self, number: u32, urgency: Urgency) {
        let mut state = self.state();
        state.early_updates.retain(|(stream, _)| *stream != number);
        if state.early_updates.len() == MAX_EARLY_UPDATES {
            state.early_updates.remove(0);
        }
        state.early_updates.push((number, urgency));
    }
}
