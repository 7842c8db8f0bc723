//! The configuration of a ring, and its counters.

use crate::offload::Offload;
use crate::owner::UseHooks;
use std::fmt;
use std::sync::Arc;

/// Upper bound of [`Config::fetch_limit`]. The owner can stop a stream that is ahead of its
/// consumer only after reading the stream's completions, so it fetches a bounded number at a time.
const MAX_FETCHED: usize = 64;

/// The executor of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Driver {
    /// Use io_uring if it works here, otherwise readiness.
    #[default]
    Auto,
    /// Use io_uring, or fail with an error that carries advice.
    Ring,
    /// Use epoll and nonblocking calls, and threads for files. Works on every Linux.
    Readiness,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Driver::Auto => "auto",
            Driver::Ring => "ring",
            Driver::Readiness => "readiness",
        })
    }
}

/// The way in which the kernel delivers completions, from the best mode to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Mode {
    /// Completions are made on the ring's thread, when it enters the kernel for them (Linux 6.1).
    #[default]
    DeferTaskrun,
    /// Completions are made on the ring's thread, at its next system call of any kind (Linux 5.19).
    CoopTaskrun,
    /// The kernel interrupts the ring's thread for completions.
    Plain,
    /// There is no io_uring, so the ring's thread waits for readiness and makes the calls
    /// ([`Driver::Readiness`]).
    Readiness,
}

impl Mode {
    /// Returns the next worse mode of io_uring.
    pub(crate) fn lower(self) -> Option<Mode> {
        match self {
            Mode::DeferTaskrun => Some(Mode::CoopTaskrun),
            Mode::CoopTaskrun => Some(Mode::Plain),
            Mode::Plain | Mode::Readiness => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::DeferTaskrun => "single issuer, deferred task work",
            Mode::CoopTaskrun => "cooperative task work",
            Mode::Plain => "plain",
            Mode::Readiness => "readiness (epoll)",
        })
    }
}

/// The configuration of a ring. The default takes about 4.3 MiB of virtual memory; 4 MiB of it are
/// buffers that become resident with use.
///
/// ```
/// # use upshift_ring::{Config, Mode, Ring};
/// let ring = Ring::new(Config { entries: 64, buffers: 128, ..Config::default() })?;
/// assert!(ring.mode() >= Mode::DeferTaskrun);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Submission queue entries, that is, the maximum number of operations per system call. 1 to
    /// 32768, rounded up to a power of two.
    pub entries: u32,
    /// Completion queue entries, at least `entries`. The kernel keeps further completions, at a
    /// cost, and loses none.
    pub cq_entries: u32,
    /// Number of buffers for [`Ring::recv_multi`](crate::Ring::recv_multi), a power of two up to
    /// 32768, or 0 for none. Each level that receives has its own pool of this size, so that unread
    /// data of one level does not take the buffers of another.
    pub buffers: u16,
    /// Bytes per buffer, and so the largest event of a stream. 1 to 16 MiB.
    pub buffer_size: u32,
    /// Number of unread buffers at which a receiving stream stops until its consumer has caught
    /// up. Never more than half of `buffers`, so that a slow consumer cannot take them all. The
    /// kernel hands out up to 32 buffers at a time, so a pool needs 128 or more to serve other
    /// streams while one is stopped.
    pub recv_window: u16,
    /// Number of unread connections at which an accepting stream stops until its consumer has
    /// caught up.
    pub accept_window: u16,
    /// Maximum number of operations and streams alive at once (128 bytes each, allocated 256 at a
    /// time as needed). Up to 2²⁴.
    pub max_operations: u32,
    /// The executor of operations.
    pub driver: Driver,
    /// The best mode of io_uring to try.
    pub mode: Mode,
    /// The threads on which [`Driver::Readiness`] makes calls that block, such as those on
    /// files. With `None`, each call gets a new thread.
    pub offload: Option<Arc<dyn Offload>>,
    /// Functions called around each use of a handle, needed if the ring's owner changes; see
    /// [`Ring::adopt`](crate::Ring::adopt).
    pub use_hooks: Option<UseHooks>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entries: 256,
            cq_entries: 4096,
            buffers: 1024,
            buffer_size: 4096,
            recv_window: 16,
            accept_window: 128,
            max_operations: 1 << 18,
            driver: Driver::Auto,
            mode: Mode::DeferTaskrun,
            offload: None,
            use_hooks: None,
        }
    }
}

impl Config {
    /// Returns the number of unread completions at which a submit stops fetching more. The number
    /// is lower for small pools, because their buffers are used up sooner.
    pub(crate) fn fetch_limit(&self) -> usize {
        match self.buffers {
            0 => MAX_FETCHED,
            buffers => MAX_FETCHED.min(usize::from(buffers / 4)).max(1),
        }
    }

    /// Returns the reason why the configuration is invalid, if it is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if !(1..=32768).contains(&self.entries) {
            Some("a ring has 1 to 32768 entries")
        } else if self.cq_entries < self.entries || self.cq_entries > 65536 {
            Some("cq_entries must be at least `entries`, and at most 65536")
        } else if self.buffers != 0 && (!self.buffers.is_power_of_two() || self.buffers > 32768) {
            Some("receive buffers must be 0 or a power of two up to 32768")
        } else if self.buffers != 0 && !(1..=1 << 24).contains(&self.buffer_size) {
            Some("a receive buffer must be 1 byte to 16 MiB")
        } else if self.recv_window == 0 || self.accept_window == 0 {
            Some("the windows of receiving and of accepting must be at least 1")
        } else if self.mode == Mode::Readiness {
            Some("Mode::Readiness is not a mode of io_uring; set Driver::Readiness instead")
        } else if !(1..=1 << 24).contains(&self.max_operations) {
            Some("operations in flight must be limited to 1 to 16777216")
        } else {
            None
        }
    }
}

/// Counters of a ring since it was made. They wrap after 2⁶⁴.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// `io_uring_enter` calls.
    pub enters: u64,
    /// Entries handed to the kernel.
    pub submitted: u64,
    /// Completion entries read.
    pub completed: u64,
    /// Completions that were ignored, because their operations no longer existed.
    pub stale: u64,
    /// Maximum length of the backlog.
    pub backlog_max: u64,
    /// Number of times that a stream found no buffer.
    pub enobufs: u64,
    /// Number of times that a stream found no buffer in the pool and allocated one.
    pub unpooled: u64,
    /// Number of times that a stream was stopped because its consumer was behind.
    pub stalled: u64,
    /// Number of times that the completion queue had overflowed.
    pub overflows: u64,
    /// Kicks that reached the ring through its eventfd.
    pub kicks: u64,
    /// Messages from handles on other threads.
    pub messages: u64,
    /// Operations refused because [`Config::max_operations`] were alive.
    pub refused: u64,
}
