//! Timers.

use std::ffi::c_int;
use std::time::Duration;

use crate::cx::upshift_cx;
use crate::op::{start, upshift_op};

/// Waits for a number of nanoseconds. The result is 0 on success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_sleep(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    nanoseconds: u64,
) -> c_int {
    let future = upshift::time::sleep(Duration::from_nanos(nanoseconds));
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, future) }
}
