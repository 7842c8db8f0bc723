//! The rights of this process to use SCHED_FIFO, and the remedies for missing rights.
//!
//! [`Rights::probe`] makes an attempt, in which a temporary thread raises itself for a few µs.
//! Files of `/proc` and `/sys` are used only to explain a refusal. The probe starts a temporary
//! thread and reads about ten small files.

mod facts;
mod obstacle;

use std::error::Error;
use std::fmt;
use std::io;

pub use facts::{RtGroup, Throttling};
pub use obstacle::Obstacle;

use crate::priority::Priority;
use crate::sys::{Kernel, Limit, Sys};

/// The rights of this process, the reasons for missing rights, and other limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The highest priority that the kernel let a thread have, or `None` if the kernel does not
    /// permit SCHED_FIFO at all.
    pub highest: Option<Priority>,
    /// Whether CAP_SYS_NICE is effective. It is needed for threads of other users and for clearing
    /// reset-on-fork.
    pub capable: bool,
    /// RLIMIT_RTPRIO, soft and hard.
    pub limit: (u64, u64),
    /// The soft limit RLIMIT_RTTIME, or `None` if there is no limit. It is the CPU time in µs that
    /// a real-time thread may use without blocking before it gets SIGXCPU.
    pub time_limit_us: Option<u64>,
    /// The kernel's throttling of all real-time threads.
    pub throttling: Throttling,
    /// The cgroup (v1) that limits RT time, if there is one.
    pub group: Option<RtGroup>,
    /// Whether the process lives in a user namespace, where capabilities do not reach the
    /// scheduler.
    pub user_namespace: bool,
    /// Whether a seccomp filter watches the process, as in most containers.
    pub filtered: bool,
    /// The rights that are missing for [`Priority::MAX`], with the most likely reason first. Empty
    /// if none is missing.
    pub obstacles: Vec<Obstacle>,
}

impl Rights {
    /// Probes this process.
    pub fn probe() -> Rights {
        Rights::probe_with(&Kernel)
    }

    /// Probes this process through the system calls `sys`.
    pub fn probe_with(sys: &dyn Sys) -> Rights {
        let attempt = |priority: Priority| try_on_a_thread(sys, priority);
        let limit = sys.getrlimit(Limit::RtPrio).unwrap_or((0, 0));
        let (highest, refusal) = match attempt(Priority::MAX) {
            Ok(()) => (Some(Priority::MAX), None),
            Err(error) => {
                let permitted = u8::try_from(limit.0)
                    .ok()
                    .and_then(|value| Priority::new(value).ok())
                    .filter(|&priority| attempt(priority).is_ok());
                (permitted, Some(error))
            }
        };
        let status = sys
            .read_file("/proc/thread-self/status")
            .unwrap_or_default();
        let mut rights = Rights {
            highest,
            capable: facts::has_sys_nice(&status),
            limit,
            time_limit_us: sys
                .getrlimit(Limit::RtTime)
                .ok()
                .map(|(soft, _)| soft)
                .filter(|&soft| soft != libc::RLIM_INFINITY),
            throttling: facts::throttling(sys),
            group: facts::rt_group(sys),
            user_namespace: facts::in_user_namespace(sys),
            filtered: facts::is_filtered(&status),
            obstacles: Vec::new(),
        };
        if let Some(error) = refusal {
            rights.obstacles = obstacle::explain(&rights, &error, facts::unified_group(sys));
        }
        rights
    }

    /// Checks that threads may run at `priority`.
    ///
    /// # Errors
    /// [`MissingRights`], which names every remedy.
    pub fn require(&self, priority: Priority) -> Result<(), MissingRights> {
        if self.highest >= Some(priority) {
            Ok(())
        } else {
            Err(MissingRights {
                requested: priority,
                highest: self.highest,
                obstacles: self.obstacles.clone(),
            })
        }
    }
}

/// Raises a temporary thread to `priority`, and lets it end at its former policy.
fn try_on_a_thread(sys: &dyn Sys, priority: Priority) -> io::Result<()> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("upshift-probe".into())
            .spawn_scoped(scope, || {
                let fifo = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
                sys.sched_setscheduler(0, fifo, i32::from(priority.get()))?;
                let other = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
                // If this fails, the priority still ends with the thread a moment later.
                let _ = sys.sched_setscheduler(0, other, 0);
                Ok(())
            })?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the probing thread panicked")))
    })
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.highest {
            Some(priority) => writeln!(f, "SCHED_FIFO: permitted up to {priority}")?,
            None => writeln!(f, "SCHED_FIFO: not permitted")?,
        }
        for obstacle in &self.obstacles {
            writeln!(f, "  missing: {obstacle}")?;
        }
        if self.highest.is_some() {
            let others = if self.capable && !self.user_namespace {
                "of any user"
            } else {
                "of the same user only"
            };
            writeln!(f, "threads of other processes: {others}")?;
        }
        writeln!(f, "throttling: {}", self.throttling)?;
        if let Some(group) = &self.group {
            writeln!(f, "cgroup: {group}")?;
        }
        if let Some(limit) = self.time_limit_us {
            writeln!(
                f,
                "RLIMIT_RTTIME: a real-time thread that uses {limit} µs of CPU without blocking gets SIGXCPU"
            )?;
        }
        Ok(())
    }
}

/// The error for a priority that this process may not give to threads, with remedies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRights {
    requested: Priority,
    highest: Option<Priority>,
    obstacles: Vec<Obstacle>,
}

impl MissingRights {
    /// Returns the missing rights, most likely reason first.
    pub fn obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }
}

impl fmt::Display for MissingRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this process may not run threads at SCHED_FIFO {}",
            self.requested
        )?;
        if let Some(highest) = self.highest {
            write!(f, " (only up to {highest})")?;
        }
        let mut separator = ": it lacks ";
        for obstacle in &self.obstacles {
            write!(f, "{separator}{obstacle}")?;
            separator = "; or ";
        }
        Ok(())
    }
}

impl Error for MissingRights {}
