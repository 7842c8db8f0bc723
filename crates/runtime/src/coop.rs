//! Giving way: the preemption test of inline vCPUs, and the budget of leaf
//! futures.
//!
//! An inline vCPU is cooperative: nothing interrupts a poll. So the test for
//! *something more urgent waits* must be cheap enough to stand in every loop. It
//! has two parts:
//!
//! * [`need_preempt`]: two loads of words that a wake of something more urgent
//!   sets. Under 2 ns, no system call.
//! * At every 32nd test the clock: a due timer, or a completion that has waited in
//!   the ring for the reap interval, gets the poll to give way, for it may make
//!   something more urgent ready; and a poll longer than the quantum gives way to
//!   its equals. So does another process that the board says is more urgent.
//!
//! Leaf futures of this crate count their completions and yield after a budget,
//! so a coroutine whose I/O is always ready does not keep the vCPU.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::clock;
use crate::context;

/// Leaf futures that may complete in one poll.
const BUDGET: u32 = 128;
/// Tests between two readings of the clock.
const CLOCK_EVERY: u32 = 32;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(BUDGET) };
    static TESTS: Cell<u32> = const { Cell::new(0) };
}

/// A poll begins.
#[inline]
pub(crate) fn refill() {
    LEFT.set(BUDGET);
}

/// How many more leaf futures may complete in this poll; and another number from now on.
#[inline]
pub(crate) fn replace_budget(left: u32) -> u32 {
    LEFT.replace(left)
}

/// How many more leaf futures may complete in this poll.
#[inline]
pub(crate) fn budget() -> u32 {
    LEFT.get()
}

/// May a leaf future that is ready complete now? If not it has been woken and
/// returns `Pending`.
#[inline]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    let left = LEFT.get();
    if left > 0 && !need_preempt() {
        LEFT.set(left - 1);
        return Poll::Ready(());
    }
    if context::current_id().is_none() {
        // Not in a coroutine: there is nothing to give way to.
        return Poll::Ready(());
    }
    LEFT.set(BUDGET);
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Is something more urgent than the current coroutine ready on its vCPU? One
/// load; false outside a runtime.
#[inline]
#[must_use]
pub fn need_preempt() -> bool {
    match crate::host::served() {
        // SAFETY: a served vCPU exists.
        Some(vcpu) => unsafe { vcpu.as_ref() }.need_preempt(),
        None => false,
    }
}

/// [`need_preempt`], and now and then the clock.
#[inline]
fn should_yield() -> bool {
    if need_preempt() {
        return true;
    }
    let tests = TESTS.get().wrapping_add(1);
    TESTS.set(tests);
    tests.is_multiple_of(CLOCK_EVERY) && overrun()
}

#[cold]
fn overrun() -> bool {
    context::with(|worker| {
        let ran = clock::ticks().saturating_sub(worker.executor.clock());
        (ran > worker.reap_ticks && worker.ring.has_completions())
            || (ran > worker.quantum_ticks && worker.executor.bitmap() != 0)
            || worker.timer_is_due()
            || worker.is_outranked()
    })
    .unwrap_or(false)
}

/// Gives way if something at least as urgent waits: to the more urgent at once, to
/// due timers and completed I/O soon, to equals when the poll has used its
/// quantum. Put it
/// into loops that compute; it costs about a nanosecond.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let mut sum = 0u64;
/// for n in 0..100_000u64 {
///     sum = sum.wrapping_add(n * n);
///     upshift::yield_if_needed().await;
/// }
/// # assert!(sum > 0);
/// # });
/// ```
#[inline]
pub fn yield_if_needed() -> YieldIfNeeded {
    YieldIfNeeded {
        yielded: !should_yield(),
    }
}

/// Goes to the tail of the coroutine's level, so that equals run first.
#[inline]
pub fn yield_now() -> YieldIfNeeded {
    YieldIfNeeded { yielded: false }
}

/// The future of [`yield_now`] and [`yield_if_needed`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct YieldIfNeeded {
    yielded: bool,
}

impl Future for YieldIfNeeded {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
