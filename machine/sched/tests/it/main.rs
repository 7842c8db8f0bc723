//! Tests of the engine on the real kernel, with processes that spin, fork, stop and end, and
//! schedulers that are killed.
//!
//! The time of every elevated thread is limited, because child processes end by themselves (by
//! `alarm`) and with their parent. The tests run one at a time, so that they do not share a CPU.
//! Without the right to use SCHED_FIFO, a test prints `skipped:` and the reason.

mod child;
mod deaths;
mod faults;
mod shares;
mod support;
mod threads;
mod unplugged;
