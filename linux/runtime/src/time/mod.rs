//! Waiting for time to pass.
//!
//! Every vCPU keeps its timers in a hierarchical wheel with ticks of about a
//! microsecond (1024 ns): a timer never fires early, and what comes on top of three
//! ticks is how long the vCPU needs to get to it (a parked one is woken by the
//! kernel's timer). Arming and cancelling are O(1), without allocation or system
//! call, so a `timeout` around every request is cheap.
//!
//! A timer fires on the vCPU that armed it; the coroutine may have moved on. The
//! clock is `CLOCK_MONOTONIC`: it stands still while the machine is suspended.
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

/// What can go wrong with time.
pub mod error {
    pub use super::timeout::Elapsed;
}

/// Now, in nanoseconds of the clock that deadlines are given in.
#[inline]
fn now() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(now) = pause::now() {
        return now;
    }
    crate::time::clock::now()
}

/// What a duration is counted from: now, or a little later.
#[inline]
fn now_or_later() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(now) = pause::now() {
        return now;
    }
    crate::time::clock::now_or_later()
}

/// The nanoseconds of an instant.
#[inline]
fn nanos_of(instant: Instant) -> u64 {
    crate::time::clock::from_instant(instant.into_std())
}
