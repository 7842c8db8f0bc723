//! Calls user code, such as wakers of other executors, destructors and hooks.

pub(crate) mod catch_panic;
pub(crate) mod deferred;
pub(crate) mod on_vcpu;
