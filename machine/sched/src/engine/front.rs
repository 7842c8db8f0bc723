//! Changes the task in front on each CPU, at the end of a turn and for open pieces, which are times
//! for ordinary threads.

use super::due::WorkTimes;
use super::{Engine, Slot, nanos};
use crate::error::SchedError;
use crate::member::{Member, TaskClass};
use crate::placement::{self, Placement};
use crate::policy::{Nanos, TaskId};
use crate::ratchet::Notch;
use crate::report::EventKind;

impl<M: Member> Engine<M> {
    pub(super) fn next_turn(&mut self, now: Nanos, due: &mut WorkTimes) -> Result<(), SchedError> {
        if let Some(turn_end) = due.turn_end.filter(|_| self.report.turns > 0) {
            self.late.add(now.saturating_sub(turn_end));
        }
        self.report.turns += 1;
        if self.wants_usage {
            self.charge(now);
        }
        self.turn_began = now;
        self.turn_was_open = self.is_open;
        self.turn.clear();
        self.policy.pick(now, &mut self.turn);
        let min_slice = nanos(self.config.min_slice).max(1);
        due.turn_end = self.turn.end().map(|at| at.max(now + min_slice));
        let lives = |task: &TaskId| {
            let slot = self.slots.get(task.0);
            slot.is_some_and(|slot| slot.member.is_some())
        };
        let favoured: Vec<TaskId> = self.turn.favoured().iter().copied().filter(lives).collect();
        let placement = |(task, slot): (TaskId, &Slot<M>)| Placement {
            task,
            cpu: slot.cpu,
            sleeps: slot.sleeps,
        };
        let mut placements: Vec<Placement> = self.live().map(placement).collect();
        let front = placement::place(&favoured, &mut placements, self.cpus.len());
        for placement in placements {
            self.move_to(placement)?;
        }
        for (cpu, favoured) in front.into_iter().enumerate() {
            self.put_in_front(cpu, favoured, now)?;
        }
        Ok(())
    }

    fn move_to(&mut self, placement: Placement) -> Result<(), SchedError> {
        let number = self.cpus[placement.cpu].number;
        let slot = &mut self.slots[placement.task.0];
        if slot.cpu == placement.cpu {
            return Ok(());
        }
        slot.cpu = placement.cpu;
        self.has_moved = true;
        let was_raised = slot.notch.at > self.config.base;
        slot.notch.at = self.config.base;
        let Some(member) = &mut slot.member else {
            return Ok(());
        };
        let waiting = if self.is_open {
            TaskClass::Idle
        } else {
            TaskClass::Fifo(self.config.base)
        };
        if self.is_open || was_raised {
            self.report.calls += u64::from(member.set(waiting)?);
        }
        member.pin(number)
    }

    fn put_in_front(
        &mut self,
        cpu: usize,
        favoured: Vec<TaskId>,
        now: Nanos,
    ) -> Result<(), SchedError> {
        let before = self.cpus[cpu].front();
        let front = favoured.first().copied();
        self.cpus[cpu].favoured = favoured;
        self.cpus[cpu].has_leader = false;
        if self.is_open {
            self.set_fair(cpu, front)?;
        } else {
            self.raise(cpu)?;
        }
        if before != front {
            self.report.switches += 1;
            if let Some(task) = front {
                self.slots[task.0].turns += 1;
            }
            let cpu = self.cpus[cpu].number;
            let at = now - self.began;
            self.trace.add(at, EventKind::Front { cpu, task: front });
        }
        Ok(())
    }

    /// Makes `front` the task that competes with ordinary threads on a CPU. If the change would
    /// take long, the present task stays until the end of the open piece.
    fn set_fair(&mut self, cpu: usize, front: Option<TaskId>) -> Result<(), SchedError> {
        let before = self.cpus[cpu].fair;
        let here = before.filter(|task| self.slots[task.0].cpu == cpu);
        let threads = |task: TaskId| {
            self.slots[task.0]
                .member
                .as_ref()
                .map_or(0, Member::threads)
        };
        let changed = here.into_iter().chain(front).map(threads).sum();
        if before == front || !self.config.open_pieces.may_change(changed, self.threads()) {
            return Ok(());
        }
        self.cpus[cpu].fair = front;
        if let Some(task) = here {
            self.set(task, TaskClass::Idle)?;
        }
        if let Some(task) = front {
            self.set(task, TaskClass::Fair)?;
        }
        Ok(())
    }

    fn raise(&mut self, cpu: usize) -> Result<(), SchedError> {
        let here = self.live().filter(|(_, slot)| slot.cpu == cpu);
        let notches: Vec<Notch> = here.map(|(_, slot)| slot.notch).collect();
        let favoured = self.cpus[cpu].favoured.iter();
        let favoured: Vec<usize> = favoured.map(|task| task.0).collect();
        let slots = &self.slots;
        let threads = |task: usize| slots[task].member.as_ref().map_or(0, Member::threads);
        for change in self.ratchet.order(&favoured, &notches, threads) {
            self.slots[change.task].notch = change;
            self.set(TaskId(change.task), TaskClass::Fifo(change.at))?;
        }
        Ok(())
    }

    pub(super) fn set(&mut self, task: TaskId, class: TaskClass) -> Result<(), SchedError> {
        if let Some(member) = &mut self.slots[task.0].member {
            self.report.calls += u64::from(member.set(class)?);
        }
        Ok(())
    }

    /// Begins an open piece. The tasks behind are lowered first, so that none of them overtakes the
    /// task in front.
    pub(super) fn open(&mut self, now: Nanos) -> Result<(), SchedError> {
        if self.is_open {
            return Ok(());
        }
        self.is_open = true;
        self.turn_was_open = true;
        self.favour_leaders();
        for cpu in &mut self.cpus {
            cpu.fair = cpu.front();
        }
        let front: Vec<TaskId> = self.cpus.iter().filter_map(|cpu| cpu.fair).collect();
        for task in (0..self.slots.len()).map(TaskId) {
            if !front.contains(&task) {
                self.set(task, TaskClass::Idle)?;
            }
        }
        for task in front {
            self.set(task, TaskClass::Fair)?;
        }
        self.trace.add(now - self.began, EventKind::Opened);
        Ok(())
    }

    /// Ends the open piece. The tasks in front are raised first.
    pub(super) fn close(&mut self, now: Nanos) -> Result<(), SchedError> {
        self.is_open = false;
        let base = self.config.base;
        for slot in &mut self.slots {
            slot.notch.at = base;
        }
        for cpu in 0..self.cpus.len() {
            self.raise(cpu)?;
        }
        let favoured = self.cpus.iter().flat_map(|cpu| cpu.favoured.clone());
        let favoured: Vec<TaskId> = favoured.collect();
        for task in (0..self.slots.len()).map(TaskId) {
            if !favoured.contains(&task) {
                self.set(task, TaskClass::Fifo(base))?;
            }
        }
        self.equalise_leaders()?;
        self.report.opened += self
            .config
            .open_pieces
            .pieces(self.threads())
            .map_or(0, |(_, open)| open);
        self.read_cpu_times();
        self.trace.add(now - self.began, EventKind::Closed);
        Ok(())
    }
}
