//! Scheduling policies in user space, for processes that know nothing of it, on a stock kernel.
//!
//! A thread above all others decides which process runs next, raises the priority of that process's threads, and sleeps; the kernel does
//! the switch. This is time slicing and table-driven scheduling by priority elevation, after Yasukata and Ishiguro, "Developing
//! Process Scheduling Policies in User Space with Common OS Features" (APSys 2024), §3, made safe to use: everything is
//! given back whatever dies (`upshift-elevate`), ordinary threads keep a part of the CPU ([`Open`]), threads that are born
//! are followed, and a switch costs one call for each thread raised instead of two (`ratchet.rs`).
//!
//! | part | concern |
//! |---|---|
//! | [`Policy`], [`Turn`], [`Usage`] | what runs next: a trait of six small methods |
//! | [`policies`], [`timetable`] | round-robin, table, shares, deadlines, levels, solo |
//! | [`Member`], [`Processes`] | a task: threads that are raised, lowered and moved as one |
//! | [`Engine`], [`Config`], [`Scheduler`] | the loop, and a thread that runs it |
//! | [`Control`], [`Report`], [`Trace`] | telling a running engine something, and hearing from it |
//! | [`Clock`] | time, real or simulated |
//!
//! # A policy in 30 lines
//!
//! The task that has used the least CPU time so far runs, for a slice:
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
//!         turn.until(now + 2_000_000);
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
//! `examples/least_first.rs` runs it on real processes.
//!
//! # What it does not do
//!
//! * Locks between tasks: a task that *spins* for what a waiting one holds burns its turn. Locks that sleep are fine.
//! * A process may raise itself above the scheduler if it has the right to, and nothing here can stop it.
//! * Threads that are born start as ordinary ones and join within [`Config::follow`], or in the next open piece.
//!
//! # Costs
//!
//! A turn: one wait and, if another task comes to the front, one call for each of its threads (`Report::calls` says how many);
//! policies that ask for usage, one call to read it. Timers decide what is sensible: see `Calibration::quantum_floor` of
//! `upshift-elevate`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg(target_os = "linux")]

mod clock;
mod config;
mod control;
mod engine;
mod error;
mod member;
mod place;
pub mod policies;
mod policy;
mod processes;
mod procfs;
mod ratchet;
mod report;
mod scheduler;
pub mod timetable;
mod watch;

pub use clock::{Clock, Monotonic};
pub use config::{Config, Open};
pub use control::Control;
pub use engine::Engine;
pub use error::SchedError;
pub use member::{Member, Standing};
pub use policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};
pub use processes::Processes;
pub use procfs::ancestors;
pub use report::{Event, Quantiles, Report, TaskReport, Trace, What};
pub use scheduler::{Ended, Scheduler};
pub use watch::Watch;
