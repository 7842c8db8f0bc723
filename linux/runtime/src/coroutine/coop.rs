//! Giving way: the preemption test of inline vCPUs, and the budget of leaf
//! futures.
//!
//! An inline vCPU is cooperative: nothing interrupts a poll. So the test for
//! *something more urgent waits* must be cheap enough to stand in every loop. It
//! has two parts:
//!
//! * [`need_preempt`]: two loads of words that a wake of something more urgent
//!   sets. Under 2 ns, no system call.
//! * Now and then the clock: a due timer, or a completion that has waited in
//!   the ring for the reap interval, gets the poll to give way, for it may make
//!   something more urgent ready; and a poll longer than the quantum gives way to
//!   its equals. So does another process that the board says is more urgent.
//!
//! How many tests there are between two looks at the clock follows from how long they
//! took: a poll begins with a look at its first test, and each look sets the number so that the next
//! one comes after about a quarter of the reap interval (5 µs), at most 32 tests and at most
//! twice as many as before. A loop that tests each nanosecond looks at each
//! 32nd test, one that tests each 10 µs at each.
//!
//! Leaf futures of this crate count their completions and yield after a budget,
//! so a coroutine whose I/O is always ready does not keep the vCPU. Pieces of long
//! transfers take microseconds each: [`poll_piece`] has the clock looked at before each one,
//! and ends a poll that has had its share.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::context;
use crate::coroutine::budget::{self, BUDGET, Budget, LEAVES};
use crate::host;
use crate::time::clock;
use crate::worker::Worker;

/// The most tests between two looks at the clock.
const MOST_TESTS: u32 = 32;

/// Why a poll should give way, and so where its coroutine goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GiveWay {
    /// To what is more urgent, or may be when it has been reaped: it goes on before its equals, until its quantum is used.
    InPlace,
    /// To its equals: to the tail of its level.
    ToTail,
}

/// May a leaf future that is ready complete now? If not it has been woken and
/// returns `Pending`.
#[inline]
pub(crate) fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    let left = budget::left();
    if left > 0 && !need_preempt() {
        budget::replace(left - 1);
        return Poll::Ready(());
    }
    if host::current_id().is_none() {
        // Not in a coroutine: there is nothing to give way to.
        return Poll::Ready(());
    }
    budget::replace(LEAVES);
    cx.waker().wake_by_ref();
    if left > 0 {
        keep_place();
    }
    Poll::Pending
}

/// The poll, which has just woken its own coroutine, gives way in place, unless its turn has used its quantum.
#[cold]
fn keep_place() {
    let now = clock::ticks();
    context::with(|worker| {
        if !is_quantum_used(worker, now) {
            worker.executor().keep_place();
        }
    });
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

/// A leaf future has done work in place, a read of the page cache for one. If the poll should give way, no other one completes in it.
#[inline]
pub(crate) fn charge() {
    if should_yield().is_some() {
        budget::replace(0);
    }
}

/// Looks at the clock, and says when to look again.
#[cold]
fn look(budget: &Budget) -> Option<GiveWay> {
    budget.tests.set(1);
    let now = clock::ticks();
    context::with(|worker| {
        // The first look of a poll is not longer ago than its beginning.
        let before = budget.looked.replace(now).max(worker.executor().clock());
        let took = now.saturating_sub(before).max(1);
        let step = budget.step.get();
        let fit = u64::from(step).saturating_mul(worker.pace().look) / took;
        let step = fit.clamp(1, u64::from((2 * step).min(MOST_TESTS))) as u32;
        budget.step.set(step);
        budget.tests.set(step);
        is_overrun(worker, now)
    })
    .flatten()
}

/// Does something wait that only the clock tells of?
fn is_overrun(worker: &Worker, now: u64) -> Option<GiveWay> {
    if is_quantum_used(worker, now) && worker.executor().bitmap() != 0 {
        return Some(GiveWay::ToTail);
    }
    let ran = now.saturating_sub(worker.executor().clock());
    let waits = (ran > worker.pace().reap && worker.ring().has_arrivals())
        || worker.timer_is_due()
        || worker.is_outranked();
    waits.then_some(GiveWay::InPlace)
}

/// Has the coroutine run for its quantum since it last went to the tail of its level?
fn is_quantum_used(worker: &Worker, now: u64) -> bool {
    now.saturating_sub(worker.executor().turn_began()) > worker.pace().quantum
}

/// May the next piece of a long transfer, which takes microseconds, be done in this poll?
/// If not, because something waits or the poll has had its share of 100 µs, the coroutine has
/// been woken, and this is `Pending` for the rest of the poll.
///
/// For bodies and writers, which are polled by others:
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
    if host::current_id().is_none() || !(need_preempt() || is_piece_too_much()) {
        return Poll::Ready(());
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// [`poll_piece`] of transfers with pieces so short that it costs something: the first one in a poll is not asked about. `in_poll` is
/// when the poll of the last piece began.
#[cfg(feature = "hyper")]
#[inline]
pub(crate) fn poll_next_piece(cx: &mut Context<'_>, in_poll: &mut u64) -> Poll<()> {
    let began = context::with(|worker| worker.executor().clock()).unwrap_or(0);
    if *in_poll != began {
        *in_poll = began;
        return Poll::Ready(());
    }
    poll_piece(cx)
}

fn is_piece_too_much() -> bool {
    let now = clock::ticks();
    context::with(|worker| {
        let ran = now.saturating_sub(worker.executor().clock());
        ran > worker.pace().share || is_overrun(worker, now).is_some()
    })
    .unwrap_or(false)
}

/// Gives way if something at least as urgent waits: to the more urgent at once, to
/// due timers and completed I/O soon, to equals when the coroutine has used its
/// quantum. Put it
/// into loops that compute; it costs about a nanosecond.
///
/// What gives way to the more urgent keeps its place: it goes on before its equals, as a thread of `SCHED_FIFO` does, until it has
/// used its quantum; then it goes to the tail of its level. So requests that compute are finished one after the other, however many
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
        Some(why) => YieldIfNeeded {
            yielded: false,
            in_place: why == GiveWay::InPlace,
        },
    }
}

/// Goes to the tail of the coroutine's level, so that equals run first.
#[inline]
pub fn yield_now() -> YieldIfNeeded {
    YieldIfNeeded {
        yielded: false,
        in_place: false,
    }
}

/// The future of [`yield_now`] and [`yield_if_needed`].
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
