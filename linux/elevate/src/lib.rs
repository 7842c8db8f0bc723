//! SCHED_FIFO bands for threads that are always given back.
//!
//! Linux lets a program decide which of its threads, or of another program's, runs on a CPU: put all candidates into
//! SCHED_FIFO on that CPU and raise the one that shall run. The kernel switches at once, the cost is one system call and
//! the switch, and every thread keeps its own stack, so code is interrupted wherever it is. This is the *priority elevation
//! trick* (Yasukata and Ishiguro, "Developing Process Scheduling Policies in User Space with Common OS Features", APSys
//! 2024). What it leaves open is this crate's concern: a thread left in SCHED_FIFO after its scheduler died starves the
//! machine for ever.
//!
//! ```
//! use upshift_elevate::{Elevator, Priority};
//!
//! let elevator = Elevator::new()?;
//! match elevator.elevate_current(Priority::of::<20>()) {
//!     Ok(thread) => {
//!         // Here no ordinary thread gets this CPU before we sleep.
//!         thread.set(Priority::of::<10>())?;
//!         drop(thread); // and here everything is as it was
//!     }
//!     Err(error) => println!("not elevated: {error}"),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! | part | concern |
//! |---|---|
//! | [`Elevator`], [`Elevated`] | threads that are elevated, and given back |
//! | [`Rights`] | what this process may do, and the remedy for what it may not |
//! | [`Calibration`] | what switches and timers cost here, and the smallest sensible quantum |
//! | [`dispatch`] | permits: the right of a thread to use what it shares, taken away with an asymmetric barrier |
//! | [`events`] | births and ends of threads, as the kernel tells them |
//! | [`sys`], [`testing`] | the system calls, and a way to make them fail |
//!
//! # What is promised
//!
//! 1. **No thread stays elevated.** Whatever dies, within 1 s no thread is left above the policy it had before.
//! 2. **Nothing is elevated that is not recorded**, so that 1 holds at any instruction.
//! 3. **No child inherits.** Elevated threads have `SCHED_RESET_ON_FORK`: what they spawn, fork and exec is `SCHED_OTHER`.
//! 4. **Never above 49.** Interrupt threads of the kernel run at 50; threads at 50 and above, and deadline threads, are left
//!    alone.
//! 5. **Givers of rights may take them back.** Giving a thread back needs none, if the thread has the same user and no more
//!    capabilities; where it does, the guardian, which keeps the rights of its start, does it in the end.
//!
//! | what ends | what gives back |
//! |---|---|
//! | the guard ([`Elevated`]) is dropped, also while a panic unwinds | the guard |
//! | the thread, if it elevated itself | a destructor of the thread |
//! | the process by `exit` or by returning from `main` | a handler of `atexit` |
//! | the process by a signal, `abort`, `_exit` | its own threads end with it; those of others: the guardian |
//! | the process image, by `exec` | the guardian; without one, drop the guards first |
//! | the guardian | the next elevation starts another; until then the owner's own handlers |
//!
//! # What it does not do
//!
//! * A SCHED_FIFO thread that never sleeps keeps every ordinary thread off its CPU. A program that elevates unknown code sets
//!   `RLIMIT_RTTIME` or keeps a dispatcher above it. The kernel's throttling (950 ms of each second) is not a scheduler.
//! * Lock holders are not boosted: an elevated thread that *spins* for a lock of a demoted one on its CPU waits for ever.
//!   Locks that sleep are safe as long as the holder gets the CPU in the end.
//! * A process that is stopped or frozen is not dead: what it has elevated stays so until it goes on, or dies.
//! * Two processes that elevate the same thread each take the other's policy for the former one.
//! * Without CAP_SYS_NICE, `SCHED_RESET_ON_FORK` cannot be cleared again: the thread's policy comes back, its *children* go
//!   on being reset ([`Restored::ResetOnForkStays`]).
//!
//! # Costs
//!
//! Elevating and giving back: some 10–15 µs each (a file of `/proc` and four system calls). [`Elevated::set`]: one system call,
//! 0.3–1 µs, and the switch if there is one. The guardian: one sleeping process, and 256 bytes for each recorded thread.

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
pub use rights::{Lack, MissingRights, Rights, RtGroup, Throttling};
pub use sys::{Tid, current_tid};
