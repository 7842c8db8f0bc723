//! Errors of a semaphore.

use super::super::error_text::error_text;

const CLOSED: &str = "the semaphore is closed and has no more permits: stop asking for them";

/// The error of [`Semaphore::acquire`](super::Semaphore::acquire): the semaphore is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireError(pub(super) ());

error_text!([] AcquireError { AcquireError(()) => CLOSED });

/// The error of [`Semaphore::try_acquire`](super::Semaphore::try_acquire) and its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// Too few permits are free, or a waiter goes first.
    NoPermits,
    /// The semaphore is closed.
    Closed,
}

error_text!([] TryAcquireError {
    TryAcquireError::NoPermits => "too few permits are free: try again later, or wait with `acquire`",
    TryAcquireError::Closed => CLOSED,
});
