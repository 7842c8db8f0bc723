//! The board is shared memory in which each process publishes the urgency of its work, and reads
//! how urgent the work of other processes is.
//!
//! A process writes its *local page*. For each vCPU, that is, for the run queues of one CPU, the
//! page contains the levels that have a runnable coroutine. A scheduler (on Linux `upshift daemon`)
//! reads the local pages without trusting them, and writes the *global page*, which processes can
//! map only for reading. The idea comes from the SharedScheduler papers (section 3.3). There, any
//! process could write the global priority bitmap; here no process can write the global page.
//!
//! ```text
//!  process                                     daemon
//!  local page   RW ── levels, running, … ──▶   RO
//!  global page  RO ◀── bitmaps, thresholds ──  RW, then sealed
//!  doorbell     ──── ring ───────────▶   one eventfd per vCPU
//! ```
//!
//! Publishing takes one or two stores. A process writes to the doorbell, which is a system call,
//! only if the order of the processes on its CPU may have changed. [`Standing`] decides that with
//! two comparisons.
//!
//! | module | concern |
//! |---|---|
//! | [`layout`] | the pages |
//! | [`urgency`] | meaning of a vCPU's words, and the rule for rings |
//! | [`wire`] | messages between process and daemon: bytes only |
//! | `client` (feature `client`) | joining, leaving and rejoining on Linux |
//!
//! The crate is `no_std` without the feature `client`. Only the calls of the client allocate or
//! block.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

#[cfg(feature = "client")]
extern crate std;

#[cfg(all(feature = "client", target_os = "linux"))]
pub mod client;
pub mod layout;
#[cfg(all(feature = "client", target_os = "linux"))]
pub mod os;
pub mod urgency;
pub mod wire;

pub use layout::{CpuLine, GlobalPage, LocalPage, VcpuLine};
pub use urgency::{Claim, LEVELS, NO_LEVEL, Standing};

#[cfg(all(feature = "client", target_os = "linux"))]
pub use client::{Board, Census, JoinError, Joined, Role, ThreadSpec, Vcpu, VcpuSpec};
