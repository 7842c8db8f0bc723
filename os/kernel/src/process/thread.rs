//! What runs in a process: its registers, and how long it may go on.

use alloc::sync::Arc;

use super::Process;
use crate::arch::trap::UserContext;

/// See [`super`].
pub(crate) struct Thread {
    /// Whose it is.
    pub(crate) process: Arc<Process>,
    /// Its registers while it does not run.
    pub(crate) context: UserContext,
    /// Ticks left of its quantum.
    pub(crate) quantum: u64,
}
