//! Values that one operation at a time uses, behind the handles of readers, writers and receivers.
//! A *turn* is the use of a value by one operation. A second operation is refused; a handle that is
//! freed during a turn ends with the turn.
//!
//! ```text
//!   Idle ──1 take──▶ Busy ──2 drop of the turn──▶ Idle
//!    │                │ 3 free
//!    │ 3 free         ▼
//!    └──────────▶   Freed ──2 drop of the turn──▶ gone
//! ```

use std::cell::UnsafeCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::invalid;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const FREED: u8 = 2;

/// A `T` that one operation at a time uses.
pub(crate) struct Turns<T> {
    state: AtomicU8,
    inner: UnsafeCell<T>,
}

impl<T> Turns<T> {
    pub(crate) fn boxed(inner: T) -> *mut Turns<T> {
        Box::into_raw(Box::new(Turns {
            state: AtomicU8::new(IDLE),
            inner: UnsafeCell::new(inner),
        }))
    }

    /// Takes the turn; `None` while another turn lasts.
    ///
    /// # Safety
    /// `this` was made by [`boxed`](Turns::boxed), and has not been freed.
    #[inline]
    pub(crate) unsafe fn take(this: *mut Turns<T>) -> Option<Turn<T>> {
        // SAFETY: by contract the value exists.
        let state = unsafe { &(*this).state };
        let taken = state.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Turn(this))
    }

    /// Returns the value, for reads that are allowed during a turn.
    pub(crate) fn peek(&self) -> *const T {
        self.inner.get()
    }

    /// Drops the value, now or when its turn ends.
    ///
    /// # Safety
    /// The contract of [`take`](Turns::take); called once.
    pub(crate) unsafe fn free(this: *mut Turns<T>) {
        // SAFETY: by contract the value exists.
        let before = unsafe { (*this).state.swap(FREED, Ordering::AcqRel) };
        if before == IDLE {
            // SAFETY: `boxed` made the value, and no turn uses it.
            drop(unsafe { Box::from_raw(this) });
        }
    }
}

/// Takes the turn. Fails with `EBUSY` while another turn lasts, and with `InvalidInput` for null.
///
/// # Safety
/// The pointer is null, or the contract of [`Turns::take`] holds.
#[inline]
pub(crate) unsafe fn turn<T>(turns: *mut Turns<T>) -> io::Result<Turn<T>> {
    if turns.is_null() {
        return Err(invalid());
    }
    // SAFETY: passed on.
    unsafe { Turns::take(turns) }.ok_or_else(|| io::Error::from_raw_os_error(libc::EBUSY))
}

/// The right to use the value.
pub(crate) struct Turn<T>(*mut Turns<T>);

// SAFETY: there is one turn at a time, and it moves with its operation.
unsafe impl<T: Send> Send for Turn<T> {}

impl<T> Turn<T> {
    /// Lends the value to a future that lives no longer than the turn.
    ///
    /// # Safety
    /// The user of the reference is dropped before the turn.
    #[inline]
    pub(crate) unsafe fn lend(&mut self) -> &'static mut T {
        // SAFETY: by contract the value exists as long as the turn.
        unsafe { &mut *(*self.0).inner.get() }
    }
}

impl<T> Deref for Turn<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value exists as long as the turn, its only user.
        unsafe { &*(*self.0).inner.get() }
    }
}

impl<T> DerefMut for Turn<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *(*self.0).inner.get() }
    }
}

impl<T> Drop for Turn<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the value exists as long as the turn.
        let state = unsafe { &(*self.0).state };
        if state
            .compare_exchange(BUSY, IDLE, Ordering::Release, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: `boxed` made the value, it was freed meanwhile, and this was the last use.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// A future and its turn, dropped in this order.
pub(crate) struct InTurn<F, T> {
    future: F,
    _turn: Turn<T>,
}

impl<F, T> InTurn<F, T> {
    #[inline]
    pub(crate) fn new(future: F, turn: Turn<T>) -> InTurn<F, T> {
        InTurn {
            future,
            _turn: turn,
        }
    }
}

impl<F: Future, T> Future for InTurn<F, T> {
    type Output = F::Output;

    #[inline]
    fn poll(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<F::Output> {
        // SAFETY: the future does not move out of the pinned value.
        unsafe { self.map_unchecked_mut(|this| &mut this.future) }.poll(cx)
    }
}
