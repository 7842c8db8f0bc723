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

mod outranked;
pub(crate) mod threads;
mod wait;

use std::cell::{Cell, OnceCell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

#[cfg(feature = "hyper")]
use upshift_core::{CoroutineId, Level};
use upshift_core::{Executor, Picked, Polled, Yielded};
use upshift_ring::op::ReadSmall;
use upshift_ring::{
    AcceptMulti, DatagramMulti, Fd, Foreign, Operation, RecvMulti, Ring, Submission,
};

use crate::board::Post;
use crate::context;
use crate::coroutine::budget;
use crate::host::{Linux, Preempted};
use crate::metrics::Meter;
use crate::net::family::Family;
use crate::preempt::permit;
use crate::runtime::shared::Shared;
use crate::stand_in::arrivals::{Arrivals, Listening, Reachable};
use crate::time::clock;
use crate::time::timers::Timers;
use crate::trace::recorder::Recorder;
use crate::user_code::foreign;
pub(crate) use wait::{ENDING_WAIT, Spin};

/// Polls before a vCPU with completions or submissions waiting enters the ring.
pub(crate) const POLLS_PER_REAP: u32 = 64;

/// After so many reap intervals a vCPU enters the ring also where nothing more urgent can come of it than is ready. Requests of 25 µs, of one
/// level, cost 8 % less CPU than with one interval, as a client that waits is woken for several replies at once; with ten no less than with five.
const REAP_INTERVALS: u64 = 5;

/// Of [`Worker::submit_before`].
pub(crate) const NONE_WAITS: u8 = u8::MAX;

/// Reads of files that are submitted without waiting for more: the device works on them while the vCPU prepares the next. With all that are
/// ready gathered, device and vCPU work in turns: 32 reads of 4 KiB at a time with O_DIRECT, in C, 60,100 /s, by fours 75,000, by ones 76,300 with
/// a fifth more CPU (`--gather` of bench/peers/c/files.c).
const GATHERED_READS: usize = 4;

/// What a small cached file takes in a system call that many share, ns. Meanwhile nothing of the ring is seen; so as many are gathered as take no longer than may pass
/// unseen anyway: [`REAP_INTERVALS`], or one beside something more urgent.
const FILE_TIME: u128 = 3_300;

/// Small files that take one reap interval.
pub(crate) fn files_per_reap(interval: Duration) -> usize {
    let files = interval.as_nanos() / FILE_TIME;
    usize::try_from(files).map_or(Ring::SMALL_FILES, |files| files.clamp(1, Ring::SMALL_FILES))
}

/// The bits of the levels before this one.
fn more_urgent_than(level: u8) -> u64 {
    (1 << level) - 1
}

/// One vCPU with the thread that serves it.
pub(crate) struct Worker {
    pub(crate) executor: Executor<Linux>,
    pub(crate) ring: Ring,
    pub(crate) timers: Arc<Timers>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) quantum_ticks: u64,
    pub(crate) reap_ticks: u64,
    pub(crate) files_per_reap: usize,
    /// Between two looks at the clock within a poll.
    pub(crate) look_ticks: u64,
    /// What a poll may spend on pieces of a transfer.
    pub(crate) share_ticks: u64,
    /// Operations that wait to be submitted go before polls of this level and of less urgent ones; [`NONE_WAITS`] without any.
    pub(crate) submit_before: Cell<u8>,
    /// Reads of files among them.
    pub(crate) gathered_reads: Cell<usize>,
    /// Small files among them.
    pub(crate) gathered_files: Cell<usize>,
    /// A coroutine that has answered a request of this level in its poll and has its own level back: what it sends next is the reply.
    #[cfg(feature = "hyper")]
    pub(crate) replies: Cell<Option<(CoroutineId, Level)>>,
    /// When a timer of a vCPU in a long poll is due, ns, as far as the last look has shown.
    pub(crate) neighbours_deadline: Cell<Option<u64>>,
    /// Its ring as the others reach it; made when there are others.
    pub(crate) arrivals: OnceCell<Option<Arc<Arrivals>>>,
    /// What it hears of the rings of the others, by index.
    pub(crate) listening: RefCell<Vec<Option<Listening>>>,
    /// The runtime is being dropped: what this vCPU waits for may end on another one, which does not tell it.
    pub(crate) is_ending: Cell<bool>,
    /// Its threads, if polls are interrupted.
    pub(crate) preemptible: OnceCell<Arc<dyn Preempted>>,
    /// Set when this vCPU is to leave its service.
    pub(crate) stop: Arc<AtomicBool>,
    /// Where the vCPU tells the other processes of the machine what it has to do.
    pub(crate) post: Option<Post>,
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

impl Worker {
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
        let done = || done.is_now();
        fence(Ordering::SeqCst);
        self.tell_watchdog();
        let mut reachable = self.reachable();
        let mut spin = Spin::default();
        let mut reaped_at = clock::ticks();
        let mut polls = 0;
        // There has been a turn since the last poll or wait.
        let mut turned = false;
        let mut back: Option<Yielded<'_, Linux>> = None;
        loop {
            if self.submissions_are_urgent(back.as_ref()) {
                self.turn();
                reaped_at = self.executor.clock();
                polls = 0;
            }
            if self.yields_to_others(back.as_ref()) {
                if done() {
                    return;
                }
                reaped_at = self.executor.clock();
                polls = 0;
                continue;
            }
            match self.executor.pick(back.take()) {
                Some(Picked::Poll(running)) => {
                    budget::refill();
                    self.publish(running.level().get());
                    // In the middle of a poll others may stand in.
                    if reachable.is_some() {
                        permit::leave();
                    }
                    if let Polled::Yielded(yielded) = running.poll() {
                        back = Some(yielded);
                    }
                    if reachable.is_some() {
                        permit::enter();
                    }
                    polls += 1;
                    turned = false;
                    if polls >= POLLS_PER_REAP || self.reap_is_due(reaped_at, back.is_some()) {
                        self.turn();
                        reaped_at = self.executor.clock();
                        polls = 0;
                    }
                    if done() {
                        return;
                    }
                }
                Some(Picked::Resume { .. }) => {
                    unreachable!("nothing is suspended on an inline vCPU")
                }
                None => {
                    polls = 0;
                    // Once: the kernel raises the ring's flag after it has added work, and if that has been fetched by then, the
                    // flag stands for nothing until more comes. A wait can tell.
                    if !turned && (self.ring_is_due() || self.timer_is_due()) {
                        self.turn();
                        turned = true;
                    } else if done() {
                        return;
                    } else {
                        if reachable.is_none() {
                            reachable = self.reachable();
                        }
                        self.wait(&mut spin);
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
        let arrivals = self.arrivals.get_or_init(|| Arrivals::of(&self.ring));
        let reaches = &self.shared.reaches;
        let index = self.executor.index();
        arrivals
            .as_ref()
            .map(|arrivals| Reachable::begin(reaches, index, arrivals))
    }

    /// Has something more urgent than the next poll asked for I/O that is not
    /// submitted yet, or are there reads enough to keep a device busy? That goes first.
    #[inline]
    pub(crate) fn submissions_are_urgent(&self, back: Option<&Yielded<'_, Linux>>) -> bool {
        let before = self.submit_before.get();
        before != NONE_WAITS && self.next_level(back) >= before
    }

    /// Everything is about to be submitted.
    #[inline]
    fn submits(&self) {
        self.submit_before.set(NONE_WAITS);
        self.gathered_reads.set(0);
        self.gathered_files.set(0);
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
        ago >= self.reap_ticks
            // Without a next poll the loop comes to the ring anyway, and waits in it with the same call.
            && (gave_way || self.executor.bitmap() != 0 || self.executor.has_arrivals())
            && (gave_way
                || ago >= self.reap_ticks.saturating_mul(REAP_INTERVALS)
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

    /// Ends the operations on a descriptor that have lost their futures, in the middle of a poll.
    /// The caller runs the code of users that is returned.
    pub(crate) fn settle(&self, fd: &Fd) -> Vec<Foreign> {
        let index = self.executor.index();
        self.recorder().reaped(index, || self.ring.settle(fd));
        self.ring.take_foreign()
    }

    /// Is nothing more urgent than the calling coroutine in flight on the ring, and no timer due within so many ns?
    pub(crate) fn is_undisturbed(&self, time: u64) -> bool {
        let level = self.executor.running_level().unwrap_or_default().get();
        self.ring.levels_in_flight() & more_urgent_than(level) == 0
            && (self.timers.next_deadline()).is_none_or(|deadline| deadline > clock::now() + time)
    }

    /// Starts an operation at the level of the calling coroutine.
    #[inline]
    pub(crate) fn start<T: Operation>(&self, operation: T) -> Submission<T> {
        self.ring.start(operation, self.io_level())
    }

    /// Starts to send a reply, at the level of the request if that has just been answered.
    #[cfg(feature = "hyper")]
    pub(crate) fn start_reply<T: Operation>(&self, operation: T) -> Submission<T> {
        let replies = self.replies.take();
        let replies = replies.filter(|(id, _)| self.executor.current_id() == Some(*id));
        let Some((_, level)) = replies else {
            return self.start(operation);
        };
        self.ring.start(operation, self.asks_for_io(level.get()))
    }

    /// The coroutine that is being polled, which has answered a request of `level`, goes back to its own level.
    #[cfg(feature = "hyper")]
    pub(crate) fn has_answered(&self, id: CoroutineId, level: Level) {
        self.replies.set(Some((id, level)));
    }

    /// Arms a stream of received buffers at the level of the calling coroutine.
    pub(crate) fn recv_multi(&self, fd: Fd, family: Family) -> RecvMulti {
        match family {
            Family::Tcp => self.ring.recv_multi(fd, self.io_level()),
            Family::Unix => self.ring.recv_unix(fd, self.io_level()),
        }
    }

    /// Arms a stream of datagrams at the level of the calling coroutine.
    pub(crate) fn datagram_multi(&self, fd: Fd) -> DatagramMulti {
        self.ring.datagram_multi(fd, self.io_level())
    }

    /// Arms a stream of connections at the level of the calling coroutine.
    pub(crate) fn accept_multi(&self, fd: Fd) -> AcceptMulti {
        self.ring.accept_multi(fd, self.io_level())
    }

    /// The level of I/O that is asked for now; remembered until it is submitted.
    #[inline]
    fn io_level(&self) -> u8 {
        self.asks_for_io(self.executor.running_level().unwrap_or_default().get())
    }

    #[inline]
    fn asks_for_io(&self, level: u8) -> u8 {
        let before = self.submit_before.get();
        self.submit_before.set(before.min(level + 1));
        level
    }

    /// Starts to read a file at the level of the calling coroutine.
    pub(crate) fn start_read<T: Operation>(&self, operation: T) -> Submission<T> {
        let submission = self.start(operation);
        self.gather(&self.gathered_reads, GATHERED_READS);
        submission
    }

    /// May other coroutines read a small file in the same system call? Alone that costs more than the three calls that it stands for.
    pub(crate) fn shares_files(&self) -> bool {
        self.gathered_files.get() != 0 || self.executor.bitmap() != 0
    }

    /// Starts to read a small file, at the level of the calling coroutine; see [`Ring::read_small`].
    pub(crate) fn start_small(
        &self,
        path: &Path,
        waits: bool,
        ioprio: u16,
    ) -> Option<Submission<ReadSmall>> {
        let level = self.executor.running_level().unwrap_or_default().get();
        let submission = self.ring.read_small(path, waits, ioprio, level)?;
        self.asks_for_io(level);
        if self.ring.retired() != 0 {
            self.shared.report_retired();
        }
        if !waits {
            let may_pass = match self.ring.levels_in_flight() & more_urgent_than(level) {
                0 => REAP_INTERVALS as usize,
                _ => 1,
            };
            let most = (self.files_per_reap * may_pass).min(Ring::SMALL_FILES);
            self.gather(&self.gathered_files, most);
        }
        Some(submission)
    }

    /// One more has been gathered of those of which at most so many are.
    fn gather(&self, gathered: &Cell<usize>, most: usize) {
        gathered.set(gathered.get() + 1);
        if gathered.get() >= most {
            // Before whatever is polled next.
            self.submit_before.set(0);
        }
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
        self.submits();
        if let Some(Some(arrivals)) = self.arrivals.get() {
            arrivals.owner_is_back();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_are_gathered_as_one_interval_has_room_for() {
        let files = |micros| files_per_reap(Duration::from_micros(micros));
        assert_eq!([0, 1, 20, 50].map(files), [1, 1, 6, 15]);
        assert_eq!(files_per_reap(Duration::MAX), Ring::SMALL_FILES);
    }
}
