//! What senders of both kinds of channels can do.

macro_rules! sending {
    ($sender:ident, $weak:ident) => {
        impl<T> $sender<T> {
            /// The caller has counted it.
            pub(super) fn of(chan: Arc<Chan<T>>) -> $sender<T> {
                $sender { chan }
            }

            /// Waits until the receiver is closed or gone.
            pub async fn closed(&self) {
                self.chan.closed().await;
            }

            /// Is the receiver closed or gone?
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.chan.is_closed()
            }

            /// Are both of one channel?
            #[must_use]
            pub fn same_channel(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.chan, &other.chan)
            }

            /// A sender that does not keep the channel open.
            #[must_use]
            pub fn downgrade(&self) -> $weak<T> {
                $weak::new(&self.chan)
            }

            /// How many senders the channel has.
            #[must_use]
            pub fn strong_count(&self) -> usize {
                self.chan.counts().0
            }

            /// How many weak ones it has.
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
