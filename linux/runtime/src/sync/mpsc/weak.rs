//! Senders that do not keep a channel open.

use std::fmt;
use std::sync::Arc;

use super::bounded::Sender;
use super::chan::Chan;
use super::unbounded::UnboundedSender;

macro_rules! weak_sender {
    ($(#[$about:meta])* $weak:ident, $sender:ident, $name:literal) => {
        $(#[$about])*
        pub struct $weak<T> {
            chan: Arc<Chan<T>>,
        }

        impl<T> $weak<T> {
            pub(super) fn new(chan: &Arc<Chan<T>>) -> $weak<T> {
                chan.add_weak();
                $weak { chan: chan.clone() }
            }

            /// Returns a sender, or `None` if the last sender is gone.
            ///
            /// ```
            /// let (sender, _receiver) = upshift::sync::mpsc::channel::<()>(1);
            /// let weak = sender.downgrade();
            /// assert!(weak.upgrade().is_some());
            /// drop(sender);
            /// assert!(weak.upgrade().is_none());
            /// ```
            #[must_use]
            pub fn upgrade(&self) -> Option<$sender<T>> {
                self.chan
                    .revive_sender()
                    .then(|| $sender::from_counted(self.chan.clone()))
            }

            /// Returns the number of senders.
            #[must_use]
            pub fn strong_count(&self) -> usize {
                self.chan.counts().0
            }

            /// Returns the number of weak senders.
            #[must_use]
            pub fn weak_count(&self) -> usize {
                self.chan.counts().1
            }
        }

        impl<T> Clone for $weak<T> {
            fn clone(&self) -> $weak<T> {
                $weak::new(&self.chan)
            }
        }

        impl<T> Drop for $weak<T> {
            fn drop(&mut self) {
                self.chan.remove_weak();
            }
        }

        impl<T> fmt::Debug for $weak<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    };
}

weak_sender! {
    /// A [`Sender`] that does not keep the channel open; created by [`Sender::downgrade`].
    ///
    /// ```
    /// use upshift::sync::mpsc;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, mut receiver) = mpsc::channel(4);
    /// let weak = sender.downgrade();
    /// weak.upgrade().unwrap().send(1).await.unwrap();
    /// drop(sender);
    /// assert_eq!(receiver.recv().await, Some(1));
    /// assert_eq!(receiver.recv().await, None); // `weak` does not keep the channel open.
    /// # });
    /// ```
    WeakSender, Sender, "WeakSender"
}
weak_sender! {
    /// An [`UnboundedSender`] that does not keep the channel open; created by
    /// [`UnboundedSender::downgrade`].
    ///
    /// ```
    /// use upshift::sync::mpsc;
    ///
    /// let (sender, receiver) = mpsc::unbounded_channel();
    /// let weak = sender.downgrade();
    /// weak.upgrade().unwrap().send(1).unwrap();
    /// drop(sender);
    /// assert!(receiver.is_closed()); // `weak` does not keep the channel open.
    /// ```
    WeakUnboundedSender, UnboundedSender, "WeakUnboundedSender"
}
