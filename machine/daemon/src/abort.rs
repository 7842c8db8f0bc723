//! Ends the process if a thread of the daemon panics.

/// A thread creates this value when it starts, and forgets it when it returns. After a panic,
/// nothing would lower the priorities that the thread has set, so the process ends and the guardian
/// restores all threads.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}
