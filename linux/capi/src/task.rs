//! Runs tasks of other languages as coroutines: spawns, joins, wakes and cancels them, and sets
//! their levels.
//!
//! # Ownership of a task
//!
//! A `Frame` owns a task and drops it once. The frame is first in the future of the coroutine. When
//! the task has finished, the frame becomes the coroutine's output, and the join handle returns the
//! task's data to the caller, which takes the result out of the data. If a coroutine is cancelled,
//! or its handle is gone, the frame is dropped, and with it everything that the task holds.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, align_of, size_of};
use std::pin::Pin;
use std::task::{Context, Poll};

use upshift::{CoroutineId, JoinHandle, Level, Priority, SpawnError};

use crate::cx::{context, token, upshift_cx};
use crate::error::{PANIC_CODE, catch_panic, catch_panic_code, errno, refusal};
use crate::runtime::upshift_handle;

/// The level of the coroutine that spawns, or UPSHIFT_LEVEL_NORMAL outside a coroutine.
pub const UPSHIFT_INHERIT: c_int = -1;
/// Level of short work that must not wait.
pub const UPSHIFT_LEVEL_URGENT: c_int = 0;
/// Level of requests that a user waits for.
pub const UPSHIFT_LEVEL_HIGH: c_int = 16;
/// Level of work without a preference: the default.
pub const UPSHIFT_LEVEL_NORMAL: c_int = 32;
/// Level of work without a waiting user but with a deadline.
pub const UPSHIFT_LEVEL_LOW: c_int = 48;
/// Level of work that runs when no other work is ready.
pub const UPSHIFT_LEVEL_BACKGROUND: c_int = 63;
/// An id that no coroutine has.
pub const UPSHIFT_NO_CID: u64 = u64::MAX;

/// A coroutine of another language. Its functions are called one at a time, on any thread. They
/// must not throw.
#[repr(C)]
pub struct upshift_task {
    /// Argument of the two functions.
    pub data: *mut c_void,
    /// Continues the task. Returns 0 if the task waits (it has polled an operation with `cx`, which
    /// wakes it), or 1 if it has finished. After 1 the function is not called again.
    pub poll: Option<unsafe extern "C" fn(data: *mut c_void, cx: *mut upshift_cx) -> c_int>,
    /// Destroys the task, finished or not.
    pub drop: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

/// An owned task. Dropping the frame destroys the task.
pub(crate) struct Frame(upshift_task);

// SAFETY: the caller of the ABI guarantees that any thread may call the functions, one at a time.
unsafe impl Send for Frame {}

impl Frame {
    /// Gives the task's data to the caller, without destroying the task.
    pub(crate) fn into_data(self) -> *mut c_void {
        ManuallyDrop::new(self).0.data
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(drop) = self.0.drop {
            // SAFETY: the caller of the ABI guarantees that the function accepts the data. It is
            // called once.
            unsafe { drop(self.0.data) };
        }
    }
}

pub(crate) struct Foreign(Option<Frame>);

impl Foreign {
    /// Takes ownership of a task.
    ///
    /// # Safety
    /// The functions of the task accept its data, on any thread, and the task is given away.
    pub(crate) unsafe fn new(task: upshift_task) -> Foreign {
        Foreign(Some(Frame(task)))
    }

    pub(crate) fn can_be_polled(&self) -> bool {
        self.0.as_ref().is_some_and(|frame| frame.0.poll.is_some())
    }

    /// Polls a task that must finish in this poll.
    pub(crate) fn run_once(mut self) -> Frame {
        let frame = self.0.take().expect("not polled before");
        let poll = frame.0.poll.expect("a task has a function that polls it");
        // SAFETY: the caller of the ABI guarantees that the function accepts the data and, in a
        // blocking task, a null token.
        unsafe { poll(frame.0.data, std::ptr::null_mut()) };
        frame
    }
}

impl Future for Foreign {
    type Output = Frame;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Frame> {
        let frame = self.0.as_ref().expect("not polled after its end");
        let poll = frame.0.poll.expect("a task has a function that polls it");
        // SAFETY: the caller of the ABI guarantees that the function accepts the data. The token
        // belongs to this poll, and polls do not overlap.
        if unsafe { poll(frame.0.data, token(cx)) } == 0 {
            return Poll::Pending;
        }
        Poll::Ready(self.0.take().expect("checked above"))
    }
}

/// A handle to the result of a coroutine. The holder owns the handle, and may move it by copying
/// its words. If all words are 0, as after its use, there is no handle. It may be used on any
/// thread, but not on several threads at the same time.
#[repr(C)]
pub struct upshift_join {
    words: [usize; 4],
}

/// Index of the word that says whether the other words contain a handle.
const PRESENCE: usize = 3;

// cbindgen needs literals, so these checks compare the constants above with the levels.
const _: () = {
    assert!(UPSHIFT_LEVEL_URGENT == Level::URGENT.get() as c_int);
    assert!(UPSHIFT_LEVEL_HIGH == Level::HIGH.get() as c_int);
    assert!(UPSHIFT_LEVEL_NORMAL == Level::NORMAL.get() as c_int);
    assert!(UPSHIFT_LEVEL_LOW == Level::LOW.get() as c_int);
    assert!(UPSHIFT_LEVEL_BACKGROUND == Level::BACKGROUND.get() as c_int);
};

type Join = JoinHandle<Frame>;

const _: () = assert!(size_of::<Join>() <= PRESENCE * size_of::<usize>());
const _: () = assert!(align_of::<Join>() <= align_of::<upshift_join>());

/// Converts a level of the ABI: 0 to 63, or [`UPSHIFT_INHERIT`].
pub(crate) fn priority(level: c_int) -> Option<Priority> {
    if level == UPSHIFT_INHERIT {
        return Some(Priority::Inherit);
    }
    let level = Level::new(u8::try_from(level).ok()?).ok()?;
    Some(Priority::At(level))
}

/// Writes a join handle, or detaches the coroutine if `join` is null.
///
/// # Safety
/// `join` is null, or has room for a handle.
pub(crate) unsafe fn store_join(
    join: *mut upshift_join,
    result: Result<Join, SpawnError>,
) -> c_int {
    match result {
        Ok(handle) if join.is_null() => handle.detach(),
        // SAFETY: `join` is not null, so the caller guarantees that it has room for a handle.
        Ok(handle) => unsafe {
            join.write(upshift_join {
                words: [0, 0, 0, 1],
            });
            join.cast::<Join>().write(handle);
        },
        Err(error) => return refusal(error),
    }
    0
}

/// Returns the handle, if there is one.
///
/// # Safety
/// `join` is null, or points to an empty or valid handle.
#[inline]
unsafe fn as_join<'a>(join: *const upshift_join) -> Option<&'a Join> {
    // SAFETY: the caller guarantees that `join` is null, or that its words are all 0 or contain a
    // handle.
    unsafe { (join.as_ref()?.words[PRESENCE] != 0).then(|| &*join.cast::<Join>()) }
}

/// Starts a coroutine at a level (0 to 63, or UPSHIFT_INHERIT), in the runtime of `handle`, or in
/// the caller's runtime if `handle` is null. If `join` is null, the coroutine is detached. The
/// function owns the task, also on failure. Returns 0, -EINVAL (the level is invalid, or the task
/// has no poll function), -ENOMEM, -ESHUTDOWN (the runtime shuts down), or -ENXIO (`handle` is null
/// outside of coroutines and blocking functions). May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_spawn(
    handle: *const upshift_handle,
    task: upshift_task,
    level: c_int,
    join: *mut upshift_join,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that the functions of the task accept its data, and gives
        // the task away.
        let future = unsafe { Foreign::new(task) };
        let (Some(priority), true) = (priority(level), future.can_be_polled()) else {
            return -libc::EINVAL;
        };
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let result = match unsafe { handle.as_ref() } {
            Some(handle) => handle.0.spawn(future, priority),
            None => upshift::try_spawn(future, priority),
        };
        // SAFETY: the caller guarantees that `join` is null or has room for a handle.
        unsafe { store_join(join, result) }
    })
}

/// Waits for a coroutine, in a poll of a task, and lends it the waiter's level. Returns 0 if the
/// coroutine has not finished, and wakes the task when it has. Returns 1 if the coroutine has
/// finished: `*data` is then the data of its task, which the caller must destroy. Returns
/// -ECANCELED if it was cancelled, -ENOTRECOVERABLE if Rust code in it has panicked, or -EINVAL if
/// there is no handle or a pointer is null. After 1, -ECANCELED and -ENOTRECOVERABLE there is no
/// handle any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_join_poll(
    join: *mut upshift_join,
    cx: *mut upshift_cx,
    data: *mut *mut c_void,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `join` is null, or points to an empty or valid handle.
        if unsafe { as_join(join) }.is_none() || cx.is_null() || data.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: `join` contains a handle.
        let handle = unsafe { &mut *join.cast::<Join>() };
        // SAFETY: `cx` is not null, so the caller guarantees that it belongs to the current poll.
        let result = match Pin::new(&mut *handle).poll(unsafe { context(cx) }) {
            Poll::Pending => return 0,
            Poll::Ready(result) => result,
        };
        // SAFETY: `join` contains a handle, which the caller owns.
        unsafe { free_join(join) };
        match result {
            Ok(frame) => {
                // SAFETY: `data` is not null, so the caller guarantees that it has room for a
                // pointer.
                unsafe { data.write(frame.into_data()) };
                1
            }
            Err(error) if error.is_cancelled() => -libc::ECANCELED,
            Err(_) => PANIC_CODE,
        }
    })
}

/// Frees the handle and sets its words to 0.
///
/// # Safety
/// `join` contains a handle, which the caller owns.
unsafe fn free_join(join: *mut upshift_join) {
    // SAFETY: the caller guarantees that `join` contains a handle. The word that says so is cleared
    // first, so that the handle is freed once.
    unsafe {
        (*join).words[PRESENCE] = 0;
        join.cast::<Join>().drop_in_place();
        (*join).words = [0; 4];
    }
}

/// Returns the id of the coroutine, or UPSHIFT_NO_CID if there is no handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_join_cid(join: *const upshift_join) -> u64 {
    // SAFETY: the caller guarantees that `join` is null, or points to an empty or valid handle.
    unsafe { as_join(join) }.map_or(UPSHIFT_NO_CID, |join| join.id().to_u64())
}

/// Returns 1 if the coroutine has exited or if there is no handle, or else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_join_is_finished(join: *const upshift_join) -> c_int {
    // SAFETY: the caller guarantees that `join` is null, or points to an empty or valid handle.
    c_int::from(unsafe { as_join(join) }.is_none_or(Join::is_finished))
}

/// Cancels the coroutine: its task is dropped when it is next due, not within a poll. Does nothing
/// if there is no handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_join_cancel(join: *const upshift_join) {
    // SAFETY: the caller guarantees that `join` is null, or points to an empty or valid handle.
    if let Some(join) = unsafe { as_join(join) } {
        catch_panic(|| join.cancel());
    }
}

/// Frees the handle and sets its words to 0. The coroutine continues, and its result is dropped.
/// Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_join_free(join: *mut upshift_join) {
    // SAFETY: the caller guarantees that `join` is null, or points to an empty or valid handle.
    if unsafe { as_join(join) }.is_some() {
        // SAFETY: `join` contains a handle, which belongs to the caller.
        catch_panic(|| unsafe { free_join(join) });
    }
}

/// Returns the id of the calling coroutine, or UPSHIFT_NO_CID outside a coroutine. May be called on
/// any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_get_cid() -> u64 {
    upshift::get_cid().map_or(UPSHIFT_NO_CID, CoroutineId::to_u64)
}

/// Returns the effective level of the calling coroutine, or -ENXIO outside a coroutine. May be
/// called on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn upshift_current_level() -> c_int {
    upshift::current_level().map_or(-libc::ENXIO, |level| c_int::from(level.get()))
}

/// Wakes a coroutine of the runtime of `handle`, or of the caller's runtime if `handle` is null.
/// Returns 0, or -ESRCH if the coroutine has exited. With a handle the function may be called on
/// any thread. Without one it returns -ESRCH outside of coroutines and blocking functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_wake(handle: *const upshift_handle, cid: u64) -> c_int {
    catch_panic_code(|| {
        let id = CoroutineId::from_u64(cid);
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let result = match unsafe { handle.as_ref() } {
            Some(handle) => handle.0.wake(id),
            None => upshift::wake(id),
        };
        result.map_or(-libc::ESRCH, |()| 0)
    })
}

/// Changes the level of a coroutine in any state, in constant time. `handle` has the same meaning
/// as in `upshift_wake`. Returns 0, -ESRCH if the coroutine has exited, or -EINVAL if `level` is
/// not between 0 and 63. With a handle the function may be called on any thread. Without one it
/// returns -ESRCH outside of coroutines and blocking functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reprio(
    handle: *const upshift_handle,
    cid: u64,
    level: c_int,
) -> c_int {
    catch_panic_code(|| {
        let Some(Priority::At(level)) = priority(level) else {
            return -libc::EINVAL;
        };
        let id = CoroutineId::from_u64(cid);
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let result = match unsafe { handle.as_ref() } {
            Some(handle) => handle.0.reprio(id, level),
            None => upshift::reprio(id, level),
        };
        result.map_or(-libc::ESRCH, |()| 0)
    })
}

/// Cancels a coroutine: its task is dropped when it is next due, not within a poll. `handle` has
/// the same meaning as in `upshift_wake`. Returns 0, or -ESRCH if the coroutine has exited. With a
/// handle the function may be called on any thread. Without one it returns -EIO outside of
/// coroutines and blocking functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_cancel(handle: *const upshift_handle, cid: u64) -> c_int {
    catch_panic_code(|| {
        let id = CoroutineId::from_u64(cid);
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let result = match unsafe { handle.as_ref() } {
            Some(handle) => handle.0.cancel(id),
            None => match upshift::Handle::current() {
                Ok(handle) => handle.cancel(id),
                Err(error) => return errno(&error),
            },
        };
        result.map_or(-libc::ESRCH, |()| 0)
    })
}
