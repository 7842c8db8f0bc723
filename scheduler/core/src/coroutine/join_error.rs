//! The error that a join handle returns if its coroutine has no result.

use alloc::boxed::Box;
use core::fmt;

use crate::base::host::Panic;

/// Reason why a coroutine has no result.
pub enum JoinError {
    /// The coroutine was cancelled, or its domain has shut down.
    Cancelled,
    /// The coroutine panicked, with this payload.
    Panicked(Payload),
}

// With the output `()`, a result takes two words.
const _: () = assert!(size_of::<Result<(), JoinError>>() == 2 * size_of::<*const ()>());

/// Payload of a panic; see [`JoinError::into_panic`].
///
/// Boxed twice, so that it takes one word, because each coroutine reserves room for its result when
/// it is spawned, but few coroutines panic.
pub struct Payload(Box<Panic>);

// SAFETY: a shared reference gives access only to text, which is `Sync`.
unsafe impl Sync for Payload {}

impl Payload {
    pub(crate) fn new(panic: Panic) -> Payload {
        Payload(Box::new(panic))
    }

    fn text(&self) -> Option<&str> {
        let string = || self.0.downcast_ref::<alloc::string::String>();
        let text = self.0.downcast_ref::<&'static str>().copied();
        text.or_else(|| string().map(|string| &**string))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl JoinError {
    /// Returns true if the coroutine was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled)
    }

    /// Returns true if the coroutine panicked.
    #[must_use]
    pub fn is_panic(&self) -> bool {
        matches!(self, JoinError::Panicked(_))
    }

    /// Returns the payload of the panic; `None` if the coroutine was cancelled.
    #[must_use]
    pub fn into_panic(self) -> Option<Panic> {
        match self {
            JoinError::Cancelled => None,
            JoinError::Panicked(Payload(panic)) => Some(*panic),
        }
    }

    /// Returns the message of the panic, if it was text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            JoinError::Cancelled => None,
            JoinError::Panicked(payload) => payload.text(),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.message()) {
            (JoinError::Cancelled, _) => f.write_str("the coroutine was cancelled"),
            (_, Some(message)) => write!(f, "the coroutine panicked: {message}"),
            (_, None) => f.write_str("the coroutine panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => f.write_str("Cancelled"),
            JoinError::Panicked(_) => write!(f, "Panicked({:?})", self.message()),
        }
    }
}

impl core::error::Error for JoinError {}
