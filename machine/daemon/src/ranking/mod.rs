//! Ranks the vCPUs of each CPU, and elevates their threads.

pub(crate) mod cpu;
pub(crate) mod global;
pub mod rank;
pub(crate) mod roster;
