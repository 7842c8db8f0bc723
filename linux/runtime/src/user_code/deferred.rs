//! User code that a ring or a timer comes upon: wakers of other executors, and destructors of
//! values that operations own.
//!
//! The loop of a vCPU does not run it: the permit is in use there, so that nothing could interrupt
//! the code, and everything would wait for it, regardless of its level. It is deferred to
//! coroutines at the level of the operation, or of the coroutine that had armed the timer; there it
//! is a poll like any other. Wakers of Upshift's own coroutines are called by the loop.

use upshift_core::{Domain, JoinHandle, Level, Priority};
use upshift_ring::Foreign;

use crate::coroutine::coop;
use crate::host::Linux;

/// Calls the wakers of coroutines, and defers the rest: a coroutine for each level, in order.
pub(crate) fn run(domain: &Domain<Linux>, all: Vec<Foreign>) {
    let mut rest = Vec::new();
    for foreign in all {
        if foreign.is_waker_of(Domain::<Linux>::waker_table()) {
            foreign.run();
        } else {
            rest.push(foreign);
        }
    }
    while let Some(level) = rest.first().map(Foreign::level) {
        let (these, others) = rest
            .into_iter()
            .partition(|foreign| foreign.level() == level);
        rest = others;
        start(domain, level, these);
    }
}

fn start(domain: &Domain<Linux>, level: u8, all: Vec<Foreign>) {
    let one_by_one = async move {
        for foreign in all {
            foreign.run();
            coop::yield_if_needed().await;
        }
    };
    let level = Level::new(level).unwrap_or_default();
    // If the spawn is refused (the runtime shuts down, or memory is short) dropping the code runs
    // it.
    domain
        .spawn(one_by_one, Priority::At(level))
        .map(JoinHandle::detach)
        .unwrap_or_default();
}
