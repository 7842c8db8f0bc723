//! Timers, timeouts and intervals.
//!
//! | item | purpose |
//! |---|---|
//! | [`sleep`], [`sleep_until`] | a future that is ready after a duration, or at an instant |
//! | [`timeout`], [`timeout_at`] | a future with a deadline |
//! | [`interval`], [`interval_at`] | ticks at a regular period |
//! | [`Instant`] | a point in time on the clock that timers use |
//!
//! Every vCPU (worker) keeps its timers in a hierarchical wheel with ticks of about a microsecond
//! (1024 ns). A timer never fires early; it is late by up to three ticks, plus the time until the
//! vCPU checks its timers. A parked vCPU is woken by the kernel's timer. Arming and cancelling are
//! O(1), without allocation or system call, so a `timeout` around every request is cheap.
//!
//! A timer fires on the vCPU that armed it, even if the coroutine has moved to another vCPU. The
//! clock is `CLOCK_MONOTONIC`, which stands still while the machine is suspended.
//!
//! # Cancellation safety
//! Every future of this module may be dropped at any time; its timer is cancelled.
//!
//! ```
//! use std::time::Duration;
//! use upshift::time;
//!
//! upshift::Runtime::new()?.block_on(async {
//!     time::sleep(Duration::from_millis(2)).await;
//!     let never = std::future::pending::<()>();
//!     assert!(time::timeout(Duration::from_millis(2), never).await.is_err());
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

pub(crate) mod clock;
mod instant;
mod interval;
#[cfg(feature = "test-util")]
mod pause;
mod sleep;
mod timeout;
pub(crate) mod timers;
mod wheel;

pub use std::time::Duration;

pub use instant::Instant;
pub use interval::{Interval, MissedTickBehavior, interval, interval_at};
#[cfg(feature = "test-util")]
pub use pause::{advance, pause, resume};
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, Timeout, timeout, timeout_at};

/// Errors of this module.
pub mod error {
    pub use super::timeout::Elapsed;
}

/// Returns the time in nanoseconds of the timers' clock.
#[inline]
fn now() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(now) = pause::now() {
        return now;
    }
    crate::time::clock::now()
}

/// Returns the start of a timer's duration: [`now`], or a little later. This reading is cheaper
/// than [`now`], and a later start never makes a timer early.
#[inline]
fn now_or_later() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(now) = pause::now() {
        return now;
    }
    crate::time::clock::now_or_later()
}

/// Returns the nanoseconds of an instant on the timers' clock.
#[inline]
fn nanos_of(instant: Instant) -> u64 {
    crate::time::clock::from_instant(instant.into_std())
}
