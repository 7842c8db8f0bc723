//! [`Permit`]: the right of a thread to use what it shares with another one, taken away with an asymmetric barrier. The runtime stops
//! polls with it, and has other vCPUs stand in for one in a long poll.

mod barrier;
mod permit;

pub use barrier::{heavy_barrier, register_barrier};
pub use permit::{Busy, Permit};
