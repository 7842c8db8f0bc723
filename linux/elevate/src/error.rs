//! The errors of elevating a thread. In each case nothing was changed.

use std::error::Error;
use std::fmt;
use std::io;

use crate::policy::Policy;
use crate::priority::Priority;
use crate::sys::Tid;

/// The reason why [`Elevator::elevate`](crate::Elevator::elevate) refused. The thread is unchanged.
#[derive(Debug)]
#[non_exhaustive]
pub enum ElevateError {
    /// The thread does not exist, or has ended.
    NoSuchThread(Tid),
    /// The thread is in `SCHED_DEADLINE` or above priority 49. It is left alone, because its owner
    /// put it there.
    AboveBands {
        /// The thread.
        tid: Tid,
        /// The thread's policy.
        policy: Policy,
    },
    /// This process has elevated the thread already. The caller should use the existing guard.
    AlreadyElevated(Tid),
    /// The thread's policy suggests that another process elevates it, so the policy must not be
    /// recorded as the former policy.
    ElevatedByOthers {
        /// The thread.
        tid: Tid,
        /// The thread's policy.
        policy: Policy,
    },
    /// All slots of the table are taken, so the thread cannot be recorded.
    TableFull {
        /// Number of threads that the table holds.
        capacity: usize,
    },
    /// A guardian (a process that restores threads if this process dies) is needed, because a
    /// thread of another process may outlive this process.
    GuardianNeeded(Tid),
    /// The guardian had died and could not be started again.
    GuardianLost(io::Error),
    /// The priority is not below the guardian's, but threads of other processes must stay below it.
    AboveGuardian {
        /// The requested priority.
        requested: Priority,
    },
    /// This process is a fork of the process that made the elevator.
    Forked,
    /// The kernel refused.
    Refused {
        /// The thread.
        tid: Tid,
        /// The requested priority.
        requested: Priority,
        /// The kernel's error: `EPERM` if a right is missing.
        error: io::Error,
    },
    /// The thread's state could not be read.
    Unreadable {
        /// The thread.
        tid: Tid,
        /// The kernel's error.
        error: io::Error,
    },
}

impl ElevateError {
    /// Returns whether a right is missing, so that [`Rights::probe`](crate::Rights::probe) has a
    /// remedy.
    pub fn is_rights(&self) -> bool {
        match self {
            ElevateError::Refused { error, .. } => error.raw_os_error() == Some(libc::EPERM),
            _ => false,
        }
    }
}

impl fmt::Display for ElevateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElevateError::NoSuchThread(tid) => {
                write!(f, "thread {tid} does not exist: it may have ended")
            }
            ElevateError::AboveBands { tid, policy } => write!(
                f,
                "thread {tid} runs at {policy}, above every priority used here, and is left alone: lower it first \
                 (`chrt --other -p 0 {tid}`) if it is to be scheduled"
            ),
            ElevateError::AlreadyElevated(tid) => write!(
                f,
                "thread {tid} is already elevated by this process: use its guard, or drop the guard first"
            ),
            ElevateError::ElevatedByOthers { tid, policy } => write!(
                f,
                "thread {tid} runs at {policy}: another scheduler in user space has set this policy. Stop that scheduler \
                 first (another `upshift sched` or daemon). If it has died, reset the thread \
                 (`chrt --other -p 0 {tid}`)"
            ),
            ElevateError::TableFull { capacity } => write!(
                f,
                "all {capacity} slots of the table are taken, and only recorded threads are elevated: drop guards or build \
                 the elevator with a larger capacity"
            ),
            ElevateError::GuardianNeeded(tid) => write!(
                f,
                "thread {tid} belongs to another process and would stay elevated if this one died: build the elevator \
                 with a guardian"
            ),
            ElevateError::GuardianLost(error) => write!(
                f,
                "the guardian has died and cannot be started again ({error}): raise the limit on processes or memory"
            ),
            ElevateError::AboveGuardian { requested } => write!(
                f,
                "priority {requested} is the guardian's: threads of other processes get at most {}",
                Priority::FOREIGN_MAX
            ),
            ElevateError::Forked => f.write_str(
                "this process is a fork of the process that made the elevator: make an elevator here",
            ),
            ElevateError::Refused {
                tid,
                requested,
                error,
            } => {
                write!(
                    f,
                    "thread {tid} cannot run at SCHED_FIFO {requested}: {error}"
                )?;
                if self.is_rights() {
                    f.write_str(
                        "; it needs CAP_SYS_NICE or a sufficient RLIMIT_RTPRIO, and RT time in its cgroup: `upshift \
                         calibrate` names the remedy",
                    )?;
                }
                Ok(())
            }
            ElevateError::Unreadable { tid, error } => write!(
                f,
                "the state of thread {tid} cannot be read ({error}): is /proc mounted and readable (hidepid)?"
            ),
        }
    }
}

// The texts contain the kernel's error already. A `source` would print it twice.
impl Error for ElevateError {}

impl From<ElevateError> for io::Error {
    fn from(error: ElevateError) -> io::Error {
        let kind = match &error {
            ElevateError::NoSuchThread(_) => io::ErrorKind::NotFound,
            ElevateError::TableFull { .. } => io::ErrorKind::QuotaExceeded,
            ElevateError::GuardianLost(cause)
            | ElevateError::Refused { error: cause, .. }
            | ElevateError::Unreadable { error: cause, .. } => cause.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
