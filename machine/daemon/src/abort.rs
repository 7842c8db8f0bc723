//! [`AbortOnPanic`]: a thread of the daemon that panics ends the process.

/// Held by a thread while it runs, forgotten when it returns. A thread that panicked would leave its CPU as it is: better the process ends,
/// and the guardian gives everything back.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}
