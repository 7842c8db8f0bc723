//! When a poll is suspended: the rule, without threads, clocks or system calls.
//!
//! Suspending a poll and going on with it later costs *C* of CPU time. What waits for a poll does not know how long the poll
//! will go on. That is the ski-rental problem: whoever rents (waits) until the rent has reached the price, and then buys (has
//! the poll suspended), pays at most twice what knowing the future would have cost.
//!
//! * For something **more urgent** a poll is suspended when it has run for *C* since it last began or went on.
//! * For an **equal** also not before it has run for its quantum in all, which is at least 2 *C*: its own *C* and that of the other's.
//! * Each suspension is paid from an [`Account`] into which a tenth of the time goes. So interrupting takes at most that share
//!   of the time, whatever is asked, and a burst; and who finds the account empty waits until it holds *C*, at most 10 *C*.
//!
//! `docs/preemption.md` states the bounds as theorems, and the tests below hold the rule against them.

/// What waits for a poll that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waits {
    /// Nothing that may interrupt it.
    Nothing,
    /// Something of its level.
    Equal,
    /// Something more urgent.
    Urgent,
}

impl Waits {
    /// For a poll of `level`, with these levels waiting.
    pub(crate) fn of(level: u8, waiting: u64) -> Waits {
        let bit = 1u64 << level;
        if waiting & (bit - 1) != 0 {
            Waits::Urgent
        } else if waiting & bit != 0 {
            Waits::Equal
        } else {
            Waits::Nothing
        }
    }
}

/// A poll that is under way, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ran {
    /// Since it began, without the time in which it was suspended.
    pub(crate) in_all: u64,
    /// Since it began or last went on.
    pub(crate) stretch: u64,
}

/// What the rule rests on, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// What it costs to suspend a poll and to go on with it: *C*.
    pub(crate) cost: u64,
    /// How long a poll may keep an equal waiting.
    pub(crate) quantum: u64,
    /// Does a poll that runs make room at all? If not, only those that block are set aside.
    pub(crate) interrupts: bool,
}

impl Rule {
    /// The quantum is at least 2 *C*.
    pub(crate) fn new(cost: u64, quantum: u64) -> Rule {
        Rule {
            cost,
            quantum: quantum.max(2 * cost),
            interrupts: true,
        }
    }

    /// The same, with what a suspension costs now.
    pub(crate) fn at_cost(self, cost: u64) -> Rule {
        Rule {
            interrupts: self.interrupts,
            ..Rule::new(cost, self.quantum)
        }
    }

    /// How much longer the poll may run, the account aside. `None`: as long as it likes.
    pub(crate) fn left(&self, waits: Waits, ran: Ran) -> Option<u64> {
        let stretch = self.cost.saturating_sub(ran.stretch);
        match waits {
            _ if !self.interrupts => None,
            Waits::Nothing => None,
            Waits::Urgent => Some(stretch),
            Waits::Equal => Some(stretch.max(self.quantum.saturating_sub(ran.in_all))),
        }
    }
}

/// Time that may be spent: a share of all time, and so much in advance.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// The reciprocal of the share.
    share: u64,
    /// What it holds at most.
    most: u64,
    held: u64,
    at: u64,
}

impl Account {
    /// One that is full at time `now`, ns, and gets one part in `share` of the time, over windows of `window` ns.
    pub(crate) fn new(share: u64, window: u64, now: u64) -> Account {
        Account {
            share,
            most: window / share,
            held: window / share,
            at: now,
        }
    }

    fn refresh(&mut self, now: u64) {
        let income = now.saturating_sub(self.at) / self.share;
        self.held = self.held.saturating_add(income).min(self.most);
        // What is less than a unit of income is not lost.
        self.at += income * self.share;
        if self.held == self.most {
            self.at = self.at.max(now);
        }
    }

    /// How long from `now` until it holds `price`.
    pub(crate) fn wait(&mut self, price: u64, now: u64) -> u64 {
        self.refresh(now);
        let lacks = price.min(self.most).saturating_sub(self.held);
        (lacks * self.share).saturating_sub(now.saturating_sub(self.at))
    }

    /// Spends what it holds of this.
    pub(crate) fn spend(&mut self, price: u64, now: u64) {
        self.refresh(now);
        self.held = self.held.saturating_sub(price);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        cost: 20,
        quantum: 100,
        interrupts: true,
    };

    #[test]
    fn the_levels_that_wait_decide() {
        assert_eq!(Waits::of(5, 0), Waits::Nothing);
        assert_eq!(Waits::of(5, 1 << 6), Waits::Nothing);
        assert_eq!(Waits::of(5, 1 << 5 | 1 << 9), Waits::Equal);
        assert_eq!(Waits::of(5, 1 << 5 | 1 << 4), Waits::Urgent);
        assert_eq!(Waits::of(0, 1), Waits::Equal);
        assert_eq!(Waits::of(63, 1), Waits::Urgent);
    }

    #[test]
    fn a_quantum_is_worth_two_suspensions() {
        assert_eq!(Rule::new(20, 5).quantum, 40);
        assert_eq!(Rule::new(20, 50).quantum, 50);
    }

    #[test]
    fn a_poll_runs_for_what_suspending_it_costs() {
        let ran = |in_all, stretch| Ran { in_all, stretch };
        assert_eq!(RULE.left(Waits::Nothing, ran(1_000, 1_000)), None);
        assert_eq!(RULE.left(Waits::Urgent, ran(5, 5)), Some(15));
        assert_eq!(RULE.left(Waits::Urgent, ran(500, 5)), Some(15));
        assert_eq!(RULE.left(Waits::Equal, ran(5, 5)), Some(95));
        assert_eq!(RULE.left(Waits::Equal, ran(500, 5)), Some(15));
        assert_eq!(RULE.left(Waits::Equal, ran(500, 50)), Some(0));
    }

    #[test]
    fn where_only_what_blocks_is_set_aside_a_poll_runs_as_long_as_it_likes() {
        let tolerant = Rule {
            interrupts: false,
            ..RULE
        };
        let ran = Ran {
            in_all: 1_000,
            stretch: 1_000,
        };
        assert_eq!(tolerant.at_cost(30).left(Waits::Urgent, ran), None);
    }

    #[test]
    fn an_account_holds_a_share_of_the_time() {
        let mut account = Account::new(10, 1_000, 0);
        assert_eq!(account.wait(20, 0), 0);
        account.spend(100, 0);
        assert_eq!(account.wait(20, 0), 200);
        assert_eq!(account.wait(20, 199), 1);
        assert_eq!(account.wait(20, 200), 0);
        account.spend(20, 205);
        assert_eq!(account.wait(1, 209), 1);
        assert_eq!(account.wait(100, 1_000_000), 0, "no more than it can hold");
        account.spend(60, 1_000_000);
        assert_eq!(account.wait(50, 1_000_000), 100);
    }

    /// The bounds of `docs/preemption.md`, over random polls and arrivals: one poll at a time, each with something that comes
    /// at a random time in it; a poll that is suspended goes on when that has run.
    #[test]
    fn waiting_is_at_most_twice_the_least_and_suspending_a_tenth_of_the_time() {
        use proptest::prelude::*;
        use proptest::test_runner::TestRunner;
        let scenario = (
            5u64..50,
            proptest::collection::vec((1u64..2_000, 0u64..1_000, 1u64..50, any::<bool>()), 1..300),
        );
        let mut runner = TestRunner::deterministic();
        runner
            .run(&scenario, |(cost, polls)| {
                let rule = Rule::new(cost, 4 * cost);
                let window = 100 * cost;
                let mut account = Account::new(10, window, 0);
                let (mut now, mut spent) = (0, 0);
                for (length, after, service, urgent) in polls {
                    let waits = if urgent { Waits::Urgent } else { Waits::Equal };
                    let arrives = after % length;
                    // The watcher looks when it comes, and when the rule says.
                    let ran = Ran {
                        in_all: arrives,
                        stretch: arrives,
                    };
                    let left = rule.left(waits, ran).unwrap();
                    let due = arrives + left.max(account.wait(cost, now + arrives));
                    let waited = if due < length {
                        account.spend(cost, now + due);
                        spent += cost;
                        now += cost;
                        due - arrives
                    } else {
                        length - arrives
                    };
                    // With the account full, waiting is at most C (or the quantum) longer than the least of
                    // waiting it out and suspending it at once; in any case at most 10 C longer.
                    let price = if urgent { cost } else { rule.quantum };
                    let least = (length - arrives).min(price);
                    prop_assert!(waited <= least.max(price).max(10 * cost));
                    now += length + service;
                    prop_assert!(spent <= now / 10 + window / 10 + cost);
                }
                Ok(())
            })
            .unwrap();
    }
}
