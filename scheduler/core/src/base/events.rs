//! Events that a host is told: the steps of a coroutine ([`Change`]), a poll ([`Poll`]), and how
//! urgent the work is that waits for its end ([`Waits`]).
//!
//! ```text
//!  Spawned ─► Ready ─► Polled ─┬► Yielded (ready again) ─► Polled …
//!              ▲               ├► Blocked ─► Ready …
//!              │               ├► Suspended ─► Resumed …
//!              └─ Stolen       └► Exited
//! ```
//!
//! Each step is told once, by the thread that makes it, before another thread can act on it. A coroutine that is
//! cancelled before its first poll goes from `Spawned` or `Ready` to `Exited`.
//!
//! Cost: while the host does not trace, what [`Host::is_tracing`](crate::Host::is_tracing) costs, and a branch.

use core::panic::Location;

use super::id::CoroutineId;
use super::kind::State;
use super::level::Level;

/// What has become of a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was created.
    Spawned,
    /// It was started or woken: it waits for a vCPU.
    Ready,
    /// A poll begins.
    Polled,
    /// A suspended poll goes on.
    Resumed,
    /// Its poll is over, and it is ready again.
    Yielded,
    /// Its poll is over, and it waits for a wake.
    Blocked,
    /// It was interrupted in the middle of its poll, and waits for a vCPU.
    Suspended,
    /// It stays ready, on another vCPU.
    Stolen {
        /// The vCPU that it was on.
        from: usize,
    },
    /// It is done.
    Exited,
}

impl Step {
    /// The state that is entered by it; `None`: it stays in that in which it is.
    #[must_use]
    pub fn entered(self) -> Option<State> {
        Some(match self {
            Step::Spawned => State::Created,
            Step::Ready | Step::Yielded => State::Ready,
            Step::Polled | Step::Resumed => State::Running,
            Step::Blocked => State::Blocked,
            Step::Suspended => State::Suspended,
            Step::Exited => State::Exited,
            Step::Stolen { .. } => return None,
        })
    }
}

/// A step of a coroutine; see the module `trace` of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The coroutine.
    pub id: CoroutineId,
    /// Its effective level.
    pub level: Level,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
    /// What has become of it.
    pub step: Step,
    /// The vCPU that it is on.
    pub vcpu: usize,
    /// The vCPU of its domain that the calling thread serves.
    pub by: Option<usize>,
}

/// A poll that is under way, or has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Whose.
    pub id: CoroutineId,
    /// Its effective level.
    pub level: Level,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
    /// When the poll began, in the host's ticks; up to four short polls too early.
    pub began: u64,
}

/// The most urgent work that waits for the end of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waits {
    /// Nothing that may interrupt it.
    Nothing,
    /// Something of its level.
    Equal,
    /// Something more urgent.
    Urgent,
}

impl Waits {
    /// Returns the answer for a poll of `level` while the levels of this bitmap wait.
    #[must_use]
    pub fn of(level: u8, waiting: u64) -> Waits {
        let bit = 1u64 << (level & 63);
        if waiting & (bit - 1) != 0 {
            Waits::Urgent
        } else if waiting & bit != 0 {
            Waits::Equal
        } else {
            Waits::Nothing
        }
    }
}
