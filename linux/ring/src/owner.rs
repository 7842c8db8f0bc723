//! Lets the user-space side of a ring pass from one thread to another.
//!
//! The kernel lets only the thread that made a ring, the *issuer*, enter it. One thread at a time,
//! the *owner*, uses the user-space side (slots and queues). The owner is at first the issuer. A
//! runtime may suspend the owner in the middle of a poll and continue on another thread. The
//! runtime then makes the new thread the owner ([`Ring::adopt`](crate::Ring::adopt)), and has the
//! issuer execute the system calls ([`Proxy`]).
//!
//! On the owner's thread a handle works on the ring directly; this is a *use*. The owner must not
//! change during a use, so the runtime's [`UseHooks`] are called around each. On all other threads
//! a handle sends messages to the mailbox.

use std::time::Duration;

/// Functions that a runtime provides, called before and after each use of a handle. Between the two
/// calls the runtime must neither make the thread the owner of the ring nor end its ownership. The
/// calls nest.
#[derive(Clone, Copy, Debug)]
pub struct UseHooks {
    /// Called before a use.
    pub enter: fn(),
    /// Called after a use.
    pub leave: fn(),
}

/// The ring's issuer as seen from another owner. The issuer executes system calls for this owner.
pub trait Proxy: Send + Sync {
    /// Has the issuer call `job` once, and returns when the call is done. Returns false if `job`
    /// was not called and never will be. The job makes one nonblocking system call and is
    /// async-signal-safe.
    fn call(&self, job: &mut dyn FnMut()) -> bool;

    /// Blocks the calling thread, an owner that is not the issuer, until there may be completions,
    /// the runtime needs the thread, or the timeout has passed. With `None` there is no time limit.
    /// May return early.
    fn wait(&self, timeout: Option<Duration>);
}

/// A thread in its role as the owner of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub(crate) usize);

/// A use in progress. `begin` calls the hook that precedes the use; dropping the value calls the
/// hook that follows the use.
pub(crate) struct InUse(Option<UseHooks>);

impl InUse {
    #[inline]
    pub(crate) fn begin(use_hooks: Option<UseHooks>) -> Self {
        if let Some(use_hooks) = use_hooks {
            (use_hooks.enter)();
        }
        Self(use_hooks)
    }
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        if let Some(use_hooks) = self.0 {
            (use_hooks.leave)();
        }
    }
}

#[inline]
pub(crate) fn this_thread() -> usize {
    // SAFETY: `pthread_self` has no preconditions.
    unsafe { libc::pthread_self() as usize }
}
