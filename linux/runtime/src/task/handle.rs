//! How a coroutine ended, and asking it to end.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift_core::{CancelHandle, CoroutineId};

use crate::host;
use crate::host::Linux;

/// The id of a coroutine. Ids are not given twice.
pub type Id = CoroutineId;

/// The id of the coroutine that calls.
///
/// # Panics
/// Outside one.
#[must_use]
#[track_caller]
pub fn id() -> Id {
    try_id().expect("no coroutine is running on this thread: use `try_id`")
}

/// The id of the coroutine that calls; `None` outside one.
#[must_use]
pub fn try_id() -> Option<Id> {
    host::current_id()
}

/// The right to a coroutine's result; awaiting it lends the coroutine the waiter's level, until the
/// wait ends: also if it is given up and the handle is kept, as by `timeout(limit, &mut handle)`.
/// Dropping it detaches the coroutine.
#[must_use = "dropping the handle detaches the coroutine; say so with `detach`"]
pub struct JoinHandle<T> {
    inner: upshift_core::JoinHandle<T, Linux>,
}

impl<T> JoinHandle<T> {
    #[inline]
    pub(crate) fn of(inner: upshift_core::JoinHandle<T, Linux>) -> JoinHandle<T> {
        JoinHandle { inner }
    }

    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> Id {
        self.inner.id()
    }

    /// Lets the coroutine go its way. Only the panic hook reports a panic in it.
    pub fn detach(self) {}

    /// Has it exited?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }

    /// Asks the coroutine to end: its future is dropped instead of polled again. A poll that is
    /// under way is finished first; one that computes and asks whether to give way
    /// ([`yield_if_needed`](crate::yield_if_needed)) is told to. The handle then reports that it was cancelled, unless the
    /// coroutine was faster.
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// [`cancel`](JoinHandle::cancel).
    pub fn abort(&self) {
        self.cancel();
    }

    /// The right to cancel the coroutine, apart from the handle.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle {
            inner: self.inner.cancel_handle(),
            id: self.id(),
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it has returned the result.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.inner).poll(cx);
        polled.map_err(|error| JoinError {
            id: self.inner.id(),
            error,
        })
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("id", &self.id())
            .finish()
    }
}

/// The right to cancel a coroutine; keeps its control block.
#[derive(Clone)]
pub struct AbortHandle {
    /// `None`: its result has been taken.
    inner: Option<CancelHandle<Linux>>,
    id: Id,
}

impl AbortHandle {
    /// As [`JoinHandle::cancel`].
    pub fn abort(&self) {
        if let Some(inner) = &self.inner {
            inner.cancel();
        }
    }

    /// Has the coroutine exited?
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.inner.as_ref().is_none_or(CancelHandle::is_finished)
    }

    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("id", &self.id).finish()
    }
}

/// Why a coroutine has no result: it was cancelled (or its runtime has shut down), or it
/// panicked.
pub struct JoinError {
    id: Id,
    error: upshift_core::JoinError,
}

impl JoinError {
    pub(crate) fn cancelled(id: Id) -> JoinError {
        let error = upshift_core::JoinError::Cancelled;
        JoinError { id, error }
    }

    /// Was it cancelled?
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.error.is_cancelled()
    }

    /// Did it panic?
    #[must_use]
    pub fn is_panic(&self) -> bool {
        self.error.is_panic()
    }

    /// What it threw.
    ///
    /// # Panics
    /// If it was cancelled.
    #[must_use]
    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        match self.try_into_panic() {
            Ok(panic) => panic,
            Err(_) => panic!("the coroutine did not panic, it was cancelled"),
        }
    }

    /// What it threw.
    ///
    /// # Errors
    /// The error itself, if the coroutine was cancelled.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send + 'static>, JoinError> {
        if self.is_cancelled() {
            return Err(self);
        }
        let id = self.id;
        self.error.into_panic().ok_or(JoinError {
            id,
            error: upshift_core::JoinError::Cancelled,
        })
    }

    /// The id of the coroutine.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        if self.is_cancelled() {
            return write!(f, "task {id} was cancelled");
        }
        match self.error.message() {
            Some(message) => write!(f, "task {id} panicked with message {message:?}"),
            None => write!(f, "task {id} panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        if self.is_cancelled() {
            return write!(f, "JoinError::Cancelled(Id({id}))");
        }
        match self.error.message() {
            Some(message) => write!(f, "JoinError::Panic(Id({id}), {message:?}, ...)"),
            None => write!(f, "JoinError::Panic(Id({id}), ...)"),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> io::Error {
        io::Error::other(error)
    }
}
