//! What is to be done, and what came of it.

/// One poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it becomes ready, ns.
    pub at: u64,
    /// 0 to 63.
    pub level: u8,
    /// The CPU time that it needs, ns.
    pub service: u64,
    /// It sleeps once in its middle, for so long, ns.
    pub sleeps: Option<u64>,
}

/// What is to be done, and by what.
#[derive(Clone, Debug)]
pub struct Load {
    /// *C*, ns.
    pub cost: u64,
    /// As asked for, ns.
    pub quantum: u64,
    /// How much too late the watcher wakes, at most, ns.
    pub late: u64,
    /// What a look costs that brings nothing, ns. It is paid, and takes no time.
    pub look: u64,
    /// Others have the CPU, so that polls take so many times as long. At least 1.
    pub slow: u64,
    /// At least 1. Arrival n comes to vCPU n modulo this.
    pub vcpus: usize,
    /// In order of time.
    pub arrivals: Vec<Arrival>,
}

/// What was more urgent than the poll under way when it became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// For how long the poll had run by then since it began.
    pub ran: u64,
    /// How much longer it needed.
    pub needed: u64,
    /// For how long it, or its suspension, was waited for.
    pub waited: u64,
    /// The account was empty, the poll had its turn, or it made room for another one's.
    pub excused: bool,
    /// The watcher did not listen, or could not look by the clock, for want of what looks cost.
    pub unheard: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of what was more urgent than a poll under way.
    pub waits: Vec<Wait>,
    /// Of each poll that has ended, the number of its arrival, and how long after that it was, ns.
    pub times: Vec<(usize, u64)>,
    /// When polls were suspended by the rule, per vCPU.
    pub suspended: Vec<Vec<u64>>,
    /// How many of them made room only for polls of their level that had had their quantum.
    pub for_lingering: u64,
    /// How many looks brought nothing, per vCPU.
    pub looked: Vec<u64>,
    /// How many polls made room for the turn of another one.
    pub turns: u64,
    /// How many polls that slept were set aside.
    pub set_aside: u64,
    /// For how long a sleeping poll kept its vCPU while something waited there, at most.
    pub slept_in_the_way: u64,
    /// For how long a suspended poll was off the CPU, at most, until it had a turn, divided by the number of suspended polls.
    pub kept_off: u64,
    /// When all was done.
    pub end: u64,
}
