//! A waker that may have to be cloned while a lock is held.
//!
//! To clone a waker that is not ours is to run code of users, which may take long, or
//! use the very primitive: such a waker is cloned before the lock is taken, and dropped
//! after it is given back, whether it was needed or not. One of ours, as most are, is
//! cloned when it is needed.

use std::ops::Deref;
use std::task::Waker;

use crate::host;
use crate::user_code::catch_panic::catch_panic;

/// Wakes. One that is not ours may panic: the hook reports it and it ends here, for neither the caller nor what else is woken has a part
/// in it.
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

/// Puts a waker in place, with the lock held. Returns the one to drop without the lock.
pub(crate) fn register(place: &mut Option<Waker>, waker: &mut Spare<'_>) -> Option<Waker> {
    match place {
        Some(before) if before.will_wake(waker) => None,
        _ => place.replace(waker.take()),
    }
}

/// See the module. To be made before the lock is taken.
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

    /// Is it not a coroutine's?
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// The clone. The first call runs no code of users; there is one per lock.
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
