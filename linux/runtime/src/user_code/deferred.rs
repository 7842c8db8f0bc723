//! Runs user code that has to be called because an operation has completed or a timer is due:
//! wakers of other executors, and destructors of values that operations own.
//!
//! The loop of a vCPU does not run this code itself, because all coroutines would wait for it,
//! regardless of its level, and nothing could interrupt it there. Instead the code is deferred to
//! coroutines at the level of the operation, or of the coroutine that armed the timer, and runs in
//! polls like any other. Only the wakers of Upshift's own coroutines are called by the loop.

use upshift_core::{Domain, JoinHandle, Level, Priority};
use upshift_ring::DeferredCall;

use crate::coroutine::coop;
use crate::host::Linux;

/// Calls the wakers of Upshift's coroutines, and defers the other calls to one coroutine for each
/// level. Keeps the order of the calls within a level.
pub(crate) fn run(domain: &Domain<Linux>, all: Vec<DeferredCall>) {
    let mut foreign_calls = Vec::new();
    for call in all {
        if call.is_waker_of(Domain::<Linux>::waker_table()) {
            call.run();
        } else {
            foreign_calls.push(call);
        }
    }
    while let Some(level) = foreign_calls.first().map(DeferredCall::level) {
        let (calls, other_calls) = foreign_calls
            .into_iter()
            .partition(|call| call.level() == level);
        foreign_calls = other_calls;
        start(domain, level, calls);
    }
}

/// Starts a coroutine at this level that makes the calls.
fn start(domain: &Domain<Linux>, level: u8, all: Vec<DeferredCall>) {
    let one_by_one = async move {
        for call in all {
            call.run();
            coop::yield_if_needed().await;
        }
    };
    let level = Level::new(level).unwrap_or_default();
    // If the spawn is refused (the runtime shuts down, or memory is short), the drop of the calls
    // runs them.
    domain
        .spawn(one_by_one, Priority::At(level))
        .map(JoinHandle::detach)
        .unwrap_or_default();
}
