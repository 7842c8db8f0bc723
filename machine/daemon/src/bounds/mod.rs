//! Bounds: how much of a CPU a user, a program or a cgroup may take.

pub(crate) mod accounts;
pub(crate) mod bars;
#[doc(hidden)]
pub mod bucket;
pub(crate) mod draw;
pub(crate) mod evidence;
pub(crate) mod quota;
