//! Stops polls that run too long or block, so that they do not hold up other coroutines. A vCPU
//! (the right to run on one CPU, with its ready queues and its io_uring) whose polls can be stopped
//! is *preemptible*. The process needs no privileges.
//!
//! ```text
//!   watcher    sleeps on an eventfd and a timer; decides and stops polls (watcher.rs, suspend.rs)
//!   workers    the current one runs the ring and the coroutines (serve.rs);
//!              the spare ones sleep; the others hold a suspended or blocked poll (thread.rs)
//! ```
//!
//! A thread may use the vCPU's state only while it holds its *permit*. The watcher revokes the
//! permit of the current thread to stop a poll. A *look* is one examination of the running poll by
//! the watcher. A *turn* is the time for which a resumed poll may run even if other work is
//! waiting. An *arrival* is a completion, a due timer, or a wake from outside that the vCPU has not
//! processed yet.
//!
//! # Where a newcomer starts
//!
//! | question | file |
//! |---|---|
//! | When is a poll suspended? | `upshift_core::preempt`, which knows no threads and no clocks |
//! | How are the costs of a suspension and of a look measured? | `calibrate.rs` |
//! | How does a poll begin and end? | `serve.rs`: `poll_begins`, `poll_ends` |
//! | When does the watcher look, and at which facts? | `watcher.rs`; timer and rests: `alarm.rs` |
//! | How long has a poll run? | `age.rs` |
//! | How is a poll stopped and resumed? | `suspend.rs`; the signal handler: `current.rs` |
//! | Which thread may touch which state? | the table of `vcpu.rs`; `roles.rs` and `permit.rs` |
//! | How is the ring of a stopped thread served? | `service.rs`, `idle.rs` |
//! | In which order does the kernel run these threads? | `slice.rs` |
//!
//! All threads of a vCPU are pinned to one CPU. Workers have ordinary priority. They are in the
//! batch policy while they wait and in the default policy while they poll. The first worker thread
//! created the ring. While polls are short, that thread alone enters the ring, processes
//! completions and polls, as on a cooperative vCPU. When a poll begins, the thread unmasks the
//! ring's completion eventfd, by one store into memory that the kernel reads. So **the arrival is
//! the interrupt**, and it wakes the watcher only while a poll is under way. A look is *stale* if
//! the watcher's timer was set for a poll that has ended by then. After a stale look the watcher
//! rests: polls leave the eventfd masked, and only postpone a timer, which therefore goes off only
//! during a long poll.
//!
//! # Stopping a poll
//!
//! The watcher revokes the permit of the current thread (`permit.rs`), lets the core queue the
//! coroutine as *suspended*, makes a spare thread current, and sends the stopped thread a signal.
//! In the signal's handler, the stopped thread waits until its permit is granted again. The signal
//! frees the CPU. The permit keeps the data safe, whether the signal arrives or not.
//!
//! A thread that sleeps in the middle of its poll (in a lock or a system call) is not sent a
//! signal. Its poll is *blocked*, and in no queue, until the thread wakes up. So a system call that
//! blocks does not stop the vCPU, and the holder of a lock can continue.
//!
//! # No state waits for the signal
//!
//! The handler may run late, twice, or never, because polls may block the signal, and programs may
//! replace the handler. Each state that the handler ends therefore ends without it as well.
//!
//! | state | how it ends without the handler |
//! |---|---|
//! | the next thread is to be woken (`next_up`) | the next look wakes it |
//! | a poll has yet to resume (`resume_requested`) | a turn later, unless it waits for the permit |
//! | a signal is on its way (`signal`) | it may be sent again after 2 ms |
//! | the ring is to be entered (`enter_requested`) | each look that sees arrivals repeats this |
//! | a call on the ring is requested (`service.rs`) | the requester wakes the thread or withdraws |
//! | the ring's thread is to serve (`command`) | the ring, in which it waits, polls an eventfd |
//!
//! # The ring of a stopped thread
//!
//! Only the thread that created a ring may enter it. While other threads serve, that thread waits
//! in the ring, inside its signal handler, so that operations complete without a signal for each.
//! It also makes the system calls that the current thread requests (`service.rs`).
//!
//! # Pinned futures
//!
//! The futures of `block_on` and `spawn_local` need not be `Send`, so they are polled only on the
//! thread of `block_on`. Their polls are suspended like others. While a poll is stopped on that
//! thread, the other pinned futures wait. As soon as one of them is ready, the stopped poll is
//! resumed.
//!
//! # Sources
//!
//! Suspension by signal is known for user-level threads as KLT-switching (Shiina, Iwasaki, Taura,
//! Balaji, PPoPP 2021). The rule for suspension is that of the ski-rental problem.
//! `docs/preemption.md` states the rule for users, `docs/preemption-proofs.md` its bounds.

mod age;
mod alarm;
mod calibrate;
mod current;
mod idle;
pub(crate) mod interrupt;
pub(crate) mod permit;
mod roles;
mod serve;
mod service;
mod slice;
mod start;
mod starter;
mod suspend;
mod thread;
mod vcpu;
mod watcher;

use std::fmt;
use std::io;

pub(crate) use calibrate::costs;
pub(crate) use current::answer_here;
pub(crate) use serve::{notify_local_arrival, without_suspension};
pub(crate) use slice::schedule_as_waiter;
pub(crate) use start::start;
pub(crate) use upshift_core::preempt::Rule;
pub(crate) use vcpu::{Preemptible, Settings};
pub(crate) use watcher::SUSPENDED_DELAY;

/// Whether a vCPU may interrupt a poll that overruns.
///
/// ```
/// use upshift::{Preemption, Runtime};
///
/// // Preemptible if the kernel supports preemption, cooperative otherwise.
/// let runtime = Runtime::builder().vcpus(1).preemption(Preemption::Preferred).build()?;
/// assert!(runtime.handle().preemption_stats().vcpus <= 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// vCPUs are cooperative.
    #[default]
    Off,
    /// vCPUs are preemptible if the kernel has `membarrier` and, for I/O by io_uring, is Linux 6.1
    /// or newer. Otherwise the runtime names the missing part on standard error, and is
    /// cooperative.
    Preferred,
    /// vCPUs are preemptible. Building the runtime fails if a part is missing, and names it.
    Required,
}

/// Counts of the events of preemption, over all vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PreemptionStats {
    /// Number of vCPUs that can interrupt a poll.
    pub vcpus: usize,
    /// Number of polls that were stopped, whether they were suspended or blocked.
    pub suspensions: u64,
    /// Number of coroutines that are suspended now.
    pub suspended: usize,
    /// Number of polls that were stopped because their thread slept, and were then in no queue.
    #[cfg_attr(feature = "serde", serde(default))]
    pub set_aside: u64,
    /// Number of polls that are blocked now, that is, whose thread sleeps.
    #[cfg_attr(feature = "serde", serde(default))]
    pub blocked: usize,
    /// Number of wake-ups of watchers.
    pub wakeups: u64,
    /// Number of wake-ups of watchers that stopped nothing.
    pub spurious_wakeups: u64,
    /// Number of system calls on rings that the ring's thread made on behalf of another thread.
    pub services: u64,
}

/// Calls `f`, during which the current poll is not suspended. Use it for a few microseconds in
/// which other threads would have to wait for the poll, for example because the poll holds a spin
/// lock. Costs two stores and two loads; without preemption, only the call.
///
/// The vCPU runs nothing else meanwhile, even if `f` blocks. So keep `f` short, and do not wait in
/// it for another coroutine.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let sum = upshift::no_suspend(|| 1 + 1);
/// # assert_eq!(sum, 2);
/// # });
/// ```
pub fn no_suspend<R>(f: impl FnOnce() -> R) -> R {
    // The critical section does not count as a use of the permit (`permit::begin_use`), because `f`
    // is user code.
    struct Entered;
    impl Drop for Entered {
        fn drop(&mut self) {
            crate::preempt::permit::leave();
        }
    }
    crate::preempt::permit::enter();
    let _entered = Entered;
    f()
}

/// Returns the error of a runtime that cannot be preemptible.
pub(crate) fn refusal(why: impl fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("no preemption: {why}"),
    )
}
