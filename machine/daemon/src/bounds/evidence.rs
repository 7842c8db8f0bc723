//! What an observer may conclude from the time since its last observation.
//!
//! **The law: no user is barred unless it was found, in time in which the daemon was itself on time, that something of that user's held the CPU, or
//! kept the daemon from seeing it.** Everything elevated is demoted at once when ordinary programs do not run; that needs no evidence, and it is the same for all.
//!
//! The rule that makes it so: *of the time since its last observation an observer counts its own period at most* ([`counted`]). What is beyond
//! that is its own lateness: it was kept from its CPU, and that is by what is above it, which is nothing of a user's, or by a machine that stands still.
//!
//! | observer | period | what it counts |
//! |---|---|---|
//! | scheduler of a CPU | 36 ms | what may have been used by dispatchers and workers that ended unseen (`cpu/watch.rs`) |
//! | the same | | its lateness itself, beyond 10 ms: it explains that its CPU was taken (`accounts.rs`) |
//! | canaries' watch | 20 ms | for how long a canary is silent (`canary/thread.rs`) |
//! | the same in an alarm | 2 ms | for how long a canary has not answered after what is elevated was demoted, and for how long a scout has examined a user while it was not waiting for a CPU (`canary/inquiry.rs`) |
//!
//! **CPU time that was another's** needs no such rule ([`is_intrusion`]): a thread that is in SCHED_IDLE does not run while the canary of its CPU, which is
//! in SCHED_FIFO, waits for it, unless it has borrowed a priority, or the kernel's server for ordinary threads has the CPU (50 ms of a second, above all of SCHED_FIFO). That keeps the scheduler from
//! the CPU as well, so that a piece at whose end the scheduler is late proves nothing; and as it ends once in a second, one piece does not either, but two during one silence do.
//! What a thread has used meanwhile is read at both ends of the piece. That an elevated thread uses the CPU when it is *not* to leave it proves nothing: the rules give it that.

use std::time::{Duration, Instant};

/// What counts of the `time` since the last observation of an observer with that period.
pub(crate) fn counted(time: Duration, period: Duration) -> Duration {
    time.min(period)
}

/// Whether `used` is more of a piece of a breath than a thread has that looks whether it may go on.
pub(crate) fn is_much(used: Duration, piece: Duration) -> bool {
    used * 4 > piece
}

/// A scheduler that comes so much later than a piece ends was kept from its CPU: its wake takes a tenth of that.
const LATE: Duration = Duration::from_millis(1);

/// Whether a thread that was in SCHED_IDLE during a `piece`, and `used` so much of it, took it from others: the canary has waited for `silence`, and the scheduler comes
/// `late`.
pub(crate) fn is_intrusion(
    used: Duration,
    piece: Duration,
    silence: Duration,
    late: Duration,
) -> bool {
    late <= LATE && silence >= piece && is_much(used, piece)
}

/// The observations of one observer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    period: Duration,
    last: Instant,
}

impl Pace {
    pub(crate) fn new(period: Duration, now: Instant) -> Pace {
        Pace { period, last: now }
    }

    /// It observes; what counts of the time since it did before.
    pub(crate) fn lap(&mut self, now: Instant) -> Duration {
        let time = now.saturating_duration_since(std::mem::replace(&mut self.last, now));
        counted(time, self.period)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_observer_that_is_late_counts_its_period() {
        let start = Instant::now();
        let mut pace = Pace::new(20 * MS, start);
        assert_eq!(pace.lap(start + 15 * MS), 15 * MS);
        assert_eq!(pace.lap(start + 900 * MS), 20 * MS);
        // The time is not counted later either.
        assert_eq!(pace.lap(start + 900 * MS), Duration::ZERO);
        assert_eq!(pace.lap(start), Duration::ZERO);
    }

    /// What has a CPU in one step of the model.
    #[derive(Debug, Clone, Copy)]
    struct Step {
        /// Something above the scheduler wants it, or the machine stands still.
        foreign: bool,
        /// A priority is lent to an unregistered thread, which wants it.
        lent: bool,
        /// The registered thread wants it.
        wants: bool,
        /// It has borrowed a priority.
        borrows: bool,
        /// The watch, if it gets a CPU, asks the canary.
        asks: bool,
    }

    proptest! {
        /// One CPU in steps of 0.1 ms: what is more urgent runs, the scheduler is as late as that makes it, and so is the canary's question. A thread
        /// is an intruder only if it ran with a borrowed priority while the canary waited, for a quarter of a piece of any length.
        #[test]
        fn none_is_an_intruder_that_has_not_taken_the_cpu(
            steps in prop::collection::vec(
                (0..100u8, any::<bool>(), 0..100u8, 0..100u8, any::<bool>()),
                1..200,
            ),
            stretch in 1..40u32,
            honest: bool,
        ) {
            let step = MS / 10;
            let all = steps.iter().flat_map(|&(foreign, lent, wants, borrows, asks)| {
                let one = Step {
                    foreign: foreign < 30,
                    lent,
                    wants: wants < 80,
                    borrows: !honest && borrows < 50,
                    asks,
                };
                std::iter::repeat_n(one, stretch as usize)
            });
            let (mut now, mut began, mut used) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
            let mut asked: Option<Duration> = None;
            // With a borrowed priority while the canary waited, in the piece under way.
            let mut taken = Duration::ZERO;
            for one in all {
                if one.foreign {
                    now += step;
                    continue;
                }
                // The scheduler, as soon as it may.
                if now - began >= 2 * MS {
                    let silence = asked.map_or(Duration::ZERO, |asked| now - asked);
                    if is_intrusion(used, now - began, silence, now - began - 2 * MS) {
                        prop_assert!(!honest && is_much(taken, now - began));
                    }
                    (began, used, taken) = (now, Duration::ZERO, Duration::ZERO);
                }
                if one.asks && asked.is_none() {
                    asked = Some(now);
                }
                if one.wants && one.borrows {
                    used += step;
                    if asked.is_some() {
                        taken += step;
                    }
                } else if one.lent {
                    // Above the canary, and not the registered thread.
                } else if asked.is_some() {
                    asked = None;
                } else if one.wants {
                    used += step;
                }
                now += step;
            }
        }
    }

    #[test]
    fn a_thread_that_takes_what_is_others_is_found() {
        let none = Duration::ZERO;
        assert!(is_intrusion(2 * MS, 2 * MS, 40 * MS, none));
        // As seen when the kernel's server had the CPU: the scheduler was kept from it as well.
        assert!(!is_intrusion(50 * MS, 51 * MS, 80 * MS, 48 * MS));
        // The canary was asked in the middle of the piece.
        assert!(!is_intrusion(2 * MS, 2 * MS, MS, none));
        assert!(!is_intrusion(MS / 2, 2 * MS, 40 * MS, none));
    }
}
