//! Runs code with all signals blocked.

use std::ptr::null_mut;

/// Runs `f` while the calling thread blocks all signals.
pub(crate) fn without_signals(f: impl FnOnce()) {
    // SAFETY: zeroes are valid sets, and the pointers are to locals.
    unsafe {
        let mut all_signals: libc::sigset_t = std::mem::zeroed();
        let mut old_mask: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all_signals);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all_signals, &raw mut old_mask);
        f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old_mask, null_mut());
    }
}
