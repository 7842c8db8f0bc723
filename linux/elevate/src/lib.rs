//! SCHED_FIFO priorities for threads, with a guarantee that every thread is restored.
//!
//! Linux lets a program decide which thread runs on a CPU, even among the threads of other
//! programs. The program puts all candidates into SCHED_FIFO on that CPU and raises the chosen one.
//! The kernel switches at once, at the cost of one system call and the switch. Because every thread
//! has its own stack, code can be preempted at any instruction. This is the *priority elevation
//! trick* (Yasukata and Ishiguro, "Developing Process Scheduling Policies in User Space with Common
//! OS Features", APSys 2024). This crate adds the missing part, the restoration of threads. It is
//! needed because a thread that stayed in SCHED_FIFO after its scheduler died would starve the
//! machine forever.
//!
//! ```
//! use upshift_elevate::{Elevator, Priority};
//!
//! let elevator = Elevator::new()?;
//! match elevator.elevate_current(Priority::of::<20>()) {
//!     Ok(thread) => {
//!         // Until this thread sleeps, no ordinary thread runs on its CPU.
//!         thread.set(Priority::of::<10>())?;
//!         drop(thread); // the thread has its former policy again
//!     }
//!     Err(error) => println!("not elevated: {error}"),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | part | purpose |
//! |---|---|
//! | [`Elevator`], [`Elevated`] | threads that are elevated and restored |
//! | [`Rights`] | the rights of this process, and the remedies for missing rights |
//! | [`Calibration`] | the cost of switches and timers here, and the smallest sensible quantum |
//! | [`dispatch`] | permits: revocable rights of threads to use shared state |
//! | [`events`] | creation and exit of threads, as the kernel reports them |
//! | [`sys`], [`testing`] | the system calls, and a way to make them fail |
//!
//! # Guarantees
//!
//! An elevator can start a *guardian*. This is a small sleeping process that shares the records of
//! the elevated threads, and restores the threads if the process that elevated them dies. Threads
//! of other processes can be elevated only with a guardian.
//!
//! 1. **No thread stays elevated.** Within 1 s of the death of a process, every thread that the
//!    process had elevated has ended, or has its former policy again, or a less urgent policy.
//! 2. **Only recorded threads are elevated**, so guarantee 1 holds wherever a process is killed.
//! 3. **No child inherits.** Elevated threads have `SCHED_RESET_ON_FORK`, so the threads and
//!    processes that they start are `SCHED_OTHER`.
//! 4. **Never above 49.** Interrupt threads of the kernel run at 50; threads at 50 and above, and
//!    deadline threads, are left alone.
//! 5. **Rights may be withdrawn.** Restoring a thread needs no rights if the thread belongs to the
//!    caller's user and has no capabilities that the caller lacks. Otherwise the guardian, which
//!    keeps the rights that it had when it started, restores the thread in the end.
//!
//! | end of | restored by |
//! |---|---|
//! | the guard ([`Elevated`]), even while a panic unwinds | the guard |
//! | the thread, if it elevated itself | a destructor of the thread |
//! | the process, by `exit` or by returning from `main` | an `atexit` handler |
//! | the process, by a signal, `abort`, `_exit` | the guardian (threads of other processes) |
//! | the process image, by `exec` | the guardian; without one, nothing (drop the guards first) |
//! | the guardian | the elevating process, whose next elevation starts a new guardian |
//!
//! A process's own threads end with the process.
//!
//! # Limits
//!
//! * A SCHED_FIFO thread that never sleeps keeps every ordinary thread off its CPU. A program that
//!   elevates unknown code should set `RLIMIT_RTTIME`, or keep a supervising thread at a higher
//!   priority. The kernel's throttling (950 ms of each second) is no substitute.
//! * Lock holders are not boosted. So an elevated thread waits forever if it *spins* for a lock
//!   that a thread of lower priority on the same CPU holds. Locks that sleep are safe if
//!   the holder gets the CPU in the end.
//! * A process that is stopped or frozen is not dead, so its elevated threads stay elevated until
//!   it continues or dies.
//! * Two processes that elevate the same thread each restore the policy that the other had set.
//! * Without CAP_SYS_NICE, `SCHED_RESET_ON_FORK` cannot be cleared again. The thread's policy comes
//!   back, but its *children* are still reset ([`Restored::ExceptResetOnFork`]).
//!
//! # Costs
//!
//! Elevating and restoring open a pidfd (before Linux 6.9 a file of `/proc`) and take four system
//! calls each. [`Elevated::set`] takes one system call, and the switch if there is one. The
//! guardian takes one sleeping process, and 256 bytes for each recorded thread.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg(target_os = "linux")]

mod builder;
mod calibrate;
pub mod dispatch;
mod elevated;
mod elevator;
mod error;
pub mod events;
mod exit;
pub mod futex;
mod guardian;
mod lock;
mod policy;
mod priority;
mod restore;
mod rights;
pub mod sys;
mod table;
pub mod testing;

pub use builder::{Builder, DEFAULT_CAPACITY, MAX_CAPACITY};
pub use calibrate::{
    CalibrateError, Calibration, DELAYS_US, LONGEST_CALIBRATION, Quantiles, TimerFloor,
};
pub use elevated::Elevated;
pub use elevator::Elevator;
pub use error::ElevateError;
pub use policy::{Class, Policy};
pub use priority::{Bands, Priority, PriorityError};
pub use restore::Restored;
pub use rights::{MissingRights, Obstacle, Rights, RtGroup, Throttling};
pub use sys::{Tid, current_tid};
