//! Counters behind [`Stats`](crate::Stats). Only the thread that owns the ring may use them.

use std::cell::Cell;

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) completed: Cell<u64>,
    pub(crate) stale: Cell<u64>,
    pub(crate) backlog_max: Cell<u64>,
    pub(crate) enobufs: Cell<u64>,
    pub(crate) unpooled: Cell<u64>,
    pub(crate) stalled: Cell<u64>,
    pub(crate) overflows: Cell<u64>,
    pub(crate) kicks: Cell<u64>,
    pub(crate) messages: Cell<u64>,
    pub(crate) refused: Cell<u64>,
}

#[inline]
pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
