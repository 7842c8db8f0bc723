//! Runs blocking functions on threads of their own.

use std::ffi::c_int;

use crate::error::{catch_panic_code, errno};
use crate::task::{Foreign, upshift_join, upshift_task};

/// Polls a task once, on a thread for blocking functions, at the level of the caller. The task must
/// finish in that poll, and `cx` is null. The handle is awaited like the handle of a coroutine. A
/// running task is not ended early. The function owns the task, also on failure. Returns 0, -EAGAIN
/// (no thread can be started), -EINVAL (no poll function), -ENOMEM, -ESHUTDOWN, or -ENXIO (no
/// runtime on this thread). Called in a coroutine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_spawn_blocking(
    task: upshift_task,
    join: *mut upshift_join,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the task is valid, and the caller gives it to this function.
        let task = unsafe { Foreign::new(task) };
        if !task.can_be_polled() {
            return -libc::EINVAL;
        }
        match upshift::try_spawn_blocking(move || task.run_once()) {
            // SAFETY: the caller upholds the requirements of this call.
            Ok(handle) => unsafe { crate::task::store_join(join, Ok(handle)) },
            Err(error) => errno(&error),
        }
    })
}
