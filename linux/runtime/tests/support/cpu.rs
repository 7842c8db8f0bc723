//! CPU time of the calling thread, for tests.

use std::time::Duration;

/// Returns the CPU time that the calling thread has used.
pub(crate) fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live local of the expected type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Computes until the thread has used `time` of CPU time. A suspended poll uses none.
pub(crate) fn burn(time: Duration) {
    let start = cpu_time();
    while cpu_time() - start < time {
        std::hint::spin_loop();
    }
}
