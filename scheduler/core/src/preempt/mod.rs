//! Decides when a long poll is suspended so that waiting work can run. The decision needs no
//! threads, clocks or system calls. All times are in nanoseconds.
//!
//! Suspending a poll and resuming it later costs *C* of CPU time ([`Rule::cost`]). Nobody knows how
//! long the poll would still take. That is the ski-rental problem: to rent (let the poll run) until
//! the rent has reached the price, and then to buy (suspend the poll), costs at most twice as much
//! as a decision with knowledge of the future.
//!
//! 1. A poll may be suspended for **more urgent** work once it has used *C* of CPU time. It returns
//!    to the head of its level until it has used its quantum, then to the tail.
//! 2. A poll may be suspended for an **equal** once it has used its **quantum**, at least 4 *C*. It
//!    returns to the tail, and from then on is suspended at once for equals that have not used
//!    their quantum. Polls of a level that have used their quantum do not interrupt each other, but
//!    take turns.
//! 3. **One budget**: suspensions, turns and stale looks are charged to one [`TokenBucket`] that is
//!    refilled by a tenth of the time. Suspensions for equals use it only while it is at least half
//!    full. While it does not hold *C*, polls run on. A *look* is one examination of the running
//!    poll by its *watcher*, which is a thread beside the vCPU. A look is *stale* if the poll for
//!    which its timer was set has ended. After a stale look the watcher ignores newly ready work
//!    for 20 ms ([`REST_LENGTH`]), or until a poll is suspended. It still looks at a poll that
//!    lasts for 2 to 4 ms.
//! 4. **Nothing hangs**: a suspended poll gets a *turn* ([`TURN_LENGTH`]), in which it runs on, at
//!    least every 2 ms while other work may depend on it, and every 20 ms otherwise. Turns are
//!    charged, but never refused. A poll whose thread sleeps while others wait behind it is set
//!    aside, that is, the vCPU continues without it until the thread is awake.
//!
//! `docs/preemption-proofs.md` states the bounds as theorems. The simulator checks this code
//! against the theorems, and the runtime's watcher runs the same code.
//!
//! [`TokenBucket`]: crate::TokenBucket

mod policy;
mod rule;

pub use crate::base::events::WaitingWork;
pub use policy::{Decision, LookCosts, Policy, Snapshot};
pub use rule::{Rule, RunTime};

/// Reciprocal of the largest share of a vCPU's time that preemption takes.
pub const SHARE: u64 = 10;
/// Longest time in nanoseconds that a suspended poll is kept off the CPU while other work may
/// depend on it, if no other poll is suspended. Several suspended polls take their turns one after
/// the other, so the time grows in proportion to their number.
pub const MAX_SUSPENSION: u64 = 2_000_000;
/// Length of a suspended poll's turn in nanoseconds.
pub const TURN_LENGTH: u64 = MAX_SUSPENSION / SHARE;
/// Time in nanoseconds between turns while no work is known to depend on a suspended poll; also the
/// length of the *rest* in which the watcher ignores newly ready work after a stale look.
pub const REST_LENGTH: u64 = SHARE * MAX_SUSPENSION;
/// Capacity of the budget in nanoseconds. A burst of suspensions takes no longer than a suspended
/// poll may be kept off the CPU.
pub const BURST: u64 = MAX_SUSPENSION;
/// Part of the budget in nanoseconds that suspensions for equals leave to more urgent work.
pub const RESERVE: u64 = BURST / 2;
