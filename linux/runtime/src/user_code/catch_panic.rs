//! Calls user code, such as wakers of other executors, hooks and blocking functions, and catches
//! its panics.

use crate::preempt::permit;

/// Runs user code whose panic must not end the work of others, as [`upshift_ring::catch_panic`]
/// does. Returns `None` if the code panicked.
///
/// # Panics
/// In debug builds, if the calling thread holds a lock of the runtime, because the code might need
/// that lock.
pub(crate) fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    permit::debug_assert_unused();
    upshift_ring::catch_panic(code)
}

#[cfg(all(test, debug_assertions))]
mod tests;
