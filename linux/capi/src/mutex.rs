//! A mutex with priority inheritance: waiters lend their level to the holder.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use upshift::sync::{Mutex, MutexGuard};

use crate::cx::upshift_cx;
use crate::error::{catch_panic_code, free, invalid};
use crate::op::{Outcome, finish, start, upshift_op};

/// A mutex of coroutines. It may be used on any thread, and on several threads at the same time.
/// The caller must not free it while a coroutine holds it or waits for it.
pub struct upshift_mutex {
    mutex: Mutex<()>,
    /// The guard of the holder, which alone accesses it.
    guard: UnsafeCell<MaybeUninit<MutexGuard<'static, ()>>>,
    is_held: AtomicBool,
}

impl upshift_mutex {
    /// Stores the guard of the caller, which has just locked the mutex.
    ///
    /// # Safety
    /// The guard is one of this mutex, and the mutex outlives the guard.
    unsafe fn store_guard(&self, guard: MutexGuard<'_, ()>) {
        // SAFETY: the caller has the guard, so no other code accesses the cell. The caller
        // guarantees that the mutex outlives the guard, so the longer lifetime is correct.
        unsafe {
            (*self.guard.get()).write(std::mem::transmute::<
                MutexGuard<'_, ()>,
                MutexGuard<'static, ()>,
            >(guard))
        };
        self.is_held.store(true, Ordering::Release);
    }
}

/// Creates an unlocked mutex. May be called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_mutex_new() -> *mut upshift_mutex {
    Box::into_raw(Box::new(upshift_mutex {
        mutex: Mutex::new(()),
        guard: UnsafeCell::new(MaybeUninit::uninit()),
        is_held: AtomicBool::new(false),
    }))
}

/// Frees a mutex that no coroutine holds or waits for. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_free(mutex: *mut upshift_mutex) {
    // SAFETY: the caller guarantees that the pointer is null or its own mutex, which it frees once.
    unsafe { free(mutex) };
}

/// A mutex that an operation has locked, and its guard.
struct LockedMutex(&'static upshift_mutex, MutexGuard<'static, ()>);

impl Outcome for LockedMutex {
    fn store(self, op: &mut upshift_op) {
        // SAFETY: the operation has just locked the mutex, which the caller of the ABI does not
        // free while it is held.
        unsafe { self.0.store_guard(self.1) };
        op.result = 0;
    }
}

/// Waits for the mutex and locks it. The most urgent waiter is served first. The result is 0 on
/// success: the caller then holds the mutex and must unlock it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_lock(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    mutex: *const upshift_mutex,
) -> c_int {
    // SAFETY: the caller guarantees that `mutex` is null or outlives the operation.
    let Some(mutex): Option<&'static upshift_mutex> = (unsafe { mutex.as_ref() }) else {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    };
    let future = async move { LockedMutex(mutex, mutex.mutex.lock().await) };
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, future) }
}

/// Tries to lock the mutex. Returns 1 if the caller now holds it, 0 if it is held already, or
/// -EINVAL if `mutex` is null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_try_lock(mutex: *const upshift_mutex) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `mutex` is null or valid.
        let Some(mutex) = (unsafe { mutex.as_ref() }) else {
            return -libc::EINVAL;
        };
        match mutex.mutex.try_lock() {
            Ok(guard) => {
                // SAFETY: the call has just locked the mutex, which the caller does not free while
                // it is held.
                unsafe { mutex.store_guard(guard) };
                1
            }
            Err(_) => 0,
        }
    })
}

/// Unlocks the mutex and hands it to the most urgent waiter. Only the holder may call it, on any
/// thread. Returns 0, -EPERM if the mutex is not locked, or -EINVAL if `mutex` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_unlock(mutex: *const upshift_mutex) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `mutex` is null or valid.
        let Some(mutex) = (unsafe { mutex.as_ref() }) else {
            return -libc::EINVAL;
        };
        if !mutex.is_held.swap(false, Ordering::Acquire) {
            return -libc::EPERM;
        }
        // SAFETY: the caller guarantees that it holds the mutex, so the guard is initialised, and
        // no other code accesses the cell.
        drop(unsafe { (*mutex.guard.get()).assume_init_read() });
        0
    })
}
