//! The Rust half of `cpp/examples/mixed.cpp`: coroutines that record their runs, between the runs
//! of the C++ coroutines.
//!
//! A process has one copy of the runtime. So a program of both languages links one static library
//! that contains the Rust part and the C ABI: this library, which re-exports `upshift-c`, instead
//! of `libupshift_c.a`.

use std::ffi::{c_int, c_void};

use upshift::Level;
pub use upshift_c::*;

/// A function of the C++ half that receives the level of the running coroutine.
pub type Note = unsafe extern "C" fn(to: *mut c_void, level: c_int);

struct Target(*mut c_void);
// SAFETY: `note` accepts the pointer on any thread.
unsafe impl Send for Target {}

/// Starts a Rust coroutine at a level. The coroutine calls `note`, yields, and calls `note` again.
/// Returns 0, or -1 for an invalid level.
///
/// # Safety
/// Called in a coroutine; `note` must accept `to` until the new coroutine ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mixed_spawn(level: c_int, note: Note, to: *mut c_void) -> c_int {
    let Some(level) = u8::try_from(level).ok().and_then(|n| Level::new(n).ok()) else {
        return -1;
    };
    let to = Target(to);
    let work = async move {
        let to = to;
        for _ in 0..2 {
            // SAFETY: by contract `note` accepts `to` until this coroutine ends.
            unsafe { note(to.0, c_int::from(level.get())) };
            upshift::yield_now().await;
        }
    };
    upshift::spawn(work, level).detach();
    0
}
