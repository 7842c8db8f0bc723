//! [`Member`] is a task as the engine sees it, and [`TaskClass`] is its scheduling class.
//!
//! [`Processes`](crate::Processes) implements [`Member`] for Linux processes; the engine's own
//! tests simulate it.

use upshift_elevate::Priority;

use crate::error::SchedError;
use crate::policy::Nanos;

/// The scheduling class of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskClass {
    /// SCHED_FIFO at this priority, above every ordinary thread.
    Fifo(Priority),
    /// Like one ordinary thread of nice 0, however many threads the task has.
    Fair,
    /// Behind every ordinary thread.
    Idle,
}

/// A set of threads that are raised, lowered and moved together.
pub trait Member {
    /// Returns the name that users see.
    fn label(&self) -> &str;

    /// Moves all threads to `class`. Returns the number of system calls.
    ///
    /// # Errors
    /// A right is missing. It is not an error if threads have ended.
    fn set(&mut self, class: TaskClass) -> Result<u32, SchedError>;

    /// Moves all threads to `cpu`.
    ///
    /// # Errors
    /// The CPU is offline, or a right is missing.
    fn pin(&mut self, cpu: usize) -> Result<(), SchedError>;

    /// Returns the CPU time of all threads, including threads that have ended, ns. Never decreases.
    fn cpu_time(&mut self) -> Nanos;

    /// Scans for new threads and, if `thorough`, for threads that have ended or have changed their
    /// own scheduling. New threads get the CPU and the class of the task. Returns whether the task
    /// still exists.
    ///
    /// # Errors
    /// A right is missing.
    fn scan(&mut self, thorough: bool) -> Result<bool, SchedError>;

    /// Handles the start of a thread of process `pid`, or of a child of `parent`. The thread joins
    /// at once if it belongs to this task.
    ///
    /// # Errors
    /// A right is missing.
    fn on_thread_start(&mut self, _parent: i32, _pid: i32, _tid: i32) -> Result<(), SchedError> {
        Ok(())
    }

    /// Handles the end of a thread of process `pid`. From now on its id may be reused.
    fn on_thread_end(&mut self, _pid: i32, _tid: i32) {}

    /// Returns the number of threads and children that could not be elevated at the last scan.
    fn refused(&self) -> u64 {
        0
    }

    /// Returns whether a thread of the task runs, or would run if it had a CPU.
    fn wants_cpu(&self) -> bool;

    /// Returns the number of threads.
    fn threads(&self) -> usize;
}
