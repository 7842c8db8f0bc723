//! Ranks: the order of processes on a CPU, and the elevation of their threads.

pub(crate) mod cpu;
pub(crate) mod global;
pub mod rank;
pub(crate) mod roster;
