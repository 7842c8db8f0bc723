//! The decisions of a vCPU's watcher when it looks at the running poll.

use super::{BURST, MAX_SUSPENSION, RESERVE, REST_LENGTH, Rule, RunTime, SHARE, TURN_LENGTH};
use crate::base::events::WaitingWork;
use crate::base::kind::QueueEnd;
use crate::base::token_bucket::TokenBucket;

/// CPU time that looks of the watcher take from other work, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookCosts {
    /// Cost of a look because of an arrival: mainly two thread switches.
    pub event: u64,
    /// Cost of a look by the clock, including the setting of the timer and its interrupt.
    pub timer: u64,
}

/// The poll under way and the work that waits, at the time of a look.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// Number of the poll, different from that of any other poll of its vCPU.
    pub poll: u64,
    /// Level of the poll.
    pub level: u8,
    /// Time that the poll has used.
    pub ran: RunTime,
    /// True if the poll has been suspended before.
    pub was_suspended: bool,
    /// Guaranteed length of the current stretch if it is a turn, else 0.
    pub turn: u64,
    /// Bitmap of the levels of work that is ready on the vCPU, or has arrived there.
    pub waiting: u64,
    /// True if only polls that have used their quantum wait on the poll's own level.
    pub only_expired: bool,
    /// True if work of any level has arrived on the vCPU that an idle vCPU could run.
    pub idle_vcpu_could_run: bool,
    /// True while an operation of a level more urgent than the poll is in flight.
    pub expects_urgent: bool,
    /// True while a poll is suspended, which shows that polls are long here.
    pub any_suspended: bool,
}

impl Snapshot {
    /// Returns the most urgent kind of work that may interrupt the poll. Polls that have used their
    /// quantum may not, because they take turns with it ([`Policy::min_suspension_for_turn`]).
    #[must_use]
    pub fn waiting_work(&self) -> WaitingWork {
        match WaitingWork::most_urgent(self.level, self.waiting) {
            WaitingWork::Equal if self.only_expired => WaitingWork::Nothing,
            waits => waits,
        }
    }
}

/// The outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The watcher waits for arrivals, since no work waits. (It does not ignore them, as it does
    /// while it rests after a stale look.)
    Rest,
    /// The watcher looks again later.
    Later {
        /// Nanoseconds from now.
        wait: u64,
        /// True if arrivals wake the watcher meanwhile.
        listens: bool,
    },
    /// The poll is suspended, and queued at this end. The caller then calls
    /// [`Policy::record_suspension`].
    Suspend(QueueEnd),
    /// The thread of the poll sleeps while other work waits, and the poll is set aside.
    SetAside,
}

/// The state on which the decisions for one vCPU depend.
#[derive(Clone, Debug)]
pub struct Policy {
    looks: LookCosts,
    budget: TokenBucket,
    /// Time at which the last turn began.
    last_turn_at: u64,
    /// Number of the poll for which the timer of the next look is set, and the time of that look.
    awaited: Option<(u64, u64)>,
    /// End of the watcher's rest after a stale look; 0 if it does not rest.
    rests_until: u64,
}

impl Policy {
    /// Creates the state of a vCPU, with a full budget.
    #[must_use]
    pub fn new(looks: LookCosts, now: u64) -> Policy {
        Policy {
            looks,
            budget: TokenBucket::new(SHARE, BURST, now),
            last_turn_at: now,
            awaited: None,
            rests_until: 0,
        }
    }

    /// Decides whether the poll under way is suspended. `is_asleep` returns whether the poll's
    /// thread sleeps; it is called only if the decision depends on it. `by_timer` is true if the
    /// previous decision set the timer of this look, and no work has arrived meanwhile.
    pub fn decide(
        &mut self,
        rule: &Rule,
        snapshot: &Snapshot,
        by_timer: bool,
        is_asleep: impl FnOnce() -> bool,
        now: u64,
    ) -> Decision {
        let ran = snapshot.ran;
        if snapshot.waiting == 0 {
            self.awaited = None;
            return Decision::Rest;
        }
        let waiting_here = snapshot.waiting_work();
        let waits = match waiting_here {
            WaitingWork::Nothing if snapshot.idle_vcpu_could_run => WaitingWork::Equal,
            _ => waiting_here,
        };
        let price = match waits {
            WaitingWork::Urgent => rule.cost,
            WaitingWork::Equal | WaitingWork::Nothing => rule.cost.saturating_add(RESERVE),
        };
        let left = rule.time_left(waits, ran).map(|left| {
            let turn = snapshot.turn.saturating_sub(ran.stretch);
            left.max(turn).max(self.budget.wait(price, now))
        });
        if left == Some(0) {
            return Decision::Suspend(match waiting_here {
                // The poll makes room for an instant, in which an idle vCPU fetches the arrival.
                WaitingWork::Nothing => QueueEnd::Head,
                WaitingWork::Urgent => rule.queue_end(ran),
                WaitingWork::Equal => QueueEnd::Tail,
            });
        }
        // Most polls end before it matters whether they sleep.
        let may_sleep = ran.elapsed >= rule.cost;
        if may_sleep && is_asleep() {
            return Decision::SetAside;
        }
        // An earlier look would itself use the CPU time that the poll still needs. The more time
        // the poll has lost to other threads, the longer it needs until it has used the time that
        // is left to it.
        let lost = ran.elapsed.saturating_sub(ran.total);
        let min_wait = (lost / 4).min(TURN_LENGTH).max(self.looks.timer);
        // On a busy machine, the measured cost of a timer may exceed `MAX_SUSPENSION`.
        let left = left
            .unwrap_or(MAX_SUSPENSION)
            .max(min_wait)
            .min(MAX_SUSPENSION);
        let is_young = !snapshot.was_suspended && ran.total < rule.quantum;
        // The poll for which the timer is set has ended, and the timer has not expired yet.
        let is_over = self
            .awaited
            .is_some_and(|(poll, until)| poll != snapshot.poll && now < until);
        if is_young && is_over && self.rests_until == 0 && !snapshot.any_suspended {
            return self.begin_rest(now);
        }
        if waits == WaitingWork::Nothing {
            self.awaited = None;
            return Decision::Later {
                wait: left,
                listens: true,
            };
        }
        if is_young && now < self.rests_until {
            return Decision::Later {
                wait: 2 * MAX_SUSPENSION,
                listens: false,
            };
        }
        if by_timer && is_young && self.is_stale_look(snapshot.poll) {
            return self.begin_rest(now);
        }
        let wait = if may_sleep {
            left
        } else {
            left.min((rule.cost - ran.elapsed).max(self.looks.timer))
        };
        self.awaited = Some((snapshot.poll, now + wait));
        self.rests_until = 0;
        Decision::Later {
            wait,
            // If this look was caused by an arrival that was not more urgent, the timer of the next
            // look is early enough for further arrivals.
            listens: by_timer && waits == WaitingWork::Equal && snapshot.expects_urgent,
        }
    }

    /// Begins a rest, after a stale look by the clock.
    pub fn begin_rest(&mut self, now: u64) -> Decision {
        self.budget.spend(self.looks.timer, now);
        self.awaited = None;
        self.rests_until = now + REST_LENGTH;
        Decision::Later {
            wait: 2 * MAX_SUSPENSION,
            listens: false,
        }
    }

    /// Returns true if a look by the clock is stale. A stale look finds this poll (0 if there is
    /// none), but its timer was set for another poll, which has ended. A look at the end of a rest
    /// is not stale.
    #[must_use]
    pub fn is_stale_look(&self, poll: u64) -> bool {
        self.rests_until == 0 && self.awaited.is_none_or(|(awaited, _)| awaited != poll)
    }

    /// Returns the end of the watcher's rest.
    #[must_use]
    pub fn rest_end(&self) -> u64 {
        self.rests_until
    }

    /// Charges a look because of an arrival that has suspended no poll.
    pub fn charge_look(&mut self, now: u64) {
        self.budget.spend(self.looks.event, now);
    }

    /// Records a suspension, by a decision or for a turn of another poll, and charges its cost.
    /// Ends a rest.
    pub fn record_suspension(&mut self, rule: &Rule, now: u64) {
        self.budget.spend(rule.cost, now);
        self.awaited = None;
        self.rests_until = 0;
    }

    /// Returns true if other work on the vCPU may depend on a suspended poll, either because the
    /// thread of a poll that was set aside is asleep (`blocked`), or because the poll under way,
    /// whose times are `ran`, has run for [`MAX_SUSPENSION`] since it began or was resumed.
    #[must_use]
    pub fn may_block_others(blocked: bool, ran: RunTime) -> bool {
        blocked || ran.stretch >= MAX_SUSPENSION
    }

    /// Returns the minimum time for which a poll must have been suspended to get a turn now, or
    /// `None` if no turn is due.
    #[must_use]
    pub fn min_suspension_for_turn(&self, others_may_depend: bool, now: u64) -> Option<u64> {
        let interval = if others_may_depend {
            MAX_SUSPENSION
        } else {
            REST_LENGTH
        };
        (now.saturating_sub(self.last_turn_at) >= interval).then_some(interval / 2)
    }

    /// Returns the time until the next turn is due if other work depends on it. The watcher looks
    /// after that time at the latest while a poll is suspended.
    #[must_use]
    pub fn next_turn_in(&self, now: u64) -> u64 {
        let due = self
            .last_turn_at
            .saturating_add(MAX_SUSPENSION)
            .saturating_sub(now);
        if due == 0 { MAX_SUSPENSION } else { due }
    }

    /// Records that a suspended poll gets its turn.
    pub fn record_turn(&mut self, now: u64) {
        self.last_turn_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        cost: 20_000,
        quantum: 100_000,
        interrupts: true,
    };

    const LOOKS: LookCosts = LookCosts {
        event: 5_000,
        timer: 15_000,
    };

    fn snapshot(stretch: u64, waiting: u64) -> Snapshot {
        Snapshot {
            poll: 1,
            level: 20,
            ran: RunTime {
                total: stretch,
                stretch,
                elapsed: stretch,
            },
            was_suspended: false,
            turn: 0,
            waiting,
            only_expired: false,
            idle_vcpu_could_run: false,
            expects_urgent: true,
            any_suspended: false,
        }
    }

    fn decide(policy: &mut Policy, snapshot: &Snapshot, by_timer: bool) -> Decision {
        policy.decide(&RULE, snapshot, by_timer, || false, 0)
    }

    fn later(wait: u64, listens: bool) -> Decision {
        Decision::Later { wait, listens }
    }

    const URGENT: u64 = 1 << 10;
    const EQUAL: u64 = 1 << 20;
    const LESS_URGENT: u64 = 1 << 30;

    #[test]
    fn a_poll_is_suspended_for_urgent_work_and_resumes_first_until_it_has_used_its_quantum() {
        let mut policy = Policy::new(LOOKS, 0);
        let early = decide(&mut policy, &snapshot(5_000, URGENT), false);
        assert_eq!(early, later(15_000, false));
        let first = decide(&mut policy, &snapshot(20_000, URGENT), true);
        assert_eq!(first, Decision::Suspend(QueueEnd::Head));
        let last = decide(&mut policy, &snapshot(100_000, URGENT), true);
        assert_eq!(last, Decision::Suspend(QueueEnd::Tail));
    }

    #[test]
    fn a_high_measured_cost_of_timers_does_not_postpone_a_look_without_limit() {
        let looks = LookCosts {
            timer: 3 * MAX_SUSPENSION,
            ..LOOKS
        };
        let mut policy = Policy::new(looks, 0);
        let early = decide(&mut policy, &snapshot(5_000, URGENT), false);
        assert_eq!(early, later(MAX_SUSPENSION, false));
    }

    #[test]
    fn an_equal_waits_for_the_end_of_the_quantum_and_then_runs_first() {
        let mut policy = Policy::new(LOOKS, 0);
        // The first look sets a timer for the time from which the watcher tests whether the poll
        // sleeps.
        let begins = decide(&mut policy, &snapshot(5_000, EQUAL), false);
        assert_eq!(begins, later(15_000, false));
        let early = decide(&mut policy, &snapshot(20_000, EQUAL), true);
        assert_eq!(early, later(80_000, true));
        let then = decide(&mut policy, &snapshot(100_000, EQUAL), true);
        assert_eq!(then, Decision::Suspend(QueueEnd::Tail));
    }

    #[test]
    fn polls_that_have_used_their_quantum_do_not_interrupt_each_other() {
        let mut policy = Policy::new(LOOKS, 0);
        let mut long = snapshot(RULE.quantum, EQUAL);
        long.only_expired = true;
        assert_eq!(
            decide(&mut policy, &long, true),
            later(MAX_SUSPENSION, true)
        );
        // More urgent work interrupts such a poll.
        long.waiting |= URGENT;
        let urgent = decide(&mut policy, &long, true);
        assert_eq!(urgent, Decision::Suspend(QueueEnd::Tail));
    }

    #[test]
    fn a_poll_that_has_used_its_quantum_is_suspended_again_at_once() {
        let mut policy = Policy::new(LOOKS, 0);
        for waiting in [URGENT, EQUAL] {
            let mut resumed = snapshot(0, waiting);
            resumed.ran.total = RULE.quantum;
            let decision = decide(&mut policy, &resumed, false);
            assert_eq!(decision, Decision::Suspend(QueueEnd::Tail));
        }
    }

    #[test]
    fn less_urgent_work_interrupts_only_where_another_vcpu_idles() {
        let mut policy = Policy::new(LOOKS, 0);
        let mut less = snapshot(200_000, LESS_URGENT);
        assert_eq!(
            decide(&mut policy, &less, false),
            later(MAX_SUSPENSION, true)
        );
        less.idle_vcpu_could_run = true;
        let fetched = decide(&mut policy, &less, false);
        assert_eq!(fetched, Decision::Suspend(QueueEnd::Head));
        let rest = decide(&mut policy, &snapshot(200_000, 0), false);
        assert_eq!(rest, Decision::Rest);
    }

    #[test]
    fn a_poll_that_sleeps_is_set_aside_for_work_of_any_level() {
        let mut policy = Policy::new(LOOKS, 0);
        let mut asleep =
            |ran, waiting| policy.decide(&RULE, &snapshot(ran, waiting), true, || true, 0);
        assert_eq!(asleep(RULE.cost, LESS_URGENT), Decision::SetAside);
        assert_eq!(asleep(RULE.cost, EQUAL), Decision::SetAside);
        assert_eq!(asleep(RULE.cost, 0), Decision::Rest);
        // Whether the thread sleeps is tested only after the poll has lasted as long as a
        // suspension costs.
        assert!(matches!(asleep(1, EQUAL), Decision::Later { .. }));
    }

    #[test]
    fn a_turn_is_not_cut_short() {
        let mut policy = Policy::new(LOOKS, 0);
        let mut turn = snapshot(50_000, 1);
        turn.turn = TURN_LENGTH;
        turn.was_suspended = true;
        assert_eq!(decide(&mut policy, &turn, true), later(150_000, false));
    }

    #[test]
    fn turns_are_more_frequent_while_other_work_may_depend_on_them() {
        let mut policy = Policy::new(LOOKS, 0);
        assert_eq!(
            policy.min_suspension_for_turn(true, MAX_SUSPENSION - 1),
            None
        );
        assert_eq!(
            policy.min_suspension_for_turn(true, MAX_SUSPENSION),
            Some(MAX_SUSPENSION / 2)
        );
        assert_eq!(policy.min_suspension_for_turn(false, MAX_SUSPENSION), None);
        assert_eq!(
            policy.min_suspension_for_turn(false, REST_LENGTH),
            Some(REST_LENGTH / 2)
        );
        policy.record_turn(REST_LENGTH);
        assert_eq!(
            policy.min_suspension_for_turn(true, REST_LENGTH + MAX_SUSPENSION - 1),
            None
        );
        assert_eq!(
            policy.next_turn_in(REST_LENGTH + MAX_SUSPENSION / 4),
            MAX_SUSPENSION * 3 / 4
        );
        assert_eq!(
            policy.next_turn_in(REST_LENGTH + 3 * MAX_SUSPENSION),
            MAX_SUSPENSION
        );
    }

    /// A look by the clock that finds another poll begins a rest, unless it suspends that poll.
    #[test]
    fn after_a_stale_look_the_watcher_rests() {
        let mut policy = Policy::new(LOOKS, 0);
        assert_eq!(
            decide(&mut policy, &snapshot(5_000, EQUAL), false),
            later(15_000, false)
        );
        let mut other = snapshot(5_000, EQUAL);
        other.poll = 2;
        assert_eq!(
            decide(&mut policy, &other, true),
            later(2 * MAX_SUSPENSION, false)
        );
        assert_eq!(policy.rest_end(), REST_LENGTH);
        assert_eq!(
            decide(&mut policy, &other, true),
            later(2 * MAX_SUSPENSION, false)
        );
        let mut long = snapshot(RULE.quantum, EQUAL);
        long.poll = 3;
        assert_eq!(
            decide(&mut policy, &long, true),
            Decision::Suspend(QueueEnd::Tail)
        );
    }

    #[test]
    fn equals_leave_half_of_the_budget() {
        let mut policy = Policy::new(LOOKS, 0);
        let equal = snapshot(100_000, EQUAL);
        let mut suspended = 0;
        while let Decision::Suspend(_) = decide(&mut policy, &equal, true) {
            policy.record_suspension(&RULE, 0);
            suspended += 1;
        }
        assert_eq!(suspended, RESERVE / RULE.cost);
        let urgent = decide(&mut policy, &snapshot(100_000, URGENT), true);
        assert!(matches!(urgent, Decision::Suspend(_)));
    }

    #[test]
    fn an_empty_budget_delays_a_suspension_by_at_most_its_price_times_the_share() {
        let mut policy = Policy::new(LOOKS, 0);
        let urgent = snapshot(100_000, URGENT);
        for _ in 0..BURST / RULE.cost {
            let decision = decide(&mut policy, &urgent, true);
            assert!(matches!(decision, Decision::Suspend(_)));
            policy.record_suspension(&RULE, 0);
        }
        let wait = later(SHARE * RULE.cost, false);
        assert_eq!(decide(&mut policy, &urgent, true), wait);
    }
}
