//! The handler of the runtime's signal, replaced as a careless program would.

use std::ptr::{null, null_mut};

/// Handler of a program's own, which does nothing.
pub(crate) extern "C" fn own(_: libc::c_int) {}

/// Replaces the handler of the signal that interrupts polls, while a runtime exists that uses it.
///
/// # Panics
/// If no real-time signal has a handler.
pub(crate) fn replace(handler: libc::sighandler_t) {
    let action = |signal| {
        // SAFETY: plain data; pointers to locals.
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
    let mut other = action(signal);
    other.sa_flags = libc::SA_RESTART;
    other.sa_sigaction = handler;
    // SAFETY: a pointer to a local.
    unsafe { libc::sigaction(signal, &raw const other, null_mut()) };
}
