//! Kinds, states and queue positions of coroutines, as hosts and programs see them.

/// Purpose of a coroutine. It decides whether the coroutine blocks when a poll has returned
/// `Pending`, and inspection shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Kind {
    /// Ordinary work, which is blocked until it is woken.
    #[default]
    Task = 0,
    /// The completion side of an I/O operation or a system call, which is scheduled like a task and
    /// accounted as I/O.
    Completion = 1,
    /// A coroutine that is never done and is ready again after every poll. In a kernel, each poll
    /// runs the most urgent user process until it traps ("switching coroutine" in the paper on
    /// SharedScheduler).
    Switching = 2,
}

/// The six states of a coroutine, for inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Created, and not started.
    Created = 0,
    /// Ready, and waiting for a vCPU.
    Ready = 1,
    /// Being polled.
    Running = 2,
    /// Blocked until a wake.
    Blocked = 3,
    /// Interrupted in the middle of a poll; keeps its stack.
    Suspended = 4,
    /// Done; its id is dead or about to be.
    Exited = 5,
}

impl State {
    /// Returns the state with this number, the reverse of `as u8`; [`State::Exited`] for any other
    /// number.
    #[must_use]
    pub fn from_number(n: u8) -> State {
        match n {
            0 => State::Created,
            1 => State::Ready,
            2 => State::Running,
            3 => State::Blocked,
            4 => State::Suspended,
            _ => State::Exited,
        }
    }
}

/// The end of its level's queue at which a suspended coroutine is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEnd {
    /// Before all others of the level, because the coroutine has made room for a more urgent one
    /// and has not used its quantum yet.
    Head,
    /// Behind the coroutines that become ready within
    /// [`Config::suspended_delay`](crate::Config::suspended_delay), because the coroutine has used
    /// its quantum.
    Tail,
}
