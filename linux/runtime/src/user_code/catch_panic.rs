//! Calls of code of users: wakers of other executors, hooks, blocking functions.

use crate::preempt::permit;

/// Runs code of users whose panic must not end the work of others, as [`upshift_ring::catch_panic`]
/// does. Returns `None` if the code panicked.
///
/// # Panics
/// In debug builds, if the calling thread holds a lock of the runtime: the code might need it.
pub(crate) fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    permit::debug_assert_unused();
    upshift_ring::catch_panic(code)
}

#[cfg(all(test, debug_assertions))]
mod tests;
