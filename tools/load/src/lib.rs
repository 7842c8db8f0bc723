//! A load generator, the matrix and spin protocols, and the description of the measured machine.
//!
//! The `upshift` command and the benchmarks use this crate; it depends on no async runtime, so
//! that one client and one set of protocol bytes measure every server alike.
//!
//! - [`run`] drives servers as a [`Plan`] says and returns an [`Outcome`];
//! - [`matrix`], [`frames`], [`http`], [`requests`] and [`spin`] hold the protocols, for
//!   client and servers; [`Burner`] burns CPU time;
//! - [`child`] starts and ends the programs that are measured;
//! - [`cpu`] measures CPU time of this or another process; [`Awake`] keeps a CPU from halting;
//! - [`machine`] describes the machine and its other load; [`Report`] and [`Spread`] summarise
//!   one run and several runs;
//! - [`scenario`] holds the loads that the demo and the benchmarks both measure.
//!
//! `unsafe` is confined to the private module `os` (epoll, affinity, clocks, signals).

#![cfg_attr(docsrs, feature(doc_cfg))]
pub mod child;
pub mod cpu;
pub mod frames;
pub mod http;
pub mod machine;
pub mod matrix;
pub mod requests;
pub mod scenario;
pub mod spin;

mod awake;
mod burn;
mod client;
mod os;
mod report;
mod spread;

pub use awake::Awake;
pub use burn::Burner;

pub use client::{
    Class, Distribution, Group, GroupOutcome, Hog, OPEN_DEPTH, Outcome, Pace, Plan, Work, run,
};
pub use cpu::CpuUse;
pub use hdrhistogram::Histogram;
pub use report::{GroupReport, Report};
pub use spread::Spread;
