//! Facts about other processes, from `/proc` and from the files of container engines.

pub(crate) mod cgroups;
pub(crate) mod container;
pub(crate) mod living;
pub(crate) mod reader;
pub(crate) mod stack;
