//! Handles to coroutines, which return their results or cancel them, and the error of a coroutine
//! without a result.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift_core::{CancelHandle, CoroutineId};

use crate::host;
use crate::host::Linux;

/// The id of a coroutine. Ids are not reused.
pub type Id = CoroutineId;

/// Returns the id of the calling coroutine.
///
/// # Panics
/// Outside a coroutine.
///
/// ```
/// use upshift::task;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let handle = task::spawn(async { task::id() });
/// let id = handle.id();
/// assert_eq!(handle.await.unwrap(), id);
/// # });
/// ```
#[must_use]
#[track_caller]
pub fn id() -> Id {
    try_id().expect("no coroutine is running on this thread: use `try_id`")
}

/// Returns the id of the calling coroutine; `None` outside one.
///
/// ```
/// use upshift::task;
///
/// assert_eq!(task::try_id(), None);
/// upshift::Runtime::new()?.block_on(async {
///     assert_eq!(task::try_id(), Some(task::id()));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn try_id() -> Option<Id> {
    host::current_id()
}

/// Handle to a coroutine's result. Dropping it detaches the coroutine.
///
/// Awaiting the handle lends the waiter's level to the coroutine. The loan ends with the wait, even
/// if the wait is given up and the handle is kept, as by `timeout(limit, &mut handle)`.
///
/// # Cancellation safety
/// A wait through `&mut handle` may be dropped, because the result stays in the handle.
///
/// ```
/// upshift::Runtime::new()?.block_on(async {
///     let handle = upshift::task::spawn(async { 1 + 1 });
///     assert_eq!(handle.await.unwrap(), 2);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "dropping the handle detaches the coroutine; say so with `detach`"]
pub struct JoinHandle<T> {
    inner: upshift_core::JoinHandle<T, Linux>,
}

impl<T> JoinHandle<T> {
    #[inline]
    pub(crate) fn new(inner: upshift_core::JoinHandle<T, Linux>) -> JoinHandle<T> {
        JoinHandle { inner }
    }

    /// Returns the id of the coroutine.
    #[must_use]
    pub fn id(&self) -> Id {
        self.inner.id()
    }

    /// Detaches the coroutine, which continues. A panic in it is reported by the panic hook, and in
    /// a line on standard error ([`Builder::warnings`](crate::Builder::warnings)).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, receiver) = upshift::sync::oneshot::channel();
    /// upshift::task::spawn(async move { sender.send(7) }).detach();
    /// assert_eq!(receiver.await, Ok(7));
    /// # });
    /// ```
    pub fn detach(self) {}

    /// Returns whether the coroutine has exited.
    ///
    /// ```
    /// use upshift::task;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = task::spawn(async {});
    /// assert!(!handle.is_finished());
    /// task::yield_now().await;
    /// assert!(handle.is_finished());
    /// # });
    /// ```
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }

    /// Cancels the coroutine, so that its future is dropped instead of being polled again. If a
    /// poll is under way, it ends first; a [`yield_if_needed`](crate::yield_if_needed) in that poll
    /// gives way. The handle then reports the cancellation, unless the coroutine has completed
    /// before.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(std::future::pending::<()>());
    /// handle.cancel();
    /// assert!(handle.await.unwrap_err().is_cancelled());
    /// # });
    /// ```
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// Does the same as [`cancel`](JoinHandle::cancel).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(std::future::pending::<()>());
    /// handle.abort();
    /// assert!(handle.await.unwrap_err().is_cancelled());
    /// # });
    /// ```
    pub fn abort(&self) {
        self.cancel();
    }

    /// Returns a handle that only cancels the coroutine.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(std::future::pending::<()>());
    /// let abort = handle.abort_handle();
    /// upshift::task::spawn(async move { abort.abort() }).detach();
    /// assert!(handle.await.unwrap_err().is_cancelled());
    /// # });
    /// ```
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
    // Always inlined, for the reason given at `upshift_core::JoinHandle`.
    #[inline(always)]
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

/// Handle that cancels a coroutine. Keeps the coroutine's control block alive.
///
/// ```
/// use upshift::task::{self, AbortHandle};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let handles = [task::spawn(std::future::pending::<()>()), task::spawn(async {})];
/// let [stuck, quick] = handles.each_ref().map(|handle| handle.abort_handle());
/// task::yield_now().await;
/// assert!(quick.is_finished() && !stuck.is_finished());
/// stuck.abort();
/// task::yield_now().await;
/// assert!(stuck.is_finished());
/// # });
/// ```
#[derive(Clone)]
pub struct AbortHandle {
    /// `None` if the result had been taken when this handle was created.
    inner: Option<CancelHandle<Linux>>,
    id: Id,
}

impl AbortHandle {
    /// Cancels the coroutine, as [`JoinHandle::cancel`] does.
    pub fn abort(&self) {
        if let Some(inner) = &self.inner {
            inner.cancel();
        }
    }

    /// Returns whether the coroutine has exited.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.inner.as_ref().is_none_or(CancelHandle::is_finished)
    }

    /// Returns the id of the coroutine.
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

/// Reason why a coroutine has no result: it was cancelled (or its runtime has shut down), or it
/// panicked.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let failed = upshift::task::spawn(async { panic!("out of range") }).await;
/// let error = failed.map(|()| "a result").unwrap_err();
/// assert!(error.is_panic() && !error.is_cancelled());
/// assert!(error.to_string().ends_with("panicked with message \"out of range\""));
/// # });
/// ```
pub struct JoinError {
    id: Id,
    error: upshift_core::JoinError,
}

impl JoinError {
    pub(crate) fn cancelled(id: Id) -> JoinError {
        let error = upshift_core::JoinError::Cancelled;
        JoinError { id, error }
    }

    /// Returns whether the coroutine was cancelled.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(std::future::pending::<()>());
    /// handle.cancel();
    /// let error = handle.await.unwrap_err();
    /// assert!(error.is_cancelled() && !error.is_panic());
    /// # });
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.error.is_cancelled()
    }

    /// Returns whether the coroutine panicked.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(async { assert_eq!(1, 2) });
    /// let error = handle.await.unwrap_err();
    /// assert!(error.is_panic() && !error.is_cancelled());
    /// # });
    /// ```
    #[must_use]
    pub fn is_panic(&self) -> bool {
        self.error.is_panic()
    }

    /// Returns the payload of the panic.
    ///
    /// # Panics
    /// If the coroutine was cancelled.
    ///
    /// ```
    /// use std::panic;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(async { panic::panic_any(7) });
    /// let error = handle.await.map(drop::<()>).unwrap_err();
    /// assert_eq!(error.into_panic().downcast_ref(), Some(&7));
    /// # });
    /// ```
    #[must_use]
    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send + 'static> {
        match self.try_into_panic() {
            Ok(panic) => panic,
            Err(_) => panic!("the coroutine did not panic, it was cancelled"),
        }
    }

    /// Returns the payload of the panic.
    ///
    /// # Errors
    /// The error itself, if the coroutine was cancelled.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let handle = upshift::task::spawn(std::future::pending::<()>());
    /// handle.cancel();
    /// let cancelled = handle.await.unwrap_err().try_into_panic().unwrap_err();
    /// assert!(cancelled.is_cancelled());
    /// # });
    /// ```
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

    /// Returns the id of the coroutine.
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
