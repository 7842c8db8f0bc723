//! [`Builder`]: the configuration of an [`Elevator`], which is a set of elevated threads. A
//! *guardian* is a process that restores these threads if this process dies.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::elevator::{Elevator, Inner, Set};
use crate::exit;
use crate::guardian::Guardian;
use crate::lock::Lock;
use crate::restore::retry_transient;
use crate::sys::{Kernel, Sys};
use crate::table::Table;

/// Default number of threads that a table holds.
pub const DEFAULT_CAPACITY: usize = 1024;

/// Maximum number of threads that a table holds. The guardian restores this number of threads in
/// well under a second.
pub const MAX_CAPACITY: usize = 8192;

/// A builder of an [`Elevator`].
#[derive(Debug)]
pub struct Builder {
    capacity: usize,
    guardian: bool,
    heartbeat: Option<Duration>,
    sys: Arc<dyn Sys>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            capacity: DEFAULT_CAPACITY,
            guardian: false,
            heartbeat: None,
            sys: Arc::new(Kernel),
        }
    }

    /// Sets the number of threads that the elevator can hold at once, 1 … [`MAX_CAPACITY`]. The
    /// default is [`DEFAULT_CAPACITY`]. Each thread takes 256 bytes.
    pub fn capacity(mut self, threads: usize) -> Builder {
        self.capacity = threads.clamp(1, MAX_CAPACITY);
        self
    }

    /// Sets whether to fork a guardian, so that threads of other processes can be elevated. Build
    /// the elevator early, while the process is small, because the guardian keeps the memory that
    /// the process has at the fork.
    pub fn guardian(mut self, wanted: bool) -> Builder {
        self.guardian = wanted;
        self
    }

    /// Lets the guardian demote the threads of other processes if [`Elevator::beat`] is not called
    /// for `interval`, because this process was stopped or hangs. The guardian notices this after 1
    /// to 1¼ times `interval`. Needs a guardian.
    pub fn heartbeat(mut self, interval: Duration) -> Builder {
        self.heartbeat = Some(interval);
        self
    }

    /// Sets the system calls to use, for tests that inject faults
    /// ([`testing::Faulty`](crate::testing::Faulty)).
    pub fn sys(mut self, sys: Arc<dyn Sys>) -> Builder {
        self.sys = sys;
        self
    }

    /// Builds the elevator, and starts the guardian if one is requested.
    ///
    /// # Errors
    /// The kernel's error if there is no memory, or if no guardian can be forked.
    pub fn build(self) -> io::Result<Elevator> {
        // SAFETY: `getpid` has no arguments and cannot fail.
        let owner = unsafe { libc::getpid() };
        let leader_policy = retry_transient(|| self.sys.sched_getattr(owner))?;
        let table = Table::new(self.capacity, leader_policy)?;
        let guardian = if self.guardian {
            Some(Guardian::start(
                &table,
                self.sys.as_ref(),
                owner,
                self.heartbeat,
            )?)
        } else {
            None
        };
        let inner = Arc::new(Inner {
            sys: self.sys,
            table,
            owner,
            is_guarded: self.guardian,
            heartbeat: self.heartbeat,
            guardian: Lock::new(guardian),
        });
        exit::register(&inner);
        let inner = Arc::new(Set(inner));
        Ok(Elevator { inner })
    }
}
