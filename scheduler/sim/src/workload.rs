//! Defines the workload of a simulation, that is, its coroutines and their steps.

/// A step of a coroutine. Indices of coroutines, channels and mutexes are taken modulo their
/// number. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Computes for this time, without ending the poll.
    Compute(u64),
    /// Spawns a coroutine, unless it has been spawned already.
    Spawn(usize),
    /// Puts a token into a channel, which wakes the first coroutine that waits there.
    Signal(usize),
    /// Takes a token out of a channel.
    Wait(usize),
    /// Makes a thread that serves no vCPU put a token into a channel, this time later.
    Later(usize, u64),
    /// Sleeps for this time, by a timer of the vCPU that polls the coroutine.
    Sleep(u64),
    /// Receives data that arrives after this time on the ring of the vCPU that polls the coroutine.
    Receive(u64),
    /// Yields to coroutines of the same level, and to more urgent work.
    Yield,
    /// Yields only to more urgent work.
    GiveWay,
    /// Awaits a coroutine and lends its own level.
    Join(usize),
    /// Like `Join`, for at most this time; then the coroutine gives up, and the handle is kept.
    JoinFor(usize, u64),
    /// Changes the level of a coroutine.
    Reprio(usize, u8),
    /// Takes a mutex, unless the coroutine holds it. Waiters for the mutex lend their levels.
    Lock(usize),
    /// Releases a mutex, if the coroutine holds it.
    Unlock(usize),
    /// Cancels a coroutine.
    Cancel(usize),
    /// Waits in the middle of the poll, which keeps its vCPU, until a coroutine has exited.
    Block(usize),
}

/// A coroutine of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Level, 0 to 63.
    pub level: u8,
    /// True if the coroutine is pinned to the vCPU that spawned it. Only for coroutines that
    /// another coroutine spawns.
    pub pinned: bool,
    /// Time at which a thread that serves no vCPU spawns the coroutine; `None` if another coroutine
    /// spawns it.
    pub start: Option<u64>,
    /// Steps of the coroutine.
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
                // These steps need not end the poll.
                _ => {}
            }
            longest = longest.max(current);
        }
        longest
    }
}

/// The coroutines of a simulation, and their interleaving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The coroutines.
    pub programs: Vec<Program>,
    /// The interleaving. At the *n*-th point where other strands (simulated threads) may run, the
    /// running strand stands still for the *n*-th number of nanoseconds. After the last number,
    /// strands do not stand still.
    pub delays: Vec<u8>,
}

impl Workload {
    /// Creates a workload whose steps interleave only by their costs.
    #[must_use]
    pub fn new(programs: impl Into<Vec<Program>>) -> Workload {
        Workload {
            programs: programs.into(),
            delays: Vec::new(),
        }
    }

    /// Returns *P*, the length of the longest possible poll.
    #[must_use]
    pub fn longest_poll(&self) -> u64 {
        self.programs
            .iter()
            .map(Program::longest_poll)
            .max()
            .unwrap_or(0)
    }

    /// Returns true if any poll waits for the exit of a coroutine, so that the length of polls is
    /// unbounded.
    #[must_use]
    pub fn may_block(&self) -> bool {
        let mut ops = self.programs.iter().flat_map(|program| &program.ops);
        ops.any(|op| matches!(op, Op::Block(_)))
    }
}
