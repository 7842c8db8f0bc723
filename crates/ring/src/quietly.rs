//! Foreign code that may panic where a panic would end the work of others.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code whose panic must not end the work of others: the hook has reported it.
#[inline]
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        // The payload's own destructor is foreign code too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    }
}
