//! Memory of coroutines: allocation of their futures, and mapping of the table of control blocks.

pub(crate) mod cells;
pub(crate) mod mapping;
