//! Serves a preemptible vCPU. To the loop in `worker`, this module adds the steps in which the
//! current thread arranges the watcher's looks at polls, and hands the vCPU over to other threads.
//!
//! The thread's permit is in use except during polls.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

use upshift_core::preempt::{TURN_LENGTH, WaitingWork};
use upshift_core::{CoroutineId, Picked, Running, Yielded};

use super::alarm::NEVER;
use super::current::with_current;
use super::roles::{FIRST, MAIN, NONE, Role};
use super::thread::Thread;
use super::vcpu::Preemptible;
use crate::coroutine::budget;
use crate::host::Linux;
use crate::time::clock;
use crate::worker::{Until, VcpuKind, Worker};

/// A preemptible vCPU, as one of its threads serves it.
struct Shared<'a> {
    vcpu: &'a Preemptible,
    worker: &'a Worker,
    thread: &'a Thread,
    number: usize,
    done: &'a dyn Fn() -> bool,
    /// Tick at which the last wait ended.
    idle_at: u64,
}

impl<'a> VcpuKind<'a> for Shared<'a> {
    const IS_SHARED: bool = true;

    fn should_leave(
        &mut self,
        passed: bool,
        back: &mut Option<Yielded<'a, Linux>>,
    ) -> Option<bool> {
        let vcpu = self.vcpu;
        let next_thread = if self.number != FIRST && vcpu.roles().role(FIRST) == Role::Free {
            FIRST
        } else if passed && self.number == FIRST && (self.done)() {
            return Some(true);
        } else if vcpu.has_pinned() && vcpu.roles().role(MAIN) == Role::Main {
            MAIN
        } else {
            return None;
        };
        drop(back.take());
        vcpu.hand_over(self.worker, next_thread).then_some(false)
    }

    /// Returns true if the ring is due and one of two conditions holds. While a poll is suspended,
    /// arrivals are reaped first, because an arrival of the same level goes before that poll.
    /// Shortly after a wait there is time to spare, and an arrival that is reaped now does not have
    /// to wait for a poll that may turn out to be long.
    fn reaps_before_poll(&self) -> bool {
        let vcpu = self.vcpu;
        let idle = self.worker.executor().clock().wrapping_sub(self.idle_at);
        (vcpu.tally.suspended.load(Relaxed) != 0 || idle < vcpu.settings.spare_time)
            && self.worker.ring_is_due()
    }

    fn between_polls(&self) {
        self.vcpu.watch().mask();
    }

    fn pick(
        &mut self,
        worker: &'a Worker,
        mut back: Option<Yielded<'a, Linux>>,
    ) -> Option<Picked<'a, Linux>> {
        let executor = worker.executor();
        if self.vcpu.handover.turn.load(Relaxed) != NONE
            && let Some(id) = self.vcpu.take_turn()
        {
            drop(back.take());
            if let Some(turn) = executor.pick_suspended(id) {
                return Some(turn);
            }
        }
        executor.pick(back)
    }

    fn hand_over(&mut self, pinned: Running<'a, Linux>) -> bool {
        self.vcpu.hand_to_main(pinned)
    }

    #[inline]
    fn poll_begins(&mut self) {
        self.vcpu.poll_begins(self.worker, self.thread);
    }

    #[inline]
    fn poll_ends(&mut self) {
        self.vcpu.poll_ends(self.thread);
    }

    fn resume(&mut self, id: CoroutineId, for_a_turn: bool) {
        let turn = if for_a_turn { TURN_LENGTH } else { 0 };
        self.vcpu.resume(self.worker, id, turn);
    }

    fn after_wait(&mut self, worker: &'a Worker) {
        self.idle_at = worker.executor().clock();
    }
}

impl Preemptible {
    /// Serves the vCPU. Returns false once it has been given to another thread, or true on the
    /// first thread when `done` returns true.
    pub(super) fn serve(&self, number: usize, done: &dyn Fn() -> bool) -> bool {
        let (worker, thread) = (self.worker(), &self.threads[number]);
        // SAFETY: this thread is current, so it alone uses the ring.
        unsafe { worker.ring().adopt() };
        self.ensure_spare();
        thread.sample_clocks(|now| self.parked(now));
        self.watch().mask();
        worker.run_pass();
        let shared = Shared {
            vcpu: self,
            worker,
            thread,
            number,
            done,
            idle_at: worker.executor().clock(),
        };
        worker.serve_as(shared, Until::True(&|| number == FIRST && done()))
    }

    /// Provides a thread that can continue the vCPU when the next poll is stopped. If the system
    /// refuses to start one, polls are not stopped.
    fn ensure_spare(&self) {
        let needs_thread = {
            let roles = self.roles();
            roles.free().is_none() && roles.count() < self.threads.len()
        };
        if needs_thread {
            let _ = self.start_another();
        }
    }

    /// Begins a poll, which may be stopped from here on.
    #[inline]
    fn poll_begins(&self, worker: &Worker, thread: &Thread) {
        thread
            .began
            .store(worker.executor().clock().max(1), Relaxed);
        compiler_fence(SeqCst);
        self.watch_over(worker);
        if thread.permit.leave() {
            Preemptible::notify_watcher();
        }
    }

    /// Ends the poll of this thread. If the poll was stopped, this function returns only after the
    /// poll has been resumed.
    #[inline]
    fn poll_ends(&self, thread: &Thread) {
        crate::preempt::permit::enter();
        thread.began.store(0, Relaxed);
        if thread.resumed.load(Relaxed) != 0 {
            thread.forget_suspension();
        }
        // Arrivals between polls are seen before the next one.
        self.watch().mask();
    }

    /// Arranges the watcher's next look at the poll: when something arrives or becomes ready, when
    /// a timer is due, and soon if something waits already. If the watcher rests, it looks only
    /// once the poll is long. Costs a few loads, and one atomic read-modify-write.
    #[inline]
    fn watch_over(&self, worker: &Worker) {
        let poll_start = worker.executor().clock();
        if self
            .alarm
            .is_resting(poll_start, self.settings.max_suspension_ticks)
        {
            return;
        }
        self.listen(worker);
        if worker.ring().has_completions() {
            return self.alarm.look_within(poll_start, self.settings.cost_ticks);
        }
        let waiting = worker.executor().bitmap() | self.pinned.levels.load(Relaxed);
        if waiting != 0 {
            let level = worker.executor().running_level().unwrap_or_default();
            let waits = match WaitingWork::most_urgent(level.get(), waiting) {
                WaitingWork::Equal if worker.executor().only_expired(level) => WaitingWork::Nothing,
                waits => waits,
            };
            self.alarm.look_within(poll_start, self.look_delay(waits));
        }
    }

    /// Returns the ticks after which the watcher looks at a poll, given the work that waits for the
    /// end of the poll. Less urgent work waits until the poll ends or sleeps.
    fn look_delay(&self, waits: WaitingWork) -> u64 {
        match waits {
            WaitingWork::Nothing => self.settings.max_suspension_ticks,
            WaitingWork::Equal | WaitingWork::Urgent => self.settings.cost_ticks,
        }
    }

    #[inline]
    pub(super) fn listen(&self, worker: &Worker) {
        if !worker.executor().has_arrival_notice() {
            worker.executor().set_arrival_notice(true);
        }
        // A full barrier. The checks that follow see earlier arrivals, and a watcher whose timer
        // has gone off sees the poll.
        self.watch().unmask();
        self.alarm
            .arm(worker.timers().next_deadline().unwrap_or(NEVER));
    }

    fn without_suspension<R>(&self, number: usize, call: impl FnOnce() -> R) -> R {
        let _critical = crate::preempt::permit::Critical::enter();
        if self.current.load(Acquire) != number {
            // Another thread has the vCPU.
            return call();
        }
        self.watch().mask();
        let result = call();
        self.watch_over(self.worker());
        result
    }

    /// Gives a pinned coroutine, and the vCPU, to the thread that polls it, and returns true. If
    /// that thread is not available, keeps the coroutine, makes the thread available as soon as
    /// possible, and returns false.
    fn hand_to_main(&self, running: Running<'_, Linux>) -> bool {
        // Stored before the role is read. If the thread comes back after that, it notifies the
        // watcher, which then sees the levels.
        self.pinned.levels.fetch_or(running.level().bit(), Release);
        // SAFETY: only the lifetime is extended, and the vCPU outlives the list. This thread alone
        // uses the list, because it is current.
        unsafe {
            let running =
                std::mem::transmute::<Running<'_, Linux>, Running<'static, Linux>>(running);
            (*self.pinned.queue.0.get()).push_back(running);
        }
        let role = self.roles().role(MAIN);
        match role {
            Role::Main => return self.give_to(MAIN),
            // The poll that is suspended on the thread for pinned coroutines is resumed first.
            Role::Suspended => self.handover.turn.store(MAIN, Relaxed),
            _ => {}
        }
        false
    }

    fn has_pinned(&self) -> bool {
        // SAFETY: this thread is current, so it alone uses the list.
        !unsafe { &*self.pinned.queue.0.get() }.is_empty()
    }

    /// Polls the coroutines that are pinned to the calling thread, which is current, and gives the
    /// vCPU back.
    pub(super) fn serve_main(&self) {
        let worker = self.worker();
        let thread = &self.threads[MAIN];
        // SAFETY: this thread is current, so it alone uses the ring.
        unsafe { worker.ring().adopt() };
        thread.sample_clocks(|now| self.parked(now));
        // SAFETY: this thread is current, so it alone uses the list.
        while let Some(running) = unsafe { (*self.pinned.queue.0.get()).pop_front() } {
            // SAFETY: as above.
            let remaining = unsafe { &*self.pinned.queue.0.get() }.iter();
            let levels = remaining.fold(0, |levels, running| levels | running.level().bit());
            self.pinned.levels.store(levels, Release);
            budget::refill();
            // This is done before the poll can be stopped, because the watcher stops the poll of
            // the executor's current coroutine, and other coroutines have been picked since this
            // one was.
            running.make_current();
            worker.publish(running.level().get());
            self.poll_begins(worker, thread);
            let polled = running.poll();
            self.poll_ends(thread);
            // A coroutine that yields goes to the tail of its level.
            drop(polled);
        }
        // Usually a thread is free: the one that gave the vCPU to this thread, or one that has been
        // current since.
        loop {
            let free = self.roles().free();
            if self.hand_over(worker, free.unwrap_or(FIRST)) {
                return;
            }
            // If every thread holds a poll, a suspended one is resumed.
            let successor = self.successor(&self.roles(), NONE);
            let id = successor.map(|successor| self.suspended_on(successor));
            if let Some(id) = id
                && worker.executor().pick_suspended(id).is_some()
            {
                return self.resume(worker, id, TURN_LENGTH);
            }
            std::thread::yield_now();
        }
    }

    /// Arranges a look because the current poll has made a coroutine of this vCPU ready, which now
    /// waits for the end of the poll.
    #[cold]
    fn look_for_waiter(&self, waits: WaitingWork) {
        let ticks = clock::ticks();
        if !self
            .alarm
            .is_resting(ticks, self.settings.max_suspension_ticks)
        {
            self.alarm.look_within(ticks, self.look_delay(waits));
        }
    }

    /// Starts a spare thread. This allocates, so only a thread of the vCPU may call it.
    fn start_another(&self) -> std::io::Result<()> {
        self.to_arc().start_spare()
    }

    /// Returns a counted reference to the vCPU. Only for threads of the vCPU.
    pub(super) fn to_arc(&self) -> Arc<Preemptible> {
        // SAFETY: `self` is in an `Arc` that came from `Arc::new`, and the runtime's worker holds a
        // reference, so the count is at least 1.
        unsafe {
            Arc::increment_strong_count(self);
            Arc::from_raw(self)
        }
    }
}

/// Notifies the vCPU that the poll of this thread has made a coroutine ready, which waits until the
/// poll ends.
#[inline]
pub(crate) fn notify_local_arrival(waits: WaitingWork) {
    with_current(|vcpu, number| {
        if vcpu.current.load(Acquire) == number {
            vcpu.look_for_waiter(waits);
        }
    });
}

/// Makes a system call of this runtime that does not wait, in the middle of a poll. Arrivals do not
/// notify the watcher during the call. They are checked for after the call.
///
/// It would not pay to interrupt such a call, which ends by itself, although a send, for example,
/// takes longer than everything else in most polls.
#[inline]
pub(crate) fn without_suspension<R>(call: impl FnOnce() -> R) -> R {
    let mut call = Some(call);
    let mut result = None;
    with_current(|vcpu, number| {
        result = call
            .take()
            .map(|call| vcpu.without_suspension(number, call))
    });
    match (result, call) {
        (Some(result), _) => result,
        (None, Some(call)) => call(),
        (None, None) => unreachable!("the call is made exactly once"),
    }
}
