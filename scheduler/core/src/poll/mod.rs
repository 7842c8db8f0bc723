//! The poll of a coroutine, and references to it: wakers, join handles, the right to cancel.

pub(crate) mod cancel;
pub(crate) mod join;
pub(crate) mod running;
pub(crate) mod waker;
