//! The level of a reply: a connection's coroutine that has answered a request goes back to its own
//! level in the same poll, and its next send is submitted as urgently as the request was.
//!
//! The word is the polling thread's, as a poll begins and ends on one thread. A reply that is never
//! sent leaves its word behind: the next send of any coroutine on this thread takes the word, and
//! uses it only if the same coroutine sends.

use std::cell::Cell;

use upshift_core::{CoroutineId, Level};
use upshift_ring::{Operation, Submission};

use crate::worker::Worker;

thread_local! {
    /// The coroutine that has answered last, and the level of the request.
    static ANSWERED: Cell<Option<(CoroutineId, Level)>> = const { Cell::new(None) };
}

/// The coroutine `id`, which this thread polls, has answered a request of `level`.
pub(super) fn has_answered(id: CoroutineId, level: Level) {
    ANSWERED.set(Some((id, level)));
}

/// Starts to send a reply, at the level of the request if that has just been answered.
pub(super) fn start<T: Operation>(worker: &Worker, operation: T) -> Submission<T> {
    let answered = ANSWERED.take();
    match answered.filter(|(id, _)| worker.executor().current_id() == Some(*id)) {
        Some((_, level)) => worker.start_at(operation, level),
        None => worker.start(operation),
    }
}
