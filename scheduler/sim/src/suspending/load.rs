//! The load of the model, and its outcome.

/// A poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it becomes ready, ns.
    pub at: u64,
    /// 0 to 63.
    pub level: u8,
    /// The CPU time that it needs, ns.
    pub service: u64,
    /// Length of its sleep in its middle, ns.
    pub sleeps: Option<u64>,
}

/// Polls, and the machine that runs them.
#[derive(Clone, Debug)]
pub struct Load {
    /// *C*, ns.
    pub cost: u64,
    /// Quantum that is asked for, ns; the rule may raise it.
    pub quantum: u64,
    /// Longest delay of the watcher when it wakes, ns.
    pub late: u64,
    /// Price of a look by the clock, ns: it is charged, and takes no time. Twice that of a look
    /// because of an arrival.
    pub look: u64,
    /// Whether an operation is always in flight that is more urgent than each poll.
    pub hears_urgent: bool,
    /// Others have the CPU, so that polls take so many times as long. At least 1.
    pub slow: u64,
    /// Number of vCPUs, at least 1. Arrival n comes to vCPU n modulo this.
    pub vcpus: usize,
    /// In order of time.
    pub arrivals: Vec<Arrival>,
}

/// The state of the watcher when something arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The watcher listens.
    Listens,
    /// The watcher has heard an equal, or is not to hear: it looks by the clock.
    Deaf,
    /// The watcher rests after a look in vain.
    Rests,
}

/// A wait for the poll under way, of something more urgent than the poll or as urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// CPU time that the poll had used since it began.
    pub ran: u64,
    /// CPU time that the poll still needed.
    pub needed: u64,
    /// Time until the poll had ended or was suspended, ns.
    pub waited: u64,
    /// Whether the arrival was as urgent as the poll, and not more urgent.
    pub is_equal: bool,
    /// State of the watcher; that which hears least, if it changed meanwhile.
    pub watch: Watch,
    /// Set when the budget did not hold the price of the suspension.
    pub lacked: bool,
    /// Set when the poll had its turn, or made room for a turn.
    pub turned: bool,
    /// Set when something else arrived while an equal waited: the watcher may have heard it, and
    /// each look is charged.
    pub followed: bool,
}

/// Outcome of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Waits for polls under way.
    pub waits: Vec<Wait>,
    /// Number of the arrival of each poll that has ended, and the time from there to its end, ns.
    pub times: Vec<(usize, u64)>,
    /// Times of suspensions by the rule, for each vCPU.
    pub suspended: Vec<Vec<u64>>,
    /// Number of suspensions for nothing but polls that had used their quantum.
    pub for_lingering: u64,
    /// Number of suspensions for an equal of polls that had not used their quantum.
    pub before_quantum: u64,
    /// Number of looks in vain, each of which begins a rest, for each vCPU.
    pub in_vain: Vec<u64>,
    /// Number of looks because of an arrival that stopped nothing.
    pub heard: u64,
    /// Number of looks by the clock that stopped nothing.
    pub by_clock: u64,
    /// Number of polls that made room for a turn, for each vCPU.
    pub turns: Vec<u64>,
    /// Number of polls that slept and were set aside, for each vCPU.
    pub set_aside: Vec<u64>,
    /// Longest time for which a sleeping poll kept its vCPU while something waited there.
    pub slept_in_the_way: u64,
    /// Longest time for which a suspended poll was off the CPU, divided by the number of suspended
    /// polls.
    pub kept_off: u64,
    /// Time at which all was done.
    pub end: u64,
}
