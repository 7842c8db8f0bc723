//! The loop of an inline vCPU: one thread runs the ring and the coroutines.
//!
//! ```text
//!   ┌─► reap the ring, expire timers ─► pick ─► poll ─┐
//!   │        ▲                            ▲           │
//!   │        └── completions or           └───────────┤ more ready
//!   │            submissions are due                  │
//!   └──────── one enter: submit and wait ◄─────────────┘ nothing ready
//! ```
//!
//! What coroutines ask of the kernel is gathered, and submitted before anything
//! less urgent than they is polled, or with the next turn of the ring.
//!
//! Completions are looked at (loads only) after every poll. They are reaped when
//! the reap interval has passed or enough coroutines have run, so that under
//! load one system call serves many requests; an idle vCPU reaps at once. An
//! urgent completion therefore waits for at most one poll and the reap interval.
//! What is no more urgent than what is ready goes to the tail of its queue however soon it is
//! reaped: where all that is in flight was asked for at such levels, five intervals pass.
//!
//! Before it parks, a vCPU that has lately been woken by another one spins for a
//! bounded time: the wake then costs a cache miss instead of a system call and
//! the start of a halted CPU.
//!
//! # Writers and readers
//!
//! One thread at a time uses a [`Worker`]: that of an inline vCPU, or the current one of a
//! preemptible vCPU. Other threads write words of their own:
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `executor` | this thread; inbox and arriving bits: all | all: bitmap, clock, parked |
//! | `ring` | this thread, or one that stands in; mail: all | the same |
//! | `timers` | all, under their lock | all; the next deadline without it |
//! | `shared` | see [`Shared`] | all |
//! | `meter` | this thread | metrics, the watchdog |
//! | `pace`, `post` | set once | this thread |
//! | `outbox` | this thread, in polls and turns | this thread, between polls |
//! | `neighbours` | this thread, while it idles | this thread, and those that stand in |
//! | `is_ending` | the thread that drops the runtime, and serves it then | this thread |
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
use crate::host::{Linux, Preempted};
use crate::metrics::Meter;
use crate::preempt::permit;
use crate::runtime::shared::Shared;
use crate::stand_in::Neighbours;
use crate::stand_in::arrivals::Reachable;
use crate::time::clock;
use crate::time::timers::Timers;
use crate::trace::recorder::Recorder;
use crate::user_code::foreign;
use outbox::Outbox;
pub(crate) use wait::{ENDING_WAIT, Spin};

/// Polls before a vCPU with completions or submissions waiting enters the ring.
pub(crate) const POLLS_PER_REAP: u32 = 64;

/// After so many reap intervals a vCPU enters the ring also where nothing more urgent can come of it than is ready. Requests of 25 µs, of one
/// level, cost 8 % less CPU than with one interval, as a client that waits is woken for several replies at once; with ten no less than with five.
const REAP_INTERVALS: u64 = 5;

/// The bits of the levels before this one.
fn more_urgent_than(level: u8) -> u64 {
    (1 << level) - 1
}

/// One vCPU with the thread that serves it.
pub(crate) struct Worker {
    executor: Executor<Linux>,
    ring: Ring,
    timers: Arc<Timers>,
    shared: Arc<Shared>,
    meter: Arc<Meter>,
    pace: Pace,
    outbox: Outbox,
    neighbours: Neighbours,
    /// The runtime is being dropped: what this vCPU waits for may end on another one, which does not tell it.
    is_ending: Cell<bool>,
    /// Its threads, if polls are interrupted.
    preemptible: OnceCell<Arc<dyn Preempted>>,
    /// Set when this vCPU is to leave its service.
    stop: Arc<AtomicBool>,
    /// Where the vCPU tells the other processes of the machine what it has to do.
    post: Option<Post>,
}

/// Times of the configuration, in ticks.
pub(crate) struct Pace {
    /// The longest run of a coroutine before it goes to the tail of its level.
    pub(crate) quantum: u64,
    /// Between two reaps, beside something more urgent.
    pub(crate) reap: u64,
    /// Between two looks at the clock within a poll.
    pub(crate) look: u64,
    /// The longest time that a poll spends on pieces of a transfer.
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

/// When a vCPU need be served no longer: no type of a future or a closure, so that a program has one loop, with everything in it.
#[derive(Clone, Copy)]
pub(crate) enum Until<'a> {
    /// When this has been set.
    Set(&'a Cell<bool>),
    /// When this says so.
    Says(&'a dyn Fn() -> bool),
}

impl Until<'_> {
    #[inline]
    fn is_now(self) -> bool {
        match self {
            Until::Set(flag) => flag.get(),
            Until::Says(says) => says(),
        }
    }
}

/// The steps of the loop in which vCPUs of the two kinds differ. Each kind has a loop of its own in
/// the program.
pub(crate) trait Kind<'a> {
    /// Whether several threads share the vCPU. The loop of such a thread begins after a turn.
    const SHARES: bool;
    /// Before each pick: whether the thread leaves the loop, and then whether it is done.
    fn ends(&mut self, turned: bool, back: &mut Option<Yielded<'a, Linux>>) -> Option<bool>;
    /// Whether completions are reaped before the next poll, however short the last one was.
    fn is_prompt(&self) -> bool;
    /// Nothing is polled from here on, and the ring is looked at.
    fn is_between_polls(&self);
    /// Takes what is to be polled or resumed next.
    fn pick(
        &mut self,
        worker: &'a Worker,
        back: Option<Yielded<'a, Linux>>,
    ) -> Option<Picked<'a, Linux>>;
    /// Hands on a pinned coroutine. Returns whether the vCPU has been given to the thread that
    /// polls it.
    fn hands_on(&mut self, pinned: Running<'a, Linux>) -> bool;
    /// A poll begins.
    fn poll_begins(&mut self);
    /// The poll has ended.
    fn poll_ends(&mut self);
    /// The vCPU goes to the thread that holds this suspended poll.
    fn resumes(&mut self, id: CoroutineId, for_a_turn: bool);
    /// A wait in the ring is over.
    fn has_waited(&mut self, worker: &'a Worker);
}

/// An inline vCPU: one thread serves it, and no poll is interrupted.
struct Alone<'a> {
    /// In the middle of a poll others may stand in.
    reachable: Option<Reachable<'a>>,
}

impl<'a> Kind<'a> for Alone<'a> {
    const SHARES: bool = false;

    #[inline(always)]
    fn ends(&mut self, _: bool, _: &mut Option<Yielded<'a, Linux>>) -> Option<bool> {
        None
    }

    #[inline(always)]
    fn is_prompt(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is_between_polls(&self) {}

    #[inline(always)]
    fn pick(
        &mut self,
        worker: &'a Worker,
        back: Option<Yielded<'a, Linux>>,
    ) -> Option<Picked<'a, Linux>> {
        worker.executor.pick(back)
    }

    fn hands_on(&mut self, _: Running<'a, Linux>) -> bool {
        unreachable!("one thread polls all")
    }

    #[inline(always)]
    fn poll_begins(&mut self) {
        if self.reachable.is_some() {
            permit::leave();
        }
    }

    #[inline(always)]
    fn poll_ends(&mut self) {
        if self.reachable.is_some() {
            permit::enter();
        }
    }

    fn resumes(&mut self, _: CoroutineId, _: bool) {
        unreachable!("nothing is suspended on an inline vCPU")
    }

    #[inline(always)]
    fn has_waited(&mut self, worker: &'a Worker) {
        if self.reachable.is_none() {
            self.reachable = worker.reachable();
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

    /// Does one thread serve the vCPU, whose polls are not interrupted?
    #[cfg(feature = "test-util")]
    pub(crate) fn is_inline(&self) -> bool {
        self.preemptible.get().is_none()
    }

    /// The runtime is being dropped: from now on each wait is short.
    pub(crate) fn ends(&self) {
        self.is_ending.set(true);
    }

    /// Serves the vCPU until `done` says so, which is asked whenever a poll has
    /// ended or a wait is over.
    pub(crate) fn run(&self, done: Until<'_>) {
        if let Some(preemptible) = self.preemptible.get() {
            fence(Ordering::SeqCst);
            self.tell_watchdog();
            return preemptible.run(&|| done.is_now());
        }
        let _serving = context::serve(self);
        self.run_within(done);
    }

    /// Serves an inline vCPU as [`Worker::run`] does, on a thread that [serves](context::serve) it.
    #[inline(never)]
    pub(crate) fn run_within(&self, done: Until<'_>) {
        fence(Ordering::SeqCst);
        self.tell_watchdog();
        let reachable = self.reachable();
        self.serve_as(Alone { reachable }, done);
    }

    /// The loop of a vCPU. Returns whether the thread that serves it is done; if not, another
    /// thread serves the vCPU from here on.
    #[inline(always)]
    pub(crate) fn serve_as<'a, K: Kind<'a>>(&'a self, mut kind: K, done: Until<'_>) -> bool {
        let mut spin = Spin::default();
        let mut reaped_at = clock::ticks();
        let mut polls = 0;
        // There has been a turn since the last poll or wait.
        let mut turned = K::SHARES;
        let mut back: Option<Yielded<'a, Linux>> = None;
        loop {
            if K::SHARES
                && let Some(is_done) = kind.ends(turned, &mut back)
            {
                return is_done;
            }
            if self.submissions_are_urgent(back.as_ref()) || kind.is_prompt() {
                kind.is_between_polls();
                self.turn();
                reaped_at = self.executor.clock();
                polls = 0;
            }
            if self.yields_to_others(back.as_ref()) {
                if done.is_now() {
                    return true;
                }
                reaped_at = self.executor.clock();
                polls = 0;
                turned = false;
                continue;
            }
            match kind.pick(self, back.take()) {
                Some(Picked::Poll(running)) => {
                    if K::SHARES && running.is_pinned() {
                        match kind.hands_on(running) {
                            true => return false,
                            false => continue,
                        }
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
                    turned = false;
                    if polls >= POLLS_PER_REAP || self.reap_is_due(reaped_at, back.is_some()) {
                        kind.is_between_polls();
                        self.turn();
                        reaped_at = self.executor.clock();
                        polls = 0;
                    }
                    if done.is_now() {
                        return true;
                    }
                }
                Some(Picked::Resume { id, for_a_turn }) => {
                    kind.resumes(id, for_a_turn);
                    return false;
                }
                None => {
                    polls = 0;
                    // Once: the kernel raises the ring's flag after it has added work, and if that has been fetched by then, the
                    // flag stands for nothing until more comes. A wait can tell.
                    if !turned && (self.ring_is_due() || self.timer_is_due()) {
                        kind.is_between_polls();
                        self.turn();
                        turned = true;
                    } else if done.is_now() {
                        return true;
                    } else {
                        kind.is_between_polls();
                        self.wait(&mut spin);
                        kind.has_waited(self);
                        turned = false;
                    }
                    reaped_at = self.executor.clock();
                }
            }
        }
    }

    /// Sees to it that what was dropped last is given up: a receive under way keeps its socket open, until the kernel has been told that it is
    /// cancelled and has said so. Polls nothing. For an inline vCPU, after [`Worker::run`].
    pub(crate) fn hand_in(&self) {
        let _entered = context::enter(self);
        // One to tell it, one to hear of it.
        for _ in 0..2 {
            if self.ring.is_due(true) {
                self.turn();
            }
        }
    }

    /// The others may stand in for this vCPU, if there are others.
    fn reachable(&self) -> Option<Reachable<'_>> {
        if self.executor.domain().active_vcpus() < 2 {
            return None;
        }
        let index = self.executor.index();
        self.neighbours
            .reachable(&self.shared.reaches, index, &self.ring)
    }

    /// Has something more urgent than the next poll asked for I/O that is not
    /// submitted yet, or are there reads enough to keep a device busy? That goes first.
    #[inline]
    pub(crate) fn submissions_are_urgent(&self, back: Option<&Yielded<'_, Linux>>) -> bool {
        !self.outbox.is_empty() && self.outbox.goes_before(self.next_level(back))
    }

    /// Is it time to look at the ring and the timers, at which the last look was at tick `reaped_at`, or at the other vCPUs? After a poll: the
    /// executor's clock stands at its beginning, so what came during it would wait for another poll. One that `gave_way` may have done so for
    /// the ring.
    #[inline(always)]
    pub(crate) fn reap_is_due(&self, reaped_at: u64, gave_way: bool) -> bool {
        let waits = self.ring.is_due(true) || self.timers.next_deadline().is_some();
        (waits && self.is_reap_interval_over(reaped_at, gave_way)) || self.executor.is_look_due()
    }

    #[inline(never)]
    fn is_reap_interval_over(&self, reaped_at: u64, gave_way: bool) -> bool {
        let ago = clock::ticks().wrapping_sub(reaped_at);
        ago >= self.pace.reap
            // Without a next poll the loop comes to the ring anyway, and waits in it with the same call.
            && (gave_way || self.executor.bitmap() != 0 || self.executor.has_arrivals())
            && (gave_way
                || ago >= self.pace.reap.saturating_mul(REAP_INTERVALS)
                || self.reap_may_be_urgent()
                || self.timer_is_due())
    }

    /// May something come of the ring that is more urgent than what is ready, or that an idle vCPU could take?
    fn reap_may_be_urgent(&self) -> bool {
        let ready = self.executor.bitmap();
        // Without anything ready all levels are.
        let more_urgent = (ready & ready.wrapping_neg()).wrapping_sub(1);
        self.ring.levels_in_flight() & more_urgent != 0 || self.executor.domain().idle_vcpus() != 0
    }

    /// The most urgent level that has something to poll; 64 if none has.
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

    /// Submits, reaps all completions into the ready queues, expires timers.
    pub(crate) fn turn(&self) {
        self.outbox.is_submitted();
        self.neighbours.owner_is_back();
        if self.ring.is_due(true)
            && let Err(error) = self.ring.submit()
        {
            self.shared.report(&error);
        }
        self.executor.refresh_clock();
        self.reap();
        self.meter.show(&self.ring);
        self.expire();
        if self.executor.is_look_due() {
            self.look_around();
        }
    }

    /// Reaps all completions.
    fn reap(&self) {
        let index = self.executor.index();
        self.recorder().reaped(index, || self.ring.reap());
        if self.ring.has_foreign() {
            foreign::run(self.executor.domain(), self.ring.take_foreign());
        }
    }

    /// Wakes what the timers of this vCPU are due for.
    fn expire(&self) {
        if self.timers.next_deadline().is_some() {
            let mut late = Vec::new();
            self.timers
                .expire(clock::now(), |foreign| late.push(foreign));
            if !late.is_empty() {
                foreign::run(self.executor.domain(), late);
            }
        }
    }

    fn recorder(&self) -> &Recorder {
        self.shared.domain.host().recorder()
    }

    /// Polls begin again. After a full barrier (that of `unpark`).
    #[inline]
    pub(crate) fn tell_watchdog(&self) {
        if let Some(watch) = self.shared.watch.get() {
            watch.vcpu_wakes();
        }
    }

    /// Does the calling thread, which has this worker, poll the pinned coroutines of its vCPU?
    pub(crate) fn polls_pinned_here(&self) -> bool {
        let preemptible = self.preemptible.get();
        preemptible.is_none_or(|preemptible| preemptible.polls_pinned_here())
    }

    /// Is a poll stopped in the middle?
    pub(crate) fn has_stopped_polls(&self) -> bool {
        let preemptible = self.preemptible.get();
        preemptible.is_some_and(|preemptible| preemptible.has_stopped_polls())
    }

    /// The vCPU leaves: what is pinned to it is cancelled, the rest moves on, and
    /// the ring is cancelled, drained and closed. False: a poll is stopped in the middle that does not end, or a future is left that only
    /// the thread of `block_on`, which has gone, may drop; then the vCPU stays as it is, for ever.
    pub(crate) fn retire(self: Box<Worker>) -> bool {
        // Before its threads end: nothing is left elevated, and the daemon sees no dispatcher vanish.
        if let Some(membership) = &self.shared.membership {
            membership.forget(self.executor.index());
        }
        if let Some(preemptible) = self.preemptible.get()
            && (!preemptible.end() || (preemptible.has_main() && self.executor.has_pinned()))
        {
            std::mem::forget(self);
            return false;
        }
        let _serving = context::serve(&self);
        self.executor.retire();
        self.timers.close();
        self.ring.shutdown();
        self.meter.show(&self.ring);
        self.meter.leave_service();
        let index = self.executor.index();
        self.shared.reaches.set(index, None);
        self.shared.domain.host().set_remote(index, None);
        true
    }
}
