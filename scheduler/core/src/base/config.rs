//! Options with which a domain or a coroutine is created, and the errors of the creation.

use core::fmt;

use crate::base::kind::Kind;
use crate::base::level::{Level, Priority};

/// Largest number of vCPUs of a domain.
pub const MAX_VCPUS: usize = if cfg!(loom) { 4 } else { 256 };

/// Options of a whole domain.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// A guaranteed share of CPU time for less urgent levels. If `None`, priority is strict, and a
    /// less urgent level may starve. With a floor of share *f* and quantum *Q*, two bounds hold on
    /// each vCPU if the longest poll *P* of any level is so short that *f* · *P* ≤ *Q*:
    ///
    /// * In any window of length *w* in which the floor's levels have work, they get at least
    ///   *f* · *w* − (*Q* + *P*).
    /// * In any window of length *w*, polls of the floor's levels that began while a coroutine of
    ///   a more urgent level was ready take at most *f* · *w* + *Q* + *P*. So a series of such
    ///   polls without a break takes at most *Q* / (1 − *f*) + *P*.
    ///
    /// With a floor, the clock is read at each poll, so `coarse_below` has no effect.
    pub floor: Option<Floor>,
    /// Seed of a test mode in which the order within a level is shuffled and a random half of the
    /// polls is asked to yield. If `None`, the mode is off.
    pub chaos: Option<u64>,
    /// While polls take fewer ticks than this, the clock is read at every fourth poll only, and the
    /// four polls share the elapsed time. If 0, the clock is read at every poll.
    pub coarse_below: u64,
    /// A vCPU wakes a parked vCPU to take over work if that work would take at least this many
    /// ticks. The time is estimated as the mean length of a poll, times the number of coroutines
    /// that may move in the most urgent level that has any. If 0, any such work suffices.
    pub notify_above: u64,
    /// A poll that has run for this many ticks is *long*, and idle vCPUs take the work that waits
    /// behind it. A good value is the cost of moving work to another CPU. If 0, vCPUs do not look
    /// at each other's polls, and [`Vcpu::sleep_limit`](crate::Vcpu::sleep_limit) always returns
    /// `None`.
    pub long_poll_after: u64,
    /// A suspended coroutine queues in its level as if it had become ready this many ticks later.
    /// So coroutines that have not used their quantum go before it, but for this long at most. When
    /// the suspended coroutine has waited that long, it may go before them. Only one suspended
    /// coroutine does so per `suspended_delay`, however many are suspended. If 0, a suspended
    /// coroutine is queued like any other.
    pub suspended_delay: u64,
}

/// A share of the time of each vCPU for its less urgent levels; see [`Config::floor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The most urgent level of the floor. When the floor is served, the most urgent of its levels
    /// that is ready on the vCPU goes first.
    pub from: Level,
    /// Share of these levels in percent, 1 to 99.
    pub percent: u8,
    /// The time, in ticks, by which the levels may be ahead of their share or behind it.
    pub quantum: u64,
}

/// Options of a new coroutine.
#[derive(Clone, Copy, Debug)]
pub struct SpawnOptions {
    /// Level of the coroutine.
    pub priority: Priority,
    /// Kind of the coroutine.
    pub kind: Kind,
    /// If false, the coroutine stays [`State::Created`](crate::State::Created) until its first
    /// wake.
    pub start: bool,
}

impl Default for SpawnOptions {
    fn default() -> SpawnOptions {
        SpawnOptions {
            priority: Priority::Inherit,
            kind: Kind::Task,
            start: true,
        }
    }
}

impl From<Priority> for SpawnOptions {
    fn from(priority: Priority) -> SpawnOptions {
        SpawnOptions {
            priority,
            ..SpawnOptions::default()
        }
    }
}

/// Reason why a coroutine could not be spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// Memory for a control block ran out, or the table has no slot left.
    OutOfMemory,
    /// The domain is shutting down.
    Closed,
    /// The domain has no vCPU.
    NoVcpu,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpawnError::OutOfMemory => "no memory for another coroutine",
            SpawnError::Closed => "the domain is shutting down: it takes no new coroutines",
            SpawnError::NoVcpu => {
                "no vCPU: add one to the domain, or spawn in a coroutine or through a handle"
            }
        })
    }
}

impl core::error::Error for SpawnError {}

/// Error of [`Domain::add_vcpu`](crate::Domain::add_vcpu), returned if the domain already has
/// [`MAX_VCPUS`] vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyVcpus;

impl fmt::Display for TooManyVcpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a domain has at most {MAX_VCPUS} vCPUs: release one first"
        )
    }
}

impl core::error::Error for TooManyVcpus {}
