//! The load client: one thread that drives any number of connections over epoll.
//!
//! [`run`] executes a [`Plan`]: connect, get one request answered on every connection, warm up,
//! measure, drain (wait for the last replies). The first request matters, because the kernel
//! completes connections that a busy server accepts seconds later or never; the load would then be
//! on only a part of the connections. The parts:
//!
//! | file | concern |
//! |---|---|
//! | `plan` | the load: groups, work, pace; checked before the run starts |
//! | `outcome` | the results of a run |
//! | `arrivals` | the requests: send times of an open loop, classes and service times |
//! | `reply` | cutting and checking replies |
//! | `connection` | one connection: its queue of requests, unsent bytes |
//! | `connect` | establishing connections, a few at a time |
//! | `meter` | the clock of a run, CPU time, the request to end |
//! | `engine` | the loop |
//! | `random` | seeded numbers |
//!
//! # Definition of latency
//!
//! *Closed loop*: from the write of a request to the read that completes its reply; the next
//! request leaves at once. *Open loop*: from the time at which the request was **meant** to leave,
//! whether or not the connection was free then, so a server that stalls cannot slow down the
//! measurement (no co-ordinated omission).
//!
//! A reply counts if it is complete within the time measured, or within the drain after it.
//! Requests that were due by the end of the time measured and have no reply when the drain is over
//! are in no histogram; they are counted as `unanswered`, with the age of the oldest.
//!
//! In a closed loop, connections = rate × mean latency (Little's law) therefore holds. The law does
//! not hold for `wrk`, which reads a reply in one iteration of its loop and starts the clock of the
//! next request in a later iteration; the time between belongs to neither request. If the client is
//! busy, the percentiles of `wrk` are lower than these; with one connection they agree.
//!
//! # Cost
//!
//! A closed-loop request is one `write`, one `read` and a share of one `epoll_wait`; no allocation.
//! The thread sleeps when no request is due. In an open loop it sleeps until 60 µs ahead of the
//! next send time and then polls without sleeping, because a timer of a virtual machine arrives
//! 10–45 µs late. With closer send times the thread keeps a CPU busy, so give it a CPU of its own
//! (`pin`) where latency matters. An elevated client (`fifo`) never polls, because it would starve
//! the programs on its CPU; its requests leave as late as the timer.

mod arrivals;
mod connect;
mod connection;
mod engine;
mod meter;
mod outcome;
mod plan;
mod random;
mod reply;

pub use outcome::{GroupOutcome, Outcome};
pub use plan::{Class, Distribution, Group, Hog, Pace, Plan, Work};

use crate::os;
use std::io;

/// Largest number of requests that await their replies on one connection, in an open loop of
/// matrices.
///
/// Further requests wait in the client, with their intended send times; see
/// [`GroupOutcome::delayed`].
pub const OPEN_DEPTH: usize = 16;

/// Executes `plan` on a thread of its own and returns an outcome for each group, or for each class
/// of each group.
///
/// The run takes at most the time to connect (bounded by [`Plan::patience`] without progress), up
/// to 20 s for the first replies (10 s without one, or the patience if shorter), warm-up, duration,
/// drain, and 250 ms for the last replies; less if [`Plan::stop`] is raised or no connection is
/// left. Failures of connections are counted in the [`Outcome`], not returned.
///
/// The soft limit on open files of the process is raised if the connections need it.
///
/// # Errors
///
/// Fails if the plan makes no sense (`InvalidInput`), if the CPU to pin to or the server process
/// does not exist, or if epoll fails.
pub fn run(plan: &Plan) -> io::Result<Outcome> {
    plan.check()?;
    std::thread::scope(|scope| {
        let engine = std::thread::Builder::new()
            .name("upshift-load".into())
            .spawn_scoped(scope, || {
                if let Some(cpu) = plan.pin {
                    os::pin(cpu)?;
                }
                if let Some(priority) = plan.fifo {
                    os::elevate(priority)?;
                }
                os::minimize_timer_slack();
                engine::Engine::new(plan)?.run()
            })?;
        engine
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
