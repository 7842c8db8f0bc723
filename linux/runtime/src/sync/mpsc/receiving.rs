//! What the receivers of both kinds of channel have in common.

/// The methods and traits of a receiver with a field `chan`, but for `recv` and `close`, whose docs and examples differ.
macro_rules! receiving {
    ($receiver:ident) => {
        impl<T> $receiver<T> {
            /// [`recv`](Self::recv) for hand-written futures. Only the last
            /// waker is woken.
            pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
                self.chan.poll_recv(cx)
            }

            /// The next message if there is one.
            ///
            /// # Errors
            /// [`TryRecvError`]: empty for now, or for ever.
            pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
                self.chan.try_recv()
            }

            /// [`recv`](Self::recv) for threads: blocks the calling one.
            ///
            /// # Panics
            /// In a coroutine, whose vCPU it would stop.
            #[track_caller]
            pub fn blocking_recv(&mut self) -> Option<T> {
                park::block_on(self.recv())
            }

            /// Up to `limit` messages at once, appended to `buffer`, as soon as there is one; how
            /// many. None: as [`recv`](Self::recv), or `limit` is 0.
            ///
            /// The future may be dropped at any time without losing a message.
            pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
                poll_fn(|cx| self.poll_recv_many(cx, buffer, limit)).await
            }

            /// [`recv_many`](Self::recv_many) for hand-written futures.
            pub fn poll_recv_many(
                &mut self,
                cx: &mut Context<'_>,
                buffer: &mut Vec<T>,
                limit: usize,
            ) -> Poll<usize> {
                self.chan.poll_recv_many(cx, buffer, limit)
            }

            /// [`recv_many`](Self::recv_many) for threads: blocks the calling one.
            ///
            /// # Panics
            /// In a coroutine, whose vCPU it would stop.
            #[track_caller]
            pub fn blocking_recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
                park::block_on(self.recv_many(buffer, limit))
            }

            /// Has it been closed, or are all senders gone?
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.chan.is_shut()
            }

            /// How many senders the channel has.
            #[must_use]
            pub fn sender_strong_count(&self) -> usize {
                self.chan.counts().0
            }

            /// How many weak ones it has.
            #[must_use]
            pub fn sender_weak_count(&self) -> usize {
                self.chan.counts().1
            }

            /// How many messages are inside.
            #[must_use]
            pub fn len(&self) -> usize {
                self.chan.len()
            }

            /// Is no message inside?
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }

        impl<T> Drop for $receiver<T> {
            fn drop(&mut self) {
                self.chan.close(true);
            }
        }

        impl<T> fmt::Debug for $receiver<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($receiver))
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use receiving;
