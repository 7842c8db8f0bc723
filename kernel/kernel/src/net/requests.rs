//! Requests of calls to the coroutine of the network: sockets with work, and its levels.
//!
//! ```text
//!  call ── bytes ─► endpoint
//!   └───── kick ──► Requests: queue of sockets, levels ── next ─► the coroutine, before each frame
//! ```
//!
//! A call that moves bytes does not take the lock of the stack: it leaves a word here, under a lock
//! that is held for some dozens of instructions. O(1), and nothing is allocated after boot, because
//! a socket is in the queue at most once.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use upshift_core::Level;

use super::SOCKETS;
use super::lists::Index;
use crate::arch::lock::{IrqGuard, IrqLock, Once};
use crate::levels::{Follower, Levels};

static REQUESTS: Once<IrqLock<Requests>> = Once::new();

/// Requests of all calls to a socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Request {
    /// The levels of the calls.
    pub(super) levels: u64,
    /// Set if there is something to do; else a call only waits.
    pub(super) has_work: bool,
    is_queued: bool,
}

/// See the module.
pub(super) struct Requests {
    queue: VecDeque<Index>,
    of_socket: Vec<Request>,
    /// Levels of the requests since the coroutine last called [`Requests::knows`].
    new: u64,
    /// Levels of the work that the stack knows of.
    known: u64,
    /// The calls that wait for the network.
    waiting: Levels,
    /// Frames may come in whose level is not known.
    has_card: bool,
    coroutine: Follower,
}

/// Sets it up, while booting.
pub(super) fn init(coroutine: Follower, has_card: bool) {
    REQUESTS.set(IrqLock::new(Requests {
        queue: VecDeque::with_capacity(SOCKETS),
        of_socket: vec![Request::default(); SOCKETS],
        new: 0,
        known: 0,
        waiting: Levels::new(),
        has_card,
        coroutine,
    }));
}

/// Locks them.
pub(super) fn requests() -> IrqGuard<'static, Requests> {
    REQUESTS.get().lock()
}

impl Requests {
    /// Notes work for a socket, by a call of this level.
    pub(super) fn kick(&mut self, index: Index, level: Level) {
        self.add(index, level).has_work = true;
        self.new |= level.bit();
        self.settle();
        self.coroutine.wake();
    }

    /// Notes that a call of this level waits for a socket, so the socket's frames are as urgent.
    pub(super) fn concerns(&mut self, index: Index, level: Level) {
        self.add(index, level);
    }

    fn add(&mut self, index: Index, level: Level) -> &mut Request {
        let request = &mut self.of_socket[usize::from(index)];
        request.levels |= level.bit();
        if !core::mem::replace(&mut request.is_queued, true) {
            self.queue.push_back(index);
        }
        request
    }

    /// Moves a waiting call from a level to another.
    pub(super) fn waits(&mut self, before: Option<Level>, now: Option<Level>) {
        self.waiting.change(before, now);
        self.settle();
    }

    /// Returns the next socket with a request of a call.
    pub(super) fn next(&mut self) -> Option<(Index, Request)> {
        let index = self.queue.pop_front()?;
        Some((
            index,
            core::mem::take(&mut self.of_socket[usize::from(index)]),
        ))
    }

    /// Drops the requests to a socket that is gone: the next one of its number has none.
    pub(super) fn forget(&mut self, index: Index) {
        let request = &mut self.of_socket[usize::from(index)];
        (request.levels, request.has_work) = (0, false);
    }

    /// Notes the levels at which the stack has work; other levels come only from later calls.
    pub(super) fn knows(&mut self, levels: u64) {
        self.known = levels;
        if self.queue.is_empty() {
            self.new = 0;
        }
        self.settle();
    }

    /// Returns the levels of the calls that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.bits()
    }

    /// Wakes the coroutine.
    pub(super) fn wake(&self) {
        self.coroutine.wake();
    }

    /// Makes the coroutine as urgent as its work. The level of a frame of the card is not known
    /// before the frame is parsed, nor that of a deadline: each may be for any call that waits.
    fn settle(&mut self) {
        let mut levels = self.new | self.known;
        if levels == 0 || self.has_card {
            levels |= self.waiting.bits();
        }
        self.coroutine.follow(levels);
    }
}
