//! Wakers that are cloned and stored while a lock is held.
//!
//! Cloning a *foreign* waker (one that this crate did not create) runs user code, which may take
//! long, or use the same primitive. So a [`LockSafeWaker`] clones such a waker before the lock is
//! taken, and drops the clone after the lock is released, whether it was needed or not. A waker of
//! this crate, the usual case, is cloned only when the clone is needed.

use std::ops::Deref;
use std::task::Waker;

use crate::host;
use crate::user_code::catch_panic::catch_panic;

/// Calls a waker. A panic of a foreign waker ends here, after the panic hook has reported it,
/// because neither the caller nor the other waiters are to blame.
#[inline]
pub(crate) fn wake(waker: Waker) {
    if host::is_own_waker(&waker) {
        waker.wake();
    } else {
        wake_foreign(waker);
    }
}

#[cold]
fn wake_foreign(waker: Waker) {
    let _ = catch_panic(|| waker.wake());
}

/// Stores a waker in a slot, with the lock held. Returns the former waker, to be dropped without
/// the lock.
pub(crate) fn register(slot: &mut Option<Waker>, waker: &mut LockSafeWaker<'_>) -> Option<Waker> {
    match slot {
        Some(old_waker) if old_waker.will_wake(waker) => None,
        _ => slot.replace(waker.take()),
    }
}

/// A borrowed waker that can be cloned while a lock is held.
pub(crate) struct LockSafeWaker<'a> {
    waker: &'a Waker,
    /// Clone of a foreign waker, until [`take`](LockSafeWaker::take) returns it.
    foreign: Option<Waker>,
}

impl<'a> LockSafeWaker<'a> {
    #[inline]
    pub(crate) fn new(waker: &'a Waker) -> LockSafeWaker<'a> {
        let foreign = (!host::is_own_waker(waker)).then(|| waker.clone());
        LockSafeWaker { waker, foreign }
    }

    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Returns the clone. The first call runs no user code; call it at most once while a lock is
    /// held.
    #[inline]
    pub(crate) fn take(&mut self) -> Waker {
        self.foreign.take().unwrap_or_else(|| self.waker.clone())
    }
}

impl Deref for LockSafeWaker<'_> {
    type Target = Waker;
    fn deref(&self) -> &Waker {
        self.waker
    }
}
