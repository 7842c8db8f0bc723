//! Asynchronous operations, which are Rust futures in memory of the caller.
//!
//! ```text
//!            1 start, not ready            2 poll, ready
//!   (any) ────────────────────▶ Waiting ─────────────────▶ Done
//!     │                            │ 3 drop                 ▲
//!     └────────────────────────────┼────────────────────────┘
//!        1 start, ready            ▼
//!                                Done (the runtime no longer needs the memory)
//! ```
//!
//! 1. The starting function writes the future into `state`, polls it once, and returns 1 (ready) or
//!    0.
//! 2. `upshift_op_poll` polls the future in a later poll of the task, with that poll's token.
//! 3. `upshift_op_drop` cancels the operation, on any thread. If the kernel still uses its buffers,
//!    the ring keeps them.
//!
//! If a function that starts an operation gets a null pointer, the operation is ready at once, with
//! `-EINVAL`. If `op` itself is null, the function returns `-EINVAL`.
//!
//! The caller must not move the memory between the start and the end of an operation. When the
//! operation is ready, `result` is set, and `out` has the other results, which the caller owns.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{align_of, size_of};
use std::pin::Pin;
use std::ptr::null;
use std::task::{Context, Poll};

use crate::buf::{Buf, upshift_buf, upshift_bytes};
use crate::cx::{context, upshift_cx};
use crate::error::{PANIC_CODE, catch_panic, catch_panic_code, errno, invalid};

/// Number of words of an operation's state.
pub const UPSHIFT_OP_WORDS: usize = 32;

/// The results of an operation besides `result`.
#[repr(C)]
pub union upshift_out {
    /// The buffer that was passed to the operation.
    pub buf: std::mem::ManuallyDrop<upshift_buf>,
    /// The received bytes.
    pub bytes: std::mem::ManuallyDrop<upshift_bytes>,
    /// Handles, or plain words.
    pub words: [usize; 8],
    /// One or two handles.
    pub handles: [*mut c_void; 2],
}

/// The memory of an operation. Before its first use, only `vtable` must be set, to null.
#[repr(C)]
pub struct upshift_op {
    /// Null if no operation is in progress.
    pub vtable: *const c_void,
    /// The result: a count, 0, or a negative errno. It is set when the operation is ready.
    pub result: i64,
    /// The other results. They are set when the operation is ready.
    pub out: upshift_out,
    state: [usize; UPSHIFT_OP_WORDS],
}

struct Vtable {
    poll: unsafe fn(*mut upshift_op, &mut Context<'_>) -> Poll<()>,
    drop: unsafe fn(*mut upshift_op),
}

/// The conversion of a future's output to `result` and `out`.
pub(crate) trait Outcome {
    fn store(self, op: &mut upshift_op);
}

trait HasVtable {
    const VTABLE: Vtable;
}

impl<F: Future> HasVtable for F
where
    F::Output: Outcome,
{
    const VTABLE: Vtable = Vtable {
        poll: poll_op::<F>,
        drop: drop_op::<F>,
    };
}

/// Polls the future in `op`. If it is ready, drops it and stores its output.
///
/// # Safety
/// `op` holds a future of this type, and no other code uses `op` during the call.
#[inline]
unsafe fn poll_op<F: Future>(op: *mut upshift_op, cx: &mut Context<'_>) -> Poll<()>
where
    F::Output: Outcome,
{
    // SAFETY: the caller guarantees that `op` holds an `F`, and that `op` is not moved before the
    // future is dropped.
    let future = unsafe { Pin::new_unchecked(&mut *(&raw mut (*op).state).cast::<F>()) };
    match future.poll(cx) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(output) => {
            // SAFETY: `op` still holds the `F`, which is not used again.
            unsafe { drop_op::<F>(op) };
            // SAFETY: the caller guarantees that `op` is valid, and that no other code uses it
            // during the call.
            output.store(unsafe { &mut *op });
            Poll::Ready(())
        }
    }
}

/// Drops the future in `op`.
///
/// # Safety
/// `op` holds a future of this type, which is gone afterwards.
unsafe fn drop_op<F>(op: *mut upshift_op) {
    // SAFETY: the caller guarantees that `op` holds an `F`. The table is cleared first, so that a
    // value whose drop panics is not dropped twice.
    unsafe {
        (*op).vtable = null();
        (&raw mut (*op).state).cast::<F>().drop_in_place();
    }
}

/// Puts a future into `op` without polling it.
///
/// # Safety
/// `op` has room for an operation, and no operation is in progress in it.
#[inline]
pub(crate) unsafe fn put<F: Future>(op: *mut upshift_op, future: F)
where
    F::Output: Outcome,
{
    const {
        assert!(size_of::<F>() <= size_of::<[usize; UPSHIFT_OP_WORDS]>());
        assert!(align_of::<F>() <= align_of::<upshift_op>());
    }
    // SAFETY: the caller guarantees that `op` has room for an operation, and the assertions above
    // show that the future fits into it.
    unsafe {
        (&raw mut (*op).state).cast::<F>().write(future);
        (*op).vtable = (&raw const *const { &<F as HasVtable>::VTABLE }).cast();
    }
}

/// Puts a future into `op` and polls it once. Returns 1 if it is ready, else 0.
///
/// # Safety
/// `op` is null, or fulfils the contract of [`put`]. `cx` is null, or belongs to the current poll.
#[inline]
pub(crate) unsafe fn start<F: Future>(op: *mut upshift_op, cx: *mut upshift_cx, future: F) -> c_int
where
    F::Output: Outcome,
{
    if op.is_null() {
        return -libc::EINVAL;
    }
    if cx.is_null() {
        drop(future);
        // SAFETY: the caller guarantees that `op` has room for an operation.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: neither pointer is null, so the caller guarantees that `op` has room for an
    // operation, and that `cx` belongs to the current poll.
    unsafe {
        put(op, future);
        run_poll(op, || poll_op::<F>(op, context(cx)))
    }
}

/// Completes an operation that has not begun. Returns 1, or -EINVAL if `op` is null.
///
/// # Safety
/// `op` is null, or fulfils the contract of [`put`].
#[cold]
pub(crate) unsafe fn finish(op: *mut upshift_op, outcome: impl Outcome) -> c_int {
    if op.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: `op` is not null, so the caller guarantees that it has room for an operation.
    unsafe {
        (*op).vtable = null();
        (*op).out.words = [0; 8];
        outcome.store(&mut *op);
    }
    1
}

/// Calls `poll`. Returns 1 if the operation is ready, else 0. A panic becomes the result of the
/// operation.
///
/// # Safety
/// `op` belongs to the caller, and its table is null or fits its state.
#[inline]
unsafe fn run_poll(op: *mut upshift_op, poll: impl FnOnce() -> Poll<()>) -> c_int {
    let ready = catch_panic_code(|| c_int::from(poll().is_ready()));
    if ready != PANIC_CODE {
        return ready;
    }
    // SAFETY: the caller guarantees that `op` belongs to it and that its table is null or fits its
    // state, so the operation may be dropped and completed here.
    unsafe {
        upshift_op_drop(op);
        (*op).result = i64::from(PANIC_CODE);
        (*op).out.words = [0; 8];
    }
    1
}

/// Polls an operation that was not ready. Returns 1 if it is ready, 0 if it is not, or -EINVAL if
/// `op` or `cx` is null. May be called only in a poll of the task, with the token of that poll.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_op_poll(op: *mut upshift_op, cx: *mut upshift_cx) -> c_int {
    if op.is_null() || cx.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the caller guarantees that `op` belongs to it, that its table is null or was set when
    // the operation was started, and that `cx` belongs to the current poll.
    unsafe {
        let Some(vtable) = (*op).vtable.cast::<Vtable>().as_ref() else {
            return 1;
        };
        run_poll(op, || (vtable.poll)(op, context(cx)))
    }
}

/// Ends an operation. An operation in progress is cancelled, and its buffers are released when the
/// kernel no longer uses them. Does nothing for null. May be called on any thread, but not during a
/// poll of the operation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_op_drop(op: *mut upshift_op) {
    if op.is_null() {
        return;
    }
    // SAFETY: the caller guarantees that `op` belongs to it, and that its table is null or was set
    // when the operation was started.
    if let Some(vtable) = unsafe { (*op).vtable.cast::<Vtable>().as_ref() } {
        // SAFETY: the table is not null, so it fits the state of `op`.
        catch_panic(|| unsafe { (vtable.drop)(op) });
    }
}

fn number(result: io::Result<usize>) -> i64 {
    match result {
        Ok(count) => count as i64,
        Err(error) => i64::from(errno(&error)),
    }
}

impl Outcome for () {
    fn store(self, op: &mut upshift_op) {
        op.result = 0;
    }
}

impl Outcome for io::Result<()> {
    fn store(self, op: &mut upshift_op) {
        op.result = number(self.map(|()| 0));
    }
}

impl Outcome for io::Result<usize> {
    fn store(self, op: &mut upshift_op) {
        op.result = number(self);
    }
}

/// The outcome of an operation that returns its buffer.
impl Outcome for (io::Result<usize>, Buf) {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        op.result = number(self.0);
        op.out.buf = std::mem::ManuallyDrop::new(self.1.into_raw());
    }
}

/// The outcome of an operation without a buffer to return.
impl Outcome for (io::Result<()>, upshift::RecvBuf) {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        op.result = number(self.0.map(|()| 0));
    }
}

impl Outcome for (io::Result<()>, Buf) {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        (self.0.map(|()| 0), self.1).store(op);
    }
}

impl Outcome for io::Result<upshift::RecvBuf> {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        match self {
            Ok(buffer) => {
                op.result = buffer.len() as i64;
                op.out.bytes = std::mem::ManuallyDrop::new(upshift_bytes::new(buffer));
            }
            Err(error) => op.result = i64::from(errno(&error)),
        }
    }
}

/// Handles that the caller will own.
pub(crate) struct Handles(pub(crate) *mut c_void, pub(crate) *mut c_void);

impl Outcome for io::Result<Handles> {
    fn store(self, op: &mut upshift_op) {
        match self {
            Ok(Handles(first, second)) => {
                op.result = 0;
                op.out.handles = [first, second];
            }
            Err(error) => op.result = i64::from(errno(&error)),
        }
    }
}
