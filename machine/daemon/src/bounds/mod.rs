//! Bounds: how much of a CPU a user, a program or a cgroup may take.

#[doc(hidden)]
pub mod bucket;
pub(crate) mod quota;
