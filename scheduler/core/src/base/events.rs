//! The events that are described to a host: a step of a coroutine ([`Change`]), a poll ([`Poll`]),
//! and the most urgent work that waits for the end of a poll ([`WaitingWork`]).
//!
//! ```text
//!  Spawned ─► Ready ─► Polled ─┬► Yielded (ready again) ─► Polled …
//!              ▲               ├► Blocked ─► Ready …
//!              │               ├► Suspended ─► Resumed …
//!              └─ Stolen       └► Exited
//! ```
//!
//! Each step is reported once, by the thread that makes the step, before another thread can act on
//! it. A coroutine that is cancelled before its first poll goes from `Spawned` or `Ready` to
//! `Exited`.
//!
//! While the host does not trace, a step costs a call of
//! [`Host::is_tracing`](crate::Host::is_tracing) and a branch.

use core::panic::Location;

use super::id::CoroutineId;
use super::kind::State;
use super::level::Level;

/// A step in the life of a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The coroutine was created.
    Spawned,
    /// The coroutine was started or woken, and waits for a vCPU.
    Ready,
    /// A poll begins.
    Polled,
    /// A suspended poll continues.
    Resumed,
    /// The poll is over, and the coroutine is ready again.
    Yielded,
    /// The poll is over, and the coroutine waits for a wake.
    Blocked,
    /// The coroutine was interrupted in the middle of a poll, and waits for a vCPU.
    Suspended,
    /// The coroutine stays ready, and moves to another vCPU.
    Stolen {
        /// Index of the vCPU that the coroutine was on.
        from: usize,
    },
    /// The coroutine is done.
    Exited,
}

impl Step {
    /// Returns the state that this step enters; `None` if the state stays the same.
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

/// A step of a coroutine, as reported to [`Host::on_step`](crate::Host::on_step).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The coroutine.
    pub id: CoroutineId,
    /// Effective level of the coroutine.
    pub level: Level,
    /// Source position of the spawn of the coroutine.
    pub location: &'static Location<'static>,
    /// The step.
    pub step: Step,
    /// Index of the vCPU that the coroutine is on.
    pub vcpu: usize,
    /// Index of the vCPU of the coroutine's domain that the calling thread serves, if any.
    pub by: Option<usize>,
}

/// A poll that is under way, or has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// The coroutine that is polled.
    pub id: CoroutineId,
    /// Effective level of the coroutine.
    pub level: Level,
    /// Source position of the spawn of the coroutine.
    pub location: &'static Location<'static>,
    /// Start of the poll, in the host's ticks. May be too early, by the length of up to four short
    /// polls, since the clock is not read at each poll
    /// ([`Config::coarse_below`](crate::Config::coarse_below)).
    pub began: u64,
}

/// The most urgent work that waits for the end of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitingWork {
    /// No waiting work may interrupt the poll.
    Nothing,
    /// Work of the poll's level.
    Equal,
    /// Work of a more urgent level.
    Urgent,
}

impl WaitingWork {
    /// Returns the most urgent kind of work in the bitmap `waiting`, as seen by a poll of `level`.
    #[must_use]
    pub fn most_urgent(level: u8, waiting: u64) -> WaitingWork {
        let bit = 1u64 << (level & 63);
        if waiting & (bit - 1) != 0 {
            WaitingWork::Urgent
        } else if waiting & bit != 0 {
            WaitingWork::Equal
        } else {
            WaitingWork::Nothing
        }
    }
}
