//! Waiting until another thread of the process changes a word, by a private futex. The functions
//! are async-signal-safe.

use std::ptr::null;
use std::sync::atomic::AtomicU32;

/// Waits while the word is `value`; may return early.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT, value, None);
}

/// Waits while the word is `value`, for at most `nanos` nanoseconds; may return early.
pub fn futex_wait_for(word: &AtomicU32, value: u32, nanos: u64) {
    futex(word, libc::FUTEX_WAIT, value, Some(nanos));
}

/// Waits while the word is `value`, until `nanos` nanoseconds of CLOCK_MONOTONIC; may return early.
pub fn futex_wait_until(word: &AtomicU32, value: u32, nanos: u64) {
    // Unlike FUTEX_WAIT, this operation takes an absolute time.
    futex(word, libc::FUTEX_WAIT_BITSET, value, Some(nanos));
}

/// Wakes one thread that waits for the word.
pub fn futex_wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, None);
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, nanos: Option<u64>) {
    let time = nanos.map(|nanos| libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
    });
    // SAFETY: the pointers to the word and the time are valid during the call. Errors are ignored,
    // because the caller checks the word again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            time.as_ref().map_or(null(), std::ptr::from_ref),
            null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        );
    }
}
