//! Defines the input of the preemption model (a load of polls) and its outcome.

/// The arrival of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time at which the poll becomes ready, in nanoseconds.
    pub at: u64,
    /// Level, 0 to 63.
    pub level: u8,
    /// CPU time that the poll needs, in nanoseconds.
    pub service: u64,
    /// Length of the sleep in the middle of the poll, in nanoseconds; `None` if the poll does not
    /// sleep.
    pub sleeps: Option<u64>,
}

/// A sequence of polls, and the parameters of the machine that runs them.
#[derive(Clone, Debug)]
pub struct Load {
    /// Cost of a suspension, *C*, ns.
    pub cost: u64,
    /// Requested quantum, ns; the rule may raise it.
    pub quantum: u64,
    /// Longest delay of the watcher's wake-up, ns.
    pub max_wake_delay: u64,
    /// Price of a look by the clock, ns, which is charged to the budget but takes no time. A look
    /// because of an arrival costs half as much.
    pub look_cost: u64,
    /// True if an operation of a level more urgent than any poll is always in flight.
    pub expects_urgent: bool,
    /// Factor, at least 1, by which polls take longer because other programs also use the CPU.
    pub slowdown: u64,
    /// Number of vCPUs, at least 1. Arrival *n* comes to vCPU *n* modulo this.
    pub vcpus: usize,
    /// Polls in the order of time.
    pub arrivals: Vec<Arrival>,
}

/// State of the watcher (the thread that decides when a poll is suspended) when a poll arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatcherState {
    /// Arrivals wake the watcher.
    Listens,
    /// Arrivals do not wake the watcher, which looks by the clock.
    Ignores,
    /// The watcher rests after a stale look, which is a look whose timer was set for a poll that
    /// has ended since.
    Rests,
}

/// The wait of an arrival for the poll under way, whose level is the same or less urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// CPU time that the poll had used since it began.
    pub ran: u64,
    /// CPU time that the poll still needed.
    pub needed: u64,
    /// Time until the poll ended or was suspended, ns.
    pub waited: u64,
    /// True if the arrival was as urgent as the poll under way; false if it was more urgent.
    pub is_equal: bool,
    /// State of the watcher at the arrival, or [`WatcherState::Rests`] if the watcher rested later
    /// in the wait.
    pub watcher: WatcherState,
    /// Set if the budget for suspensions did not suffice for this suspension.
    pub lacked_budget: bool,
    /// Set if the poll under way had a turn (a short time in which a suspended poll runs on), or
    /// was stopped for a turn of another poll.
    pub had_turn: bool,
    /// Set if another poll arrived while a poll of the same level waited. The bound of the theorem
    /// then does not apply, since the arrival may have woken the watcher, and each look is charged
    /// to the budget.
    pub was_followed: bool,
}

/// Outcome of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Waits for polls under way.
    pub waits: Vec<Wait>,
    /// Index of the arrival of each poll, and the time from the arrival to the end of the poll, ns.
    pub times: Vec<(usize, u64)>,
    /// For each vCPU, the times of suspensions by the rule.
    pub suspension_times: Vec<Vec<u64>>,
    /// Number of suspensions at which only polls that had used their quantum waited.
    pub for_expired: u64,
    /// Number of suspensions of polls that had not used their quantum, for a poll of the same
    /// level.
    pub before_quantum: u64,
    /// For each vCPU, the number of stale looks, each of which begins a rest.
    pub stale_looks: Vec<u64>,
    /// Number of looks that were due to an arrival and did not suspend a poll.
    pub event_looks: u64,
    /// Number of looks by the clock that did not suspend a poll.
    pub clock_looks: u64,
    /// For each vCPU, the number of suspensions for a turn of another poll.
    pub turns: Vec<u64>,
    /// For each vCPU, the number of polls that were set aside because they slept.
    pub set_aside: Vec<u64>,
    /// Longest time for which a sleeping poll kept its vCPU while other polls waited there, ns.
    pub longest_blocking_sleep: u64,
    /// Longest time for which a suspended poll was off the CPU, ns. Each such time is divided by
    /// the number of suspended polls.
    pub longest_off_cpu: u64,
    /// End of the last poll.
    pub end: u64,
}
