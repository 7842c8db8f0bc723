//! Why a semaphore gives nothing.

use super::super::says::says;

const CLOSED: &str = "the semaphore is closed and has no more permits: stop asking for them";

/// The semaphore is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireError(pub(super) ());

says!([] AcquireError { AcquireError(()) => CLOSED });

/// Why [`Semaphore::try_acquire`](super::Semaphore::try_acquire) got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryAcquireError {
    /// Too few are free, or a waiter goes before.
    NoPermits,
    /// There will be no more.
    Closed,
}

says!([] TryAcquireError {
    TryAcquireError::NoPermits => "too few permits are free: try again later, or wait with `acquire`",
    TryAcquireError::Closed => CLOSED,
});
