//! Defines the data of a simulated mutex, that is, its holder and its queue. The module `locks` has
//! the operations.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use upshift_core::CoroutineId;

/// Number of mutexes. Indices of mutexes are taken modulo this.
pub(crate) const LOCKS: usize = 3;

pub(crate) struct LockWaiter {
    /// Number of the coroutine in the workload.
    pub(crate) k: usize,
    pub(crate) id: CoroutineId,
    pub(crate) level: u8,
    /// Set when the mutex has been handed over to the waiter.
    pub(crate) granted: Rc<Cell<bool>>,
    pub(crate) waker: Waker,
}

#[derive(Default)]
pub(crate) struct Lock {
    pub(crate) holder: Option<(usize, CoroutineId)>,
    pub(crate) waiting: VecDeque<LockWaiter>,
    /// Set while the lock of the queue is held.
    pub(crate) busy: bool,
}
