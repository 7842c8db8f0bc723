//! Ends polls early so that other coroutines can run; a poll that does so *gives way*. There are
//! two means: a preemption test for loops on vCPUs that cannot interrupt a poll, and a budget of
//! leaf futures.
//!
//! On an inline vCPU nothing interrupts a poll. So the test whether something more urgent waits
//! must be cheap enough for every loop. The test has two parts:
//!
//! * [`need_preempt`] loads a few words that a more urgent wake sets. It makes no system call.
//! * Now and then the test reads the clock. A due timer, or a completion that has waited in the
//!   ring for the reap interval, makes the poll give way, since either may make something more
//!   urgent ready. So does another process that is more urgent according to the board. A poll
//!   longer than the quantum gives way to its equals.
//!
//! A poll reads the clock at its first test. At each reading, the number of tests until the next
//! one is set so that the next reading comes after about a quarter of the reap interval. A
//! quarter is 5 µs by default. The number is at most 32, and at most twice the previous number. A
//! loop that tests every nanosecond reads the clock at every 32nd test; a loop that tests every
//! 10 µs reads it at every test.
//!
//! Leaf futures of this crate count their completions and yield when the budget is used up, so a
//! coroutine whose I/O is always ready does not keep the vCPU. Pieces of long transfers take
//! microseconds each, so [`poll_piece`] reads the clock before each piece, and ends a poll that has
//! used its share.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::context;
use crate::coroutine::budget::{self, BUDGET, Budget, LEAVES};
use crate::host;
use crate::time::clock;
use crate::worker::Worker;

/// Largest number of tests between two readings of the clock.
const MAX_TESTS: u32 = 32;

/// The place that a coroutine takes in the queue of its level when its poll gives way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GiveWay {
    /// At the head, unless its quantum is used up. The poll gives way to something more urgent, or
    /// to arrivals that may be more urgent.
    InPlace,
    /// At the tail. The poll gives way to its equals.
    ToTail,
}

/// Returns `Ready` if a leaf future that is ready may complete now. Otherwise wakes the coroutine,
/// and the leaf future must return `Pending`.
#[inline]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    let left = budget::remaining();
    if left > 0 && !need_preempt() {
        budget::replace(left - 1);
        return Poll::Ready(());
    }
    if host::current_id().is_none() {
        // Outside of coroutines there is nothing to give way to.
        return Poll::Ready(());
    }
    budget::replace(LEAVES);
    cx.waker().wake_by_ref();
    if left > 0 {
        keep_place();
    }
    Poll::Pending
}

/// Makes the poll, which has just woken its own coroutine, give way in place, unless the coroutine
/// has used up its quantum.
#[cold]
fn keep_place() {
    let now = clock::ticks();
    context::with(|worker| {
        if !is_quantum_used(worker, now) {
            worker.executor().keep_place();
        }
    });
}

/// Returns whether something more urgent than the current coroutine is ready on its vCPU. Costs a
/// few loads; false outside a runtime.
///
/// ```
/// use upshift::Level;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// assert!(!upshift::need_preempt());
/// let urgent = upshift::spawn(async {}, Level::at::<2>());
/// assert!(upshift::need_preempt());
/// upshift::yield_if_needed().await;
/// assert!(urgent.is_finished() && !upshift::need_preempt());
/// # });
/// ```
#[inline]
#[must_use]
pub fn need_preempt() -> bool {
    match crate::host::served_vcpu() {
        // SAFETY: the pointer is valid, because a vCPU exists while a thread serves it.
        Some(vcpu) => unsafe { vcpu.as_ref() }.need_preempt(),
        None => false,
    }
}

/// Tests [`need_preempt`], and reads the clock now and then. Returns how the poll should give way,
/// if it should.
#[inline]
fn should_yield() -> Option<GiveWay> {
    if need_preempt() {
        return Some(GiveWay::InPlace);
    }
    BUDGET.with(|budget| {
        let left = budget.tests.get() - 1;
        budget.tests.set(left);
        if left == 0 { look(budget) } else { None }
    })
}

/// Counts work that a leaf future has done within the poll, such as a read from the page cache. If
/// the poll should give way, no other leaf future completes in it.
#[inline]
pub(crate) fn charge() {
    if should_yield().is_some() {
        budget::replace(0);
    }
}

/// Reads the clock, and plans the next reading. Returns how the poll should give way, if it should.
#[cold]
fn look(budget: &Budget) -> Option<GiveWay> {
    budget.tests.set(1);
    let now = clock::ticks();
    context::with(|worker| {
        // The poll may have begun after the last reading.
        let previous = budget
            .last_reading
            .replace(now)
            .max(worker.executor().clock());
        let elapsed = now.saturating_sub(previous).max(1);
        let step = budget.step.get();
        let max_step = u64::from(step).saturating_mul(worker.pace().look) / elapsed;
        let step = max_step.clamp(1, u64::from((2 * step).min(MAX_TESTS))) as u32;
        budget.step.set(step);
        budget.tests.set(step);
        is_overrun(worker, now)
    })
    .flatten()
}

/// Returns how the poll should give way, if there is a reason that only the clock reveals: the
/// coroutine's quantum is used up, a timer is due, a completion has waited too long, or another
/// process goes first.
fn is_overrun(worker: &Worker, now: u64) -> Option<GiveWay> {
    if is_quantum_used(worker, now) && worker.executor().bitmap() != 0 {
        return Some(GiveWay::ToTail);
    }
    let run_time = now.saturating_sub(worker.executor().clock());
    let something_waits = (run_time > worker.pace().reap && worker.ring().has_arrivals())
        || worker.timer_is_due()
        || worker.is_outranked();
    something_waits.then_some(GiveWay::InPlace)
}

fn is_quantum_used(worker: &Worker, now: u64) -> bool {
    now.saturating_sub(worker.executor().quantum_began()) > worker.pace().quantum
}

/// Returns `Ready` if the next piece of a long transfer, which takes microseconds, may be done in
/// this poll. If something waits, or the poll has spent 100 µs, wakes the coroutine instead, and
/// returns `Pending` for the rest of the poll.
///
/// Meant for bodies and writers, which other code polls:
///
/// ```
/// # use std::task::{Context, Poll, ready};
/// # fn next_piece() -> Option<Vec<u8>> { None }
/// fn poll_chunk(cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
///     ready!(upshift::task::poll_piece(cx));
///     Poll::Ready(next_piece())
/// }
/// ```
#[inline]
pub fn poll_piece(cx: &mut Context<'_>) -> Poll<()> {
    if host::current_id().is_none() || !(need_preempt() || must_end_poll()) {
        return Poll::Ready(());
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Does the same as [`poll_piece`], but the first piece in a poll is always done, without a test.
/// Used for transfers whose pieces are so short that the cost of `poll_piece` matters. `last_poll`
/// is the tick at which the poll that did the last piece began.
#[cfg(feature = "hyper")]
#[inline]
pub(crate) fn poll_next_piece(cx: &mut Context<'_>, last_poll: &mut u64) -> Poll<()> {
    let began = context::with(|worker| worker.executor().clock()).unwrap_or(0);
    if *last_poll != began {
        *last_poll = began;
        return Poll::Ready(());
    }
    poll_piece(cx)
}

fn must_end_poll() -> bool {
    let now = clock::ticks();
    context::with(|worker| {
        let run_time = now.saturating_sub(worker.executor().clock());
        run_time > worker.pace().share || is_overrun(worker, now).is_some()
    })
    .unwrap_or(false)
}

/// Gives way to more urgent coroutines at once, to due timers and completed I/O soon, and to equals
/// when the coroutine has used up its quantum. Put it into loops that compute; it costs about a
/// nanosecond.
///
/// A coroutine that gives way to something more urgent keeps its place. Like a thread of
/// `SCHED_FIFO`, it continues before its equals until it has used up its quantum; then it goes to
/// the tail of its level. So requests that compute are finished one after the other, however many
/// arrive meanwhile, and their data stay in the caches.
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
    match should_yield() {
        None => YieldIfNeeded {
            yielded: true,
            in_place: false,
        },
        Some(give_way) => YieldIfNeeded {
            yielded: false,
            in_place: give_way == GiveWay::InPlace,
        },
    }
}

/// Moves the coroutine to the tail of its level, so that its equals run first.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let equal = upshift::spawn(async {}, upshift::Priority::Inherit);
/// assert!(!equal.is_finished());
/// upshift::yield_now().await;
/// assert!(equal.is_finished());
/// # });
/// ```
#[inline]
pub fn yield_now() -> YieldIfNeeded {
    YieldIfNeeded {
        yielded: false,
        in_place: false,
    }
}

/// Future of [`yield_now`] and [`yield_if_needed`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct YieldIfNeeded {
    yielded: bool,
    in_place: bool,
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
        if self.in_place {
            keep_place();
        }
        Poll::Pending
    }
}
