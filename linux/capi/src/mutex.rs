//! A mutex with priority inheritance: waiters lend their level to the holder.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use upshift::sync::{Mutex, MutexGuard};

use crate::cx::upshift_cx;
use crate::error::{catch_panic_code, free, invalid};
use crate::op::{Outcome, finish, start, upshift_op};

/// A mutex of coroutines. Any thread, several at once; free it when no coroutine holds it or waits
/// for it.
pub struct upshift_mutex {
    mutex: Mutex<()>,
    /// The holder's guard, which only the holder touches.
    guard: UnsafeCell<MaybeUninit<MutexGuard<'static, ()>>>,
    is_held: AtomicBool,
}

impl upshift_mutex {
    /// Stores the guard of the caller, which holds the mutex.
    ///
    /// # Safety
    /// The mutex outlives the guard, as the contract of `upshift_mutex_free` requires.
    unsafe fn keep(&self, guard: MutexGuard<'_, ()>) {
        // SAFETY: the caller has just locked the mutex, so no other code touches the cell. By
        // contract the mutex outlives the guard, so the longer lifetime is correct.
        unsafe {
            (*self.guard.get()).write(std::mem::transmute::<
                MutexGuard<'_, ()>,
                MutexGuard<'static, ()>,
            >(guard))
        };
        self.is_held.store(true, Ordering::Release);
    }
}

/// Creates an unlocked mutex.
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
    // SAFETY: the caller owns the mutex and gives it away once.
    unsafe { free(mutex) };
}

struct Locked(&'static upshift_mutex, MutexGuard<'static, ()>);

impl Outcome for Locked {
    fn store(self, op: &mut upshift_op) {
        // SAFETY: the mutex was just locked, and by contract outlives its guard.
        unsafe { self.0.keep(self.1) };
        op.result = 0;
    }
}

/// Waits for the mutex and locks it; the most urgent waiter is first. Result 0. When the operation
/// is ready, the caller holds the mutex and must unlock it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_lock(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    mutex: *const upshift_mutex,
) -> c_int {
    // SAFETY: by contract the pointer is null, or the mutex outlives the operation.
    let Some(mutex): Option<&'static upshift_mutex> = (unsafe { mutex.as_ref() }) else {
        // SAFETY: the caller upholds the requirements of this call.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    };
    let lock = async move { Locked(mutex, mutex.mutex.lock().await) };
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, lock) }
}

/// Tries to lock the mutex. Returns 1 if the caller now holds it, 0 if another coroutine holds it,
/// or -EINVAL for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_try_lock(mutex: *const upshift_mutex) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the pointer is null or valid.
        let Some(mutex) = (unsafe { mutex.as_ref() }) else {
            return -libc::EINVAL;
        };
        match mutex.mutex.try_lock() {
            Ok(guard) => {
                // SAFETY: the mutex was just locked, and by contract outlives its guard.
                unsafe { mutex.keep(guard) };
                1
            }
            Err(_) => 0,
        }
    })
}

/// Unlocks the mutex and hands it to the most urgent waiter. Called by the holder. Returns 0,
/// -EPERM if the mutex is not locked, or -EINVAL for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_mutex_unlock(mutex: *const upshift_mutex) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the pointer is null or valid.
        let Some(mutex) = (unsafe { mutex.as_ref() }) else {
            return -libc::EINVAL;
        };
        if !mutex.is_held.swap(false, Ordering::Acquire) {
            return -libc::EPERM;
        }
        // SAFETY: by contract the caller holds the mutex, so the guard is initialised, and no other
        // code touches the cell.
        drop(unsafe { (*mutex.guard.get()).assume_init_read() });
        0
    })
}
