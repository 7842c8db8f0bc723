//! Load generators, the matrix protocol and thread-per-connection reference servers.
//!
//! The `upshift` command and the benchmarks use this crate; it is not published and depends on no async runtime, so
//! that one client and one set of protocol bytes measure every server alike.
//!
//! - [`run`] drives servers as a [`Plan`] says and returns an [`Outcome`];
//! - [`matrix`] and [`http`] hold what the servers of all kinds share;
//! - [`threads`] holds the servers that a coroutine server is compared with;
//! - [`cpu`] measures CPU time of this or another process.
//!
//! `unsafe` is confined to the private module `os` (epoll, affinity, clocks).

pub mod cpu;
pub mod http;
pub mod matrix;
pub mod threads;

mod client;
mod os;

pub use client::{
    Group, GroupOutcome, OPEN_DEPTH, Outcome, Pace, Phase, Plan, Progress, ProgressFn, Work, run,
};
pub use cpu::CpuUse;
pub use hdrhistogram::Histogram;
