//! The methods that the senders of both kinds of channel have in common.

/// Implements the methods and traits of a sender with a field `chan`, except the methods that send
/// a message, which differ.
macro_rules! sending {
    ($sender:ident, $weak:ident) => {
        impl<T> $sender<T> {
            /// Creates a sender that the caller has already added to the number of senders.
            pub(super) fn from_counted(chan: Arc<Chan<T>>) -> $sender<T> {
                $sender { chan }
            }

            /// Waits until the receiver is closed or dropped.
            ///
            /// # Cancellation safety
            /// The future may be dropped at any time.
            ///
            /// ```
            /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
            /// let (sender, receiver) = upshift::sync::mpsc::channel::<()>(1);
            /// let task = async move { drop(receiver) };
            /// upshift::spawn(task, upshift::Priority::Inherit).detach();
            /// sender.closed().await;
            /// assert!(sender.is_closed());
            /// # });
            /// ```
            pub async fn closed(&self) {
                self.chan.closed().await;
            }

            /// Returns true if the receiver is closed or dropped.
            ///
            /// ```
            /// let (sender, mut receiver) = upshift::sync::mpsc::channel::<()>(1);
            /// assert!(!sender.is_closed());
            /// receiver.close();
            /// assert!(sender.is_closed());
            /// ```
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.chan.is_closed()
            }

            /// Returns true if both are senders of one channel.
            ///
            /// ```
            /// let (first, _receiver) = upshift::sync::mpsc::channel::<u8>(1);
            /// let (other, _other_receiver) = upshift::sync::mpsc::channel::<u8>(1);
            /// assert!(first.same_channel(&first.clone()));
            /// assert!(!first.same_channel(&other));
            /// ```
            #[must_use]
            pub fn same_channel(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.chan, &other.chan)
            }

            /// Creates a sender that does not keep the channel open.
            ///
            /// ```
            /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
            /// let weak = sender.downgrade();
            /// weak.upgrade().unwrap().try_send(1).unwrap();
            /// drop(sender);
            /// assert!(weak.upgrade().is_none());
            /// assert_eq!(receiver.blocking_recv(), Some(1));
            /// assert_eq!(receiver.blocking_recv(), None);
            /// ```
            #[must_use]
            pub fn downgrade(&self) -> $weak<T> {
                $weak::new(&self.chan)
            }

            /// Returns the number of senders.
            ///
            /// ```
            /// let (sender, _receiver) = upshift::sync::mpsc::channel::<()>(1);
            /// let (_second, _weak) = (sender.clone(), sender.downgrade());
            /// assert_eq!((sender.strong_count(), sender.weak_count()), (2, 1));
            /// ```
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

        impl<T> Clone for $sender<T> {
            fn clone(&self) -> $sender<T> {
                self.chan.add_sender();
                $sender {
                    chan: self.chan.clone(),
                }
            }
        }

        impl<T> Drop for $sender<T> {
            fn drop(&mut self) {
                self.chan.remove_sender();
            }
        }

        impl<T> fmt::Debug for $sender<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($sender)).finish_non_exhaustive()
            }
        }
    };
}

pub(super) use sending;
