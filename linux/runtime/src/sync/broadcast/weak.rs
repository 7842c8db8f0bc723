//! A sender that does not keep its channel open.

use std::fmt;
use std::sync::Arc;

use super::{Sender, Shared};

/// A [`Sender`] that does not keep the channel open; created by [`Sender::downgrade`].
///
/// ```
/// use upshift::sync::broadcast::{self, error::RecvError};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = broadcast::channel(4);
/// let weak = sender.downgrade();
/// weak.upgrade().unwrap().send(1).unwrap();
/// drop(sender);
/// assert_eq!(receiver.recv().await, Ok(1));
/// assert_eq!(receiver.recv().await, Err(RecvError::Closed));
/// # });
/// ```
pub struct WeakSender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> WeakSender<T> {
    pub(super) fn new(shared: &Arc<Shared<T>>) -> WeakSender<T> {
        shared.state.lock().weak += 1;
        WeakSender {
            shared: shared.clone(),
        }
    }

    /// Returns a sender, or `None` if the last sender is gone.
    ///
    /// ```
    /// let sender = upshift::sync::broadcast::Sender::<u32>::new(1);
    /// let weak = sender.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(sender);
    /// assert!(weak.upgrade().is_none());
    /// ```
    #[must_use]
    pub fn upgrade(&self) -> Option<Sender<T>> {
        let mut state = self.shared.state.lock();
        if state.senders == 0 {
            return None;
        }
        state.senders += 1;
        drop(state);
        Some(Sender {
            shared: self.shared.clone(),
        })
    }

    /// Returns the number of senders.
    #[must_use]
    pub fn strong_count(&self) -> usize {
        self.shared.state.lock().senders
    }

    /// Returns the number of weak senders.
    #[must_use]
    pub fn weak_count(&self) -> usize {
        self.shared.state.lock().weak
    }
}

impl<T> Clone for WeakSender<T> {
    fn clone(&self) -> WeakSender<T> {
        WeakSender::new(&self.shared)
    }
}

impl<T> Drop for WeakSender<T> {
    fn drop(&mut self) {
        self.shared.state.lock().weak -= 1;
    }
}

impl<T> fmt::Debug for WeakSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakSender").finish_non_exhaustive()
    }
}
