//! What the watcher of a vCPU decides at a look.

use super::{BURST, KEPT, Lengths, RESERVE, Ran, Rule, SELDOM, SHARE};
use crate::base::events::Waits;
use crate::base::kind::Place;
use crate::base::token_bucket::TokenBucket;

/// What it costs to have the watcher look, ns: the CPU time that others lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    /// Because something came: two switches of thread, and little else.
    pub event: u64,
    /// At a time: to set a timer and to take its interrupt costs more than all the rest.
    pub timer: u64,
}

/// What a look shows of a poll that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Its level.
    pub level: u8,
    /// How long it has run.
    pub ran: Ran,
    /// How long it is to run in this stretch: a turn, or 0.
    pub turn: u64,
    /// Levels of what is ready on its vCPU, or has arrived there.
    pub waiting: u64,
    /// Does nothing wait on its own level but polls that were suspended after their quantum?
    pub lingering: bool,
    /// Has something arrived there that a vCPU which idles could run? However little urgent it is.
    pub beside_idle: bool,
}

impl Sight {
    /// What may interrupt the poll. Not those that have had their quantum: they take turns with it, one every [`KEPT`] ([`Policy::turn_is_due`]).
    #[must_use]
    pub fn waits(&self) -> Waits {
        match Waits::of(self.level, self.waiting) {
            Waits::Equal if self.lingering => Waits::Nothing,
            waits => waits,
        }
    }
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing waits: look when something comes.
    Rest,
    /// Look again after so long, if nothing comes that is more urgent than what waits now.
    Later(u64, Waits),
    /// The poll is suspended, and queues there. Tell [`Policy::has_suspended`].
    Suspend(Place),
    /// It sleeps while something waits: it is set aside. At no charge: it does not run anyway.
    SetAside,
}

/// The rule's memory, one per vCPU: its buckets, the time of the last turn of a suspended poll, and
/// the looks that are free at the poll under way.
#[derive(Clone, Debug)]
pub struct Policy {
    suspending: TokenBucket,
    looking: TokenBucket,
    turned_at: u64,
    free: Free,
}

/// Looks at a poll that was suspended before, and is long therefore, which do not wait for the account: one because something came, and those by the clock while the poll gets half of the
/// CPU or more. Each of those halves what it has yet to run at least: they are no more than 1 + log₂ ([`KEPT`](super::KEPT) / their price), each time that it goes on and after each look that
/// is paid.
#[derive(Clone, Copy, Debug, Default)]
struct Free {
    /// When it went on; 0: none is free.
    since: u64,
    /// The one because something comes is still to be had.
    event: bool,
    /// What it had run, and when, at the last of those by the clock.
    looked: Option<(u64, u64)>,
}

impl Policy {
    /// Creates the memory of a vCPU, with full buckets.
    #[must_use]
    pub fn new(now: u64) -> Policy {
        Policy {
            suspending: TokenBucket::new(SHARE, BURST, now),
            looking: TokenBucket::new(SHARE * SHARE, BURST / 2, now),
            turned_at: now,
            free: Free::default(),
        }
    }

    /// The poll under way went on then, after a suspension; 0: it was not suspended. Say so before each look.
    pub fn goes_on(&mut self, since: u64) {
        if self.free.since != since {
            self.free = Free {
                since,
                event: since != 0,
                looked: None,
            };
        }
    }

    /// Is what comes next heard, whatever [`Policy::is_deaf_for`] says? The first that comes while a poll goes on is.
    #[must_use]
    pub fn hears_freely(&self) -> bool {
        self.free.event
    }

    /// The watcher looks because something has come.
    pub fn hears(&mut self) {
        self.free.event = false;
    }

    /// Does the next look by the clock, which costs so much, not wait for the account? The first one does not, each time that a poll goes on: it is unlikely to be for nothing.
    /// Nor does the next one, if the poll has had half of the CPU since then, but for what the look took of it: as long as it runs it is late by that. One that
    /// others keep from the CPU would be looked at without end.
    pub fn looks_freely(&mut self, ran: &Ran, price: u64, now: u64) -> bool {
        let before = self.free.looked.replace((ran.stretch, now));
        self.free.since != 0
            && before.is_none_or(|(stretch, at)| {
                2 * ran.stretch.saturating_sub(stretch) + price >= now.saturating_sub(at)
            })
    }

    /// Looks at a poll. `is_asleep` tells whether its thread sleeps in the middle of it; it is asked only if that matters.
    pub fn decide(
        &mut self,
        rule: &Rule,
        lengths: &Lengths,
        sight: &Sight,
        is_asleep: impl FnOnce() -> bool,
        now: u64,
    ) -> Decision {
        let Sight { ran, waiting, .. } = *sight;
        let here = sight.waits();
        let waits = match here {
            Waits::Nothing if sight.beside_idle => Waits::Equal,
            _ => here,
        };
        // To ask costs as much as half a look, and most polls are over before it matters. One that is stopped is asked then.
        let may_sleep = waiting != 0 && ran.lasted >= rule.cost;
        // A look comes when the poll has run for so long that a suspended one is to have its turn.
        let later = |time: u64| {
            let until_long = KEPT.checked_sub(ran.stretch).filter(|time| *time != 0);
            Decision::Later(time.min(until_long.unwrap_or(KEPT)), waits)
        };
        let Some(left) = rule.left(waits, ran) else {
            // What waits, waits for its end, or for its sleep, which is seen when it has run for at most twice as long; or for another vCPU to idle.
            return match waiting {
                0 => Decision::Rest,
                _ if may_sleep && is_asleep() => Decision::SetAside,
                _ => later(ran.lasted.max(rule.cost)),
            };
        };
        let left = match here {
            Waits::Equal => left.max(lengths.left(rule.cost, ran.in_all)),
            Waits::Nothing | Waits::Urgent => left,
        };
        let left = left.max(sight.turn.saturating_sub(ran.stretch));
        // Equals leave half of what the account can hold to the more urgent.
        let price = match waits {
            Waits::Urgent => rule.cost,
            Waits::Equal | Waits::Nothing => rule.cost.saturating_add(RESERVE),
        };
        let wait = left.max(self.suspending.wait(price, now));
        if wait != 0 {
            return match may_sleep && is_asleep() {
                true => Decision::SetAside,
                false => later(wait),
            };
        }
        Decision::Suspend(match here {
            // It makes room for an instant, in which what has arrived is fetched.
            Waits::Nothing => Place::Head,
            Waits::Urgent => rule.place(ran),
            Waits::Equal => Place::Tail,
        })
    }

    /// A poll has been suspended, as decided. Where there is something to be found, looks may take half of what is done with it.
    pub fn has_suspended(&mut self, rule: &Rule, now: u64) {
        self.suspending.spend(rule.cost, now);
        self.looking.refund(rule.cost / 2);
    }

    /// May something on the vCPU depend on a poll that is suspended, with this one under way?
    #[must_use]
    pub fn is_depended_on(blocked: bool, ran: Ran) -> bool {
        blocked || ran.stretch >= KEPT
    }

    /// Is a suspended poll to get a turn? Then it is one that was suspended so long ago, at least.
    #[must_use]
    pub fn turn_is_due(&self, depended_on: bool, now: u64) -> Option<u64> {
        let apart = if depended_on { KEPT } else { SELDOM };
        (now.saturating_sub(self.turned_at) >= apart).then_some(apart / 2)
    }

    /// In how long the next turn is due, if something depends on it: look by then while a poll is suspended.
    #[must_use]
    pub fn next_turn_in(&self, now: u64) -> u64 {
        let due = self.turned_at.saturating_add(KEPT).saturating_sub(now);
        if due == 0 { KEPT } else { due }
    }

    /// One gets it.
    pub fn gives_turn(&mut self, now: u64) {
        self.turned_at = now;
    }

    /// A look has brought nothing, and has cost so much.
    pub fn looked_in_vain(&mut self, cost: u64, now: u64) {
        self.looking.spend(cost, now);
    }

    /// For how long the watcher is not to look when something comes; a look by the clock ends that.
    ///
    /// A look because something came needs one by the clock after it, if the poll has not yet run for as long as suspending it costs: it
    /// comes only when both can be paid, so that the second is not late.
    pub fn is_deaf_for(&mut self, looks: &Looks, now: u64) -> u64 {
        self.looking
            .wait(looks.event.saturating_add(looks.timer), now)
    }

    /// For how long it is not to look by the clock.
    pub fn timers_wait(&mut self, looks: &Looks, now: u64) -> u64 {
        self.looking.wait(looks.timer, now)
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

    fn sight(stretch: u64, waiting: u64) -> Sight {
        Sight {
            level: 20,
            ran: Ran {
                in_all: stretch,
                stretch,
                lasted: stretch,
            },
            turn: 0,
            waiting,
            lingering: false,
            beside_idle: false,
        }
    }

    fn decide(policy: &mut Policy, sight: &Sight) -> Decision {
        policy.decide(
            &RULE,
            &Lengths::new(RULE.quantum, 1_000),
            sight,
            || false,
            0,
        )
    }

    #[test]
    fn a_poll_makes_room_for_the_more_urgent_and_goes_first_until_it_has_had_its_quantum() {
        let mut policy = Policy::new(0);
        let urgent = 1 << 10;
        let early = decide(&mut policy, &sight(5_000, urgent));
        assert_eq!(early, Decision::Later(15_000, Waits::Urgent));
        let first = decide(&mut policy, &sight(20_000, urgent));
        assert_eq!(first, Decision::Suspend(Place::Head));
        let last = decide(&mut policy, &sight(100_000, urgent));
        assert_eq!(last, Decision::Suspend(Place::Tail));
    }

    #[test]
    fn an_equal_waits_for_the_quantum_and_goes_first_then() {
        let mut policy = Policy::new(0);
        let equal = 1 << 20;
        let early = decide(&mut policy, &sight(20_000, equal));
        assert_eq!(early, Decision::Later(80_000, Waits::Equal));
        let then = decide(&mut policy, &sight(100_000, equal));
        assert_eq!(then, Decision::Suspend(Place::Tail));
    }

    #[test]
    fn an_equal_waits_for_the_end_of_a_poll_that_is_no_longer_than_others() {
        let mut policy = Policy::new(0);
        let lengths = Lengths::new(RULE.quantum, 1_000);
        (0..100).for_each(|_| lengths.note(150_000, || 150_000));
        let mut at = |waiting| {
            let sight = sight(RULE.quantum, waiting);
            policy.decide(&RULE, &lengths, &sight, || false, 0)
        };
        assert_eq!(at(1 << 20), Decision::Later(100_000, Waits::Equal));
        assert_eq!(at(1 << 10), Decision::Suspend(Place::Tail));
    }

    #[test]
    fn polls_that_have_had_their_quantum_do_not_interrupt_each_other() {
        let mut policy = Policy::new(0);
        let mut long = sight(RULE.quantum, 1 << 20);
        long.lingering = true;
        let waits = Decision::Later(RULE.quantum, Waits::Nothing);
        assert_eq!(decide(&mut policy, &long), waits);
        // What is more urgent does, though it lingers, too.
        long.waiting |= 1 << 10;
        assert_eq!(decide(&mut policy, &long), Decision::Suspend(Place::Tail));
    }

    #[test]
    fn a_poll_that_was_suspended_before_makes_room_at_once() {
        let mut policy = Policy::new(0);
        for waiting in [1 << 10, 1 << 20] {
            let mut goes_on = sight(0, waiting);
            goes_on.ran.in_all = RULE.quantum;
            assert_eq!(
                decide(&mut policy, &goes_on),
                Decision::Suspend(Place::Tail)
            );
        }
    }

    #[test]
    fn what_is_less_urgent_interrupts_only_where_another_vcpu_idles() {
        let mut policy = Policy::new(0);
        let mut less = sight(200_000, 1 << 30);
        let waits = decide(&mut policy, &less);
        assert_eq!(waits, Decision::Later(200_000, Waits::Nothing));
        less.beside_idle = true;
        let fetched = decide(&mut policy, &less);
        assert_eq!(fetched, Decision::Suspend(Place::Head));
        assert_eq!(decide(&mut policy, &sight(200_000, 0)), Decision::Rest);
    }

    #[test]
    fn a_poll_that_sleeps_is_set_aside_for_anything() {
        let mut policy = Policy::new(0);
        let mut asleep = |ran, waiting| {
            policy.decide(
                &RULE,
                &Lengths::new(RULE.quantum, 1_000),
                &sight(ran, waiting),
                || true,
                0,
            )
        };
        assert_eq!(asleep(RULE.cost, 1 << 63), Decision::SetAside);
        assert_eq!(asleep(RULE.cost, 0), Decision::Rest);
        // It is asked when it has been there for as long as suspending it costs.
        assert!(matches!(asleep(1, 1 << 63), Decision::Later(..)));
    }

    #[test]
    fn a_turn_is_not_cut_short() {
        let mut policy = Policy::new(0);
        let mut turn = sight(50_000, 1);
        turn.turn = super::super::TURN;
        let rest = Decision::Later(150_000, Waits::Urgent);
        assert_eq!(decide(&mut policy, &turn), rest);
    }

    #[test]
    fn turns_are_given_more_often_while_something_may_depend_on_them() {
        let mut policy = Policy::new(0);
        assert_eq!(policy.turn_is_due(true, KEPT - 1), None);
        assert_eq!(policy.turn_is_due(true, KEPT), Some(KEPT / 2));
        assert_eq!(policy.turn_is_due(false, KEPT), None);
        assert_eq!(policy.turn_is_due(false, SELDOM), Some(SELDOM / 2));
        policy.gives_turn(SELDOM);
        assert_eq!(policy.turn_is_due(true, SELDOM + KEPT - 1), None);
    }

    #[test]
    fn a_look_comes_when_a_turn_may_be_due() {
        let mut policy = Policy::new(0);
        let less = sight(KEPT * 4 / 5, 1 << 30);
        let then = Decision::Later(KEPT / 5, Waits::Nothing);
        assert_eq!(decide(&mut policy, &less), then);
        let long = sight(KEPT * 6 / 5, 1 << 30);
        let then = Decision::Later(KEPT, Waits::Nothing);
        assert_eq!(decide(&mut policy, &long), then);
        assert_eq!(policy.next_turn_in(KEPT / 4), KEPT * 3 / 4);
        assert_eq!(policy.next_turn_in(3 * KEPT), KEPT);
    }

    /// The time that looks take while something comes all the time and is never worth it, and that of `suspensions` meanwhile.
    fn looked_for(suspensions: u64) -> (u64, u64) {
        let looks = Looks {
            event: 6_000,
            timer: 40_000,
        };
        let mut policy = Policy::new(0);
        let (mut now, mut spent) = (0, 0);
        for n in 0.. {
            // What comes while the watcher is deaf is found by a timer, at the end of that.
            let cost = match policy.is_deaf_for(&looks, now) {
                0 => looks.event,
                deaf => {
                    now += deaf;
                    looks.timer
                }
            };
            now += cost;
            spent += cost;
            policy.looked_in_vain(cost, now);
            if n < suspensions {
                policy.has_suspended(&RULE, now);
            }
            if now > 1_000 * KEPT {
                break;
            }
        }
        (spent, now)
    }

    /// Looks of either kind take no more than their share, whatever brings them.
    #[test]
    fn looks_in_vain_take_a_hundredth_of_the_time_and_half_of_what_suspensions_take() {
        let (spent, now) = looked_for(0);
        assert!(spent <= now / 100 + BURST / 2, "{spent} of {now}");
        let (more, now) = looked_for(1_000);
        let most = now / 100 + BURST / 2 + 1_000 * RULE.cost / 2;
        assert!(spent < more && more <= most, "{spent} and {more} of {now}");
    }

    #[test]
    fn each_time_that_a_poll_goes_on_one_look_that_something_brings_is_free() {
        let mut policy = Policy::new(0);
        for since in [0, 7, 0, 9] {
            for look in 0..3 {
                policy.goes_on(since);
                assert_eq!(policy.hears_freely(), look == 0 && since != 0);
                policy.hears();
            }
        }
    }

    #[test]
    fn looks_by_the_clock_are_free_while_the_poll_gets_half_of_the_cpu() {
        let mut policy = Policy::new(0);
        let mut at = |since, stretch, now| {
            policy.goes_on(since);
            policy.looks_freely(&sight(stretch, 0).ran, 10, now)
        };
        assert!(!at(0, 0, 0));
        assert!(at(7, 0, 10) && at(7, 40, 100));
        assert!(!at(7, 60, 160), "it had a third");
        assert!(at(7, 100, 220) && !at(7, 100, 280));
        assert!(at(9, 0, 300) && !at(0, 0, 310));
    }

    #[test]
    fn a_look_by_the_clock_follows_one_that_something_brought_without_waiting_for_the_account() {
        let looks = Looks {
            event: 6_000,
            timer: 40_000,
        };
        let mut policy = Policy::new(0);
        while policy.is_deaf_for(&looks, 0) == 0 {
            policy.looked_in_vain(looks.event, 0);
            assert_eq!(policy.timers_wait(&looks, 0), 0);
        }
    }

    #[test]
    fn equals_do_not_empty_the_account() {
        let mut policy = Policy::new(0);
        let equal = sight(100_000, 1 << 20);
        let mut suspended = 0;
        while let Decision::Suspend(_) = decide(&mut policy, &equal) {
            policy.has_suspended(&RULE, 0);
            suspended += 1;
        }
        assert_eq!(suspended, RESERVE / RULE.cost);
        let urgent = decide(&mut policy, &sight(100_000, 1));
        assert!(matches!(urgent, Decision::Suspend(_)));
    }

    #[test]
    fn an_empty_account_delays_a_suspension_by_at_most_its_price_times_the_share() {
        let mut policy = Policy::new(0);
        let urgent = sight(100_000, 1);
        for _ in 0..BURST / RULE.cost {
            assert!(matches!(decide(&mut policy, &urgent), Decision::Suspend(_)));
            policy.has_suspended(&RULE, 0);
        }
        let wait = Decision::Later(SHARE * RULE.cost, Waits::Urgent);
        assert_eq!(decide(&mut policy, &urgent), wait);
    }
}
