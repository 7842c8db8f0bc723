//! A moment of the clock that timers go by.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::{self, Duration};

/// As [`std::time::Instant`], and converts from and into it. In a runtime whose time is
/// paused (feature `test-util`), [`now`](Instant::now) stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(time::Instant);

impl Instant {
    /// Now.
    #[must_use]
    pub fn now() -> Instant {
        #[cfg(feature = "test-util")]
        if let Some(now) = super::pause::now() {
            return Instant(crate::time::clock::to_instant(now));
        }
        Instant(time::Instant::now())
    }

    /// The same moment.
    #[must_use]
    pub fn from_std(instant: time::Instant) -> Instant {
        Instant(instant)
    }

    /// The same moment.
    #[must_use]
    pub fn into_std(self) -> time::Instant {
        self.0
    }

    /// The time since an earlier moment; zero, if it is later.
    #[must_use]
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// The time since an earlier moment; `None`, if it is later.
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_duration_since(earlier.0)
    }

    /// The time since an earlier moment; zero, if it is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }

    /// The time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Instant::now().duration_since(*self)
    }

    /// Later by a duration, if that can be said.
    #[must_use]
    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    /// Earlier by a duration, if that can be said.
    #[must_use]
    pub fn checked_sub(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_sub(duration).map(Instant)
    }
}

impl From<time::Instant> for Instant {
    fn from(instant: time::Instant) -> Instant {
        Instant(instant)
    }
}

impl From<Instant> for time::Instant {
    fn from(instant: Instant) -> time::Instant {
        instant.0
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0 - duration)
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        self.0 -= duration;
    }
}
