//! Memory of coroutines: mapping of the table of control blocks.

pub(crate) mod mapping;
