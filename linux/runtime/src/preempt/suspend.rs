//! Stops polls and resumes them later. [`super`] explains the threads of a vCPU and their permits.
//!
//! If every thread of the vCPU holds a suspended poll, the suspended polls take turns: for the
//! length of a turn, one of them displaces the poll that is under way.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use upshift_core::preempt::{MAX_SUSPENSION, TURN_LENGTH};
use upshift_core::{CoroutineId, QueueEnd};
use upshift_elevate::dispatch::heavy_barrier;

use super::roles::{NONE, Role, Roles};
use super::thread::Command;
use super::vcpu::Preemptible;
use crate::preempt::interrupt;
use crate::time::clock;
use crate::worker::Worker;

/// Identity of a poll: the number of its thread, and the tick at which the poll began (0 between
/// polls).
pub(super) type PollId = (usize, u64);

/// State of a poll that has been stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Suspended,
    /// The thread sleeps.
    Blocked,
}

/// Reason why a poll has not been stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotStopped {
    /// The thread uses its permit.
    InUse,
    /// The poll is not under way, because it has ended, or has not been resumed yet.
    Over,
    /// Every other thread of the vCPU holds a poll.
    NoThread,
}

impl Preemptible {
    /// Stops `poll`, which is under way on the current thread, and makes another thread current.
    /// Only for the watcher. Allocates nothing and takes no lock that a poll may hold, because the
    /// poll would be stopped while it holds the lock.
    ///
    /// Returns an error if the vCPU has gone on to another poll since the watcher decided to stop
    /// this one. A poll that is to resume but has not got the CPU yet is left alone, because
    /// otherwise it would be suspended again without having run. `may_sleep` is false if the poll
    /// has lost so little CPU time that its thread cannot be asleep. This saves the system call
    /// that checks whether the thread sleeps.
    pub(super) fn stop_current(
        &self,
        poll: PollId,
        place: QueueEnd,
        may_sleep: bool,
    ) -> Result<Stopped, NotStopped> {
        // A thread that gives the vCPU away holds this lock until the next thread has its permit.
        let mut roles = self.roles();
        let current = self.current.load(Acquire);
        let thread = &self.threads[current];
        if current != poll.0 || thread.pending_resume(clock::now()).is_some() {
            return Err(NotStopped::Over);
        }
        if thread.permit.revoke(heavy_barrier).is_err() {
            return Err(NotStopped::InUse);
        }
        let is_asleep = may_sleep && thread.is_asleep();
        let next_turn = self.handover.turn.load(Relaxed);
        let level = self.worker().executor().running_level().unwrap_or_default();
        // No thread is free if every thread holds an unfinished poll. If the current poll sleeps or
        // a turn is due, a suspended poll then resumes in its place, because it may hold a lock
        // that the others wait for. When a turn ends, the poll that it displaced resumes. No new
        // coroutine can be polled before one of these polls has ended.
        let successor = match roles.free() {
            None if is_asleep || next_turn != NONE => self.successor(&roles, next_turn),
            None => self.displaced_by(&roles, level.get()),
            Some(_) => None,
        };
        // A thread that slept when the watcher decided may have woken up since.
        let may_be_stopped = is_asleep || self.settings.rule.interrupts;
        let stopped = if thread.began.load(Relaxed) != poll.1 || !may_be_stopped {
            Err(NotStopped::Over)
        } else if roles.free().is_none() && successor.is_none() {
            Err(NotStopped::NoThread)
        } else {
            self.record_stop(current, place, is_asleep)
        };
        let role = match stopped {
            Ok(Stopped::Suspended) => Role::Suspended,
            Ok(Stopped::Blocked) => Role::Blocked,
            Err(why) => {
                thread.permit.grant();
                drop(roles);
                thread.wake_up();
                return Err(why);
            }
        };
        thread.stopped_at.store(clock::now(), Relaxed);
        let worker = self.worker();
        let _ = thread.owner.set(worker.ring().owner());
        if let Some(successor) = successor {
            let takes_turn = role == Role::Suspended && next_turn != NONE;
            self.handover.turn.store(NONE, Relaxed);
            self.handover.displaced_level.store(level.get(), Relaxed);
            let displaced = if takes_turn { current } else { NONE };
            self.handover.displaced.store(displaced, Relaxed);
            let id = self.suspended_on(successor);
            // The watcher may use the executor here in place of the stopped thread, whose permit is
            // revoked, because no other thread is current.
            if worker.executor().pick_suspended(id).is_none() {
                unreachable!("{id} is suspended on a thread");
            }
            roles.stop_for(role, successor);
            self.resume_thread(worker, roles, successor, TURN_LENGTH);
            if role == Role::Suspended {
                thread.interrupt();
            }
            return stopped;
        }
        let Some(next) = roles.stop(role) else {
            unreachable!("there is a free thread, and the lock is held");
        };
        self.current.store(next, Release);
        // The next thread looks for arrivals before its first poll, so the watcher need not report
        // them.
        self.watch().mask();
        if role == Role::Suspended {
            // The stopped thread wakes the next one, from its handler. If the watcher woke it, the
            // next thread might take the CPU from the watcher. The watcher would then stay in the
            // kernel's run queue while the next poll runs, so that a later wake-up would not let it
            // preempt that poll.
            self.handover.next_up.store(next, SeqCst);
            if thread.awaits_permit() {
                self.start_next();
            } else {
                thread.interrupt();
            }
        } else {
            drop(roles);
            self.start_serving(next);
        }
        stopped
    }

    /// Wakes the thread that has been made current in place of a suspended one, if it has not been
    /// woken yet. Async-signal-safe.
    pub(super) fn start_next(&self) {
        if self.handover.next_up.load(SeqCst) == NONE {
            return;
        }
        let next = self.handover.next_up.swap(NONE, SeqCst);
        if next < self.threads.len() {
            self.start_serving(next);
        }
    }

    /// Wakes, without a signal, a thread that has been made current and holds no poll.
    /// Async-signal-safe.
    fn start_serving(&self, number: usize) {
        let thread = &self.threads[number];
        thread.send(Command::Serve);
        if thread.waits_in_ring.load(SeqCst) {
            // The completion that ends the thread's wait is no arrival, so the watcher is not
            // notified of it. The thread begins with a pass over the ring.
            self.watch().mask();
            self.watch().wake();
        }
    }

    /// Records that the poll of the current thread, whose permit is revoked, is stopped.
    fn record_stop(
        &self,
        current: usize,
        place: QueueEnd,
        is_asleep: bool,
    ) -> Result<Stopped, NotStopped> {
        let thread = &self.threads[current];
        let executor = &self.worker().executor();
        let (run_time, _) = thread.run_time(self.settings.cost_ticks, |now| self.parked(now));
        let stopped = if is_asleep {
            // SAFETY: nothing else touches the coroutine in the meantime. The thread that polls it
            // is outside of the core, and comes back to the core only with its permit, which
            // `resume` grants when the coroutine has been picked. The domain lives as long as the
            // vCPU.
            let set_aside = unsafe { executor.set_aside_current() }.ok_or(NotStopped::Over)?;
            *thread.set_aside() = Some(set_aside);
            thread.blocked.store(true, SeqCst);
            self.tally.blocked.fetch_add(1, SeqCst);
            self.counts.set_aside.fetch_add(1, Relaxed);
            Stopped::Blocked
        } else {
            // SAFETY: as above.
            let id = unsafe { executor.suspend_current(place) }.ok_or(NotStopped::Over)?;
            thread.coroutine.store(id.to_u64(), Relaxed);
            self.tally.suspended.fetch_add(1, SeqCst);
            Stopped::Suspended
        };
        let run_ticks = clock::to_ticks(Duration::from_nanos(run_time.total));
        thread.run_ticks.store(run_ticks, Relaxed);
        Ok(stopped)
    }

    /// Gives the vCPU to the thread `to`, if that thread is free. Returns whether it was; the
    /// thread of `block_on` may be absent.
    #[must_use]
    pub(super) fn hand_over(&self, worker: &Worker, to: usize) -> bool {
        worker.executor().refresh_clock();
        self.give_to(to)
    }

    /// Gives the vCPU to the thread `to`, if that thread is free, without reading the clock. If a
    /// coroutine has just been picked, the hand-over thus counts as a part of its poll.
    #[must_use]
    pub(super) fn give_to(&self, to: usize) -> bool {
        let mut roles = self.roles();
        if !matches!(roles.role(to), Role::Free | Role::Main) {
            return false;
        }
        roles.give_to(to);
        self.current.store(to, Release);
        drop(roles);
        self.start_serving(to);
        true
    }

    /// Gives the vCPU to the thread that holds the suspended poll of a coroutine. The poll may then
    /// run for `turn` ns, even if other work is waiting.
    pub(super) fn resume(&self, worker: &Worker, id: CoroutineId, turn: u64) {
        let holds = |thread: &super::thread::Thread| thread.coroutine.load(Acquire) == id.to_u64();
        let Some(to) = self.threads.iter().position(holds) else {
            unreachable!("{id} is suspended on a thread");
        };
        // Held until the permit is granted, so that the watcher sees all of the change or nothing.
        let mut roles = self.roles();
        roles.give_to(to);
        self.resume_thread(worker, roles, to, turn);
    }

    /// Returns the thread whose suspended poll is resumed if no thread is free. This is `next_turn`
    /// if its poll is suspended, or else the thread whose poll was suspended first.
    pub(super) fn successor(&self, roles: &Roles, next_turn: usize) -> Option<usize> {
        let stopped_at = |&thread: &usize| self.threads[thread].stopped_at.load(Relaxed);
        if next_turn != NONE && roles.role(next_turn) == Role::Suspended {
            return Some(next_turn);
        }
        roles.with_role(Role::Suspended).min_by_key(stopped_at)
    }

    /// Returns the thread whose poll was displaced by the turn of the current poll. Returns `None`
    /// if the current poll, which is of `level`, is more urgent than the displaced one.
    fn displaced_by(&self, roles: &Roles, level: u8) -> Option<usize> {
        let displaced = self.handover.displaced.load(Relaxed);
        let is_due = displaced != NONE
            && roles.role(displaced) == Role::Suspended
            && self.handover.displaced_level.load(Relaxed) <= level;
        is_due.then_some(displaced)
    }

    /// Resumes the suspended poll of the thread `to`, which is current. The coroutine of the poll
    /// has been picked, and the permit of the thread is still revoked.
    fn resume_thread(&self, worker: &Worker, roles: MutexGuard<'_, Roles>, to: usize, turn: u64) {
        let thread = &self.threads[to];
        thread.coroutine.store(0, Relaxed);
        thread.turn.store(turn, Relaxed);
        thread.resumed.store(clock::ticks(), Relaxed);
        thread.resume_requested.store(clock::now(), Relaxed);
        self.tally.suspended.fetch_sub(1, SeqCst);
        self.current.store(to, Release);
        worker.publish(worker.executor().running_level().unwrap_or_default().get());
        if turn != 0 {
            // Nothing cuts a turn short.
            self.watch().mask();
            let turn = self.settings.rule.cost + turn;
            self.alarm.arm(clock::now() + turn);
        } else {
            self.listen(worker);
            if worker.executor().bitmap() != 0 {
                self.alarm.arm(clock::now() + MAX_SUSPENSION);
            }
        }
        if let Some(owner) = thread.owner.get() {
            // SAFETY: the thread is about to become current, so it alone uses the ring, and it is
            // not within a use of the ring.
            unsafe { worker.ring().assign(*owner) };
        }
        // The grant gives the vCPU to the thread `to`.
        thread.permit.grant();
        drop(roles);
        self.wake_up(to);
    }

    /// Wakes a thread so that it resumes its poll, or runs without its permit. Even a thread that
    /// waits for completions in the ring is woken by the suspension signal, because a completion
    /// would look like an arrival. Only if the program has replaced the signal's handler is a
    /// completion used.
    pub(super) fn wake_up(&self, number: usize) {
        let thread = &self.threads[number];
        thread.wake_up();
        if interrupt::is_replaced() && thread.waits_in_ring.load(SeqCst) {
            self.watch().wake();
        }
    }

    /// Returns the coroutine of the turn that the watcher has given.
    pub(super) fn take_turn(&self) -> Option<CoroutineId> {
        let next_turn = self.handover.turn.swap(NONE, Relaxed);
        if next_turn == NONE || self.roles().role(next_turn) != Role::Suspended {
            return None;
        }
        Some(self.suspended_on(next_turn))
    }

    pub(super) fn suspended_on(&self, thread: usize) -> CoroutineId {
        CoroutineId::from_u64(self.threads[thread].coroutine.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::preempt::current::with_current;
    use crate::{Level, Preemption, Runtime};

    /// Stops a spinning poll repeatedly, even before its thread has woken up to resume it, and
    /// while a signal that makes the thread wait for its permit is on its way. The poll must never
    /// be mistaken for a blocked one, because nothing would wake it then.
    #[test]
    fn a_poll_that_waits_for_its_permit_is_not_blocked() {
        let preemption = Runtime::builder().vcpus(1).preemption(Preemption::Required);
        let runtime = match preemption.build() {
            Ok(runtime) => runtime,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut vcpu = None;
        runtime.block_on(async { with_current(|here, _| vcpu = Some(here.to_arc())) });
        let vcpu = vcpu.unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let until = end.clone();
        let began = Instant::now();
        let spinner = async move {
            while !until.load(Relaxed) && began.elapsed() < Duration::from_secs(20) {
                spin_loop();
            }
            let _ = sender.send(());
        };
        runtime
            .handle()
            .spawn(spinner, Level::at::<20>())
            .unwrap()
            .detach();
        let mut suspensions = 0;
        while suspensions < 300 && began.elapsed() < Duration::from_secs(10) {
            let current = vcpu.current.load(Acquire);
            let poll = (current, vcpu.threads[current].began.load(Acquire));
            vcpu.threads[current].interrupt();
            if poll.1 != 0
                && vcpu.stop_current(poll, QueueEnd::Head, true) == Ok(Stopped::Suspended)
            {
                suspensions += 1;
            }
        }
        end.store(true, Relaxed);
        let result = receiver.recv_timeout(Duration::from_secs(20));
        assert!(result.is_ok(), "the poll was stopped, and nothing wakes it");
        assert!(suspensions > 0);
        assert_eq!(vcpu.counts.set_aside.load(Relaxed), 0, "no poll slept");
    }
}
