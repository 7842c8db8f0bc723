//! Ranks: which process comes first on a CPU, and how its threads get there.

pub(crate) mod cpu;
pub(crate) mod global;
pub mod rank;
pub(crate) mod roster;
