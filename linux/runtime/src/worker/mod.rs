//! The loop of a vCPU, which polls ready coroutines and runs the vCPU's ring (io_uring or its
//! replacement by epoll). On an *inline* vCPU, one thread does both.
//!
//! ```text
//!   ┌─► reap the ring, expire timers ─► pick ─► poll ─┐
//!   │        ▲                            ▲           │
//!   │        └── completions or           └───────────┤ more ready
//!   │            submissions are due                  │
//!   └──────── one enter: submit and wait ◄─────────────┘ nothing ready
//! ```
//!
//! I/O that coroutines request is gathered. The vCPU submits it before it polls anything less
//! urgent, or else when it next reaps the ring, that is, processes its completions. Such a visit to
//! the ring is called a *pass*.
//!
//! An urgent completion waits for at most one poll and the reap interval. The vCPU checks for
//! completions after every poll, at the cost of a few loads. It reaps them when the reap interval
//! has passed or enough coroutines have run, so that under load one system call serves many
//! requests. An idle vCPU reaps at once. Completions that are no more urgent than the ready
//! coroutines are queued behind these coroutines, however soon they are reaped. So while all I/O in
//! flight has such levels, the vCPU reaps only every five intervals.
//!
//! A vCPU that another vCPU has recently woken spins for a bounded time before it parks. A wake
//! that comes during the spin costs only a cache miss, instead of a system call and the start of a
//! halted CPU.
//!
//! # Writers and readers
//!
//! One thread at a time uses a [`Worker`]: the thread of an inline vCPU, or the current thread of a
//! preemptible vCPU. The table shows who writes and who reads each part; "this thread" is the
//! thread that uses the worker:
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `executor` | this thread; inbox, and bits of its levels: all | all: bitmap, clock, parked |
//! | `ring` | this thread, or a thread that stands in; its mailbox: all | the same |
//! | `timers` | all, under their lock | all; the next deadline without it |
//! | `shared` | see [`Shared`] | all |
//! | `meter` | this thread | metrics, the watchdog |
//! | `pace`, `post` | set once | this thread |
//! | `outbox` | this thread, in polls and passes | this thread, between polls |
//! | `neighbours` | this thread, while it idles | this thread, and those that stand in |
//! | `is_ending` | the thread that drops the runtime, and serves the vCPU then | this thread |
//! | `preemptible` | set once, before the first poll | this thread |
//! | `stop` | the thread that releases the vCPU, once | this thread |

mod io;
mod outbox;
mod outranked;
pub(crate) mod threads;
mod wait;

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use upshift_core::{CoroutineId, Executor, Picked, Polled, Running, Yielded};
use upshift_ring::Ring;

use crate::board::Post;
use crate::context;
use crate::coroutine::budget;
use crate::host::{Linux, PreemptibleVcpu};
use crate::metrics::Meter;
use crate::preempt::permit;
use crate::runtime::shared::Shared;
use crate::stand_in::Neighbours;
use crate::stand_in::arrivals::StandInGuard;
use crate::time::clock;
use crate::time::timers::Timers;
use crate::trace::recorder::Recorder;
use crate::user_code::deferred;
use outbox::Outbox;
pub(crate) use wait::{ENDING_WAIT, Spin};

/// After this number of polls, a vCPU enters the ring if completions or submissions wait.
pub(crate) const POLLS_PER_REAP: u32 = 64;

/// Reap intervals after which a vCPU enters the ring even if no completion can be more urgent than
/// the ready coroutines. With longer waits, a waiting client is woken for several replies at once,
/// but beyond five intervals the CPU time per request does not fall any further.
const REAP_INTERVALS: u64 = 5;

/// Returns the bitmap of the levels that are more urgent than `level`.
fn more_urgent_than(level: u8) -> u64 {
    (1 << level) - 1
}

pub(crate) struct Worker {
    executor: Executor<Linux>,
    ring: Ring,
    timers: Arc<Timers>,
    shared: Arc<Shared>,
    meter: Arc<Meter>,
    pace: Pace,
    outbox: Outbox,
    neighbours: Neighbours,
    /// Set while the runtime is being dropped. Waits are then short, because coroutines that this
    /// vCPU waits for may exit on another vCPU, which does not notify this one.
    is_ending: Cell<bool>,
    /// The threads of the vCPU, if its polls can be interrupted.
    preemptible: OnceCell<Arc<dyn PreemptibleVcpu>>,
    stop: Arc<AtomicBool>,
    /// Connection to the board, through which other processes of the machine see the vCPU's levels.
    post: Option<Post>,
}

/// Times of the configuration, in ticks.
pub(crate) struct Pace {
    /// The longest run of a coroutine before it goes to the tail of its level.
    pub(crate) quantum: u64,
    /// The interval between two reaps while coroutines are ready.
    pub(crate) reap: u64,
    /// The interval between two readings of the clock within a poll.
    pub(crate) look: u64,
    /// The longest time that a poll may spend on pieces of a transfer.
    pub(crate) share: u64,
}

impl Pace {
    fn new(quantum: Duration, reap_interval: Duration) -> Pace {
        Pace {
            quantum: clock::to_ticks(quantum),
            reap: clock::to_ticks(reap_interval),
            look: clock::to_ticks(reap_interval / 4).max(1),
            share: clock::to_ticks(budget::SHARE),
        }
    }
}

/// Condition that ends the service of a vCPU. It is not generic over a future or a closure, so that
/// a program has a single instance of each loop, with everything inlined.
#[derive(Clone, Copy)]
pub(crate) enum Until<'a> {
    Set(&'a Cell<bool>),
    True(&'a dyn Fn() -> bool),
}

impl Until<'_> {
    #[inline]
    fn is_met(self) -> bool {
        match self {
            Until::Set(flag) => flag.get(),
            Until::True(condition) => condition(),
        }
    }
}

/// The steps in which the loops of inline and preemptible vCPUs differ. `back` is the coroutine
/// that has just yielded, if it is not queued yet.
pub(crate) trait VcpuKind<'a> {
    /// Whether several threads share the vCPU. Such a thread has run a pass before its loop begins.
    const IS_SHARED: bool;
    /// Called before each [`pick`](VcpuKind::pick). `passed` is set if a pass has been run since
    /// the last poll or wait. Returns `Some` if the thread must leave the loop: `Some(true)` if its
    /// work is done, and `Some(false)` if another thread serves the vCPU from here on.
    fn should_leave(&mut self, passed: bool, back: &mut Option<Yielded<'a, Linux>>)
    -> Option<bool>;
    /// Returns whether completions must be reaped before the next poll, however short the last poll
    /// was.
    fn reaps_before_poll(&self) -> bool;
    /// Called before the loop runs a pass or waits.
    fn between_polls(&self);
    /// Picks the coroutine to poll next, or a suspended poll to resume.
    fn pick(
        &mut self,
        worker: &'a Worker,
        back: Option<Yielded<'a, Linux>>,
    ) -> Option<Picked<'a, Linux>>;
    /// Hands a pinned coroutine over to the thread that polls such coroutines. Returns whether that
    /// thread has been given the vCPU as well.
    fn hand_over(&mut self, pinned: Running<'a, Linux>) -> bool;
    /// Called immediately before a poll.
    fn poll_begins(&mut self);
    /// Called immediately after a poll.
    fn poll_ends(&mut self);
    /// Gives the vCPU to the thread that holds this suspended poll.
    fn resume(&mut self, id: CoroutineId, for_a_turn: bool);
    /// Called after a wait.
    fn after_wait(&mut self, worker: &'a Worker);
}

struct InlineVcpu<'a> {
    /// Held if other vCPUs may stand in while this vCPU polls.
    guard: Option<StandInGuard<'a>>,
}

impl<'a> VcpuKind<'a> for InlineVcpu<'a> {
    const IS_SHARED: bool = false;

    #[inline(always)]
    fn should_leave(&mut self, _: bool, _: &mut Option<Yielded<'a, Linux>>) -> Option<bool> {
        None
    }

    #[inline(always)]
    fn reaps_before_poll(&self) -> bool {
        false
    }

    #[inline(always)]
    fn between_polls(&self) {}

    #[inline(always)]
    fn pick(
        &mut self,
        worker: &'a Worker,
        back: Option<Yielded<'a, Linux>>,
    ) -> Option<Picked<'a, Linux>> {
        worker.executor.pick(back)
    }

    fn hand_over(&mut self, _: Running<'a, Linux>) -> bool {
        unreachable!("an inline vCPU has one thread")
    }

    #[inline(always)]
    fn poll_begins(&mut self) {
        if self.guard.is_some() {
            permit::leave();
        }
    }

    #[inline(always)]
    fn poll_ends(&mut self) {
        if self.guard.is_some() {
            permit::enter();
        }
    }

    fn resume(&mut self, _: CoroutineId, _: bool) {
        unreachable!("nothing is suspended on an inline vCPU")
    }

    #[inline(always)]
    fn after_wait(&mut self, worker: &'a Worker) {
        if self.guard.is_none() {
            self.guard = worker.allow_stand_in();
        }
    }
}

impl Worker {
    #[inline]
    pub(crate) fn executor(&self) -> &Executor<Linux> {
        &self.executor
    }

    #[inline]
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    #[inline]
    pub(crate) fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline]
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    #[inline]
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    pub(crate) fn post(&self) -> Option<&Post> {
        self.post.as_ref()
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn is_inline(&self) -> bool {
        self.preemptible.get().is_none()
    }

    pub(crate) fn set_ending(&self) {
        self.is_ending.set(true);
    }

    /// Serves the vCPU until `done` is met, which is checked after each poll and each wait.
    pub(crate) fn run(&self, done: Until<'_>) {
        if let Some(preemptible) = self.preemptible.get() {
            fence(Ordering::SeqCst);
            self.notify_watchdog();
            return preemptible.run(&|| done.is_met());
        }
        let _serving = context::serve(self);
        self.run_within(done);
    }

    /// Serves an inline vCPU as [`Worker::run`] does, on a thread that [serves](context::serve) it.
    #[inline(never)]
    pub(crate) fn run_within(&self, done: Until<'_>) {
        fence(Ordering::SeqCst);
        self.notify_watchdog();
        let guard = self.allow_stand_in();
        self.serve_as(InlineVcpu { guard }, done);
    }

    /// Runs the loop of a vCPU. Returns true if the thread that serves it is done, and false if
    /// another thread serves the vCPU from here on.
    #[inline(always)]
    pub(crate) fn serve_as<'a, K: VcpuKind<'a>>(&'a self, mut kind: K, done: Until<'_>) -> bool {
        let mut spin = Spin::default();
        let mut reaped_at = clock::ticks();
        let mut polls = 0;
        // Set if a pass has been run since the last poll or wait.
        let mut passed = K::IS_SHARED;
        let mut back: Option<Yielded<'a, Linux>> = None;
        loop {
            if K::IS_SHARED
                && let Some(is_done) = kind.should_leave(passed, &mut back)
            {
                return is_done;
            }
            if self.submissions_are_urgent(back.as_ref()) || kind.reaps_before_poll() {
                kind.between_polls();
                self.run_pass();
                reaped_at = self.executor.clock();
                polls = 0;
            }
            if self.yields_to_others(back.as_ref()) {
                if done.is_met() {
                    return true;
                }
                reaped_at = self.executor.clock();
                polls = 0;
                passed = false;
                continue;
            }
            match kind.pick(self, back.take()) {
                Some(Picked::Poll(running)) => {
                    if K::IS_SHARED && running.is_pinned() {
                        if kind.hand_over(running) {
                            return false;
                        }
                        continue;
                    }
                    budget::refill();
                    self.publish(running.level().get());
                    kind.poll_begins();
                    let polled = running.poll();
                    kind.poll_ends();
                    if let Polled::Yielded(yielded) = polled {
                        back = Some(yielded);
                    }
                    polls += 1;
                    passed = false;
                    if polls >= POLLS_PER_REAP || self.reap_is_due(reaped_at, back.is_some()) {
                        kind.between_polls();
                        self.run_pass();
                        reaped_at = self.executor.clock();
                        polls = 0;
                    }
                    if done.is_met() {
                        return true;
                    }
                }
                Some(Picked::Resume { id, for_a_turn }) => {
                    kind.resume(id, for_a_turn);
                    return false;
                }
                None => {
                    polls = 0;
                    // At most one pass per wait, because the ring's flag may be stale. The kernel
                    // sets the flag after it has added work, and this thread may have fetched that
                    // work in between. The flag then stays set until more work arrives, and only a
                    // wait in the kernel can tell.
                    if !passed && (self.ring_is_due() || self.timer_is_due()) {
                        kind.between_polls();
                        self.run_pass();
                        passed = true;
                    } else if done.is_met() {
                        return true;
                    } else {
                        kind.between_polls();
                        self.wait(&mut spin);
                        kind.after_wait(self);
                        passed = false;
                    }
                    reaped_at = self.executor.clock();
                }
            }
        }
    }

    /// Completes the cancellation of the operations whose futures were dropped last. Without this,
    /// a receive in flight would keep its socket open, because the kernel cancels the receive only
    /// on request, and confirms this by a completion. Polls nothing. Only for an inline vCPU, after
    /// [`Worker::run`].
    pub(crate) fn complete_cancellations(&self) {
        let _entered = context::enter(self);
        // The first pass submits the cancellation, the second one reaps its completion.
        for _ in 0..2 {
            if self.ring.is_due(true) {
                self.run_pass();
            }
        }
    }

    fn allow_stand_in(&self) -> Option<StandInGuard<'_>> {
        if self.executor.domain().active_vcpus() < 2 {
            return None;
        }
        let index = self.executor.index();
        self.neighbours
            .allow_stand_in(&self.shared.access, index, &self.ring)
    }

    /// Returns whether I/O must be submitted before the next poll, because a more urgent coroutine
    /// has requested it, or there are enough reads to keep a device busy.
    #[inline]
    pub(crate) fn submissions_are_urgent(&self, back: Option<&Yielded<'_, Linux>>) -> bool {
        !self.outbox.is_empty() && self.outbox.must_submit_before(self.next_level(back))
    }

    /// Returns whether it is time to reap the ring and the timers, or to look at the other vCPUs.
    /// Called after a poll; the last reap was at the tick `reaped_at`. Reads the clock itself,
    /// because the executor's clock still shows the beginning of the poll, so that arrivals during
    /// the poll would wait for another poll. `gave_way` is set if the poll yielded, because it may
    /// have done so to let the ring be reaped.
    #[inline(always)]
    pub(crate) fn reap_is_due(&self, reaped_at: u64, gave_way: bool) -> bool {
        let may_have_work = self.ring.is_due(true) || self.timers.next_deadline().is_some();
        (may_have_work && self.is_reap_interval_over(reaped_at, gave_way))
            || self.executor.is_look_due()
    }

    #[inline(never)]
    fn is_reap_interval_over(&self, reaped_at: u64, gave_way: bool) -> bool {
        let elapsed = clock::ticks().wrapping_sub(reaped_at);
        elapsed >= self.pace.reap
            // If there is nothing to poll next, the loop is about to enter the ring anyway, and
            // reaps and waits with the same call.
            && (gave_way || self.executor.bitmap() != 0 || self.executor.has_arrivals())
            && (gave_way
                || elapsed >= self.pace.reap.saturating_mul(REAP_INTERVALS)
                || self.reap_may_be_urgent()
                || self.timer_is_due())
    }

    /// Returns whether a completion may be more urgent than the ready coroutines, or may wake a
    /// coroutine that an idle vCPU can steal.
    fn reap_may_be_urgent(&self) -> bool {
        let ready = self.executor.bitmap();
        // With no coroutine ready, every level counts as more urgent.
        let more_urgent = (ready & ready.wrapping_neg()).wrapping_sub(1);
        self.ring.levels_in_flight() & more_urgent != 0 || self.executor.domain().idle_vcpus() != 0
    }

    /// Returns the most urgent level with a coroutine to poll; 64 if there is none.
    #[inline]
    fn next_level(&self, back: Option<&Yielded<'_, Linux>>) -> u8 {
        let ready = self.executor.bitmap().trailing_zeros() as u8;
        back.map_or(ready, |back| ready.min(back.level().get()))
    }

    #[inline]
    pub(crate) fn ring_is_due(&self) -> bool {
        self.ring.is_due(false)
    }

    pub(crate) fn timer_is_due(&self) -> bool {
        self.timers
            .next_deadline()
            .is_some_and(|deadline| deadline <= clock::now())
    }

    /// Submits I/O, reaps all completions into the ready queues, and expires timers.
    pub(crate) fn run_pass(&self) {
        self.outbox.clear();
        self.neighbours.end_stand_in();
        if self.ring.is_due(true)
            && let Err(error) = self.ring.submit()
        {
            self.shared.report(&error);
        }
        self.executor.refresh_clock();
        self.reap();
        self.meter.publish(&self.ring);
        self.expire();
        if self.executor.is_look_due() {
            self.look_around();
        }
    }

    fn reap(&self) {
        let index = self.executor.index();
        self.recorder().reaped(index, || self.ring.reap());
        if self.ring.has_deferred() {
            deferred::run(self.executor.domain(), self.ring.take_deferred());
        }
    }

    fn expire(&self) {
        if self.timers.next_deadline().is_some() {
            let mut calls = Vec::new();
            self.timers.expire(clock::now(), |call| calls.push(call));
            if !calls.is_empty() {
                deferred::run(self.executor.domain(), calls);
            }
        }
    }

    fn recorder(&self) -> &Recorder {
        self.shared.domain.host().recorder()
    }

    /// Tells the watchdog that polls begin again. Must be called after a full barrier (a fence, or
    /// the barrier in `unpark`).
    #[inline]
    pub(crate) fn notify_watchdog(&self) {
        if let Some(monitor) = self.shared.monitor.get() {
            monitor.notify_vcpu_wake();
        }
    }

    pub(crate) fn polls_pinned_here(&self) -> bool {
        let preemptible = self.preemptible.get();
        preemptible.is_none_or(|preemptible| preemptible.polls_pinned_here())
    }

    pub(crate) fn has_stopped_polls(&self) -> bool {
        let preemptible = self.preemptible.get();
        preemptible.is_some_and(|preemptible| preemptible.has_stopped_polls())
    }

    /// Takes the vCPU out of service. Its pinned coroutines are cancelled, and its other coroutines
    /// move to other vCPUs. The operations on the ring are cancelled, and the ring is drained and
    /// closed.
    ///
    /// Returns false, and leaks the vCPU, if a stopped poll has not ended, or if there is still a
    /// future that only the thread of `block_on`, which has ended, may drop.
    pub(crate) fn retire(self: Box<Worker>) -> bool {
        // Done before the vCPU's threads end, so that no thread stays elevated, and the daemon does
        // not see a dispatcher vanish.
        if let Some(membership) = &self.shared.membership {
            membership.withdraw(self.executor.index());
        }
        if let Some(preemptible) = self.preemptible.get()
            && (!preemptible.end() || (preemptible.has_main_thread() && self.executor.has_pinned()))
        {
            std::mem::forget(self);
            return false;
        }
        let _serving = context::serve(&self);
        self.executor.retire();
        self.timers.close();
        self.ring.shutdown();
        self.meter.publish(&self.ring);
        self.meter.leave_service();
        let index = self.executor.index();
        self.shared.access.set(index, None);
        self.shared.domain.host().set_remote(index, None);
        true
    }
}
