//! [`Supervisor`]: what a sentinel does when it has looked at its vCPU. Pure: times come in, a [`Decision`] goes out.
//!
//! The rules, for a poll of level *L*:
//! 1. Something more urgent than *L* waits: suspend at once. If it has arrived, but it is not known yet whether it is more
//!    urgent: when the poll has run for as long as finding out costs, so that ordinary polls come to their end, and as far
//!    as rule 2 can afford it. A guess that was right costs nothing.
//! 2. Something of level *L* waits: suspend when the poll has used its quantum. A poll that was resumed has used it, and is
//!    suspended again at once, but not before it has run for the *grace*, so that it gets on; unless it was *entitled* to a
//!    quantum (it had let others go first for long enough). Suspensions for equals may take a sixteenth of the time: beyond that
//!    polls run for four quanta at a time, for interrupting would cost more than it gives. So they do while most
//!    of those that were suspended turn out to end soon after their quantum: equals would have come sooner had they waited.
//! 3. Nothing of the kind waits: rest until the next bell.
//! 4. The runtime is in the middle of something: ask to be told when it is not. A guard of the user's is respected for a
//!    bounded time.
//! 5. What looks cost that end in no suspension is drawn from an allowance; see the module above.
//!
//! All times are ns of one monotonic clock.

/// The times that the rules are about, ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a poll may run while something of its level waits.
    pub quantum: u64,
    /// How long a poll that has used its quantum runs at least when it is resumed.
    pub grace: u64,
    /// How long a poll may run before what has arrived, and may be more urgent, is looked at.
    pub hidden: u64,
    /// How long a user's guard is respected.
    pub guard_grace: u64,
    /// The sentinel looks at least so often while somebody waits, whatever the allowance says.
    pub backstop: u64,
    /// What a look costs the vCPU, all in all: the interrupt and two switches.
    pub look_cost: u64,
    /// Looks that bring nothing may take one part in so many of the time.
    pub share: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            quantum: 100_000,
            grace: 20_000,
            hidden: 40_000,
            guard_grace: 1_000_000,
            backstop: 4_000_000,
            look_cost: 20_000,
            share: 30,
        }
    }
}

/// Why the sentinel woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something may have become ready.
    Bell,
    /// The time it had set has come.
    Timer,
}

/// What keeps a poll from being suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing.
    None,
    /// The runtime's own bookkeeping, which takes nanoseconds.
    Runtime,
    /// A guard of the user's, taken at this time.
    User(u64),
}

/// The poll that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// When it began.
    pub started: u64,
    /// When it went on after a suspension.
    pub resumed: Option<u64>,
    /// It was resumed with the right to a quantum.
    pub entitled: bool,
    /// Its level, 0 to 63.
    pub level: u8,
    /// What keeps it from being suspended.
    pub guard: Guard,
}

/// What the sentinel sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The time.
    pub now: u64,
    /// The poll that is under way, if any.
    pub poll: Option<Poll>,
    /// Levels that have something ready.
    pub ready: u64,
    /// Levels that what has arrived but has not been looked at may have.
    pub hidden: u64,
    /// There is a thread to go on with.
    pub free_seat: bool,
    /// How many of the polls that were suspended have been worth it lately.
    pub worth: Worth,
    /// How often, in all, something more urgent was found where a poll had been suspended to find out.
    pub hits: u64,
}

impl Observation {
    /// Whether something may be more urgent than the poll, but is not known to be: a suspension finds out.
    #[must_use]
    pub fn is_guess(&self) -> bool {
        let more_urgent = self.poll.map_or(0, |poll| (1u64 << (poll.level & 63)) - 1);
        self.ready & more_urgent == 0 && self.hidden & more_urgent != 0
    }
}

/// How many of the polls that were suspended outlasted their quantum by so much that it was worth it: a share that forgets.
/// A number of polls, not a mean of times: one that stood still for other reasons counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// Of [`ALL`].
    share: u64,
}

const ALL: u64 = 1 << 16;
/// One poll counts for one in so many.
const WEIGHT: u64 = 16;
/// At least one in so many has to be worth it.
const ENOUGH: u64 = 2;

impl Worth {
    /// All of them, until it is known better.
    pub const START: Worth = Worth { share: ALL };

    /// A poll that had been suspended has ended, after `ran` ns of its own.
    #[must_use]
    pub fn and(self, ran: u64, limits: &Limits) -> Worth {
        if ran < limits.quantum {
            // It was suspended for something more urgent, which is right whatever comes after.
            return self;
        }
        let cost = limits_burst(limits.look_cost, SUSPENSION) as u64;
        let new = if ran >= limits.quantum + PAYS * cost {
            ALL
        } else {
            0
        };
        Worth {
            share: (self.share * (WEIGHT - 1) + new) / WEIGHT,
        }
    }

    fn is_enough(self) -> bool {
        self.share >= ALL / ENOUGH
    }

    /// As a number, to be kept in an atomic.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.share
    }

    /// What [`Worth::to_bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> Worth {
        Worth {
            share: bits.min(ALL),
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody waits: sleep until a bell.
    Rest,
    /// Look again at this time (ns).
    Look(u64),
    /// Ask to be told when the guard is given up; look again at this time (ns) if it is not.
    Ask(u64),
    /// Suspend the poll.
    Suspend,
}

/// The state of one sentinel: its limits and its allowance.
#[derive(Clone, Debug)]
pub struct Supervisor {
    limits: Limits,
    /// ns that looks without a result may still cost; negative: overdrawn.
    allowance: i64,
    refilled: u64,
    looks: u64,
    useless: u64,
    /// The last look was drawn from the allowance on behalf of somebody who waits for this poll (its start).
    owed: Option<u64>,
    /// The same as `allowance`, for timers that are set when a poll begins, or makes others ready, while somebody waits.
    precautions: i64,
    /// The same for suspensions in favour of equals.
    suspensions: i64,
    /// Whether suspensions for equals have been worth it.
    pays: bool,
    /// As seen last.
    hits: u64,
}

/// Looks that may come without a pause before the share counts.
const BURST: i64 = 50;
/// The same for precautions, and how much smaller their share is.
const FEW: i64 = 3;
const PRECAUTIONS: u64 = 8;
/// Looks' worth of suspensions that may come without a pause; what one costs in looks, with the detours of the ring; and the
/// share of the time that they may take.
const SUSPENSIONS: i64 = 600;
const SUSPENSION: i64 = 3;
const SUSPENSIONS_SHARE: u64 = 16;
/// So many times what its suspension costs a poll has to outlast its quantum: it is interrupted, and those it stands before
/// wait for that as well.
const PAYS: u64 = 2;
/// Looks that a suspension pays for.
const FREE: i64 = 2;
/// Quanta that a poll gets instead of one when suspensions take more than that.
const STRETCH: u64 = 4;

fn limits_burst(look_cost: u64, looks: i64) -> i64 {
    look_cost as i64 * looks
}

impl Supervisor {
    /// With a full allowance.
    #[must_use]
    pub fn new(limits: Limits, now: u64) -> Supervisor {
        Supervisor {
            allowance: limits_burst(limits.look_cost, BURST),
            refilled: now,
            looks: 0,
            useless: 0,
            owed: None,
            precautions: limits_burst(limits.look_cost, FEW),
            suspensions: limits_burst(limits.look_cost, SUSPENSIONS),
            pays: true,
            hits: 0,
            limits,
        }
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How often it has looked, and how often for nothing.
    #[must_use]
    pub fn looks(&self) -> (u64, u64) {
        (self.looks, self.useless)
    }

    /// Until when (ns) the sentinel should be deaf to bells; in the past if it need not.
    #[must_use]
    pub fn deaf_until(&self) -> u64 {
        if self.allowance >= 0 {
            return 0;
        }
        let pause = self.allowance.unsigned_abs() * self.limits.share;
        self.refilled + pause.min(self.limits.backstop)
    }

    /// When (ns) a poll that somebody waits behind, as it begins, may be watched over by a timer of the quantum. Before that
    /// the backstop has to do, and the next arrival: most polls are short, and such timers for nothing. As long as they
    /// bring something this is in the past.
    #[must_use]
    pub fn precautions_from(&self) -> u64 {
        if self.precautions >= 0 {
            return 0;
        }
        self.refilled + self.precautions.unsigned_abs() * self.limits.share * PRECAUTIONS
    }

    /// How long a poll may run, ns, before it is suspended for an equal.
    #[must_use]
    pub fn slice(&self) -> u64 {
        if self.pays {
            self.limits.quantum
        } else {
            STRETCH * self.limits.quantum
        }
    }

    /// What to do about what is seen. O(1).
    pub fn decide(&mut self, wake: Wake, seen: &Observation) -> Decision {
        self.refill(seen.now);
        self.pays = seen.worth.is_enough();
        // What found something more urgent was no guess, and costs the others nothing.
        let hits = seen.hits.saturating_sub(self.hits).min(SUSPENSIONS as u64) as i64;
        self.hits = seen.hits;
        let whole = limits_burst(self.limits.look_cost, SUSPENSIONS);
        self.suspensions += hits * limits_burst(self.limits.look_cost, SUSPENSION);
        self.suspensions = self.suspensions.min(whole);
        self.looks += 1;
        let decision = self.judge(seen);
        let poll = seen.poll.map(|poll| poll.started);
        if decision == Decision::Suspend {
            // Paid by the one that overran, and a sign that looking is worth while: the next looks are free.
            if self.owed.take() == poll {
                self.allowance += self.limits.look_cost as i64;
                self.useless -= 1;
            }
            self.allowance += limits_burst(self.limits.look_cost, FREE);
            if !is_urgent(seen) {
                self.suspensions -= limits_burst(self.limits.look_cost, SUSPENSION);
            }
            if wake == Wake::Timer {
                self.precautions = limits_burst(self.limits.look_cost, FEW);
            }
        } else {
            self.useless += 1;
            // A look that answers a request of ours was paid for when it was made.
            let asked = matches!(seen.poll, Some(poll) if poll.guard == Guard::Runtime);
            if wake == Wake::Timer || !asked {
                self.allowance -= self.limits.look_cost as i64;
            }
            if wake == Wake::Timer && decision == Decision::Rest {
                self.precautions -= self.limits.look_cost as i64;
            }
            self.owed = poll.filter(|_| matches!(decision, Decision::Look(_)));
        }
        match decision {
            Decision::Look(at) => Decision::Look(self.not_too_soon(seen, at)),
            other => other,
        }
    }

    /// A look that is a mere precaution waits until the allowance has recovered.
    fn not_too_soon(&self, seen: &Observation, at: u64) -> u64 {
        at.max(self.deaf_until())
            .min(seen.now + self.limits.backstop)
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.refilled);
        self.refilled = self.refilled.max(now);
        let gained = i64::try_from(passed / self.limits.share).unwrap_or(i64::MAX);
        let most = |looks| limits_burst(self.limits.look_cost, looks);
        self.allowance = self.allowance.saturating_add(gained).min(most(BURST));
        let earned = i64::try_from(passed / SUSPENSIONS_SHARE).unwrap_or(i64::MAX);
        self.suspensions = self
            .suspensions
            .saturating_add(earned)
            .min(most(SUSPENSIONS));
        let gained = gained / PRECAUTIONS as i64;
        self.precautions = self.precautions.saturating_add(gained).min(most(FEW));
    }

    fn judge(&self, seen: &Observation) -> Decision {
        let Some(poll) = seen.poll else {
            return Decision::Rest;
        };
        let level = 1u64 << (poll.level & 63);
        let more_urgent = level - 1;
        let slice_end = self.slice_end(&poll);
        let due = if seen.ready & more_urgent != 0 {
            seen.now
        } else if seen.hidden & more_urgent != 0 {
            let begun = poll.resumed.unwrap_or(poll.started);
            slice_end.min(self.affordable(begun).max(begun + self.limits.hidden))
        } else if (seen.ready | seen.hidden) & level != 0 {
            slice_end
        } else {
            return Decision::Rest;
        };
        if seen.now < due {
            return Decision::Look(due);
        }
        if !seen.free_seat {
            return Decision::Look(seen.now + self.limits.backstop);
        }
        match poll.guard {
            Guard::None => Decision::Suspend,
            Guard::Runtime => Decision::Ask(seen.now + self.limits.guard_grace),
            Guard::User(since) => {
                let end = since + self.limits.guard_grace;
                if seen.now < end {
                    Decision::Ask(end)
                } else {
                    Decision::Suspend
                }
            }
        }
    }

    fn slice_end(&self, poll: &Poll) -> u64 {
        let first = poll.started + self.limits.quantum;
        let fair = match poll.resumed {
            None => first,
            Some(resumed) if poll.entitled => resumed + self.limits.quantum,
            Some(resumed) => first.max(resumed + self.limits.grace),
        };
        let begun = poll.resumed.unwrap_or(poll.started);
        if self.pays {
            fair.max(self.affordable(begun))
        } else {
            fair.max(begun + STRETCH * self.limits.quantum)
        }
    }

    /// From when on a poll that goes on since `begun` may be suspended for what is not known to be more urgent.
    fn affordable(&self, begun: u64) -> u64 {
        if self.suspensions >= 0 {
            return 0;
        }
        let affordable = self.refilled + self.suspensions.unsigned_abs() * SUSPENSIONS_SHARE;
        affordable.min(begun + STRETCH * self.limits.quantum)
    }
}

/// Is something more urgent than the poll known to be ready?
fn is_urgent(seen: &Observation) -> bool {
    seen.poll
        .is_some_and(|poll| seen.ready & ((1u64 << (poll.level & 63)) - 1) != 0)
}

#[cfg(all(test, not(loom)))]
mod tests;
