//! How likely something real-time has a CPU, by the answers of its canary over half a second.
//!
//! A priority that is lent in pieces (for 70 ms, then not for 1 ms) silences no canary for long, and what it is lent to is in no account of
//! the daemon. But a canary that is asked at moments which nobody can foresee is late as often as something above it has the CPU. If that is
//! nearly always, and the accounts explain much less, something is elevated that the daemon does not know.

use std::time::{Duration, Instant};

/// The questions of so long are counted together.
const SPAN: Duration = Duration::from_millis(500);

/// Fewer say nothing: the machine stood still.
const LEAST: u32 = 20;

/// A canary that has not answered by then is late.
pub(super) const LATE: Duration = Duration::from_millis(1);

/// Late answers that are suspicious, and how many of these are to be explained by accounts. What is elevated by the rules has 95 % of a CPU.
const OFTEN: f64 = 0.92;
const UNEXPLAINED: f64 = 0.15;

/// See the module.
#[derive(Debug)]
pub(super) struct Odds {
    since: Instant,
    /// [`crate::shared::Shared::accounted`] at that time.
    before: Duration,
    asked: u32,
    late: u32,
}

impl Odds {
    pub(super) fn new(accounted: Duration, now: Instant) -> Odds {
        Odds {
            since: now,
            before: accounted,
            asked: 0,
            late: 0,
        }
    }

    pub(super) fn count(&mut self, late: bool) {
        self.asked += 1;
        self.late += u32::from(late);
    }

    /// At the end of a span: whether the CPU was nearly always taken, and not by what is in the accounts. A new span begins.
    pub(super) fn verdict(&mut self, accounted: Duration, now: Instant) -> Option<bool> {
        let time = now.saturating_duration_since(self.since);
        if time < SPAN {
            return None;
        }
        let then = std::mem::replace(self, Odds::new(accounted, now));
        let explained = accounted.saturating_sub(then.before).div_duration_f64(time);
        let late = f64::from(then.late) / f64::from(then.asked.max(1));
        Some(then.asked >= LEAST && late >= OFTEN && late - explained >= UNEXPLAINED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_and_not_accounted_for_is_suspicious() {
        let ms = Duration::from_millis;
        let mut now = Instant::now();
        let mut odds = Odds::new(ms(0), now);
        let mut after = |late: u32, asked: u32, accounted: u64| {
            (0..asked).for_each(|it| odds.count(it < late));
            assert_eq!(odds.verdict(ms(0), now + SPAN - ms(1)), None);
            now += SPAN;
            let said = odds.verdict(ms(accounted), now).unwrap();
            odds = Odds::new(ms(0), now);
            said
        };
        assert!(after(48, 50, 0));
        assert!(after(48, 50, 350));
        // By the rules.
        assert!(!after(48, 50, 470));
        // Others have enough.
        assert!(!after(40, 50, 0));
        // The machine stood still.
        assert!(!after(5, 5, 0));
    }
}
