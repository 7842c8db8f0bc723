//! Connects this process to the machine's daemon, which elevates the threads of the process with
//! the most urgent work, that is, moves them into `SCHED_FIFO`. Process and daemon communicate
//! through shared memory, called the board.
//!
//! With [`Builder::board`](crate::Builder::board) the vCPUs publish the levels of their ready
//! coroutines, and learn whether other processes compete for their CPU. If the daemon (`upshift
//! daemon`) lacks the privilege to elevate threads, a process that is outranked gives way by itself
//! (SharedScheduler, section 3.3: "once they detect a more urgent coroutine in another process they
//! take the initiative to yield").
//!
//! ```text
//!   vCPU's thread    publishes the level of its poll; wakes the daemon ("rings the
//!                    doorbell") if the order on its CPU may change                post.rs
//!   dispatcher       sleeps on the ring; publishes the levels of arrivals while
//!                    the vCPU cannot, because another process has its CPU         dispatcher.rs
//!   keeper           joins, notices the end of the daemon, joins again            membership.rs
//! ```
//!
//! The daemon elevates the threads of a preemptible vCPU as a set. The watcher of such a vCPU,
//! which is the thread that interrupts its polls, does the work of a dispatcher.
//!
//! **Cost.** A poll costs a few loads and comparisons, and a store when a published word changes. A
//! change of the most urgent level costs a full barrier, and a system call only if it affects
//! another vCPU on the same CPU. A vCPU that is alone on its CPU makes no such system calls; its
//! dispatcher checks ten times a second whether it is still alone.
//!
//! **A sleeping vCPU** keeps the rank of the most urgent level that it has run in the last second
//! or two. So the vCPU wakes with the priority of that level, and the daemon has nothing to decide
//! when a request arrives. If the arrival is less urgent, the vCPU publishes the lower level before
//! it polls.
//!
//! **Nothing depends on the daemon.** Without one, a vCPU runs as if it were alone. The keeper
//! joins again within a second of the start of a new daemon.

mod dispatcher;
mod membership;
mod post;
mod yielding;

pub(crate) use dispatcher::{Announcer, LOOK_INTERVAL};
pub(crate) use membership::{Membership, PostRequest};
pub(crate) use post::Post;

/// Whether a runtime joins the machine's daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Board {
    /// The runtime does not join.
    #[default]
    Off,
    /// The runtime joins if a daemon listens when it is built. Failures are reported on standard
    /// error, and the runtime continues alone.
    Auto,
    /// The runtime joins. Building the runtime fails if there is no daemon, or if the daemon
    /// refuses.
    Required,
}

/// State of a runtime's connection to the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoardStats {
    /// Set while the process is joined to a running daemon.
    pub joined: bool,
    /// Set if the daemon elevates; if not, processes give way by themselves.
    pub enforcing: bool,
    /// Number of times that the doorbell was rung, because the order on a CPU could have changed.
    /// Each costs a system call.
    pub rings: u64,
    /// Number of times that a dispatcher (or watcher) announced arrivals for a vCPU whose thread
    /// had to wait for other processes.
    pub announced: u64,
    /// Number of times that a vCPU gave way to another process by itself, for at most half a
    /// millisecond each.
    pub gave_way: u64,
}
