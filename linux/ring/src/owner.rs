//! A ring whose user-space side changes hands.
//!
//! The kernel lets only the thread that made a ring enter it. What is in user space, slots and queues, may be worked on by
//! another thread, one at a time: the *owner*, at first the maker. A runtime that stops a thread in the middle of a poll, and
//! goes on with another one, makes that one the owner ([`Ring::adopt`](crate::Ring::adopt)) and has the maker execute system
//! calls for it ([`Proxy`]).
//!
//! Handles that are used by the owner work on the ring directly. That must not be cut in two by a change of owner, so each
//! such use is bracketed by the runtime's own [`Bracket`]; all other threads go through the mailbox.

use std::time::Duration;

/// What a runtime wants to be called before and after each use of a handle: between the two the thread neither gains nor loses
/// the ring. The calls nest.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// A use begins.
    pub enter: fn(),
    /// It ends.
    pub leave: fn(),
}

/// The ring's maker, as seen from another owner: executes system calls.
pub trait Proxy: Send + Sync {
    /// Has the thread that made the ring call `job`, once, and returns when that is done; false: it was not called, and will
    /// not be. The job makes one system call that does not block, and is async-signal-safe.
    fn call(&self, job: &mut dyn FnMut()) -> bool;

    /// Blocks the calling thread, which owns the ring and did not make it, until there may be completions, or it is needed, or the
    /// time has passed (`None`: for ever). May return early.
    fn wait(&self, timeout: Option<Duration>);
}

/// A thread, as the owner of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub(crate) usize);

/// A use of a handle that is under way.
pub(crate) struct InUse(Option<Bracket>);

impl InUse {
    #[inline]
    pub(crate) fn begin(bracket: Option<Bracket>) -> Self {
        if let Some(bracket) = bracket {
            (bracket.enter)();
        }
        Self(bracket)
    }
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        if let Some(bracket) = self.0 {
            (bracket.leave)();
        }
    }
}

/// The calling thread.
#[inline]
pub(crate) fn this_thread() -> usize {
    // SAFETY: has no preconditions.
    unsafe { libc::pthread_self() as usize }
}
