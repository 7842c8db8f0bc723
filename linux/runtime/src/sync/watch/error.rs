//! Errors of a watch channel.

use super::super::error_text::{error_text, send_error};

send_error!(
    "The error of a send to a channel without receivers, which contains the value.",
    "the channel has no receiver: stop sending, or use `send_replace`"
);

/// The error of a wait for a new value: all senders are gone, so the value stays as it is.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (sender, mut receiver) = upshift::sync::watch::channel(1);
/// drop(sender);
/// let error = receiver.changed().await.unwrap_err();
/// assert!(error.to_string().contains("the value stays as it is"));
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct RecvError(pub(super) ());

error_text!([] RecvError {
    RecvError(()) => "the channel's senders are gone: the value stays as it is",
});
