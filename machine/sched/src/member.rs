//! [`Member`]: a task as the engine sees it, and [`Standing`]: how it stands on its CPU.
//!
//! [`Processes`](crate::Processes) is the one for processes of Linux; the engine's own tests use one of a simulated CPU.

use upshift_elevate::Priority;

use crate::error::SchedError;
use crate::policy::Nanos;

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// SCHED_FIFO at this priority: before every ordinary thread.
    At(Priority),
    /// Like one ordinary thread of nice 0, however many threads it has.
    Fair,
    /// Behind every ordinary thread.
    Idle,
}

/// A set of threads that is raised, lowered and moved as one.
pub trait Member {
    /// What people call it.
    fn label(&self) -> &str;

    /// Puts all threads at `standing`. Returns how many system calls that took.
    ///
    /// # Errors
    /// A right is missing. Threads that have ended are none.
    fn set(&mut self, standing: Standing) -> Result<u32, SchedError>;

    /// Moves all threads to `cpu`.
    ///
    /// # Errors
    /// The CPU is offline, or a right is missing.
    fn pin(&mut self, cpu: usize) -> Result<(), SchedError>;

    /// CPU time of all threads since ever, those that have ended included, ns. Never falls.
    fn cpu_time(&mut self) -> Nanos;

    /// Looks for threads that were born and, if `thorough`, for what has ended or has changed its own scheduling. New threads
    /// get the CPU and the standing of the others. Returns whether the task still exists.
    ///
    /// # Errors
    /// A right is missing.
    fn follow(&mut self, thorough: bool) -> Result<bool, SchedError>;

    /// A thread of process `pid` was born, or a child of it. It joins at once, if it is of this task.
    ///
    /// # Errors
    /// A right is missing.
    fn born(&mut self, _parent: i32, _pid: i32, _tid: i32) -> Result<(), SchedError> {
        Ok(())
    }

    /// A thread of process `pid` has ended, and its number may come to mean another one.
    fn lost(&mut self, _pid: i32, _tid: i32) {}

    /// Threads that wanted to belong to it and could not be had, by the last look.
    fn refused(&self) -> u64 {
        0
    }

    /// Whether a thread of it runs now, or would if it were given a CPU.
    fn wants_cpu(&self) -> bool;

    /// How many threads it has.
    fn threads(&self) -> usize;
}
