//! Counters of the coroutines of one level, with ticks converted to durations.

use std::time::Duration;

use upshift_core::{Domain, Level};

use crate::host::Linux;
use crate::time::clock;

/// Counters of one level since the runtime was built, over all vCPUs.
///
/// ```
/// use upshift::{Handle, Level};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let level = Level::at::<3>();
/// for _ in 0..5 {
///     upshift::spawn(async {}, level).await.unwrap();
/// }
/// let stats = Handle::current().unwrap().level_stats(level);
/// assert_eq!((stats.polls(), stats.suspensions()), (5, 0));
/// println!("p99 of the wait: {:?}", stats.wait_quantile(0.99));
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct LevelStats {
    inner: upshift_core::LevelStats,
}

/// Returns the counters of a level, over all vCPUs of a runtime.
pub(crate) fn level_stats(domain: &Domain<Linux>, level: Level) -> LevelStats {
    let mut vcpus = domain.vcpus();
    let mut sum = match vcpus.next() {
        Some(vcpu) => vcpu.level_stats(level),
        None => unreachable!("a runtime has a vCPU"),
    };
    for vcpu in vcpus {
        sum.merge(&vcpu.level_stats(level));
    }
    LevelStats { inner: sum }
}

impl LevelStats {
    /// Returns the number of polls begun.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.inner.polls
    }

    /// Returns the number of polls that were interrupted for something at least as urgent.
    #[must_use]
    pub fn suspensions(&self) -> u64 {
        self.inner.suspensions
    }

    /// Returns the time spent in polls.
    #[must_use]
    pub fn run_time(&self) -> Duration {
        clock::from_ticks(self.inner.run_ticks)
    }

    /// Returns the time during which the level had ready coroutines and none of them was chosen for
    /// a poll.
    #[must_use]
    pub fn starve_time(&self) -> Duration {
        clock::from_ticks(self.inner.starve_ticks)
    }

    /// Returns the `q`-quantile (0.0 to 1.0) of the time between becoming ready and being polled.
    /// The result may be up to 20% below the exact value.
    #[must_use]
    pub fn wait_quantile(&self, q: f64) -> Duration {
        clock::from_ticks(self.inner.wait.quantile(q))
    }
}
