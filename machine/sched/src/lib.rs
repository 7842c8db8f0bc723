//! Scheduling policies in user space, for unmodified processes on a stock kernel.
//!
//! A thread above all other threads decides which process runs next, raises the priority of its
//! threads, and sleeps; the kernel performs the switch. This is time slicing and table-driven
//! scheduling by priority elevation, after Yasukata and Ishiguro, "Developing Process Scheduling
//! Policies in User Space with Common OS Features" (APSys 2024), §3. In addition, every thread is
//! restored however the scheduler ends (`upshift-elevate`), ordinary threads keep a part of the CPU
//! ([`OpenPieces`]), new threads join their task, and a switch costs one call for each raised
//! thread instead of two (`ratchet.rs`).
//!
//! In this crate, a *task* is a set of threads, usually those of a process, and a *turn* is the
//! time between two decisions of the policy. A task that the policy prefers in a turn is
//! *favoured*, and the task that runs first on a CPU is *in front*. An *open piece* is a time that
//! is left to ordinary threads.
//!
//! | part | concern |
//! |---|---|
//! | [`Policy`], [`Turn`], [`Usage`] | the decision: a trait of six small methods |
//! | [`policies`], [`timetable`] | round-robin, table, shares, deadlines, levels, solo |
//! | [`Member`], [`Processes`] | a task: threads that are raised, lowered and moved together |
//! | [`Engine`], [`Config`], [`Scheduler`] | the loop, and a thread that runs it |
//! | [`Control`], [`Report`], [`Trace`] | messages to a running engine, and its reports |
//! | [`Clock`] | time, real or simulated |
//!
//! # A policy in 30 lines
//!
//! The task that has used the least CPU time so far runs for a slice:
//!
//! ```
//! use upshift_sched::{Nanos, Policy, TaskId, Turn, Usage};
//!
//! struct LeastFirst {
//!     used: Vec<(Nanos, TaskId)>,
//! }
//!
//! impl Policy for LeastFirst {
//!     fn name(&self) -> &'static str {
//!         "least first"
//!     }
//!     fn added(&mut self, task: TaskId, _now: Nanos) {
//!         self.used.push((0, task));
//!     }
//!     fn removed(&mut self, task: TaskId, _now: Nanos) {
//!         self.used.retain(|&(_, other)| other != task);
//!     }
//!     fn wants_usage(&self) -> bool {
//!         true
//!     }
//!     fn used(&mut self, usage: Usage, _now: Nanos) {
//!         for (used, task) in &mut self.used {
//!             *used += if *task == usage.task { usage.cpu_time } else { 0 };
//!         }
//!     }
//!     fn pick(&mut self, now: Nanos, turn: &mut Turn) {
//!         self.used.sort();
//!         for &(_, task) in self.used.iter().take(turn.cpus()) {
//!             turn.favour(task);
//!         }
//!         turn.end_at(now + 2_000_000);
//!     }
//! }
//!
//! let mut policy = LeastFirst { used: Vec::new() };
//! let mut turn = Turn::new(1);
//! policy.added(TaskId(0), 0);
//! policy.added(TaskId(1), 0);
//! policy.used(Usage { task: TaskId(0), cpu_time: 500, slept: false }, 500);
//! policy.pick(500, &mut turn);
//! assert_eq!(turn.favoured(), [TaskId(1)]);
//! ```
//!
//! `examples/least_first.rs` runs this policy on real processes.
//!
//! # Limitations
//!
//! * Locks between tasks are invisible, so a task that *spins* on a lock of a waiting task wastes
//!   its turn. Locks that sleep are no problem.
//! * A process that has the right to raise itself above the scheduler cannot be prevented from
//!   doing so.
//! * New threads start as ordinary threads and join within [`Config::scan_interval`], or in the
//!   next open piece.
//!
//! # Costs
//!
//! A turn costs one wait and, if another task comes to the front, one call for each of its threads
//! (counted in `Report::calls`). For a policy that wants the usage, the CPU time of each task in
//! front is read by one more call. The shortest sensible turn depends on the timers (see
//! `Calibration::min_quantum` of `upshift-elevate`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg(target_os = "linux")]

mod clock;
mod config;
mod control;
mod engine;
mod error;
mod member;
mod placement;
pub mod policies;
mod policy;
mod process_monitor;
mod processes;
mod procfs;
mod ratchet;
mod report;
mod scheduler;
pub mod timetable;

pub use clock::{Clock, Monotonic};
pub use config::{Config, OpenPieces};
pub use control::Control;
pub use engine::Engine;
pub use error::SchedError;
pub use member::{Member, TaskClass};
pub use policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};
pub use process_monitor::ProcessMonitor;
pub use processes::Processes;
pub use procfs::ancestors;
pub use report::{Event, EventKind, Quantiles, Report, TaskReport, Trace};
pub use scheduler::{Ended, Scheduler};
