//! The data of a mutex of the simulated host: its holder and its queue. `locks` has the operations.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use upshift_core::CoroutineId;

/// Number of mutexes. Indices of mutexes are taken modulo this.
pub(crate) const LOCKS: usize = 3;

/// A waiter for a mutex.
pub(crate) struct LockWaiter {
    pub(crate) k: usize,
    pub(crate) id: CoroutineId,
    pub(crate) level: u8,
    pub(crate) granted: Rc<Cell<bool>>,
    pub(crate) waker: Waker,
}

/// A mutex.
#[derive(Default)]
pub(crate) struct Lock {
    pub(crate) holder: Option<(usize, CoroutineId)>,
    pub(crate) waiting: VecDeque<LockWaiter>,
    /// Set while the lock of the queue is held.
    pub(crate) busy: bool,
}
