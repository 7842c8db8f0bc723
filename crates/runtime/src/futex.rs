//! Sleeping until a word changes.

use std::ptr::null;
use std::sync::atomic::AtomicU32;

/// Waits while the word is `value`; may return early.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT, value, None);
}

/// The same, for at most so many ns.
pub(crate) fn futex_wait_for(word: &AtomicU32, value: u32, nanos: u64) {
    let time = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    futex(word, libc::FUTEX_WAIT, value, Some(&time));
}

/// Wakes the thread that waits for the word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, None);
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, time: Option<&libc::timespec>) {
    // SAFETY: word and time live for the length of the call. All errors mean: look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            time.map_or(null(), std::ptr::from_ref),
        );
    }
}
