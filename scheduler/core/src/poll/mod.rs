//! The poll of a coroutine, and references to coroutines: wakers, join handles, cancel handles.

pub(crate) mod cancel;
pub(crate) mod join;
pub(crate) mod running;
pub(crate) mod waker;
