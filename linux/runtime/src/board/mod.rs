//! The board: this process among the others of the machine.
//!
//! With [`Builder::board`](crate::Builder::board) the vCPUs tell `upshift daemon` which levels they have runnable, and learn
//! which others compete for their CPU. The daemon elevates the threads of the process with the most urgent work; where it has not
//! got the right to, a process that is outranked gives way by itself (SharedScheduler, section 3.3: "once they detect a more urgent
//! coroutine in another process they take the initiative to yield").
//!
//! ```text
//!   vCPU's thread    publishes what it polls; rings if the order on its CPU may change      post.rs
//!   dispatcher       sleeps behind the ring; says what has arrived while the vCPU,
//!                    demoted, cannot                                                        dispatcher.rs
//!   keeper           joins, notices that the daemon has gone, joins again                   membership.rs
//! ```
//!
//! A preemptible vCPU has several threads, which the daemon elevates as a set; its watcher is its dispatcher.
//!
//! **What it costs.** A poll: a few loads and compares, and a store when what is published changes. A change of the most
//! urgent level: a full barrier. A system call only if another vCPU on the same CPU is concerned. Alone on its CPU, a vCPU
//! makes none; its dispatcher looks ten times a second whether it still is.
//!
//! **What a sleeper says.** A vCPU that waits keeps the rank of the most urgent level that it has run in the last second or
//! two. So it wakes with its priority, and nothing is decided when a request comes; if what comes is
//! less urgent, it says so before it polls it.
//!
//! **Nothing depends on it.** Without a daemon, or when it goes, a vCPU is alone: it runs as ever. The keeper joins again
//! within a second of a new daemon.

mod dispatcher;
mod membership;
mod post;
mod yielding;

pub(crate) use dispatcher::{Eyes, LOOK};
pub(crate) use membership::{Membership, Served};
pub(crate) use post::Post;

/// Whether a runtime joins the machine's daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Board {
    /// No.
    #[default]
    Off,
    /// If one listens when the runtime is built. What goes wrong is said on standard error, and the runtime goes on alone.
    Auto,
    /// Yes; building the runtime fails without one, or if it refuses.
    Required,
}

/// How a runtime stands with the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoardStats {
    /// It has joined one, and that one is there.
    pub joined: bool,
    /// The daemon elevates; if not, processes give way by themselves.
    pub enforcing: bool,
    /// How often vCPUs rang because the order on their CPU could have changed: a system call each.
    pub rings: u64,
    /// How often a dispatcher announced something for a vCPU that was behind others.
    pub announced: u64,
    /// How often a vCPU gave way to another process by itself, for at most half a millisecond each.
    pub gave_way: u64,
}
