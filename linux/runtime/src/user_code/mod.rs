//! User code that the runtime calls: wakers of other executors, destructors, hooks.

pub(crate) mod catch_panic;
pub(crate) mod deferred;
pub(crate) mod on_vcpu;
