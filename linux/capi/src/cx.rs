//! The wake token of a poll, and wakers that outlive it.

use std::ffi::c_int;
use std::mem::{MaybeUninit, size_of};
use std::task::{Context, Waker};

use crate::error::{catch_panic, wall};

/// The wake token of one poll: valid until the poll returns, on its thread. An operation that is
/// polled with it wakes the task later.
pub struct upshift_cx {
    _private: [u8; 0],
}

/// A token as the runtime knows it.
///
/// # Safety
/// It is that of the poll under way.
#[inline]
pub(crate) unsafe fn context<'a>(cx: *mut upshift_cx) -> &'a mut Context<'a> {
    // SAFETY: passed on; it was made by `token`.
    unsafe { &mut *cx.cast::<Context<'a>>() }
}

#[inline]
pub(crate) fn token(cx: &mut Context<'_>) -> *mut upshift_cx {
    std::ptr::from_mut(cx).cast()
}

/// The right to wake a task, from any thread, also after its poll. Owned; it may be moved by
/// copying
/// its words. All words 0: none.
#[repr(C)]
pub struct upshift_waker {
    words: [usize; 2],
}

const _: () = assert!(size_of::<Waker>() <= size_of::<upshift_waker>());

/// A waker of the task that is being polled; none if `cx` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_new(cx: *mut upshift_cx, waker: *mut upshift_waker) {
    if waker.is_null() {
        return;
    }
    // SAFETY: by contract room for one, and the token is null or of this poll.
    catch_panic(|| unsafe {
        waker.write(upshift_waker { words: [0; 2] });
        if !cx.is_null() {
            waker.cast::<Waker>().write(context(cx).waker().clone());
        }
    });
}

/// # Safety
/// Null, none, or one that holds a waker.
unsafe fn held<'a>(waker: *const upshift_waker) -> Option<&'a Waker> {
    // SAFETY: by contract; a waker has a table, so its words are not both 0.
    unsafe {
        let words = waker.as_ref()?.words;
        (words != [0; 2]).then(|| &*waker.cast::<Waker>())
    }
}

/// Wakes the task and keeps the waker. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_wake(waker: *const upshift_waker) {
    // SAFETY: by contract.
    if let Some(waker) = unsafe { held(waker) } {
        catch_panic(|| waker.wake_by_ref());
    }
}

/// Gives a waker back, and makes it none. Nothing is done for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_waker_free(waker: *mut upshift_waker) {
    // SAFETY: by contract.
    if unsafe { held(waker) }.is_some() {
        // SAFETY: the caller's; the words go first, so that it is given back once.
        let waker = unsafe { waker.replace(upshift_waker { words: [0; 2] }) };
        // SAFETY: as above.
        catch_panic(|| drop(unsafe { std::mem::transmute_copy::<upshift_waker, Waker>(&waker) }));
    }
}

/// Wakes the task that is being polled: it is polled again, behind its equals. For a task that
/// yields by returning 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_yield_now(cx: *mut upshift_cx) {
    if !cx.is_null() {
        // SAFETY: by contract.
        catch_panic(|| unsafe { context(cx).waker().wake_by_ref() });
    }
}

/// Returns 1 if work at least as urgent waits, and the task should yield (`upshift_yield_now`, and
/// return 0); 0 if it may continue. In a poll.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_should_yield() -> c_int {
    wall(|| {
        let mut cx = Context::from_waker(Waker::noop());
        let mut test = MaybeUninit::new(upshift::yield_if_needed());
        // SAFETY: initialised, and not moved; it has no destructor.
        let test = unsafe { std::pin::Pin::new_unchecked(test.assume_init_mut()) };
        c_int::from(test.poll(&mut cx).is_pending())
    })
}
