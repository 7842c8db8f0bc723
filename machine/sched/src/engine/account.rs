//! What tasks used: for the policy, for the report, and to find the task that runs where the policy favours none.

use super::{Engine, Slot};
use crate::member::{Member, Standing};
use crate::policy::{Nanos, TaskId, Usage};
use crate::report::{Report, TaskReport};

/// A turn shorter than this says nothing about which tasks slept, ns.
const TELLING: Nanos = 50_000;

/// A task that seems to sleep on is asked every so many turns whether it does.
const ASK_AGAIN: u32 = 32;

impl<M: Member> Slot<M> {
    /// Reads the CPU time; what is new is added to what the policy does not know yet.
    pub(super) fn look(&mut self) {
        if let Some(member) = &mut self.member {
            let now = member.cpu_time().max(self.seen);
            self.untold += now - self.seen;
            self.seen = now;
        }
    }

    /// Whether it has used little because something above kept it from its CPU, or the machine from this one. Asking is dear, so
    /// one that is known to sleep is asked rarely.
    fn is_kept_from_its_cpu(&mut self) -> bool {
        self.unasked += 1;
        if self.sleeps && self.unasked < ASK_AGAIN {
            return false;
        }
        self.unasked = 0;
        self.member.as_ref().is_some_and(Member::wants_cpu)
    }
}

impl<M: Member> Engine<M> {
    /// Tells the policy what was used in the turn that ends: by the favoured tasks, and by all others if those left time over.
    pub(super) fn charge(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.turn_began);
        let telling = elapsed >= TELLING && !self.turn_was_open;
        let mut told = Vec::new();
        let mut left_over = self.turn_was_open;
        for cpu in &self.cpus {
            let mut left = elapsed;
            for &task in &cpu.favoured {
                let slot = &mut self.slots[task.0];
                slot.look();
                if telling {
                    slot.sleeps = slot.untold * 2 < left && !slot.is_kept_from_its_cpu();
                }
                left = left.saturating_sub(slot.untold);
                told.push(task);
            }
            left_over |= left > elapsed / 50;
        }
        for id in (0..self.slots.len()).map(TaskId) {
            let slot = &mut self.slots[id.0];
            if left_over && !told.contains(&id) {
                slot.look();
            }
            if slot.member.is_some() && (slot.untold > 0 || told.contains(&id)) {
                let usage = Usage {
                    task: id,
                    cpu_time: std::mem::take(&mut slot.untold),
                    slept: slot.sleeps,
                };
                self.policy.used(usage, now);
            }
        }
    }

    pub(super) fn look_at_all(&mut self) {
        self.slots.iter_mut().for_each(Slot::look);
    }

    /// Returns whether the tasks have left ordinary threads their part of each CPU since
    /// [`Engine::begin_anew`], so that nothing need be opened. The scheduler, and a task that has
    /// changed its CPU, may have used their time on any CPU. `own`: the scheduler's CPU time. Reads
    /// the CPU time of every task.
    pub(super) fn others_have_had_theirs(&mut self, now: Nanos, own: Nanos) -> bool {
        self.look_at_all();
        let own = own.saturating_sub(self.own_at_close);
        let mut used = vec![own; self.cpus.len()];
        for slot in &self.slots {
            let since = slot.seen - slot.at_close;
            for (cpu, used) in used.iter_mut().enumerate() {
                *used += if self.moved || slot.cpu == cpu {
                    since
                } else {
                    0
                };
            }
        }
        let elapsed = now.saturating_sub(self.closed_at) as f64;
        let most = elapsed * (1.0 - self.config.open.part.clamp(0.0, 0.9));
        used.into_iter().all(|used| used as f64 <= most)
    }

    /// Begins a new time of which ordinary threads are to have their part. `own`: the scheduler's
    /// CPU time.
    pub(super) fn begin_anew(&mut self, now: Nanos, own: Nanos) {
        self.closed_at = now;
        self.own_at_close = own;
        self.moved = false;
        for slot in &mut self.slots {
            slot.at_close = slot.seen;
        }
    }

    /// Where the policy favours none, an open piece must not decide which goes on: finds the one that used most since the last one. The CPU
    /// times have just been read.
    pub(super) fn find_leaders(&mut self) {
        if self.cpus.iter().all(|cpu| !cpu.favoured.is_empty()) {
            return;
        }
        let used: Vec<Nanos> = self.slots.iter().map(|it| it.seen - it.at_close).collect();
        for (index, cpu) in self.cpus.iter_mut().enumerate() {
            if !cpu.favoured.is_empty() {
                continue;
            }
            let here = self.slots.iter().enumerate();
            let here = here.filter(|(_, slot)| slot.cpu == index && slot.member.is_some());
            let leader = here.map(|(id, _)| id).max_by_key(|&id| used[id]);
            cpu.favoured.extend(leader.map(TaskId));
            cpu.leads = leader.is_some();
        }
    }

    /// Makes the leaders equal again. A thread that is lowered stays the first of its new priority, so they go on.
    pub(super) fn equalise_leaders(&mut self) -> Result<(), crate::SchedError> {
        for index in 0..self.cpus.len() {
            if !std::mem::take(&mut self.cpus[index].leads) {
                continue;
            }
            let favoured = std::mem::take(&mut self.cpus[index].favoured);
            for task in favoured {
                self.slots[task.0].notch.at = self.config.base;
                self.set(task, Standing::At(self.config.base))?;
            }
        }
        Ok(())
    }

    /// What happened until now.
    pub(super) fn report(&mut self, now: Nanos, own_cpu_time: Nanos) -> Report {
        self.look_at_all();
        let used = |slot: &Slot<M>| slot.seen - slot.first;
        let all: Nanos = self.slots.iter().map(used).sum();
        let task = |slot: &Slot<M>| TaskReport {
            label: slot.label.clone(),
            cpu_time: used(slot),
            share: used(slot) as f64 / all.max(1) as f64,
            turns: slot.turns,
            left_out: slot.left_out,
            threads: slot.member.as_ref().map_or(0, Member::threads),
            refused: slot.member.as_ref().map_or(0, Member::refused),
        };
        Report {
            began: self.began,
            elapsed: now - self.began,
            cost: self.cost.quantiles(),
            late: self.late.quantiles(),
            own_cpu_time: own_cpu_time.saturating_sub(self.own_before),
            untraced: self.trace.lost(),
            tasks: self.slots.iter().map(task).collect(),
            ..self.report.clone()
        }
    }
}
