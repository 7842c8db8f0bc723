//! Passes work from system calls to the coroutine of the network: sockets with work, and the levels
//! of the calls.
//!
//! ```text
//!  call ── bytes ─► endpoint
//!   └── add_work ─► Requests: queue of sockets, levels ── next ─► the coroutine, before each frame
//! ```
//!
//! A call that transfers bytes does not take the lock of the stack. It leaves a request here, under
//! a lock that is held for a few dozen instructions. A request costs O(1), and allocates no memory,
//! because a socket is in the queue at most once.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use upshift_core::Level;

use super::SOCKETS;
use super::lists::Index;
use crate::arch::lock::{IrqGuard, IrqLock, Once};
use crate::levels::{LevelFollower, WaiterLevels};

static REQUESTS: Once<IrqLock<Requests>> = Once::new();

/// Pending requests of all calls to one socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Request {
    pub(super) levels: u64,
    /// Set if there is work; otherwise the calls only wait.
    pub(super) has_work: bool,
    is_queued: bool,
}

pub(super) struct Requests {
    queue: VecDeque<Index>,
    by_socket: Vec<Request>,
    /// Levels of the requests since the coroutine last called [`Requests::set_known_levels`].
    new_levels: u64,
    /// Levels of the work in the stack.
    known_levels: u64,
    /// Levels of the calls that wait for the network.
    waiting: WaiterLevels,
    /// True if frames of unknown level may arrive.
    has_card: bool,
    coroutine: LevelFollower,
}

pub(super) fn init(coroutine: LevelFollower, has_card: bool) {
    REQUESTS.set(IrqLock::new(Requests {
        queue: VecDeque::with_capacity(SOCKETS),
        by_socket: vec![Request::default(); SOCKETS],
        new_levels: 0,
        known_levels: 0,
        waiting: WaiterLevels::new(),
        has_card,
        coroutine,
    }));
}

pub(super) fn requests() -> IrqGuard<'static, Requests> {
    REQUESTS.get().lock()
}

impl Requests {
    /// Records that a call of level `level` has work for a socket.
    pub(super) fn add_work(&mut self, index: Index, level: Level) {
        self.add(index, level).has_work = true;
        self.new_levels |= level.bit();
        self.update_level();
        self.coroutine.wake();
    }

    /// Adds the level of a call that waits for a socket, so that frames of the socket get this
    /// level.
    pub(super) fn add_level(&mut self, index: Index, level: Level) {
        self.add(index, level);
    }

    fn add(&mut self, index: Index, level: Level) -> &mut Request {
        let request = &mut self.by_socket[usize::from(index)];
        request.levels |= level.bit();
        if !core::mem::replace(&mut request.is_queued, true) {
            self.queue.push_back(index);
        }
        request
    }

    /// Moves a waiting call from a level to another.
    pub(super) fn move_waiter(&mut self, before: Option<Level>, now: Option<Level>) {
        self.waiting.move_waiter(before, now);
        self.update_level();
    }

    /// Returns the next socket with a request of a call.
    pub(super) fn next(&mut self) -> Option<(Index, Request)> {
        let index = self.queue.pop_front()?;
        Some((
            index,
            core::mem::take(&mut self.by_socket[usize::from(index)]),
        ))
    }

    /// Drops the requests to a removed socket, so that the next socket of this index has none.
    pub(super) fn clear(&mut self, index: Index) {
        let request = &mut self.by_socket[usize::from(index)];
        (request.levels, request.has_work) = (0, false);
    }

    /// Sets the levels at which the stack has work; later calls add further levels.
    pub(super) fn set_known_levels(&mut self, levels: u64) {
        self.known_levels = levels;
        if self.queue.is_empty() {
            self.new_levels = 0;
        }
        self.update_level();
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiting.bits()
    }

    pub(super) fn wake(&self) {
        self.coroutine.wake();
    }

    /// Makes the coroutine as urgent as its work. The level of a frame of the card is unknown
    /// before the frame is parsed, and so is the level of a deadline, because each may concern any
    /// waiting call.
    fn update_level(&mut self) {
        let mut levels = self.new_levels | self.known_levels;
        if levels == 0 || self.has_card {
            levels |= self.waiting.bits();
        }
        self.coroutine.follow(levels);
    }
}
