//! Timers.

use std::ffi::c_int;
use std::time::Duration;

use crate::cx::upshift_cx;
use crate::op::{start, upshift_op};

/// Waits for a number of nanoseconds. Result 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_sleep(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    nanoseconds: u64,
) -> c_int {
    let sleep = upshift::time::sleep(Duration::from_nanos(nanoseconds));
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, sleep) }
}
