//! The token that a foreign task gets in each poll and by which its operations wake it, and wakers
//! that outlive the poll.

use std::ffi::c_int;
use std::mem::{MaybeUninit, size_of};
use std::task::{Context, Waker};

use crate::error::{catch_panic, catch_panic_code};

/// The wake token of one poll: valid until the poll returns, on its thread. An operation that is
/// polled with it wakes the task later.
pub struct upshift_cx {
    _private: [u8; 0],
}

/// Converts a token to the runtime's context.
///
/// # Safety
/// The token belongs to the current poll.
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

/// The right to wake a task, from any thread, also after its poll. The holder owns the waker, and
/// may move it by copying its words. If all words are 0, there is no waker.
#[repr(C)]
pub struct upshift_waker {
    words: [usize; 2],
}

const _: () = assert!(size_of::<Waker>() <= size_of::<upshift_waker>());

/// Creates a waker of the task that is being polled; an empty waker if `cx` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_new(cx: *mut upshift_cx, waker: *mut upshift_waker) {
    if waker.is_null() {
        return;
    }
    // SAFETY: by contract `waker` has room, and the token is null or belongs to this poll.
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
/// The pointer is null, or its waker is empty or valid.
unsafe fn as_waker<'a>(waker: *const upshift_waker) -> Option<&'a Waker> {
    // SAFETY: by contract the words are a waker or both 0. A waker has a table, so its words are
    // not both 0.
    unsafe {
        let words = waker.as_ref()?.words;
        (words != [0; 2]).then(|| &*waker.cast::<Waker>())
    }
}

/// Wakes the task without consuming the waker. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_wake(waker: *const upshift_waker) {
    // SAFETY: by contract the waker is empty or valid.
    if let Some(waker) = unsafe { as_waker(waker) } {
        catch_panic(|| waker.wake_by_ref());
    }
}

/// Frees a waker and sets its words to 0. Does nothing for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_free(waker: *mut upshift_waker) {
    // SAFETY: by contract the waker is empty or valid.
    if unsafe { as_waker(waker) }.is_some() {
        // SAFETY: the pointer is valid, and the caller owns the waker. The words are cleared first,
        // so that the waker is freed once.
        let waker = unsafe { waker.replace(upshift_waker { words: [0; 2] }) };
        // SAFETY: the words are a waker, which is freed once.
        catch_panic(|| drop(unsafe { std::mem::transmute_copy::<upshift_waker, Waker>(&waker) }));
    }
}

/// Wakes the task that is being polled, which is then polled again, behind the ready tasks of its
/// level. Called by a task that yields by returning 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_yield_now(cx: *mut upshift_cx) {
    if !cx.is_null() {
        // SAFETY: by contract the token belongs to the current poll.
        catch_panic(|| unsafe { context(cx).waker().wake_by_ref() });
    }
}

/// Returns 1 if work at least as urgent waits, and the task should yield (`upshift_yield_now`, and
/// return 0); 0 if it may continue. Called in a poll.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_should_yield() -> c_int {
    catch_panic_code(|| {
        let mut cx = Context::from_waker(Waker::noop());
        let mut test = MaybeUninit::new(upshift::yield_if_needed());
        // SAFETY: the value is initialised and not moved. It has no destructor, so it need not be
        // dropped.
        let test = unsafe { std::pin::Pin::new_unchecked(test.assume_init_mut()) };
        c_int::from(test.poll(&mut cx).is_pending())
    })
}
