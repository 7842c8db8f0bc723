//! Decides for one CPU when elevated threads become ordinary, and for how long. The caller passes
//! the canary's answers and the time.
//!
//! ```text
//!         1. silent for 80 ms         2. still silent 20 ms later,
//!                                        or again for 80 ms
//!   Calm ────────────────────▶ Here ─────────────────────────────▶ Everywhere
//!    ▲                          │ 3. after 1, 2, 4 … 60 s             │ 3.
//!    └──────────────────────────┴─────────────────────────────────────┘
//!   Here: everything elevated on this CPU is ordinary.
//!   Everywhere: on all CPUs, since a priority may be lent from another one.
//! ```
//!
//! Silence is counted in time for which the machine ran, so a check adds at most one [`ROUND`],
//! however late the check is. If the whole machine is stopped, so is the monitor, and the pause
//! counts as one round. A host that stops only this CPU cannot be distinguished from a silent
//! canary.

use std::time::{Duration, Instant};

use crate::canary::{MAX_SILENCE, ROUND};

/// Time from a demotion to the next demotion while the canary is silent.
const GRACE: Duration = Duration::from_millis(20);

/// Length of a demotion that does not follow another one soon.
const FIRST_DEMOTION: Duration = Duration::from_secs(1);

/// Maximum length of a demotion. A demotion that begins within this time after another demotion is
/// twice as long as the other.
const LONGEST_DEMOTION: Duration = Duration::from_secs(60);

/// The threads that are demoted because of this CPU's canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demotion {
    None,
    /// All threads elevated on this CPU.
    Here,
    /// All threads elevated on any CPU.
    Everywhere,
}

#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// The canary has answered, or a demotion has just ended. Counting restarts, and the caller
    /// asks the canary again.
    Answer,
    Silence,
    /// The canary was silent for too long, and [`SilenceRule::demotion`] has changed; contains the
    /// remaining time of the demotion.
    Alarm(Duration),
}

#[derive(Debug)]
pub(super) struct SilenceRule {
    demotion: Demotion,
    /// End of the last demotion.
    until: Option<Instant>,
    /// Length of the last demotion.
    length: Duration,
    /// Beginning of the silence.
    since: Instant,
    /// Number of checks since the beginning of the silence.
    checks: u32,
    /// Maximum length of the silence.
    limit: Duration,
}

impl SilenceRule {
    pub(super) fn new(now: Instant) -> SilenceRule {
        SilenceRule {
            demotion: Demotion::None,
            until: None,
            length: FIRST_DEMOTION,
            since: now,
            checks: 0,
            limit: MAX_SILENCE,
        }
    }

    pub(super) fn demotion(&self) -> Demotion {
        self.demotion
    }

    /// Counts silence from `now` on.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.since, self.checks, self.limit) = (now, 0, MAX_SILENCE);
    }

    /// Returns the time for which the canary was silent while the machine ran.
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
            .min(ROUND * self.checks)
    }

    /// Checks the canary once. `elevated` returns whether any thread on any CPU is elevated.
    pub(super) fn check(
        &mut self,
        answered: bool,
        elevated: impl FnOnce() -> bool,
        now: Instant,
    ) -> Check {
        let is_over =
            self.demotion != Demotion::None && self.until.is_none_or(|until| now >= until);
        if is_over {
            self.demotion = Demotion::None;
        }
        if answered || is_over {
            self.restart(now);
            return Check::Answer;
        }
        self.checks += 1;
        // Without an elevated thread the daemon is not the cause.
        if self.silence(now) < self.limit || !elevated() {
            return Check::Silence;
        }
        match self.demotion {
            Demotion::None => {
                let is_repeated = self
                    .until
                    .is_some_and(|until| now < until + LONGEST_DEMOTION);
                self.length = if is_repeated {
                    (self.length * 2).min(LONGEST_DEMOTION)
                } else {
                    FIRST_DEMOTION
                };
                self.until = Some(now + self.length);
                self.demotion = Demotion::Here;
            }
            Demotion::Here | Demotion::Everywhere => self.demotion = Demotion::Everywhere,
        }
        (self.since, self.checks, self.limit) = (now, 0, GRACE);
        let remaining = self.until.map(|until| until.saturating_duration_since(now));
        Check::Alarm(remaining.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    struct Fixture {
        rule: SilenceRule,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Fixture {
            let now = Instant::now();
            let rule = SilenceRule::new(now);
            Fixture { rule, now }
        }

        fn check(&mut self, answered: bool, after: Duration) -> Check {
            self.now += after;
            self.rule.check(answered, || true, self.now)
        }

        fn run(&mut self, answered: bool, time: Duration) -> Demotion {
            for _ in 0..time.as_millis() / ROUND.as_millis() {
                let _ = self.check(answered, ROUND);
            }
            self.rule.demotion()
        }
    }

    #[test]
    fn the_threads_of_a_cpu_that_is_silent_for_80_ms_are_demoted_for_a_second() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.run(false, 60 * MS), Demotion::None);
        assert_eq!(fixture.check(false, ROUND), Check::Alarm(FIRST_DEMOTION));
        assert_eq!(fixture.rule.demotion(), Demotion::Here);
        assert_eq!(fixture.run(true, FIRST_DEMOTION - ROUND), Demotion::Here);
        assert_eq!(fixture.run(true, ROUND), Demotion::None);
    }

    #[test]
    fn threads_of_all_cpus_are_demoted_if_a_demotion_does_not_end_the_silence() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.run(false, 80 * MS), Demotion::Here);
        assert_eq!(
            fixture.check(false, ROUND),
            Check::Alarm(FIRST_DEMOTION - GRACE)
        );
        assert_eq!(fixture.rule.demotion(), Demotion::Everywhere);
        // The demotion ends whether the silence has ended or not.
        assert_eq!(fixture.run(false, FIRST_DEMOTION - GRACE), Demotion::None);
        assert_eq!(fixture.run(false, 80 * MS), Demotion::Here);
    }

    #[test]
    fn a_canary_that_has_answered_has_80_ms_again() {
        let mut fixture = Fixture::new();
        let _ = fixture.run(false, 80 * MS);
        let _ = fixture.run(true, 100 * MS);
        assert_eq!(fixture.run(false, 60 * MS), Demotion::Here);
        assert_eq!(fixture.run(false, 20 * MS), Demotion::Everywhere);
    }

    #[test]
    fn demotions_double_up_to_a_minute_and_restart_after_a_minute_of_calm() {
        let mut fixture = Fixture::new();
        for secs in [1, 2, 4, 8, 16, 32, 60, 60] {
            let length = Duration::from_secs(secs);
            let _ = fixture.run(false, 60 * MS);
            assert_eq!(fixture.check(false, ROUND), Check::Alarm(length));
            assert_eq!(fixture.run(true, length), Demotion::None);
        }
        let _ = fixture.run(true, LONGEST_DEMOTION);
        let _ = fixture.run(false, 60 * MS);
        assert_eq!(fixture.check(false, ROUND), Check::Alarm(FIRST_DEMOTION));
    }

    #[test]
    fn a_stopped_machine_silences_no_canary() {
        let mut fixture = Fixture::new();
        for _ in 0..3 {
            assert_eq!(fixture.check(false, Duration::from_secs(9)), Check::Silence);
        }
        assert!(matches!(fixture.check(false, ROUND), Check::Alarm(_)));
    }

    #[test]
    fn a_silence_without_elevated_threads_is_no_alarm() {
        let mut fixture = Fixture::new();
        for _ in 0..100 {
            fixture.now += ROUND;
            assert_eq!(
                fixture.rule.check(false, || false, fixture.now),
                Check::Silence
            );
        }
        assert_eq!(fixture.rule.demotion(), Demotion::None);
    }

    proptest! {
        /// A silence without a demotion lasts for at most 80 ms of checks, for every sequence of
        /// answers.
        #[test]
        fn elevated_threads_silence_a_canary_for_80_ms_at_most(
            answers in prop::collection::vec((any::<bool>(), 1..200u32), 1..500),
        ) {
            let (mut fixture, mut silent) = (Fixture::new(), 0);
            for (answered, ms) in answers {
                let _ = fixture.check(answered, ms * MS);
                silent = if answered || fixture.rule.demotion() != Demotion::None { 0 } else { silent + 1 };
                // Checks are at least 1 ms apart; one check more is a margin.
                prop_assert!(silent <= 80 + 1, "silent in {silent} checks");
                let time = (fixture.now - fixture.rule.since).min(ROUND * fixture.rule.checks);
                prop_assert!(time < MAX_SILENCE || fixture.rule.demotion() == Demotion::Everywhere);
            }
        }
    }
}
