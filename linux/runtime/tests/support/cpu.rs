//! CPU time of the calling thread, for tests.

use std::time::Duration;

/// Uses so much CPU time: a suspended poll uses none.
pub(crate) fn burn(time: Duration) {
    let used = || {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a pointer to a local of the type asked for.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let began = used();
    while used() - began < time {
        std::hint::spin_loop();
    }
}
