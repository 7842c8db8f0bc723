//! Why a semaphore gives nothing.

use std::fmt;

/// The semaphore is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireError(());

impl AcquireError {
    pub(super) fn new() -> AcquireError {
        AcquireError(())
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the semaphore is closed and has no more permits: stop asking for them")
    }
}

impl std::error::Error for AcquireError {}

/// Why [`Semaphore::try_acquire`](super::Semaphore::try_acquire) got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// Too few are free, or a waiter goes before.
    NoPermits,
    /// There will be no more.
    Closed,
}

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TryAcquireError::NoPermits => {
                "too few permits are free: try again later, or wait with `acquire`"
            }
            TryAcquireError::Closed => {
                "the semaphore is closed and has no more permits: stop asking for them"
            }
        })
    }
}

impl std::error::Error for TryAcquireError {}
