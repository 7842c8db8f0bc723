//! Runs code with all signals blocked.

use std::ptr::null_mut;

pub(crate) fn without_signals(f: impl FnOnce()) {
    // SAFETY: zeroes are valid sets, and the pointers are to locals.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old_mask: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old_mask);
        f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old_mask, null_mut());
    }
}
