//! Runs the loop of a vCPU, which does the work of a runtime's thread in virtual time.

use std::rc::Rc;

use upshift_core::{Picked, Polled};

use crate::laws::Activity;
use crate::strand::Pause;
use crate::world::World;

impl World {
    /// Serves a vCPU on the running strand until the simulation is finished.
    pub(crate) fn serve(self: &Rc<World>, vcpu: usize) {
        let cpu = &self.cpus[vcpu];
        let executor = cpu.executor.clone();
        let mut back = None;
        while !self.is_finished() {
            self.set_activity(vcpu, Activity::BetweenPolls);
            self.pause(Pause::For(self.machine.pick_cost));
            self.reap(vcpu);
            if executor.is_look_due() {
                self.look_around(vcpu);
            }
            let stolen_before = executor.stolen();
            self.laws.borrow_mut().record_pick(vcpu);
            let picked = executor.pick(back.take());
            self.settle_pick();
            if executor.stolen() != stolen_before {
                self.pause(Pause::For(self.machine.steal_cost));
            }
            match picked {
                Some(Picked::Poll(running)) => {
                    self.begin_poll(vcpu);
                    let polled = running.poll();
                    cpu.poll.set(cpu.poll.get() + 1);
                    self.set_activity(vcpu, Activity::BetweenPolls);
                    match polled {
                        // The coroutine cannot be stolen before the next pick puts it back into its
                        // queue.
                        Polled::Yielded(yielded) => {
                            self.laws.borrow_mut().record_awaits_requeue(vcpu);
                            back = Some(yielded);
                        }
                        _ => self.settle(),
                    }
                }
                Some(Picked::Resume { id, .. }) => self.hand_over(vcpu, id),
                None => self.park(vcpu),
            }
        }
    }

    fn begin_poll(&self, vcpu: usize) {
        let cpu = &self.cpus[vcpu];
        cpu.poll.set(cpu.poll.get() + 1);
        cpu.began.set(self.now());
        let verdict = self.laws.borrow_mut().check_poll(self, vcpu, false);
        self.report(verdict);
        if self.machine.preemption.is_some() {
            cpu.executor.set_arrival_notice(true);
            self.supervise(vcpu);
        }
    }

    /// Wakes the waiters for the due timers of a vCPU, and for the data that has arrived there.
    /// Returns true if it has woken any.
    fn reap(&self, vcpu: usize) -> bool {
        let cpu = &self.cpus[vcpu];
        let mut has_woken = false;
        loop {
            let due = {
                let mut timers = cpu.timers.borrow_mut();
                match timers.first_entry() {
                    Some(first) if first.key().0 <= self.now() => Some(first.remove()),
                    _ => None,
                }
            };
            let Some((fired, waker)) = due else { break };
            fired.set(true);
            waker.wake();
            has_woken = true;
            self.settle();
        }
        loop {
            let Some(operation) = cpu.ring.borrow_mut().pop_front() else {
                break;
            };
            let (arrived, waker) = self.operations.borrow()[operation].clone();
            arrived.set(true);
            waker.wake();
            has_woken = true;
            self.settle();
        }
        has_woken
    }

    /// Waits, since no coroutine is ready. The wait ends with a wake, data on the ring, the
    /// deadline of the earliest timer, or when an examination of the other vCPUs finds work.
    fn park(self: &Rc<World>, vcpu: usize) {
        let cpu = &self.cpus[vcpu];
        if !cpu.ring.borrow().is_empty() || !cpu.executor.prepare_park() {
            return;
        }
        self.step();
        self.set_activity(vcpu, Activity::Idle);
        while !self.look_around(vcpu) {
            let limit = cpu.executor.sleep_limit().map(|time| self.now() + time);
            self.sleep(vcpu, limit);
            let is_early = limit.is_none_or(|limit| self.now() < limit);
            if is_early || !cpu.executor.is_parked() || cpu.executor.has_arrivals() {
                break;
            }
            cpu.executor.charge_fruitless_wait();
        }
        cpu.executor.unpark();
    }

    fn sleep(&self, vcpu: usize, limit: Option<u64>) {
        let cpu = &self.cpus[vcpu];
        cpu.is_waiting.set(true);
        cpu.is_waking.set(false);
        if cpu.executor.is_parked() && cpu.ring.borrow().is_empty() && !self.is_finished() {
            let own_deadline = cpu.timers.borrow().keys().next().map(|key| key.0);
            let times = [own_deadline, cpu.neighbours_deadline.get(), limit];
            if let Some(time) = times.into_iter().flatten().min() {
                let delay = time.saturating_sub(self.now());
                self.schedule(cpu.owner.get(), delay + self.machine.wake);
            }
        } else {
            // A wake came before the wait, so the wait ends at once.
            self.end_wait(vcpu, 0);
        }
        self.pause(Pause::Wait);
        cpu.is_waiting.set(false);
    }

    /// Serves the timers and rings of vCPUs in long polls. Returns true if there is a coroutine to
    /// pick.
    fn look_around(self: &Rc<World>, vcpu: usize) -> bool {
        let mut next = None;
        let has_work = self.cpus[vcpu].executor.look(|long| {
            let index = long.index();
            let has_woken = self.reap(index);
            let deadline = self.cpus[index].timers.borrow().keys().next().copied();
            let deadline = deadline.map(|key| key.0);
            next = [next, deadline].into_iter().flatten().min();
            has_woken
        });
        self.cpus[vcpu].neighbours_deadline.set(next);
        has_work
    }

    /// Delivers data to the ring of a vCPU, and ends the vCPU's wait. If the vCPU is in a long
    /// poll, ends the wait of a parked vCPU instead, since parked vCPUs watch the rings of vCPUs in
    /// long polls.
    pub(crate) fn handle_arrival(&self, vcpu: usize, operation: usize) {
        let cpu = &self.cpus[vcpu];
        cpu.ring.borrow_mut().push_back(operation);
        let waiting = if cpu.executor.is_long() {
            self.cpus.iter().position(|cpu| cpu.is_waiting.get())
        } else {
            Some(vcpu)
        };
        if let Some(waiting) = waiting {
            self.end_wait(waiting, self.machine.wake);
        }
        self.supervise(vcpu);
    }

    /// Ends the wait of a vCPU in `delay` nanoseconds, if the vCPU waits.
    pub(crate) fn end_wait(&self, vcpu: usize, delay: u64) {
        let cpu = &self.cpus[vcpu];
        if cpu.is_waiting.get() && !cpu.is_waking.replace(true) {
            self.schedule(cpu.owner.get(), delay);
        }
    }
}
