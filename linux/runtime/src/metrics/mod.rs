//! What a runtime has done so far: a snapshot that costs the vCPUs nothing.
//!
//! ```text
//!   vCPU (one writer each)                              any thread
//!   core counters  polls, run, starve, waits  ─┐
//!   queue lengths  ready, suspended           ─┼─► Handle::metrics() ─► Metrics (plain data)
//!   meter          busy, parked, spin, ring   ─┘        │
//!                                                       ├─ since(&earlier): what happened in between
//!                                                       ├─ Display of prometheus(): the text format
//!                                                       └─ serde, with the feature `serde`
//! ```
//!
//! # The shape
//!
//! [`Metrics`] has [`coroutines`](Metrics::coroutines) by state, one
//! [`LevelMetrics`] per level that was ever used (most urgent first), one
//! [`VcpuMetrics`] per vCPU with its [`RingMetrics`], and what
//! [preemption](Metrics::preemption) did. Counters only grow; `since` makes rates
//! and the percentiles of an interval out of two snapshots. A time in it is a
//! [`Duration`]; serialised it is an integer of nanoseconds whose name ends in `_ns`.
//!
//! # What it costs
//!
//! Taking it reads words that the vCPUs write anyway, without a lock of theirs:
//! some microseconds on the thread that asks, and an allocation per level in use. A vCPU
//! pays for it with a store per queue operation, and a dozen stores per turn of
//! its ring, whether it is asked for or not. So the words of one snapshot are not of
//! one instant: sums may be off by what happened meanwhile, and by up to four
//! polls that the clock has not been read for. Nothing ever runs backwards.

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

/// What a runtime has done so far; from [`Handle::metrics`](crate::Handle::metrics).
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct Metrics {
    /// The time since the runtime was built; of [`since`](Metrics::since), the
    /// time between the two.
    #[cfg_attr(feature = "serde", serde(rename = "uptime_ns", with = "nanos"))]
    pub uptime: Duration,
    /// What carries out I/O: `ring` or `readiness`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub driver: String,
    /// The coroutines by what they are doing.
    pub coroutines: CoroutineMetrics,
    /// The levels that were ever used, most urgent first.
    pub levels: Vec<LevelMetrics>,
    /// The vCPUs by index, those that were released included.
    pub vcpus: Vec<VcpuMetrics>,
    /// What preemption did, over all vCPUs.
    pub preemption: PreemptionStats,
    /// The threads of [`spawn_blocking`](crate::spawn_blocking).
    pub blocking: BlockingMetrics,
    /// The polls that took longest; empty unless
    /// [`Builder::stall_limit`](crate::Builder::stall_limit) was set.
    pub stalls: StallMetrics,
    /// Work that has a name, in the order in which the names came up; see
    /// [`named`](crate::named).
    #[cfg_attr(feature = "serde", serde(default))]
    pub named: Vec<NamedMetrics>,
}

/// The work of one [name](crate::named): the requests of a route, for instance.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct NamedMetrics {
    /// The name.
    pub name: String,
    /// Pieces of work that have begun and not ended.
    pub under_way: u64,
    /// Pieces of work that have ended, or were dropped.
    pub ended: u64,
    /// Polls.
    pub polls: u64,
    /// Time in these polls. Time in which a poll was suspended counts.
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

/// Coroutines, counted. `live` is the sum of the four states below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct CoroutineMetrics {
    /// Spawned and not exited.
    pub live: u64,
    /// Waiting for a vCPU. What was woken from another thread, and not looked at
    /// by its vCPU yet, still counts as blocked.
    pub ready: u64,
    /// Being polled.
    pub running: u64,
    /// Waiting for a wake.
    pub blocked: u64,
    /// Interrupted in the middle of a poll.
    pub suspended: u64,
    /// Spawned so far.
    pub spawned: u64,
    /// Exited so far, for whatever reason.
    pub exited: u64,
    /// How many of them panicked.
    pub panicked: u64,
}

/// One level, over all vCPUs.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct LevelMetrics {
    /// Which.
    #[cfg_attr(feature = "serde", serde(with = "nanos::level"))]
    pub level: Level,
    /// Polls begun or resumed.
    pub polls: u64,
    /// Polls that were suspended.
    pub suspensions: u64,
    /// Coroutines that are ready or suspended now.
    pub ready: u64,
    /// vCPUs that are polling one of this level now.
    pub running: u64,
    /// Time spent in polls.
    #[cfg_attr(feature = "serde", serde(rename = "run_ns", with = "nanos"))]
    pub run: Duration,
    /// Time during which a vCPU had something of this level ready and picked none
    /// of it.
    #[cfg_attr(feature = "serde", serde(rename = "starve_ns", with = "nanos"))]
    pub starve: Duration,
    /// How long coroutines were ready before they were polled.
    pub wait: Histogram,
}

/// One vCPU.
///
/// `in_service` = `busy` + `parked` + `spin`, and `busy` = `polling` + what
/// scheduling and the ring took.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct VcpuMetrics {
    /// Its number.
    pub index: usize,
    /// It was not released.
    pub active: bool,
    /// It waits for something to do.
    pub is_parked: bool,
    /// The name of the work that it polls now, if that has one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub polls_name: Option<String>,
    /// Where what it polls now was spawned: `file:line:column`.
    pub polls_location: Option<String>,
    /// How long the poll that is under way has taken.
    #[cfg_attr(feature = "serde", serde(rename = "poll_age_ns", with = "nanos"))]
    pub poll_age: Duration,
    /// The level of what it polls now.
    #[cfg_attr(feature = "serde", serde(with = "nanos::optional_level"))]
    pub running: Option<Level>,
    /// Coroutines that are ready or suspended here now.
    pub ready: u64,
    /// How many of them are suspended.
    pub suspended: u64,
    /// How long it has been in service.
    #[cfg_attr(feature = "serde", serde(rename = "in_service_ns", with = "nanos"))]
    pub in_service: Duration,
    /// Time in which it did something.
    #[cfg_attr(feature = "serde", serde(rename = "busy_ns", with = "nanos"))]
    pub busy: Duration,
    /// Time spent in polls: the part of `busy` that coroutines had.
    #[cfg_attr(feature = "serde", serde(rename = "polling_ns", with = "nanos"))]
    pub polling: Duration,
    /// Time in which it slept in the kernel.
    #[cfg_attr(feature = "serde", serde(rename = "parked_ns", with = "nanos"))]
    pub parked: Duration,
    /// Time in which it spun before it went to sleep, or instead.
    #[cfg_attr(feature = "serde", serde(rename = "spin_ns", with = "nanos"))]
    pub spin: Duration,
    /// How often it went to sleep.
    pub parks: u64,
    /// Polls begun or resumed.
    pub polls: u64,
    /// Polls that were suspended.
    pub suspensions: u64,
    /// Coroutines taken over from other vCPUs.
    pub stolen: u64,
    /// Its ring.
    pub ring: RingMetrics,
}

impl VcpuMetrics {
    /// The share of its time in service in which it did something, 0.0 to 1.0.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        if self.in_service.is_zero() {
            return 0.0;
        }
        (self.busy.as_secs_f64() / self.in_service.as_secs_f64()).min(1.0)
    }
}

/// The ring of a vCPU, as of its last turn. With the readiness driver it counts the same things, as if there were one.
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
    /// Times the completion queue had overflowed.
    pub overflows: u64,
    /// Operations and streams in flight now.
    pub in_flight: u64,
    /// The longest that the backlog of a full submission queue ever was.
    pub backlog_max: u64,
    /// Times a stream found no receive buffer and had to wait for one.
    pub out_of_buffers: u64,
    /// Times a stream was stopped because its consumer was behind.
    pub stalled_streams: u64,
    /// Wakes of the sleeping vCPU by other threads.
    pub kicks: u64,
    /// Operations refused because too many were alive.
    pub refused: u64,
}

/// Polls that took long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct StallMetrics {
    /// The limit; zero: there is no watchdog.
    #[cfg_attr(feature = "serde", serde(rename = "limit_ns", with = "nanos"))]
    pub limit: Duration,
    /// Polls that took longer than the limit, and have ended.
    pub count: u64,
    /// The longest polls, longest first, one for each place where coroutines are
    /// spawned. Polls below half the limit are a sample.
    pub longest: Vec<LongPoll>,
}

/// The longest poll of the work of one name, or of the coroutines without a name that were spawned
/// in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct LongPoll {
    /// The name of the work, if it has one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub name: Option<String>,
    /// Where they were spawned: `file:line:column`.
    pub location: String,
    /// The coroutine.
    pub id: String,
    /// Its level then.
    #[cfg_attr(feature = "serde", serde(with = "nanos::level"))]
    pub level: Level,
    /// How long the poll took.
    #[cfg_attr(feature = "serde", serde(rename = "longest_ns", with = "nanos"))]
    pub longest: Duration,
    /// A poll of this place is under way that the watchdog has reported.
    pub is_running: bool,
    /// How many polls of this place were timed.
    pub watched: u64,
}

/// The threads of [`spawn_blocking`](crate::spawn_blocking).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[non_exhaustive]
pub struct BlockingMetrics {
    /// Threads that exist.
    pub threads: u64,
    /// Threads that have nothing to do.
    pub idle: u64,
    /// Functions that wait for a thread.
    pub queued: u64,
}

impl Metrics {
    /// The figures of a level; `None` if it was never used.
    #[must_use]
    pub fn level(&self, level: Level) -> Option<&LevelMetrics> {
        self.levels.iter().find(|metrics| metrics.level == level)
    }

    /// Bit L is set iff level L has something ready, suspended or running.
    #[must_use]
    pub fn occupied(&self) -> u64 {
        self.levels
            .iter()
            .filter(|level| level.ready + level.running != 0)
            .fold(0, |bits, level| bits | level.level.bit())
    }
}
