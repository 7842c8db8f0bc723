//! Values that only one operation at a time may use. They are behind the handles of readers,
//! writers and receivers.
//!
//! An *exclusive use* is the use of a value by one operation. During this use a second operation is
//! refused. If the caller frees a handle during a use, the value is dropped when the use ends.
//!
//! ```text
//!   Idle ──1 begin─▶ Busy ──2 drop of the use──▶ Idle
//!    │                │ 3 free
//!    │ 3 free         ▼
//!    └──────────▶   Freed ──2 drop of the use──▶ gone
//! ```

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::invalid;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const FREED: u8 = 2;

pub(crate) struct Exclusive<T> {
    state: AtomicU8,
    fd: c_int,
    inner: UnsafeCell<T>,
}

impl<T> Exclusive<T> {
    /// Creates an idle value. `fd` is the descriptor that it owns, or -1.
    pub(crate) fn new_raw(inner: T, fd: c_int) -> *mut Exclusive<T> {
        Box::into_raw(Box::new(Exclusive {
            state: AtomicU8::new(IDLE),
            fd,
            inner: UnsafeCell::new(inner),
        }))
    }

    /// Begins a use. Returns `None` during another use.
    ///
    /// # Safety
    /// [`new_raw`](Exclusive::new_raw) returned `this`, and its handle has not been freed.
    #[inline]
    pub(crate) unsafe fn begin_use(this: *mut Exclusive<T>) -> Option<ExclusiveUse<T>> {
        // SAFETY: the caller guarantees that the handle has not been freed, so the value exists.
        let state = unsafe { &(*this).state };
        let exchange = state.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed);
        exchange.is_ok().then(|| ExclusiveUse(this))
    }

    /// Returns the descriptor of the value. Unlike the value, it may be used during a use.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Drops the value, now or when its use ends.
    ///
    /// # Safety
    /// The contract of [`begin_use`](Exclusive::begin_use). The function is called once.
    pub(crate) unsafe fn free(this: *mut Exclusive<T>) {
        // SAFETY: the caller guarantees that the handle has not been freed, so the value exists.
        let old_state = unsafe { (*this).state.swap(FREED, Ordering::AcqRel) };
        if old_state == IDLE {
            // SAFETY: `new_raw` created the pointer from a box, no operation uses it, and FREED
            // prevents a second drop.
            drop(unsafe { Box::from_raw(this) });
        }
    }
}

/// Begins a use. Fails with `EBUSY` during another use, and with `InvalidInput` if `value` is null.
///
/// # Safety
/// `value` is null, or fulfils the contract of [`Exclusive::begin_use`].
#[inline]
pub(crate) unsafe fn begin_use<T>(value: *mut Exclusive<T>) -> io::Result<ExclusiveUse<T>> {
    if value.is_null() {
        return Err(invalid());
    }
    // SAFETY: `value` is not null, so the caller guarantees that `new_raw` returned it, and that
    // its handle has not been freed.
    unsafe { Exclusive::begin_use(value) }.ok_or_else(|| io::Error::from_raw_os_error(libc::EBUSY))
}

pub(crate) struct ExclusiveUse<T>(*mut Exclusive<T>);

// SAFETY: there is one use at a time, and it moves with its operation, so only one thread at a time
// accesses the value.
unsafe impl<T: Send> Send for ExclusiveUse<T> {}

impl<T> ExclusiveUse<T> {
    /// Lends the value to a future that lives no longer than the use.
    ///
    /// # Safety
    /// The user of the reference is dropped before the `ExclusiveUse`.
    #[inline]
    pub(crate) unsafe fn lend(&mut self) -> &'static mut T {
        // SAFETY: the value exists as long as this use, which is the only one. The caller
        // guarantees that the user of the reference is dropped before.
        unsafe { &mut *(*self.0).inner.get() }
    }
}

impl<T> Deref for ExclusiveUse<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value exists as long as this use, which is the only one.
        unsafe { &*(*self.0).inner.get() }
    }
}

impl<T> DerefMut for ExclusiveUse<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value exists as long as this use, which is the only one.
        unsafe { &mut *(*self.0).inner.get() }
    }
}

impl<T> Drop for ExclusiveUse<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the pointer is valid, because the value exists as long as this use.
        let state = unsafe { &(*self.0).state };
        if state
            .compare_exchange(BUSY, IDLE, Ordering::Release, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: `new_raw` created the pointer from a box. Its handle was freed during this
            // use, so this is the only code that still refers to the value.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// A future and its use of a value, dropped in this order.
pub(crate) struct WithUse<F, T> {
    future: F,
    _exclusive_use: ExclusiveUse<T>,
}

impl<F, T> WithUse<F, T> {
    #[inline]
    pub(crate) fn new(future: F, exclusive_use: ExclusiveUse<T>) -> WithUse<F, T> {
        WithUse {
            future,
            _exclusive_use: exclusive_use,
        }
    }
}

impl<F: Future, T> Future for WithUse<F, T> {
    type Output = F::Output;

    #[inline]
    fn poll(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<F::Output> {
        // SAFETY: the projection does not move the future out of the pinned value.
        unsafe { self.map_unchecked_mut(|this| &mut this.future) }.poll(cx)
    }
}
