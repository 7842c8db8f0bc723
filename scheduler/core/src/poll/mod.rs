//! A poll and what refers to a coroutine: wakers, join handles, the right to cancel.

pub(crate) mod cancel;
pub(crate) mod join;
pub(crate) mod running;
pub(crate) mod waker;
