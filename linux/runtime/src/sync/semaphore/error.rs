//! Errors of a semaphore.

use super::super::error_text::error_text;

/// Text of the errors of a closed semaphore.
const CLOSED: &str = "the semaphore is closed and has no more permits: stop asking for them";

/// The error of [`Semaphore::acquire`](super::Semaphore::acquire): the semaphore is closed.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let semaphore = upshift::sync::Semaphore::new(1);
/// semaphore.close();
/// let error = semaphore.acquire().await.unwrap_err();
/// assert!(error.to_string().contains("the semaphore is closed"));
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcquireError(pub(super) ());

error_text!([] AcquireError { AcquireError(()) => CLOSED });

/// The error of [`Semaphore::try_acquire`](super::Semaphore::try_acquire) and of similar methods
/// such as `try_acquire_many`.
///
/// ```
/// use upshift::sync::{Semaphore, TryAcquireError};
///
/// let semaphore = Semaphore::new(1);
/// assert_eq!(semaphore.try_acquire_many(2).unwrap_err(), TryAcquireError::NoPermits);
/// semaphore.close();
/// assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::Closed);
/// ```
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
