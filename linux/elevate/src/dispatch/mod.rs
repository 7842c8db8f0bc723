//! [`Permit`]: a thread's right to use shared state, revoked with an asymmetric barrier. The
//! runtime suspends polls with it, and lets other vCPUs stand in for a vCPU in a long poll.

mod barrier;
mod permit;

pub use barrier::{heavy_barrier, register_barrier};
pub use permit::{Busy, Permit};
