//! A moment of the clock that timers use.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::{self, Duration};

/// A moment of the clock that timers use. It wraps a [`std::time::Instant`], into and from which it
/// converts. In a runtime whose time is paused (feature `test-util`), [`now`](Instant::now) stands
/// still.
///
/// ```
/// use std::time::Duration;
/// use upshift::time::Instant;
///
/// let start = Instant::now();
/// let deadline = start + Duration::from_secs(1);
/// assert_eq!(deadline - start, Duration::from_secs(1));
/// // The difference to a later instant is zero, not a panic.
/// assert_eq!(start - deadline, Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(time::Instant);

impl Instant {
    /// Returns the present moment.
    ///
    /// ```
    /// use upshift::time::Instant;
    ///
    /// let first = Instant::now();
    /// assert!(Instant::now() >= first);
    /// ```
    #[must_use]
    pub fn now() -> Instant {
        #[cfg(feature = "test-util")]
        if let Some(now) = super::pause::now() {
            return Instant(crate::time::clock::to_instant(now));
        }
        Instant(time::Instant::now())
    }

    /// Converts a [`std::time::Instant`].
    ///
    /// ```
    /// use upshift::time::Instant;
    ///
    /// let std = std::time::Instant::now();
    /// assert_eq!(Instant::from_std(std).into_std(), std);
    /// ```
    #[must_use]
    pub fn from_std(instant: time::Instant) -> Instant {
        Instant(instant)
    }

    /// Converts into a [`std::time::Instant`].
    ///
    /// ```
    /// let now = upshift::time::Instant::now();
    /// let std: std::time::Instant = now.into_std();
    /// assert_eq!(upshift::time::Instant::from_std(std), now);
    /// ```
    #[must_use]
    pub fn into_std(self) -> time::Instant {
        self.0
    }

    /// Returns the time since an earlier moment, or zero if that moment is later.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::Instant;
    ///
    /// let first = Instant::now();
    /// let second = first + Duration::from_millis(5);
    /// assert_eq!(second.duration_since(first), Duration::from_millis(5));
    /// assert_eq!(first.duration_since(second), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time since an earlier moment, or `None` if that moment is later.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::Instant;
    ///
    /// let first = Instant::now();
    /// let second = first + Duration::from_millis(5);
    /// assert!(second.checked_duration_since(first).is_some());
    /// assert!(first.checked_duration_since(second).is_none());
    /// ```
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_duration_since(earlier.0)
    }

    /// Returns the time since an earlier moment, or zero if that moment is later: the same as
    /// [`duration_since`](Instant::duration_since).
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::Instant;
    ///
    /// let first = Instant::now();
    /// let second = first + Duration::from_millis(5);
    /// assert_eq!(first.saturating_duration_since(second), Duration::ZERO);
    /// ```
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }

    /// Returns the time that has passed since this moment.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::{self, Instant};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let start = Instant::now();
    /// time::sleep(Duration::from_millis(1)).await;
    /// assert!(start.elapsed() >= Duration::from_millis(1));
    /// # });
    /// ```
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Instant::now().duration_since(*self)
    }

    /// Returns the moment `duration` later, or `None` if it cannot be represented.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::Instant;
    ///
    /// assert!(Instant::now().checked_add(Duration::from_secs(1)).is_some());
    /// assert!(Instant::now().checked_add(Duration::MAX).is_none());
    /// ```
    #[must_use]
    pub fn checked_add(&self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    /// Returns the moment `duration` earlier, or `None` if it cannot be represented.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::Instant;
    ///
    /// assert!(Instant::now().checked_sub(Duration::MAX).is_none());
    /// ```
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
