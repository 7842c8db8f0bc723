//! Counters of a runtime. Taking a snapshot of them does not disturb the vCPUs.
//!
//! ```text
//!   vCPU (one writer each)                              any thread
//!   core counters  polls, run, starve, waits  ─┐
//!   queue lengths  ready, suspended           ─┼─► Handle::metrics() ─► Metrics (plain data)
//!   meter          busy, parked, spin, ring   ─┘        │
//!                                                       ├─ since(&earlier): the interval
//!                                                       └─ serde, with the feature `serde`
//! ```
//!
//! # The shape
//!
//! [`Metrics`] has [`coroutines`](Metrics::coroutines) by state, one [`LevelMetrics`] per level
//! that was ever used (most urgent first), one [`VcpuMetrics`] per vCPU with its [`RingMetrics`],
//! and the counters of [preemption](Metrics::preemption). Counters only grow;
//! [`since`](Metrics::since) computes the counts and histograms of an interval from two snapshots.
//! Times are [`Duration`]s; in serialised form they are integers in nanoseconds, whose names end in
//! `_ns`.
//!
//! # Cost and consistency
//!
//! A snapshot reads words that the vCPUs write anyway, and takes no lock of a vCPU. It costs a few
//! microseconds on the calling thread, and an allocation per level in use. Each vCPU makes a store
//! per queue operation, and a dozen stores per visit to its ring, whether snapshots are taken or
//! not. The words of one snapshot are not read at one instant. So sums may be off by events in the
//! meantime, and by up to four polls for which the clock has not been read. No counter ever
//! decreases.

mod collect;
mod histogram;
mod meter;
#[cfg(feature = "serde")]
mod nanos;
mod prometheus;
mod since;

use std::time::Duration;

use upshift_core::Level;

use crate::preempt::PreemptionStats;

pub(crate) use collect::collect;
pub use histogram::{Bucket, Histogram};
pub(crate) use meter::Meter;
pub use prometheus::Prometheus;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Counters of a runtime; from [`Handle::metrics`](crate::Handle::metrics).
///
/// ```
/// use upshift::{Handle, Level};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let before = Handle::current().unwrap().metrics();
/// upshift::spawn(async {}, Level::at::<3>()).await.unwrap();
/// let interval = Handle::current().unwrap().metrics().since(&before);
/// assert_eq!((interval.coroutines.spawned, interval.coroutines.exited), (1, 1));
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct Metrics {
    /// Time since the runtime was built; in a result of [`since`](Metrics::since), the time between
    /// the snapshots.
    #[cfg_attr(feature = "serde", serde(rename = "uptime_ns", with = "nanos"))]
    pub uptime: Duration,
    /// Driver of I/O: `ring` or `readiness`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub driver: String,
    /// Coroutines by state.
    pub coroutines: CoroutineMetrics,
    /// Levels that were ever used, most urgent first.
    pub levels: Vec<LevelMetrics>,
    /// vCPUs by index, including those that were released.
    pub vcpus: Vec<VcpuMetrics>,
    /// Counters of preemption, over all vCPUs.
    pub preemption: PreemptionStats,
    /// The threads of [`spawn_blocking`](crate::spawn_blocking).
    pub blocking: BlockingMetrics,
    /// The longest polls; empty if nothing looks for them, see
    /// [`Builder::stall_limit`](crate::Builder::stall_limit).
    pub stalls: StallMetrics,
    /// Named work, in the order in which the names were first used; see [`named`](crate::named).
    #[cfg_attr(feature = "serde", serde(default))]
    pub named: Vec<NamedMetrics>,
}

/// Counters of the work of one [name](crate::named), for instance of the requests of a route.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// upshift::named("GET /", async {}).await;
/// let metrics = upshift::Handle::current().unwrap().metrics();
/// let work = metrics.named.iter().find(|work| work.name == "GET /").unwrap();
/// assert_eq!((work.ended, work.under_way, work.latency.count()), (1, 0, 1));
/// # });
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct NamedMetrics {
    /// The name.
    pub name: String,
    /// Number of pieces of work that have begun and not ended.
    pub under_way: u64,
    /// Number of pieces of work that have ended or were dropped.
    pub ended: u64,
    /// Number of polls.
    pub polls: u64,
    /// Time spent in these polls, including the time in which they were suspended.
    #[cfg_attr(feature = "serde", serde(rename = "polling_ns", with = "nanos"))]
    pub polling: Duration,
    /// The longest poll so far.
    #[cfg_attr(feature = "serde", serde(rename = "longest_ns", with = "nanos"))]
    pub longest: Duration,
    /// The level of the last poll.
    #[cfg_attr(feature = "serde", serde(with = "nanos::level"))]
    pub level: Level,
    /// Times from the first poll of a piece of work to its end.
    pub latency: Histogram,
}

/// Numbers of coroutines. `live` is the sum of the four states below it.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let _waits = upshift::task::spawn(std::future::pending::<()>());
/// upshift::yield_now().await;
/// let now = upshift::Handle::current().unwrap().metrics().coroutines;
/// assert_eq!(now.running, 1);
/// assert_eq!(now.live, now.ready + now.running + now.blocked + now.suspended);
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct CoroutineMetrics {
    /// Coroutines that were spawned and have not exited.
    pub live: u64,
    /// Coroutines that wait for a vCPU. A coroutine that another thread has woken counts as blocked
    /// until its vCPU handles the wake.
    pub ready: u64,
    /// Coroutines that are being polled.
    pub running: u64,
    /// Coroutines that wait for a wake.
    pub blocked: u64,
    /// Coroutines that were interrupted in the middle of a poll.
    pub suspended: u64,
    /// Coroutines spawned so far.
    pub spawned: u64,
    /// Coroutines that have exited so far, for any reason.
    pub exited: u64,
    /// Coroutines that have panicked so far.
    pub panicked: u64,
}

/// Counters of one level, over all vCPUs.
///
/// ```
/// use upshift::{Handle, Level};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let _ready = upshift::spawn(async {}, Level::at::<40>());
/// let metrics = Handle::current().unwrap().metrics();
/// let level = metrics.level(Level::at::<40>()).unwrap();
/// assert_eq!((level.ready, level.polls), (1, 0));
/// # });
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct LevelMetrics {
    /// The level.
    #[cfg_attr(feature = "serde", serde(with = "nanos::level"))]
    pub level: Level,
    /// Number of polls begun or resumed.
    pub polls: u64,
    /// Number of polls that were suspended.
    pub suspensions: u64,
    /// Number of coroutines that are ready or suspended now.
    pub ready: u64,
    /// Number of vCPUs that are polling a coroutine of this level now.
    pub running: u64,
    /// Time spent in polls.
    #[cfg_attr(feature = "serde", serde(rename = "run_ns", with = "nanos"))]
    pub run: Duration,
    /// Time during which a vCPU had ready coroutines of this level and chose none of them for a
    /// poll.
    #[cfg_attr(feature = "serde", serde(rename = "starve_ns", with = "nanos"))]
    pub starve: Duration,
    /// Times for which coroutines were ready before they were polled.
    pub wait: Histogram,
}

/// Counters of one vCPU.
///
/// `in_service` is the sum of `busy`, `parked` and `spin`. `busy` is the sum of `polling` and the
/// time that scheduling and the ring take.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let metrics = upshift::Handle::current().unwrap().metrics();
/// let vcpu = &metrics.vcpus[0];
/// assert!(vcpu.active && !vcpu.is_parked);
/// assert_eq!(vcpu.running, upshift::current_level());
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct VcpuMetrics {
    /// Number of the vCPU.
    pub index: usize,
    /// True unless the vCPU was released.
    pub active: bool,
    /// Set while the vCPU waits for work.
    pub is_parked: bool,
    /// Name of the work of the poll under way, if it has one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub polls_name: Option<String>,
    /// Spawn location of the coroutine that is being polled: `file:line:column`.
    pub polls_location: Option<String>,
    /// Duration of the poll under way so far.
    #[cfg_attr(feature = "serde", serde(rename = "poll_age_ns", with = "nanos"))]
    pub poll_age: Duration,
    /// Level of the coroutine that is being polled.
    #[cfg_attr(feature = "serde", serde(with = "nanos::optional_level"))]
    pub running: Option<Level>,
    /// Number of coroutines that are ready or suspended here now.
    pub ready: u64,
    /// Number of coroutines that are suspended here now.
    pub suspended: u64,
    /// Time in service.
    #[cfg_attr(feature = "serde", serde(rename = "in_service_ns", with = "nanos"))]
    pub in_service: Duration,
    /// Time neither parked nor spinning.
    #[cfg_attr(feature = "serde", serde(rename = "busy_ns", with = "nanos"))]
    pub busy: Duration,
    /// Time spent in polls, which is the part of `busy` that coroutines used.
    #[cfg_attr(feature = "serde", serde(rename = "polling_ns", with = "nanos"))]
    pub polling: Duration,
    /// Time asleep in the kernel.
    #[cfg_attr(feature = "serde", serde(rename = "parked_ns", with = "nanos"))]
    pub parked: Duration,
    /// Time spent spinning before a sleep, or instead of it.
    #[cfg_attr(feature = "serde", serde(rename = "spin_ns", with = "nanos"))]
    pub spin: Duration,
    /// Number of times that the vCPU went to sleep.
    pub parks: u64,
    /// Number of polls begun or resumed.
    pub polls: u64,
    /// Number of polls that were suspended.
    pub suspensions: u64,
    /// Number of coroutines stolen from other vCPUs.
    pub stolen: u64,
    /// Counters of the ring.
    pub ring: RingMetrics,
}

impl VcpuMetrics {
    /// Returns the fraction (0.0 to 1.0) of its time in service for which the vCPU was busy.
    ///
    /// ```
    /// use upshift::metrics::VcpuMetrics;
    ///
    /// let mut vcpu = VcpuMetrics::default();
    /// assert_eq!(vcpu.utilisation(), 0.0);
    /// vcpu.in_service = std::time::Duration::from_secs(4);
    /// vcpu.busy = std::time::Duration::from_secs(1);
    /// assert_eq!(vcpu.utilisation(), 0.25);
    /// ```
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        if self.in_service.is_zero() {
            return 0.0;
        }
        (self.busy.as_secs_f64() / self.in_service.as_secs_f64()).min(1.0)
    }
}

/// Counters of a vCPU's ring, as of its last submission or reap. With the readiness driver, they
/// count the equivalent events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct RingMetrics {
    /// `io_uring_enter` calls, or their equivalent without io_uring.
    pub enters: u64,
    /// Submission queue entries handed to the kernel.
    pub submitted: u64,
    /// Completion queue entries read.
    pub completed: u64,
    /// Number of times that the completion queue had overflowed.
    pub overflows: u64,
    /// Operations and streams in flight now.
    pub in_flight: u64,
    /// Greatest number of operations that have waited at once because the submission queue was
    /// full.
    pub backlog_max: u64,
    /// Number of times that a stream found no receive buffer and had to wait for one.
    pub out_of_buffers: u64,
    /// Number of times that a stream was stopped because its consumer was behind.
    pub stalled_streams: u64,
    /// Wakes of the sleeping vCPU by other threads.
    pub kicks: u64,
    /// Operations refused because too many were alive.
    pub refused: u64,
}

/// Polls that took longer than a limit, and the longest polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct StallMetrics {
    /// The limit, [`Builder::stall_limit`](crate::Builder::stall_limit); zero without a watchdog.
    #[cfg_attr(feature = "serde", serde(rename = "limit_ns", with = "nanos"))]
    pub limit: Duration,
    /// Number of polls that took longer than the limit, and have ended.
    pub count: u64,
    /// The longest polls, longest first, one for each name (if any) and spawn location. Polls below
    /// half the limit are a sample.
    pub longest: Vec<LongPoll>,
}

/// The longest poll among all polls of one spawn location and one name of work (or none).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct LongPoll {
    /// The name of the work, if it has one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub name: Option<String>,
    /// Spawn location: `file:line:column`.
    pub location: String,
    /// Id of the coroutine.
    pub id: String,
    /// Level of the poll.
    #[cfg_attr(feature = "serde", serde(with = "nanos::level"))]
    pub level: Level,
    /// Duration of the poll.
    #[cfg_attr(feature = "serde", serde(rename = "longest_ns", with = "nanos"))]
    pub longest: Duration,
    /// Set while a poll with this name and location that has exceeded the limit is under way.
    pub is_running: bool,
    /// Number of polls of this name and location that were timed.
    pub watched: u64,
}

/// The threads of [`spawn_blocking`](crate::spawn_blocking).
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// upshift::spawn_blocking(|| ()).await.unwrap();
/// let blocking = upshift::Handle::current().unwrap().metrics().blocking;
/// assert_eq!(blocking.queued, 0);
/// assert!(blocking.idle <= blocking.threads);
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct BlockingMetrics {
    /// Number of threads.
    pub threads: u64,
    /// Number of threads that have nothing to do.
    pub idle: u64,
    /// Number of functions that wait for a thread.
    pub queued: u64,
}

impl Metrics {
    /// Returns the counters of a level; `None` if it was never used.
    ///
    /// ```
    /// use upshift::{Handle, Level};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// upshift::spawn(async {}, Level::at::<3>()).await.unwrap();
    /// let metrics = Handle::current().unwrap().metrics();
    /// assert_eq!(metrics.level(Level::at::<3>()).map(|level| level.polls), Some(1));
    /// assert!(metrics.level(Level::at::<50>()).is_none()); // Never used.
    /// # });
    /// ```
    #[must_use]
    pub fn level(&self, level: Level) -> Option<&LevelMetrics> {
        self.levels.iter().find(|metrics| metrics.level == level)
    }

    /// Returns a bitmap, in which bit L is set if and only if level L has a coroutine that is
    /// ready, suspended or running.
    ///
    /// ```
    /// use upshift::{Handle, Level};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let _ready = upshift::spawn(async {}, Level::at::<40>());
    /// let occupied = Handle::current().unwrap().metrics().occupied();
    /// assert_ne!(occupied & (1 << 40), 0);
    /// assert_eq!(occupied & (1 << 50), 0);
    /// # });
    /// ```
    #[must_use]
    pub fn occupied(&self) -> u64 {
        self.levels
            .iter()
            .filter(|level| level.ready + level.running != 0)
            .fold(0, |bits, level| bits | level.level.bit())
    }
}
