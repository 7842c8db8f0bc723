//! How long polls take, and therefore whether it pays to have one make room for an equal.
//!
//! A poll that makes room for an equal gains if it would have gone on for longer than the other one takes and the suspension costs. What it has
//! run tells about that as much as those before it that had run for as long: their *mean residual life*. Where that never exceeds the mean of all polls (fixed
//! times, exponential ones, all that are lighter), to poll in the order of arrival is optimal among all rules that do not know how long polls
//! take (Righter, Shanthikumar, Yamazaki: On extremal service disciplines in single-stage queueing systems, J. Appl. Prob. 27, 1990), and to share can only lose. Where it does (bimodal times, heavy tails) a long poll is to make room.

use crate::sync::Ordering::Relaxed;
use crate::sync::Statistic;

/// Ages at which it is asked: the quantum, and each time twice the age before.
const AGES: usize = 8;
/// So many polls are remembered; the older ones count for half.
const REMEMBERED: u64 = 512;
/// Until so many have reached an age, those are thought to take as long again: what is not known is not taken for harmless.
const DOUBTED: u64 = 8;

/// Number and sum.
#[derive(Debug, Default)]
struct Tally {
    count: Statistic,
    time: Statistic,
}

impl Tally {
    /// One more. By one thread at a time.
    #[inline]
    fn add(&self, time: u64) {
        let (count, all) = (self.count.load(Relaxed), self.time.load(Relaxed));
        let (count, all) = match count < REMEMBERED {
            true => (count, all),
            false => (count / 2, all / 2),
        };
        self.count.store(count + 1, Relaxed);
        self.time.store(all.saturating_add(time), Relaxed);
    }

    /// Their mean, as if there had been `more` of the length `of`; 0 of none.
    fn mean(&self, more: u64, of: u64) -> u64 {
        let (count, time) = (self.count.load(Relaxed), self.time.load(Relaxed));
        let all = time.saturating_add(more.saturating_mul(of));
        all.checked_div(count + more).unwrap_or(0)
    }
}

/// What is remembered of the polls of a vCPU. Written by the thread that polls, read by its watcher, which may see a sum without its number: that is off by one poll.
#[derive(Debug)]
pub struct Lengths {
    /// In what lengths are told, like all that is kept here.
    quantum: u64,
    /// Of those in a microsecond.
    per_micro: u64,
    all: Tally,
    /// Of those that reached an age: what they took after it.
    beyond: [Tally; AGES],
}

impl Lengths {
    /// Of no poll, for this quantum, ns; lengths are told in ticks, of which there are so many in a microsecond.
    #[must_use]
    pub fn new(quantum: u64, per_micro: u64) -> Lengths {
        Lengths {
            quantum: quantum.saturating_mul(per_micro) / 1_000,
            per_micro,
            all: Tally::default(),
            beyond: Default::default(),
        }
    }

    fn ages(&self) -> impl Iterator<Item = (u64, &Tally)> {
        let age = |n| self.quantum.saturating_mul(1_u64 << n);
        self.beyond
            .iter()
            .enumerate()
            .map(move |(n, beyond)| (age(n), beyond))
    }

    /// A poll has ended that lasted for so long, ticks; `ran` says what it ran, and is asked only of a long one. By one thread at a time.
    #[inline]
    pub fn note(&self, lasted: u64, ran: impl FnOnce() -> u64) {
        if lasted < self.quantum {
            return self.all.add(lasted);
        }
        let length = ran();
        self.all.add(length);
        self.note_long(length);
    }

    #[cold]
    fn note_long(&self, length: u64) {
        for (age, beyond) in self.ages() {
            match length.checked_sub(age) {
                Some(rest) => beyond.add(rest),
                None => break,
            }
        }
    }

    /// How much longer a poll that has run for so long is left alone for an equal, where suspending costs so much, ns: until the first age at which that pays.
    #[must_use]
    pub fn left(&self, cost: u64, ran: u64) -> u64 {
        let ticks = |nanos: u64| nanos.saturating_mul(self.per_micro) / 1_000;
        let left = self.ticks_left(ticks(cost), ticks(ran));
        left.saturating_mul(1_000).div_ceil(self.per_micro)
    }

    fn ticks_left(&self, cost: u64, ran: u64) -> u64 {
        let fresh = self.all.mean(0, 0).saturating_add(cost);
        for (age, beyond) in self.ages() {
            // A poll of this age, or one that will be.
            if ran < age.saturating_mul(2) && beyond.mean(DOUBTED, age) > fresh {
                return age.saturating_sub(ran);
            }
        }
        // What is older than all that is remembered makes room.
        self.quantum.saturating_mul(1 << AGES).saturating_sub(ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: u64 = 20_000;
    const Q: u64 = 4 * C;

    fn note(lengths: &Lengths, length: u64) {
        lengths.note(length, || length);
    }

    fn lengths(all: impl IntoIterator<Item = u64>) -> Lengths {
        let lengths = Lengths::new(Q, 3_000);
        all.into_iter()
            .for_each(|length| note(&lengths, 3 * length));
        lengths
    }

    /// The quantiles of an exponential distribution, in a mixed order.
    fn exponential(mean: u64) -> impl Iterator<Item = u64> {
        (0..1_000_u64).map(move |n| {
            let uniform = ((n * 617 % 1_000) as f64 + 0.5) / 1_000.0;
            (-uniform.ln() * mean as f64) as u64
        })
    }

    #[test]
    fn what_is_not_known_makes_room_after_its_quantum() {
        let none = lengths([]);
        assert_eq!(none.left(C, 0), Q);
        assert_eq!(none.left(C, Q), 0);
        assert_eq!(none.left(C, 1_000 * Q), 0);
    }

    #[test]
    fn long_polls_among_short_ones_make_room_after_their_quantum() {
        for long in [25 * C, 1_000 * C] {
            let bimodal = lengths((0..1_000).map(|n| if n % 100 == 7 { long } else { C / 40 }));
            assert_eq!(bimodal.left(C, 0), Q);
            assert_eq!(bimodal.left(C, Q), 0);
        }
    }

    #[test]
    fn exponential_polls_are_suspended_for_equals_at_a_fiftieth_of_their_time_at_most() {
        for mean in [C, 2 * C, 5 * C, 20 * C] {
            let all = lengths(exponential(mean));
            let age = all.left(C, 0);
            let older = exponential(mean).filter(|length| *length >= age).count() as u64;
            let most = 1_000 * mean / 50;
            assert!(older * C <= most, "{mean}: at {age}, {older} of 1000");
        }
    }

    #[test]
    fn fixed_polls_are_left_alone() {
        let fixed = lengths([50 * C; 1_000]);
        assert!(fixed.left(C, 0) > 50 * C);
        // One that is longer than any before is not.
        assert_eq!(fixed.left(C, 64 * C), 0);
    }

    #[test]
    fn nothing_is_left_alone_for_ever() {
        let all = lengths([100_000 * C; 1_000]);
        let last = Q << AGES;
        assert!(all.left(C, 0) <= last);
        assert_eq!(all.left(C, last), 0);
    }

    #[test]
    fn what_has_changed_is_learnt() {
        let all = lengths(exponential(2 * C));
        assert!(all.left(C, Q) > 0);
        for n in 0..1_000 {
            note(&all, if n % 100 == 7 { 3_000 * C } else { C / 10 });
        }
        assert_eq!(all.left(C, Q), 0);
    }
}
