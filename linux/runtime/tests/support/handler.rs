//! Replaces the handler of the runtime's signal, as a program might do that is not aware of the
//! runtime.

use std::ptr::{null, null_mut};

pub(crate) extern "C" fn do_nothing(_: libc::c_int) {}

/// Installs `handler` for the signal that interrupts polls. Must be called while a runtime exists
/// that uses the signal.
///
/// # Panics
/// If no real-time signal has a handler.
pub(crate) fn replace(handler: libc::sighandler_t) {
    let action = |signal| {
        // SAFETY: zeroes are a valid `sigaction`, and the pointer is to a local.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, null(), &raw mut action);
            action
        }
    };
    let signal = (libc::SIGRTMIN() + 1..libc::SIGRTMAX())
        .rev()
        .find(|signal| action(*signal).sa_sigaction != libc::SIG_DFL)
        .unwrap();
    let mut replacement = action(signal);
    replacement.sa_flags = libc::SA_RESTART;
    replacement.sa_sigaction = handler;
    // SAFETY: `replacement` is a live local.
    unsafe { libc::sigaction(signal, &raw const replacement, null_mut()) };
}
