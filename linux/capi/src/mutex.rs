//! A mutex that lends: waiters lend their level to the holder.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use upshift::sync::{Mutex, MutexGuard};

use crate::cx::upshift_cx;
use crate::error::{free, invalid, wall};
use crate::op::{Outcome, finish, start, upshift_op};

/// A mutex of coroutines. Any thread, several at once; freed when nothing holds it or waits for it.
pub struct upshift_mutex {
    mutex: Mutex<()>,
    /// The holder's, which alone touches it.
    guard: UnsafeCell<MaybeUninit<MutexGuard<'static, ()>>>,
    /// Whether there is one.
    is_held: AtomicBool,
}

impl upshift_mutex {
    /// # Safety
    /// The mutex outlives the guard: the contract of `upshift_mutex_free`.
    unsafe fn keep(&self, guard: MutexGuard<'_, ()>) {
        // SAFETY: the caller has just locked it, so nothing else touches the cell; the lifetime
        // by contract.
        unsafe {
            (*self.guard.get()).write(std::mem::transmute::<
                MutexGuard<'_, ()>,
                MutexGuard<'static, ()>,
            >(guard))
        };
        self.is_held.store(true, Ordering::Release);
    }
}

/// A mutex, free.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_mutex_new() -> *mut upshift_mutex {
    Box::into_raw(Box::new(upshift_mutex {
        mutex: Mutex::new(()),
        guard: UnsafeCell::new(MaybeUninit::uninit()),
        is_held: AtomicBool::new(false),
    }))
}

/// Frees a mutex that nothing holds or waits for. Nothing is done for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_free(mutex: *mut upshift_mutex) {
    // SAFETY: the caller's, once.
    unsafe { free(mutex) };
}

struct Locked(&'static upshift_mutex, MutexGuard<'static, ()>);

impl Outcome for Locked {
    fn store(self, op: &mut upshift_op) {
        // SAFETY: just locked.
        unsafe { self.0.keep(self.1) };
        op.result = 0;
    }
}

/// Waits for the mutex and locks it; most urgent first. Result 0. A ready operation holds the
/// mutex:
/// unlock it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_lock(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    mutex: *const upshift_mutex,
) -> c_int {
    // SAFETY: null, or by contract it outlives the operation.
    let Some(mutex): Option<&'static upshift_mutex> = (unsafe { mutex.as_ref() }) else {
        // SAFETY: passed on.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    };
    let lock = async move { Locked(mutex, mutex.mutex.lock().await) };
    // SAFETY: by contract.
    unsafe { start(op, cx, lock) }
}

/// 1: locked; 0: something else holds it; -EINVAL for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_try_lock(mutex: *const upshift_mutex) -> c_int {
    wall(|| {
        // SAFETY: by contract, or null.
        let Some(mutex) = (unsafe { mutex.as_ref() }) else {
            return -libc::EINVAL;
        };
        match mutex.mutex.try_lock() {
            Ok(guard) => {
                // SAFETY: just locked.
                unsafe { mutex.keep(guard) };
                1
            }
            Err(_) => 0,
        }
    })
}

/// Hands the mutex to the most urgent waiter. Called by its holder. 0; -EPERM: it is not locked;
/// -EINVAL for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_unlock(mutex: *const upshift_mutex) -> c_int {
    wall(|| {
        // SAFETY: by contract, or null.
        let Some(mutex) = (unsafe { mutex.as_ref() }) else {
            return -libc::EINVAL;
        };
        if !mutex.is_held.swap(false, Ordering::Acquire) {
            return -libc::EPERM;
        }
        // SAFETY: by contract the caller holds it, so a guard is there and the cell is its own.
        drop(unsafe { (*mutex.guard.get()).assume_init_read() });
        0
    })
}
