//! The watcher: a thread beside each preemptible vCPU that stops polls. [`super`] explains the
//! terms.
//!
//! The watcher sleeps until its timer goes off or its eventfd is signalled. The eventfd is
//! signalled by an arrival in the ring, by a coroutine that became ready, or by the end of a use of
//! a permit (`permit.rs`) if the watcher waits for that end. Then the watcher looks at the current
//! thread and follows the [policy](upshift_core::preempt). It allocates nothing and takes no lock
//! that a poll may hold, so that a poll that is suspended in the allocator does not stop it.
//!
//! No arrival is missed. Before the watcher sleeps, it publishes that it listens, and then checks
//! once more. A thread that makes something ready first makes it ready, and then checks whether the
//! watcher listens. On both sides a full barrier separates the two steps.
//!
//! # Waiters of suspended polls
//!
//! A suspended poll may hold a lock for which others wait. Each suspended poll therefore gets turns
//! of [`TURN_LENGTH`], however urgent other work is. While a poll is blocked, or has run for
//! [`MAX_SUSPENSION`] and may be spinning, each suspended poll gets a turn within
//! [`MAX_SUSPENSION`] times the number of suspended polls. The watcher cannot see every waiter,
//! because a waiter may be a thread outside the vCPU, or a coroutine that retries in short polls.
//! So turns are given even while no waiter is visible, at intervals of
//! [`REST_LENGTH`](upshift_core::preempt::REST_LENGTH).
//!
//! The current thread may also make no progress outside of a poll, because it waits for the
//! allocator's lock, or is starting and has not used its permit yet. Suspended threads then run
//! without their permits.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use upshift_core::preempt::{Decision, MAX_SUSPENSION, Policy, RunTime, Snapshot, TURN_LENGTH};
use upshift_core::{Level, QueueEnd};
use upshift_elevate::dispatch::heavy_barrier;

use super::alarm::NEVER;
use super::roles::{FIRST, NONE, Role};
use super::suspend::{NotStopped, PollId, Stopped};
use super::thread::Thread;
use super::vcpu::Preemptible;
use crate::board::LOOK_INTERVAL;
use crate::host::PreemptibleVcpu;
use crate::preempt::interrupt;
use crate::time::clock;

/// Time for which a suspended poll that has had its turn lets other coroutines of its level go
/// first. Equal to the longest suspension.
pub(crate) const SUSPENDED_DELAY: Duration = Duration::from_nanos(MAX_SUSPENSION);

/// Nanoseconds after which a standstill for lack of threads is reported.
const STANDSTILL_LIMIT: u64 = 1_000_000_000;

/// Runs the watcher until the vCPU ends.
pub(super) fn run(vcpu: &Preemptible) {
    let mut watcher = Watcher::new(vcpu);
    while !vcpu.orders.ended.load(Acquire) {
        let by_timer = sleep(vcpu);
        watcher.look(by_timer);
    }
    // Stopped polls continue without a watcher.
    watcher.waive_permits(true);
}

/// Waits for the eventfd or the timer. Returns whether the timer alone went off.
fn sleep(vcpu: &Preemptible) -> bool {
    let mut events = [vcpu.watch().raw_fd(), vcpu.alarm.raw_fd()].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: `events` is a local array of two entries, and the length passed is two. An error is
    // ignored, because the watcher then looks anyway.
    unsafe { libc::poll(events.as_mut_ptr(), 2, -1) };
    if events[0].revents != 0 {
        vcpu.watch().clear();
    }
    if events[1].revents != 0 {
        vcpu.alarm.take();
    }
    events[0].revents == 0
}

/// Next step of the watcher after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Sleep until an event, because nothing waits.
    Rest,
    /// Look again at this time, ns.
    At(u64),
    /// Look again now, because the state has changed.
    Now,
    /// Sleep until an event, because the watcher has acted.
    Done,
}

/// Largest number of decisions in one look.
const LOOKS_AT_ONCE: usize = 4;

/// First observation of a use of a permit, or of an interval between polls, in which the current
/// thread may be stuck.
#[derive(Clone, Copy)]
struct Use {
    /// The poll, or no poll, and the vCPU's clock. While both stay the same, the use is assumed to
    /// be the same one.
    id: (PollId, u64),
    since: u64,
    /// CPU time of the thread at the observation, or when it was last made to yield, ns.
    cpu_time: u64,
    /// Set once the use has consumed [`MAX_SUSPENSION`] of CPU time.
    is_spinning: bool,
}

struct Watcher<'a> {
    vcpu: &'a Preemptible,
    policy: Policy,
    last_turn: usize,
    /// The thread whose poll was suspended last, until it is known to wait.
    last_stopped: Option<usize>,
    observed_use: Option<Use>,
    /// The poll that could not be stopped for lack of a thread, and the time of the first attempt,
    /// or NEVER once that has been reported.
    without_thread: Option<(PollId, u64)>,
    /// Tick of the last look.
    last_look: u64,
}

impl<'a> Watcher<'a> {
    fn new(vcpu: &'a Preemptible) -> Watcher<'a> {
        Watcher {
            vcpu,
            policy: Policy::new(vcpu.settings.looks, clock::now()),
            last_turn: FIRST,
            last_stopped: None,
            observed_use: None,
            without_thread: None,
            last_look: 0,
        }
    }

    fn look(&mut self, by_timer: bool) {
        let vcpu = self.vcpu;
        vcpu.counts.wakeups.fetch_add(1, Relaxed);
        // A long poll reads no clock. If the tick counter were set back during it, the poll would
        // seem to have run for no time, so the watcher corrects the counter here.
        self.last_look = clock::ticks_after(self.last_look);
        if let Some(announcer) = &vcpu.announcer {
            announcer.look();
        }
        // The signal may not have reached the stopped thread.
        vcpu.start_next();
        self.signal_stopped();
        self.suspend_awake();
        if vcpu.orders.permits_waived.load(Relaxed)
            && !(self.may_be_stuck() && self.current().is_asleep())
        {
            self.waive_permits(false);
        }
        let mut next = Next::Now;
        for _ in 0..LOOKS_AT_ONCE {
            let id = self.poll_id();
            next = self.decide(id, by_timer);
            if next == Next::Rest {
                next = self.rest(id);
            }
            if next != Next::Now {
                break;
            }
        }
        let now = clock::now();
        if next != Next::Done {
            vcpu.counts.spurious_wakeups.fetch_add(1, Relaxed);
            if !by_timer {
                self.policy.charge_look(now);
            }
        }
        vcpu.alarm.set_rest(now, self.policy.rest_end());
        let mut at = match next {
            Next::At(at) => at,
            // The state changes as fast as the watcher looks, and the other threads need the CPU.
            Next::Now => now + MAX_SUSPENSION,
            Next::Rest | Next::Done => NEVER,
        };
        // Look again later, because the signal may not have reached the stopped thread. Also,
        // pinned coroutines that were picked are in no queue, so a poll may have begun without
        // seeing them.
        if vcpu.has_stopped_polls()
            || vcpu.pinned.levels.load(Acquire) != 0
            || self.current().pending_resume(now).is_some()
        {
            at = at.min(now + self.policy.next_turn_in(now));
        }
        if vcpu.tally.suspended.load(Acquire) != 0 && self.current().is_starting() {
            at = at.min(now + TURN_LENGTH);
        }
        if vcpu.announcer.is_some() {
            at = at.min(now + clock::nanos(LOOK_INTERVAL));
        }
        vcpu.alarm.arm(at.max(now + 1));
    }

    fn current(&self) -> &'a Thread {
        &self.vcpu.threads[self.vcpu.current.load(Acquire)]
    }

    /// Returns whether the current thread is outside of polls, or about to take the vCPU, while a
    /// poll is suspended.
    fn may_be_stuck(&self) -> bool {
        let vcpu = self.vcpu;
        let current = self.current();
        vcpu.tally.suspended.load(Acquire) != 0
            && (current.began.load(Relaxed) == 0 || current.permit.in_use())
            && !vcpu.worker().executor().is_parked()
    }

    /// Returns whether the current thread seems to have slept for [`TURN_LENGTH`], or used the CPU
    /// for [`MAX_SUSPENSION`], within one use of its permit. Such a thread may depend on a
    /// suspended poll; a thread that only waits for the CPU does not.
    fn is_stuck(&mut self, id: PollId, now: u64) -> bool {
        let id = (id, self.vcpu.worker().executor().clock());
        let current = self.current();
        let is_asleep = current.is_asleep();
        if current.is_starting() && is_asleep {
            // A thread that has not begun to serve does not wait for work of the runtime, so it may
            // be waiting for a suspended poll.
            return true;
        }
        let cpu_time = current.cpu_time().unwrap_or(now);
        match &mut self.observed_use {
            Some(observed) if observed.id == id && is_asleep => now - observed.since >= TURN_LENGTH,
            Some(observed) if observed.id == id => {
                observed.is_spinning |=
                    cpu_time.saturating_sub(observed.cpu_time) >= MAX_SUSPENSION;
                observed.is_spinning
            }
            _ => {
                self.observed_use = Some(Use {
                    id,
                    since: now,
                    cpu_time,
                    is_spinning: false,
                });
                false
            }
        }
    }

    /// Makes a current thread that spins yield the CPU, once for each [`MAX_SUSPENSION`] of CPU
    /// time, in case the kernel does not share the CPU between that thread and the suspended
    /// threads.
    ///
    /// Elapsed time is not used instead, because beside other spinning threads the current thread
    /// would yield whenever it got the CPU. If the other threads spin for a lock that the current
    /// thread holds, no thread would make progress.
    fn make_spinner_yield(&mut self) {
        let current = self.current();
        if let Some(observed) = &mut self.observed_use
            && observed.is_spinning
            && let Some(cpu_time) = current.cpu_time()
            && cpu_time.saturating_sub(observed.cpu_time) >= MAX_SUSPENSION
        {
            observed.cpu_time = cpu_time;
            current.interrupt();
        }
    }

    fn poll_id(&self) -> PollId {
        let current = self.vcpu.current.load(Acquire);
        (current, self.vcpu.threads[current].began.load(Acquire))
    }

    /// Sends the signal again to the thread that was stopped last, unless that thread already
    /// waits.
    fn signal_stopped(&mut self) {
        let Some(number) = self.last_stopped else {
            return;
        };
        let thread = &self.vcpu.threads[number];
        if !thread.signal.is_open() || !thread.permit.is_revoked() || thread.awaits_permit() {
            self.last_stopped = None;
        } else {
            thread.interrupt();
        }
    }

    /// Queues the blocked polls whose threads have woken up as suspended ones.
    fn suspend_awake(&self) {
        let vcpu = self.vcpu;
        if vcpu.tally.blocked.load(Acquire) == 0 {
            return;
        }
        let mut roles = vcpu.roles();
        for number in 0..roles.count() {
            let thread = &vcpu.threads[number];
            if roles.role(number) == Role::Blocked && !thread.is_asleep() {
                vcpu.unblock(&mut roles, number);
                thread.interrupt();
            }
        }
    }

    fn decide(&mut self, id: PollId, by_timer: bool) -> Next {
        let vcpu = self.vcpu;
        let now = clock::now();
        let worker = vcpu.worker();
        let thread = &vcpu.threads[id.0];
        if vcpu.is_idle() {
            return self.decide_idle();
        }
        let level = match worker.executor().running_level() {
            Some(level) if id.1 != 0 => level,
            _ => return self.between_polls(by_timer, now),
        };
        if let Some(requested) = thread.pending_resume(now) {
            // The thread resumes its poll as soon as it gets the CPU, if it has been woken.
            if now.saturating_sub(requested) >= TURN_LENGTH {
                thread.wake_up();
                if thread.waits_in_ring.load(SeqCst) {
                    vcpu.watch().wake();
                }
            }
            return Next::At(NEVER);
        }
        let rule = vcpu.rule();
        let (run_time, may_sleep) =
            thread.run_time(vcpu.settings.cost_ticks, |now| vcpu.parked(now));
        let has_dependents =
            Policy::may_block_others(vcpu.tally.blocked.load(Acquire) != 0, run_time);
        if self.give_turn(has_dependents, now) && has_dependents {
            return self.stop(id, rule.queue_end(run_time), may_sleep, now);
        }
        let snapshot = self.snapshot(id, level, thread, run_time, now);
        let is_asleep = || may_sleep && thread.is_asleep();
        match self
            .policy
            .decide(&rule, &snapshot, by_timer, is_asleep, now)
        {
            Decision::Rest => Next::Rest,
            Decision::Later { wait, listens } => {
                if !listens {
                    vcpu.watch().mask();
                } else {
                    self.listen();
                    // Something more urgent may have arrived.
                    if self
                        .snapshot(id, level, thread, run_time, now)
                        .waiting_work()
                        > snapshot.waiting_work()
                    {
                        return Next::Now;
                    }
                }
                Next::At(now + wait)
            }
            // If the program has replaced the handler, the stopped thread would keep running beside
            // the next one.
            Decision::Suspend(_) if interrupt::is_replaced() => Next::Rest,
            Decision::Suspend(place) => self.stop(id, place, may_sleep, now),
            Decision::SetAside => self.stop(id, QueueEnd::Head, true, now),
        }
    }

    fn snapshot(
        &self,
        id: PollId,
        level: Level,
        thread: &Thread,
        run_time: RunTime,
        now: u64,
    ) -> Snapshot {
        let executor = &self.vcpu.worker().executor();
        let hidden = self.hidden_levels(now);
        Snapshot {
            poll: id.1,
            level: level.get(),
            ran: run_time,
            was_suspended: thread.resumed.load(Relaxed) != 0,
            turn: thread.turn.load(Relaxed),
            waiting: executor.bitmap() | hidden,
            only_expired: hidden & level.bit() == 0 && executor.only_expired(level),
            idle_vcpu_could_run: self.waits_beside_an_idle_vcpu(),
            expects_urgent: self.vcpu.watch().levels_in_flight() & level.more_urgent_bits() != 0,
            any_suspended: self.vcpu.tally.suspended.load(Acquire) != 0,
        }
    }

    /// Returns the levels of work that is in no queue: arrivals, and coroutines that wait for the
    /// thread that they are pinned to.
    fn hidden_levels(&self, now: u64) -> u64 {
        let watch = self.vcpu.watch();
        let pinned = self.vcpu.waiting_pinned_levels();
        let timers = &self.vcpu.worker().timers();
        if timers
            .next_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            // The level of the coroutine that the timer wakes is not known.
            return u64::MAX;
        }
        if watch.has_arrivals() {
            pinned | watch.levels_in_flight()
        } else {
            pinned
        }
    }

    /// Returns whether an idle vCPU could run an arrival of any level once it has been reaped.
    fn waits_beside_an_idle_vcpu(&self) -> bool {
        let domain = self.vcpu.worker().executor().domain();
        domain.active_vcpus() > 1 && self.vcpu.watch().has_arrivals() && domain.idle_vcpus() != 0
    }

    /// Decides for a current thread that waits outside of the ring, because the ring's thread holds
    /// a stopped poll.
    fn decide_idle(&self) -> Next {
        let vcpu = self.vcpu;
        let watch = vcpu.watch();
        if watch.has_completions() || vcpu.worker().executor().bitmap() != 0 {
            vcpu.end_idle();
            return Next::Done;
        }
        if watch.has_arrivals() {
            vcpu.threads[FIRST].request_enter();
            return Next::Done;
        }
        Next::Rest
    }

    /// Decides between polls. The current thread then looks at the ring itself, but a turn may be
    /// due, or the thread may be stuck.
    fn between_polls(&mut self, by_timer: bool, now: u64) -> Next {
        if by_timer && self.policy.is_stale_look(0) {
            // A poll that begins meanwhile sets the timer for the end of the rest.
            self.policy.begin_rest(now);
        }
        self.give_turn(self.vcpu.tally.blocked.load(Acquire) != 0, now);
        if self.may_be_stuck() {
            let id = (self.vcpu.current.load(Acquire), 0);
            return self.check_stuck(id, now);
        }
        Next::Rest
    }

    /// Gives a suspended poll the next turn, if one is due. Returns whether a turn was given.
    fn give_turn(&mut self, has_dependents: bool, now: u64) -> bool {
        let vcpu = self.vcpu;
        if vcpu.tally.suspended.load(Acquire) == 0 {
            return false;
        }
        let Some(min_time) = self.policy.min_suspension_for_turn(has_dependents, now) else {
            return false;
        };
        let roles = vcpu.roles();
        let last = self.last_turn;
        let is_due = |&number: &usize| {
            now.saturating_sub(vcpu.threads[number].stopped_at.load(Relaxed)) >= min_time
        };
        let Some(next) = roles
            .with_role(Role::Suspended)
            .filter(is_due)
            .min_by_key(|&number| (number <= last, number))
        else {
            return false;
        };
        self.policy.record_turn(now);
        self.last_turn = next;
        vcpu.handover.turn.store(next, SeqCst);
        true
    }

    fn stop(&mut self, id: PollId, place: QueueEnd, may_sleep: bool, now: u64) -> Next {
        let vcpu = self.vcpu;
        match vcpu.stop_current(id, place, may_sleep) {
            Ok(stopped) => {
                if stopped == Stopped::Suspended {
                    self.last_stopped = Some(id.0);
                    self.policy.record_suspension(&vcpu.rule(), now);
                }
                self.observed_use = None;
                self.waive_permits(false);
                Next::Done
            }
            Err(NotStopped::Over) => Next::Now,
            Err(NotStopped::NoThread) => {
                vcpu.handover.turn.store(NONE, SeqCst);
                self.report_standstill(id, now);
                Next::At(now + MAX_SUSPENSION)
            }
            Err(NotStopped::InUse) => self.in_use(id, now),
        }
    }

    /// Reports once if, for [`STANDSTILL_LIMIT`], every thread of the vCPU holds a poll and the
    /// current thread sleeps. A shorter standstill may be intended.
    fn report_standstill(&mut self, id: PollId, now: u64) {
        const MESSAGE: &str = "upshift: every thread of a vCPU sleeps in the middle of a poll, so the vCPU stands still until one wakes up; \
            raise Builder::max_suspended\n";
        match self.without_thread {
            Some((_, NEVER)) => {}
            Some((observed_id, since)) if observed_id == id => {
                if now - since >= STANDSTILL_LIMIT && self.current().is_asleep() {
                    self.without_thread = Some((id, NEVER));
                    // `write` takes no lock that a poll may hold.
                    // SAFETY: the pointer and the length are those of a constant.
                    unsafe { libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
                }
            }
            _ => self.without_thread = Some((id, now)),
        }
    }

    /// Decides while the current thread uses its permit. The end of the use notifies the watcher. A
    /// use that does not end may depend on a suspended poll.
    fn in_use(&mut self, id: PollId, now: u64) -> Next {
        let vcpu = self.vcpu;
        if !vcpu.threads[id.0].permit.ask(heavy_barrier) {
            return Next::Now;
        }
        self.check_stuck(id, now)
    }

    /// Lets suspended threads run without permits if the current thread has been outside of polls,
    /// or in the middle of a use, for too long.
    fn check_stuck(&mut self, id: PollId, now: u64) -> Next {
        let previous = self.observed_use;
        if self.vcpu.tally.suspended.load(Acquire) != 0 && self.is_stuck(id, now) {
            self.waive_permits(true);
            self.make_spinner_yield();
        }
        match (previous, self.observed_use) {
            (Some(previous), Some(present)) if previous.id == present.id => {
                Next::At(now + TURN_LENGTH)
            }
            // No timer is set for a thread that runs and was found outside of a poll only once,
            // because most threads return to a poll soon.
            _ if self.current().is_asleep() => Next::At(now + TURN_LENGTH),
            _ => Next::At(NEVER),
        }
    }

    /// Lets suspended threads run without their permits, or makes them wait for their permits
    /// again.
    fn waive_permits(&mut self, waived: bool) {
        let vcpu = self.vcpu;
        if vcpu.orders.permits_waived.swap(waived, SeqCst) == waived && !waived {
            return;
        }
        let roles = vcpu.roles();
        for number in roles.with_role(Role::Suspended) {
            let thread = &vcpu.threads[number];
            if waived {
                vcpu.wake_up(number);
            } else {
                thread.interrupt();
            }
        }
    }

    fn listen(&self) {
        let vcpu = self.vcpu;
        vcpu.worker().executor().set_arrival_notice(true);
        vcpu.watch().unmask();
        fence(SeqCst);
    }

    /// Prepares to sleep because nothing waits. Publishes that the watcher listens, and checks once
    /// more.
    fn rest(&self, id: PollId) -> Next {
        let vcpu = self.vcpu;
        let worker = vcpu.worker();
        let is_between = |poll: PollId| poll.1 == 0 && !vcpu.is_idle();
        if is_between(id) {
            // A poll that begins now arranges its own look.
            return Next::Rest;
        }
        let now = clock::now();
        if self.policy.rest_end() > now {
            return Next::At(now + 2 * MAX_SUSPENSION);
        }
        self.listen();
        match worker.timers().next_deadline() {
            Some(deadline) if deadline > clock::now() => vcpu.alarm.arm(deadline),
            _ => {}
        }
        fence(SeqCst);
        let current_id = self.poll_id();
        let something_waits = match current_id.1 {
            // An idle thread waits for its timers itself.
            0 => worker.executor().bitmap() != 0 || vcpu.watch().has_arrivals(),
            _ => worker.executor().bitmap() | self.hidden_levels(clock::now()) != 0,
        };
        if is_between(current_id) || (current_id == id && !something_waits) {
            Next::Rest
        } else {
            Next::Now
        }
    }
}
