//! Ticks at a regular period.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use super::sleep::Sleep;
use super::{Instant, nanos_of, now};
use crate::sync::may_proceed;
use crate::time::clock;

/// Creates an interval that ticks every `period`, the first time at once.
///
/// ```
/// use std::time::Duration;
///
/// upshift::Runtime::new()?.block_on(async {
///     let mut interval = upshift::time::interval(Duration::from_millis(1));
///     let first = interval.tick().await;
///     assert!(interval.tick().await > first);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// If `period` is zero. [`tick`](Interval::tick) panics outside of an upshift runtime.
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    Interval::new(now(), period)
}

/// Creates an interval that ticks at `start`, then every `period`.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// upshift::Runtime::new()?.block_on(async {
///     let start = Instant::now() + Duration::from_millis(2);
///     let mut interval = upshift::time::interval_at(start, Duration::from_millis(1));
///     interval.tick().await;
///     assert!(Instant::now() >= start);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Like [`interval`].
#[track_caller]
pub fn interval_at(start: impl Into<Instant>, period: Duration) -> Interval {
    Interval::new(nanos_of(start.into()), period)
}

/// The handling of missed ticks: ticks that are already due when the preceding tick is taken.
///
/// With a period of 100 ms and a tick at 0 ms whose work lasts 250 ms, the next ticks are:
///
/// | behavior | ticks (ms) |
/// |---|---|
/// | `Burst` | 250, 250, 300, 400 |
/// | `Delay` | 250, 350, 450, 550 |
/// | `Skip` | 250, 300, 400, 500 |
///
/// ```
/// use std::time::Duration;
/// use upshift::time::{self, MissedTickBehavior};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let mut interval = time::interval(Duration::from_millis(5));
/// interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
/// interval.tick().await;
/// time::sleep(Duration::from_millis(12)).await; // Misses two ticks.
/// interval.tick().await; // At once.
/// let last = time::Instant::now();
/// interval.tick().await; // A period later.
/// // `last` was read a little after the tick, so less than a whole period has passed.
/// assert!(last.elapsed() >= Duration::from_millis(4));
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTickBehavior {
    /// Missed ticks come at once, one after the other, until the schedule is caught up, so that
    /// there are as many ticks as periods.
    #[default]
    Burst,
    /// The schedule starts anew, so the next tick comes a period after the late tick.
    Delay,
    /// Missed ticks are left out, so the next tick is the first tick of the schedule after now.
    Skip,
}

/// Ticks at a regular period; created by [`interval`] and [`interval_at`].
///
/// ```
/// use std::time::Duration;
/// use upshift::time;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let period = Duration::from_millis(1);
/// let mut interval = time::interval(period);
/// let start = interval.tick().await; // The first tick comes at once.
/// for n in 1..=3 {
///     assert_eq!(interval.tick().await - start, n * period);
/// }
/// # });
/// ```
#[derive(Debug)]
pub struct Interval {
    /// Nanoseconds between ticks.
    period: u64,
    sleep: Sleep,
    behavior: MissedTickBehavior,
}

impl Interval {
    #[track_caller]
    fn new(start: u64, period: Duration) -> Interval {
        assert!(!period.is_zero(), "an interval needs a period above zero");
        Interval {
            period: clock::nanos(period),
            sleep: Sleep::at(start),
            behavior: MissedTickBehavior::default(),
        }
    }

    /// Waits for the next tick. Returns the instant at which it was due.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a tick.
    ///
    /// # Panics
    /// Outside of an upshift runtime, like [`sleep`](super::sleep).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let period = Duration::from_millis(1);
    /// let mut interval = upshift::time::interval(period);
    /// let first = interval.tick().await;
    /// let second = interval.tick().await;
    /// assert_eq!(second - first, period);
    /// # });
    /// ```
    pub async fn tick(&mut self) -> Instant {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Polls for the next tick: [`tick`](Interval::tick) for hand-written futures.
    ///
    /// ```
    /// use std::future::poll_fn;
    /// use std::time::Duration;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let period = Duration::from_millis(1);
    /// let mut interval = upshift::time::interval(period);
    /// let first = poll_fn(|cx| interval.poll_tick(cx)).await;
    /// let second = poll_fn(|cx| interval.poll_tick(cx)).await;
    /// assert_eq!(second - first, period);
    /// # });
    /// ```
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let due = self.sleep.nanos();
        if self.sleep.is_new() && now() >= due {
            // A tick that is late needs no timer.
            if !may_proceed() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        } else if self.sleep.advance(cx, true).is_pending() {
            return Poll::Pending;
        }
        let next = next_tick(due, now(), self.period, self.behavior);
        self.sleep.reset_nanos(next);
        Poll::Ready(clock::to_instant(due).into())
    }

    /// Starts the schedule anew, so that the next tick comes a period from now.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::{self, Instant};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut interval = time::interval(Duration::from_millis(2));
    /// interval.tick().await;
    /// let start = Instant::now();
    /// interval.reset();
    /// interval.tick().await;
    /// assert!(start.elapsed() >= Duration::from_millis(2));
    /// # });
    /// ```
    pub fn reset(&mut self) {
        self.sleep.reset_nanos(now().saturating_add(self.period));
    }

    /// Starts the schedule anew, so that the next tick comes at once.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut interval = upshift::time::interval(Duration::from_secs(3600));
    /// interval.tick().await;
    /// interval.reset_immediately();
    /// interval.tick().await; // Not an hour later.
    /// # });
    /// ```
    pub fn reset_immediately(&mut self) {
        self.sleep.reset_nanos(now());
    }

    /// Starts the schedule anew, so that the next tick comes after the duration `after`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut interval = upshift::time::interval(Duration::from_secs(3600));
    /// interval.reset_after(Duration::from_millis(1));
    /// interval.tick().await;
    /// # });
    /// ```
    pub fn reset_after(&mut self, after: Duration) {
        let due = now().saturating_add(clock::nanos(after));
        self.sleep.reset_nanos(due);
    }

    /// Starts the schedule anew, so that the next tick comes at `deadline`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::{self, Instant};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut interval = time::interval(Duration::from_secs(3600));
    /// let deadline = Instant::now() + Duration::from_millis(1);
    /// interval.reset_at(deadline);
    /// interval.tick().await;
    /// assert!(Instant::now() >= deadline);
    /// # });
    /// ```
    pub fn reset_at(&mut self, deadline: impl Into<Instant>) {
        self.sleep.reset_nanos(nanos_of(deadline.into()));
    }

    /// Returns the time between ticks.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let interval = upshift::time::interval(Duration::from_secs(1));
    /// assert_eq!(interval.period(), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// Returns the handling of missed ticks; [`MissedTickBehavior::Burst`] unless set.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::{self, MissedTickBehavior};
    ///
    /// let mut interval = time::interval(Duration::from_secs(1));
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Burst);
    /// interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    /// assert_eq!(interval.missed_tick_behavior(), MissedTickBehavior::Skip);
    /// ```
    #[must_use]
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.behavior
    }

    /// Sets the handling of missed ticks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::{self, MissedTickBehavior};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut interval = time::interval(Duration::from_millis(1));
    /// interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    /// let first = interval.tick().await;
    /// time::sleep(Duration::from_millis(5)).await;
    /// interval.tick().await; // Due long ago, comes at once.
    /// let next = interval.tick().await; // The ticks in between are left out.
    /// assert!(next - first >= Duration::from_millis(5));
    /// # });
    /// ```
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.behavior = behavior;
    }
}

/// Returns the time of the tick that follows a tick due at `due` and taken at `now` (ns).
fn next_tick(due: u64, now: u64, period: u64, behavior: MissedTickBehavior) -> u64 {
    let next = due.saturating_add(period);
    if now < next {
        return next;
    }
    match behavior {
        MissedTickBehavior::Burst => next,
        MissedTickBehavior::Delay => now.saturating_add(period),
        MissedTickBehavior::Skip => {
            let elapsed = (now - due) % period;
            now.saturating_add(period - elapsed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_punctual_tick_keeps_the_schedule() {
        for behavior in [
            MissedTickBehavior::Burst,
            MissedTickBehavior::Delay,
            MissedTickBehavior::Skip,
        ] {
            assert_eq!(next_tick(1000, 1099, 100, behavior), 1100);
        }
    }

    #[test]
    fn missed_ticks_burst_delay_or_are_skipped() {
        assert_eq!(next_tick(1000, 1250, 100, MissedTickBehavior::Burst), 1100);
        assert_eq!(next_tick(1000, 1250, 100, MissedTickBehavior::Delay), 1350);
        assert_eq!(next_tick(1000, 1250, 100, MissedTickBehavior::Skip), 1300);
        // A tick that is due right now has been missed too.
        assert_eq!(next_tick(1000, 1200, 100, MissedTickBehavior::Skip), 1300);
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        for behavior in [
            MissedTickBehavior::Burst,
            MissedTickBehavior::Delay,
            MissedTickBehavior::Skip,
        ] {
            let next = next_tick(u64::MAX - 1, u64::MAX, u64::MAX, behavior);
            assert_eq!(next, u64::MAX);
        }
    }
}
