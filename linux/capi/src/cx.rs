//! The token that a foreign task gets in each poll and by which its operations wake it, and wakers
//! that outlive the poll.

use std::ffi::c_int;
use std::mem::{MaybeUninit, size_of};
use std::task::{Context, Waker};

use crate::error::{catch_panic, catch_panic_code};

/// The wake token of one poll. It is valid only on the thread of the poll, and until the poll
/// returns. An operation that is polled with it wakes the task later.
pub struct upshift_cx {
    _private: [u8; 0],
}

/// Converts a token to the runtime's context.
///
/// # Safety
/// `cx` belongs to the current poll.
#[inline]
pub(crate) unsafe fn context<'a>(cx: *mut upshift_cx) -> &'a mut Context<'a> {
    // SAFETY: the pointer is valid, because `token` made it from a context, and the caller
    // guarantees that the poll still runs.
    unsafe { &mut *cx.cast::<Context<'a>>() }
}

#[inline]
pub(crate) fn token(cx: &mut Context<'_>) -> *mut upshift_cx {
    std::ptr::from_mut(cx).cast()
}

/// The right to wake a task, during its poll and afterwards. It may be used on any thread. The
/// holder owns the waker, and may move it by copying its words. If all words are 0, there is no
/// waker.
#[repr(C)]
pub struct upshift_waker {
    words: [usize; 2],
}

const _: () = assert!(size_of::<Waker>() <= size_of::<upshift_waker>());

/// Stores a waker of the task that is being polled in `*waker`, or an empty waker if `cx` is null.
/// Does nothing if `waker` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_new(cx: *mut upshift_cx, waker: *mut upshift_waker) {
    if waker.is_null() {
        return;
    }
    // SAFETY: `waker` is not null, so the caller guarantees that it has room for a waker, and that
    // `cx` is null or belongs to the current poll.
    catch_panic(|| unsafe {
        waker.write(upshift_waker { words: [0; 2] });
        if !cx.is_null() {
            waker.cast::<Waker>().write(context(cx).waker().clone());
        }
    });
}

/// Returns the waker, if there is one.
///
/// # Safety
/// `waker` is null, or points to an empty or valid waker.
unsafe fn as_waker<'a>(waker: *const upshift_waker) -> Option<&'a Waker> {
    // SAFETY: the caller guarantees that `waker` is null, or that its words are a waker or both 0.
    // A waker has a table, so its words are not both 0.
    unsafe {
        let words = waker.as_ref()?.words;
        (words != [0; 2]).then(|| &*waker.cast::<Waker>())
    }
}

/// Wakes the task without consuming the waker. Does nothing if the waker is empty or `waker` is
/// null. May be called on any thread, and on several threads at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_wake(waker: *const upshift_waker) {
    // SAFETY: the caller guarantees that `waker` is null, or points to an empty or valid waker.
    if let Some(waker) = unsafe { as_waker(waker) } {
        catch_panic(|| waker.wake_by_ref());
    }
}

/// Frees a waker and sets its words to 0. Does nothing for null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_free(waker: *mut upshift_waker) {
    // SAFETY: the caller guarantees that `waker` is null, or points to an empty or valid waker.
    if unsafe { as_waker(waker) }.is_some() {
        // SAFETY: the pointer is valid, and the caller owns the waker. The words are cleared first,
        // so that the waker is freed once.
        let waker = unsafe { waker.replace(upshift_waker { words: [0; 2] }) };
        // SAFETY: the words are a waker, which is freed once.
        catch_panic(|| drop(unsafe { std::mem::transmute_copy::<upshift_waker, Waker>(&waker) }));
    }
}

/// Wakes the task that is being polled, so that it is polled again, behind the ready tasks of its
/// level. A task that yields calls this function and then returns 0. Does nothing if `cx` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_yield_now(cx: *mut upshift_cx) {
    if !cx.is_null() {
        // SAFETY: the caller guarantees that `cx` belongs to the current poll.
        catch_panic(|| unsafe { context(cx).waker().wake_by_ref() });
    }
}

/// Returns 1 if work at least as urgent waits and the task should yield (call `upshift_yield_now`,
/// then return 0), or 0 if the task may continue. May be called only in a poll of a task.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_should_yield() -> c_int {
    catch_panic_code(|| {
        let mut cx = Context::from_waker(Waker::noop());
        let mut future = MaybeUninit::new(upshift::yield_if_needed());
        // SAFETY: the value is initialised and not moved. It has no destructor, so it need not be
        // dropped.
        let future = unsafe { std::pin::Pin::new_unchecked(future.assume_init_mut()) };
        c_int::from(future.poll(&mut cx).is_pending())
    })
}
