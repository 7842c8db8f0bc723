//! What can go wrong with a watch channel.

use super::super::says::{says, send_error};

send_error!(
    "There is no receiver; here is the value.",
    "the channel has no receiver: stop sending, or use `send_replace`"
);

/// All senders are gone: there will be no other value.
#[derive(Clone, Debug)]
pub struct RecvError(pub(super) ());

says!([] RecvError {
    RecvError(()) => "the channel's senders are gone: the value stays as it is",
});
