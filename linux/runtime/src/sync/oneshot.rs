//! A channel for one value, from one sender to one receiver.
//!
//! A channel is one allocation. Each call takes a short lock (one atomic exchange); so does the
//! drop of a sender that has not sent, or of a receiver that has not returned a result. Invariant,
//! under the lock: a value is inside from the time when it is sent until the receiver takes it or
//! is dropped. If the receiver is gone when the sender sends, the sender gets the value back.
//! Values and wakers are dropped without the lock.
//!
//! ```
//! use upshift::{Priority, sync::oneshot};
//!
//! upshift::Runtime::new()?.block_on(async {
//!     let (sender, receiver) = oneshot::channel();
//!     upshift::spawn(async move { sender.send(42) }, Priority::Inherit).detach();
//!     assert_eq!(receiver.await, Ok(42));
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::waker::{LockSafeWaker, register};
use super::{Guard, Lock, may_proceed, park, wake};

pub mod error;

pub use error::{RecvError, TryRecvError};

struct State<T> {
    value: Option<T>,
    /// Set when the sender has sent or is dropped.
    is_sender_done: bool,
    /// Set when the receiver is dropped, closed, or has the value.
    closed: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

type Shared<T> = Arc<Lock<State<T>>>;

/// Creates a channel for one value.
///
/// ```
/// let (sender, mut receiver) = upshift::sync::oneshot::channel();
/// sender.send(1).unwrap();
/// assert_eq!(receiver.try_recv(), Ok(1));
/// ```
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Lock::new(State {
        value: None,
        is_sender_done: false,
        closed: false,
        receiver: None,
        sender: None,
    }));
    (
        Sender {
            shared: Some(shared.clone()),
        },
        Receiver {
            shared,
            done: false,
        },
    )
}

/// Sends the value. If the sender is dropped first, the receiver gets [`RecvError`].
///
/// ```
/// use upshift::sync::oneshot;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, receiver) = oneshot::channel();
/// sender.send("answer").unwrap();
/// assert_eq!(receiver.await, Ok("answer"));
///
/// let (sender, receiver) = oneshot::channel::<u32>();
/// drop(sender);
/// assert!(receiver.await.is_err());
/// # });
/// ```
pub struct Sender<T> {
    /// `None` once the value has been sent.
    shared: Option<Shared<T>>,
}

impl<T> Sender<T> {
    /// Sends the value. Success does not mean that the receiver will take it.
    ///
    /// # Errors
    /// The value, when the receiver is closed or dropped.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::oneshot::channel();
    /// drop(receiver);
    /// assert_eq!(sender.send(1), Err(1));
    /// ```
    pub fn send(mut self, value: T) -> Result<(), T> {
        let shared = self.shared();
        let mut state = shared.lock();
        if state.closed {
            drop(state);
            return Err(value);
        }
        state.value = Some(value);
        finish(state);
        // The sender is done, so its drop has nothing to do.
        self.shared = None;
        Ok(())
    }

    fn shared(&self) -> &Shared<T> {
        self.shared.as_ref().expect("`send` consumes the sender")
    }

    /// Returns true if the receiver is closed or dropped.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::oneshot::channel::<u32>();
    /// assert!(!sender.is_closed());
    /// drop(receiver);
    /// assert!(sender.is_closed());
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared().lock().closed
    }

    /// Waits until the receiver is closed or dropped, that is, until the value is not needed any
    /// more.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (mut sender, receiver) = upshift::sync::oneshot::channel::<u32>();
    /// drop(receiver);
    /// sender.closed().await;
    /// # });
    /// ```
    pub async fn closed(&mut self) {
        poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Polls until the receiver is closed or dropped: [`closed`](Sender::closed) for hand-written
    /// futures. Only the waker of the last call is woken.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = self.shared().lock();
        if state.closed {
            let proceed = may_proceed();
            drop(state);
            if proceed {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let old_waker = register(&mut state.sender, &mut waker);
        drop(state);
        drop(old_waker);
        Poll::Pending
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            finish(shared.lock());
        }
    }
}

/// Marks the sender as done and wakes the receiver.
fn finish<T>(mut state: Guard<'_, State<T>>) {
    state.is_sender_done = true;
    let receiver = state.receiver.take();
    let own_waker = state.sender.take();
    drop(state);
    drop(own_waker);
    if let Some(receiver) = receiver {
        wake(receiver);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// Receives the value. The receiver is a future that returns the value.
///
/// # Cancellation safety
/// Awaited by `&mut`, the receiver may be polled in one branch of a `select!` without losing the
/// value. If the receiver itself is dropped, the value is dropped with it.
///
/// ```
/// use upshift::sync::oneshot;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = oneshot::channel();
/// let deadline = std::time::Duration::from_millis(1);
/// assert!(upshift::time::timeout(deadline, &mut receiver).await.is_err());
/// sender.send(7).unwrap();
/// assert_eq!(receiver.await, Ok(7));
/// # });
/// ```
pub struct Receiver<T> {
    shared: Shared<T>,
    /// Set when the receiver has returned the value or an error.
    done: bool,
}

impl<T> Receiver<T> {
    /// Receives the value if it has been sent.
    ///
    /// # Errors
    /// [`TryRecvError`] if the value has not been sent, or will never be.
    ///
    /// ```
    /// use upshift::sync::oneshot::{self, error::TryRecvError};
    ///
    /// let (sender, mut receiver) = oneshot::channel();
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    /// sender.send(1).unwrap();
    /// assert_eq!(receiver.try_recv(), Ok(1));
    /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    /// ```
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let mut state = self.shared.lock();
        match state.value.take() {
            Some(value) => {
                state.closed = true;
                self.done = true;
                Ok(value)
            }
            None if state.is_sender_done || state.closed => {
                self.done = true;
                Err(TryRecvError::Closed)
            }
            None => Err(TryRecvError::Empty),
        }
    }

    /// Returns true if no value is inside.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::oneshot::channel();
    /// assert!(receiver.is_empty());
    /// sender.send(1).unwrap();
    /// assert!(!receiver.is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.lock().value.is_none()
    }

    /// Returns true if the receiver has returned the value or an error, after which it must not be
    /// polled again.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::oneshot::channel();
    /// sender.send(1).unwrap();
    /// assert!(!receiver.is_terminated());
    /// receiver.try_recv().unwrap();
    /// assert!(receiver.is_terminated());
    /// ```
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.done
    }

    /// Receives the value in a thread: blocks the calling thread.
    ///
    /// # Errors
    /// [`RecvError`] if the sender was dropped without sending.
    ///
    /// # Panics
    /// When called in a coroutine, whose vCPU it would stop.
    ///
    /// ```
    /// let (sender, receiver) = upshift::sync::oneshot::channel();
    /// std::thread::spawn(move || sender.send("done"));
    /// assert_eq!(receiver.blocking_recv(), Ok("done"));
    /// ```
    #[track_caller]
    pub fn blocking_recv(self) -> Result<T, RecvError> {
        park::block_on(self)
    }

    /// Closes the channel. Nothing can be sent any more; a value inside can still be taken.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::oneshot::channel();
    /// receiver.close();
    /// assert_eq!(sender.send(1), Err(1));
    /// ```
    pub fn close(&mut self) {
        self.shut(false);
    }

    /// Closes the channel. With `discard`, drops a value inside.
    fn shut(&mut self, discard: bool) {
        let mut state = self.shared.lock();
        state.closed = true;
        let sender = state.sender.take();
        let own_waker = state.receiver.take();
        let value = if discard { state.value.take() } else { None };
        drop(state);
        drop((own_waker, value));
        if let Some(sender) = sender {
            wake(sender);
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, RecvError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.done, "a finished oneshot receiver was polled again");
        let mut waker = LockSafeWaker::new(cx.waker());
        let mut state = this.shared.lock();
        if state.value.is_some() || state.is_sender_done || state.closed {
            if !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            state.closed = true;
            this.done = true;
            return Poll::Ready(state.value.take().ok_or(RecvError(())));
        }
        let old_waker = register(&mut state.receiver, &mut waker);
        drop(state);
        drop(old_waker);
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // If done, the sender has sent or has been notified.
        if !self.done {
            self.shut(true);
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
