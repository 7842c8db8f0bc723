//! A thread's right to use shared state ([`Permit`]), which another thread can revoke by an
//! asymmetric memory barrier.
//!
//! The runtime uses permits to suspend a coroutine in the middle of a poll, and to let an idle
//! thread process the timers and the I/O of a busy one.

mod barrier;
mod permit;

pub use barrier::{heavy_barrier, register_barrier};
pub use permit::{Busy, Permit};
