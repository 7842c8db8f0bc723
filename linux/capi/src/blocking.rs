//! Runs blocking functions on threads of their own.

use std::ffi::c_int;

use crate::error::{catch_panic_code, errno};
use crate::task::{Foreign, upshift_join, upshift_task};

/// Polls a task once, on a thread for blocking functions, at the level of the caller. The task must
/// finish in that poll, in which `cx` is null. `upshift_join_poll` waits for the task as for a
/// coroutine. If `join` is null, the task is detached. A task that runs cannot be cancelled. The
/// function owns the task, also on failure. Returns 0, -EAGAIN (no thread can be started), -EINVAL
/// (the task has no poll function), -ENOMEM, -ESHUTDOWN (the runtime shuts down), or -ENXIO
/// (outside of coroutines and blocking functions). May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_spawn_blocking(
    task: upshift_task,
    join: *mut upshift_join,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that the functions of the task accept its data, and gives
        // the task away.
        let task = unsafe { Foreign::new(task) };
        if !task.can_be_polled() {
            return -libc::EINVAL;
        }
        match upshift::try_spawn_blocking(move || task.run_once()) {
            // SAFETY: the caller guarantees that `join` is null or has room for a handle.
            Ok(handle) => unsafe { crate::task::store_join(join, Ok(handle)) },
            Err(error) => errno(&error),
        }
    })
}
