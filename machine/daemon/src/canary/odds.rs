//! How likely something real-time has a CPU, by the answers of its canary over half a second.
//!
//! A priority that is lent in pieces (for 70 ms, then not for 1 ms) silences no canary for long, and what it is lent to is in no account of
//! the daemon. But a canary that is asked at moments which nobody can foresee is late as often as something above it has the CPU. If that is
//! nearly always, and the accounts explain much less, something is elevated that the daemon does not know.
//!
//! Unless it is what has ended before it was looked at: if that suffices to explain it, only its users are to blame, those
//! of the most of it first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The questions of so long are counted together.
pub(super) const SPAN: Duration = Duration::from_millis(500);

/// Fewer say nothing: the machine stood still.
const LEAST: u32 = 20;

/// A canary that has not answered by then is late.
pub(super) const LATE: Duration = Duration::from_millis(1);

/// Late answers that are suspicious, and how many of these are to be explained by accounts. What is elevated by the rules has 95 % of a CPU.
const OFTEN: f64 = 0.92;
const UNEXPLAINED: f64 = 0.15;

/// What the questions of a span say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The rules hold, or there is nothing to say.
    Well,
    /// The CPU was nearly always taken by something that the daemon does not know; maybe it was threads of these users, which have
    /// ended.
    Taken(Vec<u32>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Odds {
    since: Instant,
    /// The time of the CPU that was explained then.
    before: Duration,
    asked: u32,
    late: u32,
}

impl Odds {
    /// `explained` of the CPU's time so far.
    pub(super) fn new(explained: Duration, now: Instant) -> Odds {
        Odds {
            since: now,
            before: explained,
            asked: 0,
            late: 0,
        }
    }

    pub(super) fn count(&mut self, late: bool) {
        self.asked += 1;
        self.late += u32::from(late);
    }

    /// Whether the span is over, so that [`Odds::verdict`] is to be called.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= SPAN
    }

    /// Ends a span with what is explained by now, and what of it may have been users' threads that have ended. A new span begins.
    pub(super) fn verdict(
        &mut self,
        explained: Duration,
        unknown: HashMap<u32, Duration>,
        now: Instant,
    ) -> Verdict {
        let then = std::mem::replace(self, Odds::new(explained, now));
        let time = now.saturating_duration_since(then.since);
        let part = |of: Duration| of.div_duration_f64(time);
        let late = f64::from(then.late) / f64::from(then.asked.max(1));
        let mut missing = late - part(explained.saturating_sub(then.before));
        if then.asked < LEAST || late < OFTEN || missing < UNEXPLAINED {
            return Verdict::Well;
        }
        let mut unknown: Vec<_> = unknown.into_iter().collect();
        unknown.sort_unstable_by_key(|&(_, time)| std::cmp::Reverse(time));
        let mut blamed = Vec::new();
        for (user, time) in unknown {
            if missing < UNEXPLAINED {
                break;
            }
            missing -= part(time);
            blamed.push(user);
        }
        if missing >= UNEXPLAINED {
            blamed.clear();
        }
        Verdict::Taken(blamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The verdict on a span with so many questions, of which so many are answered late, and so many ms that are explained.
    fn span((late, asked): (u32, u32), explained: u64, unknown: &[(u32, u64)]) -> Verdict {
        let start = Instant::now();
        let mut odds = Odds::new(ms(1000), start);
        (0..asked).for_each(|it| odds.count(it < late));
        assert!(!odds.is_due(start + SPAN - ms(1)));
        let end = start + SPAN;
        assert!(odds.is_due(end));
        let unknown = unknown.iter().map(|&(user, time)| (user, ms(time)));
        let verdict = odds.verdict(ms(1000 + explained), unknown.collect(), end);
        assert!(!odds.is_due(end + SPAN - ms(1)), "a new one begins");
        verdict
    }

    #[test]
    fn what_is_taken_and_not_accounted_for_is_suspicious() {
        let taken = Verdict::Taken(vec![]);
        assert_eq!(span((48, 50), 0, &[]), taken);
        assert_eq!(span((48, 50), 350, &[]), taken);
        // By the rules.
        assert_eq!(span((48, 50), 470, &[]), Verdict::Well);
        // Others have enough.
        assert_eq!(span((40, 50), 0, &[]), Verdict::Well);
        // The machine stood still.
        assert_eq!(span((5, 5), 0, &[]), Verdict::Well);
    }

    #[test]
    fn a_process_that_ends_threads_is_to_blame_for_what_these_explain_and_no_other() {
        let taken = |by: &[u32]| Verdict::Taken(by.to_vec());
        assert_eq!(span((48, 50), 300, &[(7, 36), (8, 150)]), taken(&[8]));
        let two = [(7, 100), (8, 150), (9, 36)];
        assert_eq!(span((48, 50), 200, &two), taken(&[8, 7]));
        // It explains too little.
        assert_eq!(span((48, 50), 200, &[(7, 36), (8, 100)]), taken(&[]));
        // It is no excuse, and is not needed.
        assert_eq!(span((48, 50), 470, &[(7, 500)]), Verdict::Well);
    }
}
