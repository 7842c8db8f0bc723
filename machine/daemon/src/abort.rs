//! [`AbortOnPanic`]: a panic of a thread of the daemon ends the process.

/// Held by a thread while it runs, and forgotten when it returns. After a panic the CPU of the
/// thread would stay as it is, so the process ends and the guardian restores all threads.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}
