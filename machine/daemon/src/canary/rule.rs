//! The rule for one CPU: when elevated threads become ordinary, and for how long. Pure: the
//! caller passes answers and the time.
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
//! Silence is counted in time that the machine really ran: a look adds one [`ROUND`] at most,
//! however late it is. A machine that stands still stops the watch as well, so its pause counts
//! as one round. A host that stops this CPU alone is not told apart from a silent canary.

use std::time::{Duration, Instant};

use crate::canary::{PATIENCE, ROUND};

/// Time from a demotion to the next one, if the canary is still silent.
const GRACE: Duration = Duration::from_millis(20);

/// The first rest.
const FIRST: Duration = Duration::from_secs(1);

/// The longest rest. A rest that begins within the same time after another one is twice as long.
const LONGEST: Duration = Duration::from_secs(60);

/// Threads that are ordinary because of this CPU's canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// None.
    Calm,
    /// Everything elevated on this CPU.
    Here,
    /// Everything elevated on any CPU.
    Everywhere,
}

/// Outcome of one look.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The canary has answered, or counting starts anew: it is to be asked.
    Answer,
    /// The canary is silent, and not for long enough.
    Silence,
    /// The canary is silent for too long: [`Listener::rest`] has changed, for so long from now on.
    Alarm(Duration),
}

/// State of one CPU.
#[derive(Debug)]
pub(super) struct Listener {
    rest: Rest,
    /// End and length of the last rest.
    until: Option<Instant>,
    length: Duration,
    /// Begin of the silence, and the looks since then.
    since: Instant,
    looks: u32,
    patience: Duration,
}

impl Listener {
    /// Creates a calm one whose canary was asked at `now`.
    pub(super) fn new(now: Instant) -> Listener {
        Listener {
            rest: Rest::Calm,
            until: None,
            length: FIRST,
            since: now,
            looks: 0,
            patience: PATIENCE,
        }
    }

    pub(super) fn rest(&self) -> Rest {
        self.rest
    }

    /// Counts silence from `now` on.
    pub(super) fn start_over(&mut self, now: Instant) {
        (self.since, self.looks, self.patience) = (now, 0, PATIENCE);
    }

    /// Returns how long the canary has been silent, of the time that the machine ran.
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
            .min(ROUND * self.looks)
    }

    /// Takes one look. `elevated`: whether any thread on any CPU is.
    pub(super) fn look(
        &mut self,
        answered: bool,
        elevated: impl FnOnce() -> bool,
        now: Instant,
    ) -> Heard {
        let is_over = self.rest != Rest::Calm && self.until.is_none_or(|until| now >= until);
        if is_over {
            self.rest = Rest::Calm;
        }
        if answered || is_over {
            self.start_over(now);
            return Heard::Answer;
        }
        self.looks += 1;
        // Without anything elevated, the cause is none of the daemon's.
        if self.silence(now) < self.patience || !elevated() {
            return Heard::Silence;
        }
        match self.rest {
            Rest::Calm => {
                let again = self.until.is_some_and(|until| now < until + LONGEST);
                self.length = if again {
                    (self.length * 2).min(LONGEST)
                } else {
                    FIRST
                };
                self.until = Some(now + self.length);
                self.rest = Rest::Here;
            }
            Rest::Here | Rest::Everywhere => self.rest = Rest::Everywhere,
        }
        (self.since, self.looks, self.patience) = (now, 0, GRACE);
        let left = self.until.map(|until| until.saturating_duration_since(now));
        Heard::Alarm(left.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A listener and its clock.
    struct Ear {
        it: Listener,
        now: Instant,
    }

    impl Ear {
        fn new() -> Ear {
            let now = Instant::now();
            let it = Listener::new(now);
            Ear { it, now }
        }

        fn look(&mut self, answered: bool, after: Duration) -> Heard {
            self.now += after;
            self.it.look(answered, || true, self.now)
        }

        /// Looks once a round for so long.
        fn listen(&mut self, answered: bool, time: Duration) -> Rest {
            for _ in 0..time.as_millis() / ROUND.as_millis() {
                let _ = self.look(answered, ROUND);
            }
            self.it.rest()
        }
    }

    #[test]
    fn a_cpu_that_is_silent_for_80_ms_rests_for_a_second() {
        let mut ear = Ear::new();
        assert_eq!(ear.listen(false, 60 * MS), Rest::Calm);
        assert_eq!(ear.look(false, ROUND), Heard::Alarm(FIRST));
        assert_eq!(ear.it.rest(), Rest::Here);
        assert_eq!(ear.listen(true, FIRST - ROUND), Rest::Here);
        assert_eq!(ear.listen(true, ROUND), Rest::Calm);
    }

    #[test]
    fn all_cpus_rest_if_a_demotion_does_not_end_the_silence() {
        let mut ear = Ear::new();
        assert_eq!(ear.listen(false, 80 * MS), Rest::Here);
        assert_eq!(ear.look(false, ROUND), Heard::Alarm(FIRST - GRACE));
        assert_eq!(ear.it.rest(), Rest::Everywhere);
        // The rest ends with the silence or without.
        assert_eq!(ear.listen(false, FIRST - GRACE), Rest::Calm);
        assert_eq!(ear.listen(false, 80 * MS), Rest::Here);
    }

    #[test]
    fn a_canary_that_has_answered_has_80_ms_again() {
        let mut ear = Ear::new();
        let _ = ear.listen(false, 80 * MS);
        let _ = ear.listen(true, 100 * MS);
        assert_eq!(ear.listen(false, 60 * MS), Rest::Here);
        assert_eq!(ear.listen(false, 20 * MS), Rest::Everywhere);
    }

    #[test]
    fn rests_double_up_to_a_minute_and_start_over_after_a_minute_of_calm() {
        let mut ear = Ear::new();
        for secs in [1, 2, 4, 8, 16, 32, 60, 60] {
            let length = Duration::from_secs(secs);
            let _ = ear.listen(false, 60 * MS);
            assert_eq!(ear.look(false, ROUND), Heard::Alarm(length));
            assert_eq!(ear.listen(true, length), Rest::Calm);
        }
        let _ = ear.listen(true, LONGEST);
        let _ = ear.listen(false, 60 * MS);
        assert_eq!(ear.look(false, ROUND), Heard::Alarm(FIRST));
    }

    #[test]
    fn a_machine_that_stands_still_silences_no_canary() {
        let mut ear = Ear::new();
        for _ in 0..3 {
            assert_eq!(ear.look(false, Duration::from_secs(9)), Heard::Silence);
        }
        assert!(matches!(ear.look(false, ROUND), Heard::Alarm(_)));
    }

    #[test]
    fn a_silence_with_nothing_elevated_is_none_of_the_daemons() {
        let mut ear = Ear::new();
        for _ in 0..100 {
            ear.now += ROUND;
            assert_eq!(ear.it.look(false, || false, ear.now), Heard::Silence);
        }
        assert_eq!(ear.it.rest(), Rest::Calm);
    }

    proptest! {
        /// Silences without a rest are no longer than 80 ms of looks, however answers come.
        #[test]
        fn nothing_elevated_silences_a_canary_for_longer(
            answers in prop::collection::vec((any::<bool>(), 1..200u32), 1..500),
        ) {
            let (mut ear, mut silent) = (Ear::new(), 0);
            for (answered, ms) in answers {
                let _ = ear.look(answered, ms * MS);
                silent = if answered || ear.it.rest() != Rest::Calm { 0 } else { silent + 1 };
                prop_assert!(silent <= 80 + 1, "{silent} looks");
                let time = (ear.now - ear.it.since).min(ROUND * ear.it.looks);
                prop_assert!(time < PATIENCE || ear.it.rest() == Rest::Everywhere);
            }
        }
    }
}
