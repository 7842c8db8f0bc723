//! A waker that may have to be cloned while a lock is held.
//!
//! Cloning a foreign waker runs user code, which may take long, or use the same
//! primitive: such a waker is cloned before the lock is taken, and dropped after it is
//! released, whether it was needed or not. A waker of this crate, the usual case, is
//! cloned only when it is needed.

use std::ops::Deref;
use std::task::Waker;

use crate::host;
use crate::user_code::catch_panic::catch_panic;

/// Wakes a waker. A panic of a foreign one ends here, after the panic hook has reported it:
/// neither the caller nor the other waiters are to blame.
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
pub(crate) fn register(place: &mut Option<Waker>, waker: &mut Spare<'_>) -> Option<Waker> {
    match place {
        Some(before) if before.will_wake(waker) => None,
        _ => place.replace(waker.take()),
    }
}

/// A waker, and its clone if the waker is foreign. Create it before the lock is taken.
pub(crate) struct Spare<'a> {
    waker: &'a Waker,
    foreign: Option<Waker>,
}

impl<'a> Spare<'a> {
    #[inline]
    pub(crate) fn of(waker: &'a Waker) -> Spare<'a> {
        let foreign = (!host::is_own_waker(waker)).then(|| waker.clone());
        Spare { waker, foreign }
    }

    /// Returns true if the waker is not a coroutine's.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Returns the clone. The first call runs no user code; there is one call per lock.
    #[inline]
    pub(crate) fn take(&mut self) -> Waker {
        self.foreign.take().unwrap_or_else(|| self.waker.clone())
    }
}

impl Deref for Spare<'_> {
    type Target = Waker;
    fn deref(&self) -> &Waker {
        self.waker
    }
}
