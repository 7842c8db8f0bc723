//! Errors of a broadcast channel.

use std::error::Error;
use std::fmt;

use super::super::error_text::send_error;

send_error!(
    "The error of a send to a channel without receivers, which contains the value.",
    "the channel has no receiver: the message was not delivered"
);

/// The error of [`Receiver::recv`](super::Receiver::recv).
///
/// ```
/// use upshift::sync::broadcast::{self, error::RecvError};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = broadcast::channel(2);
/// for n in 0..5 {
///     sender.send(n).unwrap();
/// }
/// drop(sender);
/// let mut received = Vec::new();
/// loop {
///     match receiver.recv().await {
///         Ok(n) => received.push(n),
///         Err(RecvError::Lagged(missed)) => assert_eq!(missed, 3),
///         Err(RecvError::Closed) => break,
///     }
/// }
/// assert_eq!(received, [3, 4]);
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// All senders are gone and every message has been received.
    Closed,
    /// The receiver was too slow and missed this many messages; the next call returns the oldest
    /// message that is left.
    Lagged(u64),
}

/// The error of [`Receiver::try_recv`](super::Receiver::try_recv).
///
/// ```
/// use upshift::sync::broadcast::{self, error::TryRecvError};
///
/// let (sender, mut receiver) = broadcast::channel::<u32>(2);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
/// drop(sender);
/// assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryRecvError {
    /// There is no message now, but there are senders.
    Empty,
    /// All senders are gone and every message has been received.
    Closed,
    /// The receiver was too slow and missed this many messages; the next call returns the oldest
    /// message that is left.
    Lagged(u64),
}

fn lagged(f: &mut fmt::Formatter<'_>, missed: u64) -> fmt::Result {
    write!(
        f,
        "the receiver was too slow and missed {missed} messages: go on, or make the channel larger"
    )
}

const CLOSED: &str = "the channel's senders are gone: stop receiving";

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvError::Closed => f.write_str(CLOSED),
            RecvError::Lagged(missed) => lagged(f, *missed),
        }
    }
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TryRecvError::Empty => f.write_str("no message now: try again later, or use `recv`"),
            TryRecvError::Closed => f.write_str(CLOSED),
            TryRecvError::Lagged(missed) => lagged(f, *missed),
        }
    }
}

impl Error for RecvError {}
impl Error for TryRecvError {}
