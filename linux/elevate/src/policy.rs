//! The scheduling policy of a thread: class, nice value or priority, reset-on-fork.
//!
//! Policies are plain values. Reading the policy of a thread costs one system call.

use std::fmt;
use std::io;

use crate::priority::Priority;
use crate::sys::{SchedAttr, Sys, Tid};

/// The scheduling of a thread at one moment, complete enough to restore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    attr: SchedAttr,
}

/// The kernel's scheduling classes of user threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER` with its nice value.
    Other {
        /// −20 (most CPU time) … 19 (least).
        nice: i32,
    },
    /// `SCHED_BATCH` with its nice value.
    Batch {
        /// −20 (most CPU time) … 19 (least).
        nice: i32,
    },
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO` with its priority, 1 … 99.
    Fifo(u32),
    /// `SCHED_RR` with its priority, 1 … 99.
    RoundRobin(u32),
    /// `SCHED_DEADLINE`.
    Deadline,
    /// A class that this crate does not know, e.g. `SCHED_EXT`.
    Unknown(u32),
}

impl Policy {
    /// Reads the policy of `tid` (0: the calling thread).
    ///
    /// # Errors
    /// The kernel's error, which is `ESRCH` if there is no such thread.
    pub fn of(sys: &dyn Sys, tid: Tid) -> io::Result<Policy> {
        Ok(Policy {
            attr: sys.sched_getattr(tid)?,
        })
    }

    pub(crate) const fn from_attr(attr: SchedAttr) -> Policy {
        Policy { attr }
    }

    /// Returns the kernel's structure.
    pub const fn attr(&self) -> &SchedAttr {
        &self.attr
    }

    /// Returns the class, with its parameter.
    pub fn class(&self) -> Class {
        match self.attr.policy as i32 {
            libc::SCHED_OTHER => Class::Other {
                nice: self.attr.nice,
            },
            libc::SCHED_BATCH => Class::Batch {
                nice: self.attr.nice,
            },
            libc::SCHED_IDLE => Class::Idle,
            libc::SCHED_FIFO => Class::Fifo(self.attr.priority),
            libc::SCHED_RR => Class::RoundRobin(self.attr.priority),
            libc::SCHED_DEADLINE => Class::Deadline,
            _ => Class::Unknown(self.attr.policy),
        }
    }

    /// Returns whether children get `SCHED_OTHER` rather than this policy.
    pub const fn resets_on_fork(&self) -> bool {
        self.attr.flags & libc::SCHED_FLAG_RESET_ON_FORK as u64 != 0
    }

    /// Returns the real-time priority, or 0 for classes that have none. Deadline threads count as
    /// 100, which is above all priorities.
    pub fn real_time(&self) -> u32 {
        match self.class() {
            Class::Fifo(priority) | Class::RoundRobin(priority) => priority,
            Class::Deadline => 100,
            _ => 0,
        }
    }

    /// Returns whether the policy is above every [`Priority`], that is, above the range of
    /// priorities that this crate uses.
    pub fn is_above_bands(&self) -> bool {
        self.real_time() > u32::from(Priority::MAX.get())
    }

    /// Returns whether this crate may have set the policy. Such a policy is `SCHED_FIFO` with a
    /// [`Priority`], or `SCHED_DEADLINE`, and it resets on fork.
    pub fn looks_elevated(&self) -> bool {
        let is_class_of_crate = match self.class() {
            Class::Fifo(_) => !self.is_above_bands(),
            Class::Deadline => true,
            _ => false,
        };
        is_class_of_crate && self.resets_on_fork()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class() {
            Class::Other { nice } => write!(f, "SCHED_OTHER nice {nice}")?,
            Class::Batch { nice } => write!(f, "SCHED_BATCH nice {nice}")?,
            Class::Idle => f.write_str("SCHED_IDLE")?,
            Class::Fifo(priority) => write!(f, "SCHED_FIFO {priority}")?,
            Class::RoundRobin(priority) => write!(f, "SCHED_RR {priority}")?,
            Class::Deadline => f.write_str("SCHED_DEADLINE")?,
            Class::Unknown(number) => write!(f, "policy {number}")?,
        }
        if self.resets_on_fork() {
            f.write_str(", reset on fork")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Kernel;

    #[test]
    fn a_policy_is_shown_with_its_parameters() {
        let mut attr = SchedAttr::normal();
        attr.nice = 5;
        assert_eq!(Policy::from_attr(attr).to_string(), "SCHED_OTHER nice 5");
        attr.policy = libc::SCHED_FIFO as u32;
        attr.priority = 20;
        attr.flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
        let policy = Policy::from_attr(attr);
        assert_eq!(policy.to_string(), "SCHED_FIFO 20, reset on fork");
        assert!(policy.looks_elevated() && !policy.is_above_bands());
        attr.priority = 50;
        assert!(Policy::from_attr(attr).is_above_bands());
        attr.policy = libc::SCHED_DEADLINE as u32;
        let policy = Policy::from_attr(attr);
        assert!(policy.is_above_bands() && policy.looks_elevated());
        attr.flags = 0;
        assert!(!Policy::from_attr(attr).looks_elevated());
    }

    #[test]
    fn a_missing_thread_is_an_error() {
        let error = Policy::of(&Kernel, i32::MAX).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
