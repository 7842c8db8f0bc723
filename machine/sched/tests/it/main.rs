//! The engine on the real kernel: real processes that spin, fork, stop and end, and schedulers
//! that are killed.
//!
//! Everything elevated is bounded: children end by themselves, by `alarm` and with their parent.
//! The tests run one at a time, so that they do not share a CPU. Without the right to use
//! SCHED_FIFO a test prints `skipped:` and the reason.

mod child;
mod deaths;
mod faults;
mod shares;
mod threads;
mod unplugged;
mod world;
