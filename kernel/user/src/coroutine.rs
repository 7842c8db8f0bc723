//! Coroutines of a program: the API of the SharedScheduler papers, on the scheduler in the vDSO.
//!
//! A coroutine is a box with its future; the scheduler knows its address and the functions that
//! poll and drop it. A waker is the id of its coroutine. So cloning and dropping a waker cost
//! nothing, and a wake of a dead coroutine has no effect.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::ptr::without_provenance;
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use os_abi::Error;
use os_abi::shared::{INHERIT, NO_LEVEL};

use crate::lock::SpinLock;
use crate::vdso;

/// Id of a coroutine of this program. The id of a coroutine that has ended is never reused.
pub type Cid = u64;

/// State that a coroutine and its handle share.
struct Shared<T> {
    result: Option<T>,
    ended: bool,
    waiter: Option<Waker>,
}

struct Task<F: Future> {
    future: F,
    shared: Arc<SpinLock<Shared<F::Output>>>,
}

impl<F: Future> Drop for Task<F> {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.ended = true;
        let waiter = shared.waiter.take();
        drop(shared);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

extern "C" fn poll<F: Future>(task: u64, cid: Cid) -> u64 {
    // SAFETY: the scheduler passes the box that `start` gave it, polls it on no other thread
    // meanwhile, and has not discarded it.
    let task = unsafe { &mut *(task as *mut Task<F>) };
    let waker = waker(cid);
    // SAFETY: the future is in a box that is never moved out of.
    let future = unsafe { Pin::new_unchecked(&mut task.future) };
    match future.poll(&mut Context::from_waker(&waker)) {
        Poll::Pending => 0,
        Poll::Ready(result) => {
            task.shared.lock().result = Some(result);
            1
        }
    }
}

extern "C" fn discard<F: Future>(task: u64) {
    // SAFETY: the box is the one that `start` gave to the scheduler, which discards it once and no
    // longer uses it.
    drop(unsafe { Box::from_raw(task as *mut Task<F>) });
}

/// Starts a coroutine, at the caller's level if `level` is `None`. Any vCPU that is idle may run
/// it.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn spawn<F>(future: F, level: Option<u8>) -> Result<JoinHandle<F::Output>, Error>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    start(future, level, vdso::upshift_spawn)
}

/// Starts a coroutine that stays on the vCPU of the calling thread, so it need not be
/// `Send`.
///
/// # Errors
/// [`Error::OutOfMemory`], which is also the error if the thread serves no vCPU.
pub fn spawn_local<F>(future: F, level: Option<u8>) -> Result<JoinHandle<F::Output>, Error>
where
    F: Future + 'static,
{
    start(future, level, vdso::upshift_spawn_local)
}

fn start<F>(
    future: F,
    level: Option<u8>,
    spawn: fn(u64, u64, u64, u64) -> u64,
) -> Result<JoinHandle<F::Output>, Error>
where
    F: Future + 'static,
{
    let shared = Arc::new(SpinLock::new(Shared {
        result: None,
        ended: false,
        waiter: None,
    }));
    let task = Box::into_raw(Box::new(Task {
        future,
        shared: shared.clone(),
    }));
    let (poll, discard) = (poll::<F> as *const (), discard::<F> as *const ());
    let level = u64::from(level.unwrap_or(INHERIT));
    match spawn(task as u64, poll as u64, discard as u64, level) {
        0 => Err(Error::OutOfMemory),
        cid => Ok(JoinHandle {
            cid,
            shared,
            lent: NO_LEVEL,
        }),
    }
}

/// Handle to the result of a coroutine. A coroutine that is awaited is at least as urgent as its
/// waiter. Dropping the handle detaches the coroutine.
pub struct JoinHandle<T> {
    cid: Cid,
    shared: Arc<SpinLock<Shared<T>>>,
    /// Level that is lent to the coroutine, or [`NO_LEVEL`].
    lent: u64,
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if self.lent != NO_LEVEL {
            vdso::upshift_end_loan(self.cid);
        }
    }
}

impl<T> JoinHandle<T> {
    /// Returns the coroutine's id.
    #[must_use]
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// Ends the coroutine, which is dropped instead of polled again.
    pub fn cancel(&self) {
        vdso::upshift_cancel(self.cid);
    }
}

impl<T> Future for JoinHandle<T> {
    /// Result, or `None` if the coroutine was cancelled.
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = self.shared.lock();
        if shared.ended {
            let result = shared.result.take();
            drop(shared);
            // The loan has ended with the coroutine.
            self.lent = NO_LEVEL;
            return Poll::Ready(result);
        }
        shared.waiter = Some(cx.waker().clone());
        drop(shared);
        self.lent = vdso::upshift_lend(self.cid, self.lent);
        Poll::Pending
    }
}

/// Returns the id of the running coroutine (`get_cid`), or 0 if none runs.
#[must_use]
pub fn current() -> Cid {
    vdso::upshift_current()
}

/// Wakes a coroutine, which will be polled once more. Returns false if the coroutine has ended.
pub fn wake(cid: Cid) -> bool {
    vdso::upshift_wake(cid) != 0
}

/// Changes the level of a coroutine in any state. Returns false if the coroutine has ended or
/// `level` exceeds 63.
pub fn reprio(cid: Cid, level: u8) -> bool {
    vdso::upshift_reprio(cid, u64::from(level)) != 0
}

/// Returns whether more urgent work is ready, in this process or elsewhere.
#[must_use]
pub fn need_preempt() -> bool {
    vdso::upshift_need_preempt() != 0
}

/// Yields to ready coroutines: the running coroutine moves to the tail of its level.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |cx| {
        if core::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

const VTABLE: RawWakerVTable = RawWakerVTable::new(
    |cid| RawWaker::new(cid, &VTABLE),
    wake_waker,
    wake_waker,
    |_| {},
);

fn wake_waker(cid: *const ()) {
    wake(cid.addr() as Cid);
}

/// Returns the waker of a coroutine.
fn waker(cid: Cid) -> Waker {
    let raw = RawWaker::new(without_provenance(cid as usize), &VTABLE);
    // SAFETY: the data is a number, and the functions accept any number on any thread.
    unsafe { Waker::from_raw(raw) }
}
