//! Errors of a watch channel.

use super::super::error_text::{error_text, send_error};

send_error!(
    "There is no receiver; here is the value.",
    "the channel has no receiver: stop sending, or use `send_replace`"
);

/// All senders are gone: the value does not change any more.
#[derive(Clone, Debug)]
pub struct RecvError(pub(super) ());

error_text!([] RecvError {
    RecvError(()) => "the channel's senders are gone: the value stays as it is",
});
