//! Suspends and resumes polls in a simulation. A *watcher* decides when a poll is suspended, and
//! another strand (a simulated thread) then serves the vCPU.
//!
//! The rule is that of `docs/preemption.md`. A poll is suspended once it has run for as long as a
//! suspension costs if more urgent work waits, or an arrival whose level is not known yet. It is
//! suspended after its quantum if only another poll of its level waits.

use std::rc::Rc;

use upshift_core::{CoroutineId, QueueEnd};

use crate::laws::Activity;
use crate::machine::Preemption;
use crate::strand::Pause;
use crate::world::{Event, World};

impl World {
    /// Schedules the times at which a vCPU's watcher examines the poll under way, because the poll
    /// may be suspended from these times on. Called when another coroutine may wait for the end of
    /// that poll.
    pub(crate) fn supervise(&self, vcpu: usize) {
        let Some(preemption) = self.machine.preemption else {
            return;
        };
        let cpu = &self.cpus[vcpu];
        let poll = cpu.poll.get();
        if poll.is_multiple_of(2) || self.is_draining() {
            return;
        }
        let began = cpu.began.get();
        let timer = cpu.timers.borrow().keys().next().map(|key| key.0);
        let times = [
            Some(began + preemption.suspension),
            Some(began + preemption.quantum),
            timer.map(|deadline| deadline.max(began + preemption.suspension)),
        ];
        for time in times.into_iter().flatten() {
            self.add_event(time, Event::Watch { vcpu, poll });
        }
    }

    /// Lets the watcher of a vCPU examine the poll with number `poll`. The watcher suspends the
    /// poll if the poll must give way.
    pub(crate) fn watch(self: &Rc<World>, vcpu: usize, poll: u64) {
        let cpu = &self.cpus[vcpu];
        let Some(preemption) = self.machine.preemption else {
            return;
        };
        if cpu.poll.get() != poll || self.is_draining() {
            return;
        }
        let owner = self.strand(cpu.owner.get());
        let Some(until) = owner.until.get() else {
            // The poll is in the middle of a step or of a wake, so the watcher looks again soon.
            return self.add_event(self.now() + 1_000, Event::Watch { vcpu, poll });
        };
        if until <= self.now() || !self.must_give_way(vcpu, preemption) {
            return cpu.executor.set_arrival_notice(true);
        }
        // Stops the poll's strand first, by voiding the event that would continue the strand.
        owner.epoch.set(owner.epoch.get() + 1);
        owner.until.set(Some(until - self.now()));
        self.set_activity(vcpu, Activity::BetweenPolls);
        cpu.poll.set(poll + 1);
        let stopped = cpu.owner.get();
        self.run_outside(move |world| {
            let cpu = &world.cpus[vcpu];
            // SAFETY: the coroutine's strand is paused, and continues only in `hand_over`, after
            // the coroutine has been picked again. No other strand serves the vCPU until the owner
            // is set below, and all strands run on one OS thread.
            let id = unsafe { cpu.executor.suspend_current(QueueEnd::Tail) };
            let id = id.expect("the coroutine is in the middle of a poll");
            world.settle();
            cpu.suspended.borrow_mut().insert(id, stopped);
            let spare = cpu.spares.borrow_mut().pop();
            let spare = spare
                .unwrap_or_else(|| world.create_strand(Some(vcpu), move |world| world.serve(vcpu)));
            cpu.owner.set(spare);
            world.schedule(spare, preemption.suspension);
        });
    }

    fn must_give_way(&self, vcpu: usize, preemption: Preemption) -> bool {
        let cpu = &self.cpus[vcpu];
        let ran = self.now() - cpu.began.get();
        let Some(level) = cpu.executor.running_level() else {
            return false;
        };
        let bitmap = cpu.executor.bitmap();
        let first = cpu.timers.borrow().keys().next().copied();
        let has_unknown_arrival =
            !cpu.ring.borrow().is_empty() || first.is_some_and(|f| f.0 <= self.now());
        let has_urgent = bitmap & level.more_urgent_bits() != 0 || has_unknown_arrival;
        (has_urgent && ran >= preemption.suspension)
            || (bitmap & level.bit() != 0 && ran >= preemption.quantum)
    }

    /// Resumes the suspended poll of coroutine `id`, which has been picked. The poll's strand
    /// becomes the owner of the vCPU, and the running strand becomes a spare.
    pub(crate) fn hand_over(&self, vcpu: usize, id: CoroutineId) {
        let cpu = &self.cpus[vcpu];
        let strand = cpu.suspended.borrow_mut().remove(&id);
        let index = strand.expect("a resumed coroutine was suspended");
        let own_strand = cpu.owner.replace(index);
        cpu.spares.borrow_mut().push(own_strand);
        let cost = self.machine.preemption.map_or(0, |p| p.suspension);
        self.pause_as_spare(vcpu, index, cost);
    }

    fn pause_as_spare(&self, vcpu: usize, next: usize, cost: u64) {
        let strand = self.strand(next);
        let left = strand.until.get().unwrap_or(0);
        let time_left = if self.is_draining() { 0 } else { left };
        self.resume_poll(vcpu, cost);
        self.schedule(next, cost + time_left);
        strand.until.set(Some(self.now() + cost + time_left));
        self.supervise(vcpu);
        self.pause(Pause::Wait);
    }

    fn resume_poll(&self, vcpu: usize, cost: u64) {
        let cpu = &self.cpus[vcpu];
        cpu.poll.set(cpu.poll.get() + 1);
        cpu.began.set(self.now() + cost);
        let resumed = self.laws.borrow_mut().check_poll(self, vcpu, true);
        self.report(resumed);
        cpu.executor.set_arrival_notice(true);
    }
}
