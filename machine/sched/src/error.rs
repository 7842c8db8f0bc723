//! [`SchedError`] is the reason why a process cannot be scheduled, with a remedy.

use std::error::Error;
use std::fmt;
use std::io;

use upshift_elevate::ElevateError;

/// Error of scheduling a process. Threads that were changed earlier have been restored.
#[derive(Debug)]
#[non_exhaustive]
pub enum SchedError {
    /// There is no such process.
    NoSuchProcess(i32),
    /// The number belongs to a thread of another process.
    NotAProcess {
        /// The number that was given.
        tid: i32,
        /// The process that the thread belongs to.
        pid: i32,
    },
    /// The process is a thread of the kernel.
    KernelThread(i32),
    /// The process is this process, or its guardian.
    OwnProcess(i32),
    /// The process is the first process, or an ancestor of this process: a shell, a session, or a
    /// service manager.
    Ancestor(i32),
    /// The process belongs to two tasks, of this scheduler or of two schedulers.
    AlreadyScheduled(i32),
    /// The process holds a lease on its files in `/proc`, which therefore cannot be read.
    Leased(i32),
    /// The process limits its real-time CPU time, so the kernel would kill it.
    TimeLimit {
        /// The process.
        pid: i32,
        /// RLIMIT_RTTIME of the process, µs.
        limit_us: u64,
    },
    /// SCHED_FIFO is refused, because the right is missing in general, or for this process.
    Refused {
        /// The process.
        pid: i32,
        /// User of that process, and user of the scheduler's process.
        users: (u32, u32),
    },
    /// A CPU cannot be used.
    Cpu {
        /// The CPU.
        cpu: usize,
        /// Error of the kernel.
        error: io::Error,
    },
    /// A thread could not be elevated.
    Elevate(ElevateError),
    /// A system call failed.
    Os {
        /// The attempted action as text.
        what: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl SchedError {
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> SchedError {
        move |error| SchedError::Os { what, error }
    }

    /// Converts a refusal into an error with a remedy.
    pub(crate) fn refused(pid: i32, error: ElevateError) -> SchedError {
        match error {
            ElevateError::NoSuchThread(_) => SchedError::NoSuchProcess(pid),
            error if error.is_rights() => SchedError::missing_rights(pid),
            error => SchedError::Elevate(error),
        }
    }

    /// Returns the error for a missing right. Reads only cheap facts, because the caller runs above
    /// all other threads.
    pub(crate) fn missing_rights(pid: i32) -> SchedError {
        SchedError::Refused {
            pid,
            users: crate::procfs::user_ids(pid),
        }
    }
}

impl fmt::Display for SchedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchedError::NoSuchProcess(pid) => {
                write!(
                    f,
                    "there is no process {pid}: it may have ended (`ps -p {pid}`)"
                )
            }
            SchedError::NotAProcess { tid, pid } => {
                write!(f, "{tid} is a thread of process {pid}: name the process")
            }
            SchedError::KernelThread(pid) => {
                write!(
                    f,
                    "{pid} is a thread of the kernel, which cannot be scheduled: choose a process"
                )
            }
            SchedError::OwnProcess(pid) => write!(
                f,
                "process {pid} is the scheduler itself or its guardian: choose another one"
            ),
            SchedError::Ancestor(pid) => write!(
                f,
                "process {pid} has started this one, or is the first process: as a task it would have to wait for the other tasks, \
                 and so would everything that waits for it. Name the processes that do the work"
            ),
            SchedError::AlreadyScheduled(pid) => write!(
                f,
                "process {pid} belongs to two tasks (given twice, or a child of one with --children; or another `upshift sched` has it, \
                 see /proc/locks): name it once"
            ),
            SchedError::Leased(pid) => write!(
                f,
                "process {pid} holds a lease on its files in /proc (fcntl F_SETLEASE), so its files cannot be read: end the lease, or choose another process"
            ),
            SchedError::TimeLimit { pid, limit_us } => write!(
                f,
                "process {pid} would be killed after {limit_us} µs in SCHED_FIFO by its RLIMIT_RTTIME: lift the limit \
                 first (`prlimit --pid {pid} --rttime=unlimited`)"
            ),
            SchedError::Refused {
                pid,
                users: (theirs, ours),
            } => {
                write!(f, "process {pid} cannot be put into SCHED_FIFO: ")?;
                if *ours == 0 {
                    write!(
                        f,
                        "this is root, so its cgroup has no real-time time (see /proc/{pid}/cgroup; `cpu.rt_runtime_us` of the controller \
                         cpu, or RT_GROUP_SCHED with cgroup v2), or CAP_SYS_NICE is missing; `upshift doctor` says what works"
                    )
                } else if theirs != ours {
                    write!(
                        f,
                        "it belongs to user {theirs} and this is user {ours}, so CAP_SYS_NICE is needed (run as root)"
                    )
                } else {
                    f.write_str(
                        "CAP_SYS_NICE (run as root) or a higher RLIMIT_RTPRIO (`ulimit -r 49`) is needed, and RT time in \
                         its cgroup; `upshift calibrate` says what is missing",
                    )
                }
            }
            SchedError::Cpu { cpu, error } => write!(
                f,
                "CPU {cpu} cannot be used ({error}): it is offline (/sys/devices/system/cpu/online) or not allowed in a cpuset \
                 (/proc/PID/status); choose another one"
            ),
            SchedError::Elevate(error) => error.fmt(f),
            SchedError::Os { what, error } => write!(f, "cannot {what}: {error}"),
        }
    }
}

// The texts already contain the kernel's error; with `source` it would be printed twice.
impl Error for SchedError {}
