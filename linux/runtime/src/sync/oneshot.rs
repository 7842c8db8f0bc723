//! One value from one sender to one receiver, once.
//!
//! One allocation. Each call takes a short lock (one atomic step), and so does the end of a side that has not said its last word. Invariant,
//! under the lock: a value is inside only until the receiver takes it or goes, and once it is, the sender is done; a
//! sender that finds the receiver gone gets its value back. Values and wakers are
//! dropped without the lock.
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

use super::spare::{Spare, register};
use super::{Guard, Lock, may_proceed, park, wake};

pub mod error;

pub use error::{RecvError, TryRecvError};

struct State<T> {
    value: Option<T>,
    /// The sender is gone, or has sent.
    sent: bool,
    /// The receiver is gone, closed, or has the value.
    closed: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

type Shared<T> = Arc<Lock<State<T>>>;

/// A channel for one value.
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
        sent: false,
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
            over: false,
        },
    )
}

/// Gives the value. Dropped without it, the receiver gets [`RecvError`].
pub struct Sender<T> {
    /// `None`: it has sent.
    shared: Option<Shared<T>>,
}

impl<T> Sender<T> {
    /// Gives the value. That the receiver is there does not mean that it will look.
    ///
    /// # Errors
    /// The value, when the receiver is closed or gone.
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
        says_last_word(state);
        // Nothing is left for `drop` to say.
        self.shared = None;
        Ok(())
    }

    fn shared(&self) -> &Shared<T> {
        self.shared.as_ref().expect("it has not sent")
    }

    /// Is the receiver closed or gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared().lock().closed
    }

    /// Waits until the receiver is closed or gone: the value is not needed any more.
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

    /// [`closed`](Sender::closed) for hand-written futures. Only the last waker is
    /// woken.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = Spare::of(cx.waker());
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
        let before = register(&mut state.sender, &mut waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            says_last_word(shared.lock());
        }
    }
}

/// The sender is done.
fn says_last_word<T>(mut state: Guard<'_, State<T>>) {
    state.sent = true;
    let receiver = state.receiver.take();
    let own = state.sender.take();
    drop(state);
    drop(own);
    if let Some(receiver) = receiver {
        wake(receiver);
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

/// Gets the value: a future of it.
pub struct Receiver<T> {
    shared: Shared<T>,
    /// It has said what there is to say.
    over: bool,
}

impl<T> Receiver<T> {
    /// The value if it is there.
    ///
    /// # Errors
    /// [`TryRecvError`]: not yet, or never (any more).
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let mut state = self.shared.lock();
        match state.value.take() {
            Some(value) => {
                state.closed = true;
                self.over = true;
                Ok(value)
            }
            None if state.sent || state.closed => {
                self.over = true;
                Err(TryRecvError::Closed)
            }
            None => Err(TryRecvError::Empty),
        }
    }

    /// Is no value inside?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.lock().value.is_none()
    }

    /// Has it given the value, or the error? Then it is not to be polled again.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.over
    }

    /// Waits with the calling thread.
    ///
    /// # Errors
    /// [`RecvError`]: the sender went without sending.
    ///
    /// # Panics
    /// In a coroutine, whose vCPU it would stop.
    #[track_caller]
    pub fn blocking_recv(self) -> Result<T, RecvError> {
        park::block_on(self)
    }

    /// Lets no value in any more; one that is inside can still be taken.
    ///
    /// ```
    /// let (sender, mut receiver) = upshift::sync::oneshot::channel();
    /// receiver.close();
    /// assert_eq!(sender.send(1), Err(1));
    /// ```
    pub fn close(&mut self) {
        self.shut(false);
    }

    fn shut(&mut self, discard: bool) {
        let mut state = self.shared.lock();
        state.closed = true;
        let sender = state.sender.take();
        let own = state.receiver.take();
        let value = if discard { state.value.take() } else { None };
        drop(state);
        drop((own, value));
        if let Some(sender) = sender {
            wake(sender);
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, RecvError>;

    /// # Panics
    /// If polled again after its end.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.over, "a oneshot receiver was polled after its end");
        let mut waker = Spare::of(cx.waker());
        let mut state = this.shared.lock();
        if state.value.is_some() || state.sent || state.closed {
            if !may_proceed() {
                drop(state);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            state.closed = true;
            this.over = true;
            return Poll::Ready(state.value.take().ok_or(RecvError(())));
        }
        let before = register(&mut state.receiver, &mut waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Nothing is left to tell: the sender is done, or has been told.
        if !self.over {
            self.shut(true);
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
