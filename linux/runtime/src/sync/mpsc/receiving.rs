//! The methods that the receivers of both kinds of channel have in common.

/// Implements the methods and traits of a receiver with a field `chan`, except `recv` and
/// `close`, whose docs and examples differ.
macro_rules! receiving {
    ($receiver:ident) => {
        impl<T> $receiver<T> {
            /// Polls for the next message: [`recv`](Self::recv) for hand-written futures. Only
            /// the waker of the last call is woken.
            ///
            /// ```
            /// use std::future::poll_fn;
            ///
            /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
            /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
            /// sender.try_send(7).unwrap();
            /// assert_eq!(poll_fn(|cx| receiver.poll_recv(cx)).await, Some(7));
            /// # });
            /// ```
            pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
                self.chan.poll_recv(cx)
            }

            /// Receives the next message if there is one.
            ///
            /// # Errors
            /// [`TryRecvError`] if the channel is empty, for now or for ever.
            ///
            /// ```
            /// use upshift::sync::mpsc::{self, TryRecvError};
            ///
            /// let (sender, mut receiver) = mpsc::channel(1);
            /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            /// sender.try_send(1).unwrap();
            /// assert_eq!(receiver.try_recv(), Ok(1));
            /// drop(sender);
            /// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            /// ```
            pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
                self.chan.try_recv()
            }

            /// [`recv`](Self::recv) for threads: blocks the calling thread.
            ///
            /// # Panics
            /// When called in a coroutine, whose vCPU it would stop.
            ///
            /// ```
            /// let (sender, mut receiver) = upshift::sync::mpsc::channel(1);
            /// std::thread::spawn(move || sender.blocking_send("from a thread"));
            /// assert_eq!(receiver.blocking_recv(), Some("from a thread"));
            /// assert_eq!(receiver.blocking_recv(), None);
            /// ```
            #[track_caller]
            pub fn blocking_recv(&mut self) -> Option<T> {
                park::block_on(self.recv())
            }

            /// Waits for a message, and appends up to `limit` messages to `buffer`. Returns their
            /// number: 0 where [`recv`](Self::recv) returns `None`, or if `limit` is 0.
            ///
            /// # Cancellation safety
            /// The future may be dropped at any time without losing a message: if it was not
            /// ready, `buffer` is unchanged.
            ///
            /// ```
            /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
            /// let (sender, mut receiver) = upshift::sync::mpsc::channel(4);
            /// for n in 0..3 {
            ///     sender.send(n).await.unwrap();
            /// }
            /// let mut batch = Vec::new();
            /// assert_eq!(receiver.recv_many(&mut batch, 2).await, 2);
            /// assert_eq!(batch, [0, 1]);
            /// # });
            /// ```
            pub async fn recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
                poll_fn(|cx| self.poll_recv_many(cx, buffer, limit)).await
            }

            /// Polls for messages: [`recv_many`](Self::recv_many) for hand-written
            /// futures.
            pub fn poll_recv_many(
                &mut self,
                cx: &mut Context<'_>,
                buffer: &mut Vec<T>,
                limit: usize,
            ) -> Poll<usize> {
                self.chan.poll_recv_many(cx, buffer, limit)
            }

            /// [`recv_many`](Self::recv_many) for threads: blocks the calling thread.
            ///
            /// # Panics
            /// When called in a coroutine, whose vCPU it would stop.
            ///
            /// ```
            /// let (sender, mut receiver) = upshift::sync::mpsc::unbounded_channel();
            /// sender.send(1).unwrap();
            /// sender.send(2).unwrap();
            /// let mut batch = Vec::new();
            /// assert_eq!(receiver.blocking_recv_many(&mut batch, 10), 2);
            /// assert_eq!(batch, [1, 2]);
            /// ```
            #[track_caller]
            pub fn blocking_recv_many(&mut self, buffer: &mut Vec<T>, limit: usize) -> usize {
                park::block_on(self.recv_many(buffer, limit))
            }

            /// Returns true if the channel has been closed or all senders are gone.
            ///
            /// ```
            /// let (sender, receiver) = upshift::sync::mpsc::unbounded_channel::<()>();
            /// assert!(!receiver.is_closed());
            /// drop(sender);
            /// assert!(receiver.is_closed());
            /// ```
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.chan.is_shut()
            }

            /// Returns the number of senders.
            ///
            /// ```
            /// let (sender, receiver) = upshift::sync::mpsc::unbounded_channel::<()>();
            /// let (_second, _weak) = (sender.clone(), sender.downgrade());
            /// assert_eq!(receiver.sender_strong_count(), 2);
            /// assert_eq!(receiver.sender_weak_count(), 1);
            /// ```
            #[must_use]
            pub fn sender_strong_count(&self) -> usize {
                self.chan.counts().0
            }

            /// Returns the number of weak senders.
            #[must_use]
            pub fn sender_weak_count(&self) -> usize {
                self.chan.counts().1
            }

            /// Returns the number of messages inside.
            ///
            /// ```
            /// let (sender, receiver) = upshift::sync::mpsc::unbounded_channel();
            /// sender.send("one").unwrap();
            /// assert_eq!(receiver.len(), 1);
            /// assert!(!receiver.is_empty());
            /// ```
            #[must_use]
            pub fn len(&self) -> usize {
                self.chan.len()
            }

            /// Returns true if no message is inside.
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
