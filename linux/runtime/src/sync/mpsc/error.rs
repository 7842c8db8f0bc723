//! What can go wrong with a channel.

use std::fmt;

use super::super::says::{says, send_error};

const GONE: &str = "the channel's receiver is gone: stop sending";

send_error!(
    "The receiver is closed or gone; here is the value.",
    "the channel's receiver is gone: stop sending"
);

/// Defines the error of a send that does not wait, or not for long, and may lack room.
macro_rules! no_room {
    ($(#[$doc:meta])* $error:ident { $(#[$lack_doc:meta])* $lack:ident => $text:literal }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum $error<T> {
            $(#[$lack_doc])*
            $lack(T),
            /// The receiver is closed or gone.
            Closed(T),
        }

        impl<T> $error<T> {
            /// The value that was not sent.
            pub fn into_inner(self) -> T {
                match self {
                    $error::$lack(value) | $error::Closed(value) => value,
                }
            }
        }

        impl<T> fmt::Debug for $error<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $error::$lack(_) => concat!(stringify!($lack), "(..)"),
                    $error::Closed(_) => "Closed(..)",
                })
            }
        }

        says!([T] $error<T> {
            $error::$lack(_) => $text,
            $error::Closed(_) => GONE,
        });
    };
}

no_room!(
    /// Why `try_send` failed; the value is inside.
    TrySendError {
        /// There is no room now.
        Full => "the channel is full: try again later, or wait with `send().await`"
    }
);

impl<T> From<SendError<T>> for TrySendError<T> {
    fn from(error: SendError<T>) -> TrySendError<T> {
        TrySendError::Closed(error.0)
    }
}

no_room!(
    /// Why `send_timeout` failed; the value is inside.
    SendTimeoutError {
        /// There was no room in time.
        Timeout => "the channel stayed full: try again later"
    }
);

/// Why `try_recv` has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is none now.
    Empty,
    /// There will be none: all senders are gone, or the receiver is closed.
    Disconnected,
}

says!([] TryRecvError {
    TryRecvError::Empty => "the channel is empty: try again later, or wait with `recv().await`",
    TryRecvError::Disconnected => "the channel is closed and empty: stop receiving",
});
