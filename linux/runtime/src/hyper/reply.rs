//! Sends a reply at the level of its request. A coroutine that has answered a request returns, in
//! the same poll, to the level at which it receives. Its next send must still be submitted at the
//! level of the request.
//!
//! The level is stored in a thread-local, since a poll begins and ends on one thread. The next send
//! of any coroutine on this thread takes the value, and uses it only if the same coroutine sends.

use std::cell::Cell;

use upshift_core::{CoroutineId, Level};
use upshift_ring::{Operation, Submission};

use crate::worker::Worker;

thread_local! {
    /// Coroutine that has last answered a request, and the level of the request.
    static LAST_ANSWERED: Cell<Option<(CoroutineId, Level)>> = const { Cell::new(None) };
}

/// Records that the coroutine `id`, which this thread polls, has answered a request of `level`.
pub(super) fn set_answered(id: CoroutineId, level: Level) {
    LAST_ANSWERED.set(Some((id, level)));
}

/// Starts a send, at the level of the request that the calling coroutine has just answered, if any.
pub(super) fn start<T: Operation>(worker: &Worker, operation: T) -> Submission<T> {
    let last_answer = LAST_ANSWERED.take();
    match last_answer.filter(|(id, _)| worker.executor().current_id() == Some(*id)) {
        Some((_, level)) => worker.start_at(operation, level),
        None => worker.start(operation),
    }
}
