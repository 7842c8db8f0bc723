//! [`Permit`]: a thread's right to use shared state, which can be revoked with an asymmetric
//! barrier. The runtime uses permits to suspend polls, and to let other vCPUs stand in for a vCPU
//! that is in a long poll.

mod barrier;
mod permit;

pub use barrier::{heavy_barrier, register_barrier};
pub use permit::{Busy, Permit};
