//! Options of a domain and of a coroutine, and the errors of their creation.

use core::fmt;

use crate::base::kind::Kind;
use crate::base::level::{Level, Priority};

/// Largest number of vCPUs of a domain.
pub const MAX_VCPUS: usize = if cfg!(loom) { 4 } else { 256 };

/// Options of a whole domain.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// A guaranteed share of CPU time for less urgent levels. `None`: priority is strict, and a
    /// less urgent level may starve. With a floor, for a share *f*, a quantum *Q*, the longest poll
    /// *P* of any level and *f* · *P* ≤ *Q*, on each vCPU:
    ///
    /// * In any window of length *w* in which the floor's levels have work, they get at least
    ///   *f* · *w* − (*Q* + *P*).
    /// * In any window of length *w*, polls of the floor that began while something more urgent
    ///   was ready take at most *f* · *w* + *Q* + *P*. So in a row they take at most
    ///   *Q* / (1 − *f*) + *P*.
    ///
    /// With a floor the clock is read at each poll: `coarse_below` has no effect.
    pub floor: Option<Floor>,
    /// Seed of the test mode: the order within a level is shuffled, and a random half of the polls
    /// is asked to yield. `None`: off.
    pub chaos: Option<u64>,
    /// Ticks. While polls take less than this, the clock is read at every fourth poll only, and the
    /// four share the elapsed time. 0: the clock is read at every poll.
    pub coarse_below: u64,
    /// Ticks. A vCPU wakes a parked vCPU if its surplus work is worth at least this, judged by the
    /// mean poll. 0: any surplus does.
    pub notify_above: u64,
    /// Ticks. A poll that has run for this time is *long*: idle vCPUs take the work that waits
    /// behind it. A good value is the cost of moving work to another CPU. 0: vCPUs do not look at
    /// each other's polls, and the host does not ask
    /// [`Vcpu::sleep_limit`](crate::Vcpu::sleep_limit).
    pub long_poll_after: u64,
    /// Ticks. A suspended coroutine queues in its level as if it had become ready this much later:
    /// coroutines that have not used their quantum go first, for this long at most. After that, one
    /// suspended coroutine per `suspended_delay` goes before them, however many are suspended. 0: a
    /// suspended coroutine waits its turn like any other.
    pub suspended_delay: u64,
}

/// A share of the time of each vCPU for its less urgent levels; see [`Config::floor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The most urgent level of the floor. A turn of the floor goes to the most urgent of its
    /// levels that is ready on the vCPU.
    pub from: Level,
    /// Share of these levels in percent, 1 to 99.
    pub percent: u8,
    /// Ticks. The time by which the levels may be ahead of their share or behind their share.
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

/// Reason for which a coroutine could not be started.
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
                "no vCPU here: spawn from a coroutine, or through a handle; a domain needs a vCPU first"
            }
        })
    }
}

impl core::error::Error for SpawnError {}

/// Error of [`Domain::add_vcpu`](crate::Domain::add_vcpu): the domain has [`MAX_VCPUS`] vCPUs.
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
