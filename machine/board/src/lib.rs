//! The board: shared memory by which processes say how urgent their work is, and learn how urgent that of the others is.
//!
//! A process keeps its *local page*: per vCPU the levels that are runnable. A scheduler (on Linux `upshift daemon`) reads it,
//! distrusts it, and writes the *global page*, which processes can map read-only and never otherwise. Source: the global
//! priority bitmap of the SharedScheduler papers (section 3.3), which one process could write there; here none can.
//!
//! ```text
//!  process                                     daemon
//!  local page   RW ── levels, running, … ──▶   RO
//!  global page  RO ◀── bitmaps, thresholds ──  RW, then sealed
//!  doorbell     ──── "look now" ───────────▶   one eventfd per vCPU
//! ```
//!
//! Publishing is a store or two. A process makes a system call (a ring of the doorbell) only if the order of the processes
//! on its CPU may have changed: [`Standing`] says when, in two comparisons.
//!
//! | module | concern |
//! |---|---|
//! | [`layout`] | the pages |
//! | [`urgency`] | what a vCPU's words mean, and when to ring |
//! | [`wire`] | messages between process and daemon: bytes only |
//! | `client` (feature `client`) | joining, leaving and rejoining on Linux |
//!
//! The crate is `no_std` without the feature. Nothing in it allocates or blocks but the client's own calls.

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
pub use urgency::{Claim, LEVELS, NOTHING, Standing};

#[cfg(all(feature = "client", target_os = "linux"))]
pub use client::{Board, Census, JoinError, Joined, Role, ThreadSpec, Vcpu, VcpuSpec};
