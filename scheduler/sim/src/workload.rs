//! The workload of a simulation: coroutines, and their steps.

/// Step of a coroutine. Indices of coroutines and channels are taken modulo their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Uses its vCPU for so many nanoseconds, without an end of its poll.
    Compute(u64),
    /// Starts a coroutine, unless it has been started already.
    Spawn(usize),
    /// Puts a token into a channel, which wakes the first coroutine that waits there.
    Signal(usize),
    /// Takes a token out of a channel.
    Wait(usize),
    /// Lets a thread of the process that serves no vCPU put a token into a channel, so many
    /// nanoseconds later.
    Later(usize, u64),
    /// Sleeps, by a timer of the vCPU that polls it.
    Sleep(u64),
    /// Receives data that arrives after so many nanoseconds on the ring of the vCPU that polls it.
    Receive(u64),
    /// Yields to all others.
    Yield,
    /// Yields only to more urgent work.
    GiveWay,
    /// Awaits a coroutine and lends it its level.
    Join(usize),
    /// Awaits likewise for at most so many nanoseconds; then it gives up, and the handle is kept.
    JoinFor(usize, u64),
    /// Changes the level of a coroutine.
    Reprio(usize, u8),
    /// Takes a mutex, unless it has it; its waiters lend their levels.
    Lock(usize),
    /// Releases a mutex, if it has it.
    Unlock(usize),
    /// Cancels a coroutine.
    Cancel(usize),
    /// Waits in the middle of its poll until a coroutine has exited: its vCPU does nothing else.
    Block(usize),
}

/// A coroutine of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Level, 0 to 63.
    pub level: u8,
    /// True if it never leaves the vCPU that spawned it. Only for coroutines spawned by others.
    pub pinned: bool,
    /// Time at which a thread that serves no vCPU spawns it; `None`: a coroutine does.
    pub start: Option<u64>,
    /// Its steps.
    pub ops: Vec<Op>,
}

impl Program {
    /// Creates a coroutine that is spawned from outside at a time.
    #[must_use]
    pub fn at(start: u64, level: u8, ops: impl Into<Vec<Op>>) -> Program {
        Program {
            level,
            pinned: false,
            start: Some(start),
            ops: ops.into(),
        }
    }

    /// Creates a coroutine that another one spawns.
    #[must_use]
    pub fn child(level: u8, ops: impl Into<Vec<Op>>) -> Program {
        Program {
            level,
            pinned: false,
            start: None,
            ops: ops.into(),
        }
    }

    /// Returns the longest computation between two points where a poll may end.
    fn longest_poll(&self) -> u64 {
        let (mut longest, mut current) = (0, 0);
        for op in &self.ops {
            match op {
                Op::Compute(time) => current += time,
                Op::Yield | Op::GiveWay | Op::Sleep(_) | Op::Receive(_) => current = 0,
                // These need not end the poll.
                _ => {}
            }
            longest = longest.max(current);
        }
        longest
    }
}

/// A program and the order of its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Its coroutines.
    pub programs: Vec<Program>,
    /// The interleaving: at the n-th point where another vCPU may come in between, the vCPU stands
    /// still for the n-th number of nanoseconds; after the last of them, for none.
    pub delays: Vec<u8>,
}

impl Workload {
    /// Creates a workload whose steps interleave only by their costs.
    #[must_use]
    pub fn of(programs: impl Into<Vec<Program>>) -> Workload {
        Workload {
            programs: programs.into(),
            delays: Vec::new(),
        }
    }

    /// Returns *P*: the longest possible poll.
    #[must_use]
    pub fn longest_poll(&self) -> u64 {
        self.programs
            .iter()
            .map(Program::longest_poll)
            .max()
            .unwrap_or(0)
    }

    /// Returns true if any of its polls waits for a coroutine: no time then bounds a poll.
    #[must_use]
    pub fn blocks(&self) -> bool {
        let mut ops = self.programs.iter().flat_map(|program| &program.ops);
        ops.any(|op| matches!(op, Op::Block(_)))
    }
}
