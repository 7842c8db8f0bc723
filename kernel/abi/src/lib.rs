//! The interface between the kernel and user programs: system calls, errors, addresses, and the
//! layout of shared memory.
//!
//! The table of system calls is [`system_calls!`]. It generates the numbers (here), the dispatch
//! (in the kernel) and the functions that programs call (in the user library), so the three cannot
//! disagree.

#![no_std]
#![forbid(unsafe_code)]

mod calls;
pub mod datagram;
mod error;
pub mod layout;
pub mod shared;
mod structs;
pub mod thread;
pub mod trace;

pub use calls::number;
pub use error::Error;
pub use structs::{HartStatus, ProcessInfo, ProcessStatus, SpawnRequest, UserRange};

/// Version of the interface, which changes with this crate. The kernel writes it into the info page
/// of each program.
pub const VERSION: u64 = 7;
