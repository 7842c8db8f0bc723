//! Code of users that may panic where a panic would end the work of others.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of users whose panic has no place to go: the hook has reported it. False: it has panicked.
pub(crate) fn quietly(f: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else {
        return true;
    };
    // The destructor of what was thrown is code of users, too; what that throws is let be.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(panic);
    }
    false
}
