//! Errors of the channels.

use std::fmt;

use super::super::error_text::{error_text, send_error};

/// Text of the errors of a channel whose receiver is closed or dropped.
const CLOSED: &str = "the channel is closed: stop sending";

send_error!(
    "The error of a send to a closed or dropped receiver. It contains the value that was not sent.",
    "the channel is closed: stop sending"
);

/// Defines the error of a send that does not wait, or waits for a limited time.
macro_rules! unsent_error {
    ($(#[$doc:meta])* $error:ident { $(#[$full_doc:meta])* $full:ident => $text:literal }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum $error<T> {
            $(#[$full_doc])*
            $full(T),
            /// The receiver is closed or dropped.
            Closed(T),
        }

        impl<T> $error<T> {
            /// Returns the value that was not sent.
            ///
            /// ```
            /// let (sender, _receiver) = upshift::sync::mpsc::channel(1);
            /// sender.try_send("first").unwrap();
            /// let error = sender.try_send("second").unwrap_err();
            /// assert_eq!(error.into_inner(), "second");
            /// ```
            pub fn into_inner(self) -> T {
                match self {
                    $error::$full(value) | $error::Closed(value) => value,
                }
            }
        }

        impl<T> fmt::Debug for $error<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $error::$full(_) => concat!(stringify!($full), "(..)"),
                    $error::Closed(_) => "Closed(..)",
                })
            }
        }

        error_text!([T] $error<T> {
            $error::$full(_) => $text,
            $error::Closed(_) => CLOSED,
        });
    };
}

unsent_error!(
    /// The error of `try_send`. It contains the value that was not sent.
    ///
    /// ```
    /// use upshift::sync::mpsc::{self, TrySendError};
    ///
    /// let (sender, receiver) = mpsc::channel(1);
    /// sender.try_send("first").unwrap();
    /// match sender.try_send("second") {
    ///     Err(TrySendError::Full(message)) => assert_eq!(message, "second"),
    ///     other => panic!("{other:?}"),
    /// }
    /// drop(receiver);
    /// assert_eq!(sender.try_send("third"), Err(TrySendError::Closed("third")));
    /// ```
    TrySendError {
        /// The channel is full.
        Full => "the channel is full: try again later, or wait with `send().await`"
    }
);

impl<T> From<SendError<T>> for TrySendError<T> {
    fn from(error: SendError<T>) -> TrySendError<T> {
        TrySendError::Closed(error.0)
    }
}

unsent_error!(
    /// The error of `send_timeout`. It contains the value that was not sent.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::sync::mpsc::{self, SendTimeoutError};
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (sender, _receiver) = mpsc::channel(1);
    /// sender.send("first").await.unwrap();
    /// let error = sender.send_timeout("second", Duration::from_millis(1)).await.unwrap_err();
    /// assert_eq!(error, SendTimeoutError::Timeout("second"));
    /// # });
    /// ```
    SendTimeoutError {
        /// The channel was full until the timeout.
        Timeout => "the channel stayed full: try again later"
    }
);

/// The error of `try_recv`.
///
/// ```
/// use upshift::sync::mpsc::{self, TryRecvError};
///
/// let (sender, mut receiver) = mpsc::channel::<u32>(1);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// drop(sender);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// The channel is empty, but there are senders.
    Empty,
    /// The channel is empty, and all senders are gone or the receiver is closed.
    Disconnected,
}

error_text!([] TryRecvError {
    TryRecvError::Empty => "the channel is empty: try again later, or wait with `recv().await`",
    TryRecvError::Disconnected => "the channel is closed and empty: stop receiving",
});
