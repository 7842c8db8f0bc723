//! Measures the CPU time of tasks, for the policy and for the report. If the policy favours no
//! task, the CPU time also identifies the running task.
//!
//! An *open piece* is a short time in which the engine lets ordinary threads compete with the tasks
//! ([`OpenPieces`](crate::OpenPieces)); the time between two pieces is *closed*.

use super::{Engine, Slot};
use crate::member::{Member, TaskClass};
use crate::policy::{Nanos, TaskId, Usage};
use crate::report::{Report, TaskReport};

/// Minimum length of a turn, ns. The engine does not conclude from a shorter turn which tasks
/// slept.
const MIN_TURN: Nanos = 50_000;

/// Number of turns after which a task that was asleep is checked again ([`Slot::wants_cpu`]).
const SLEEP_CHECK_TURNS: u32 = 32;

impl<M: Member> Slot<M> {
    pub(super) fn read_cpu_time(&mut self) {
        if let Some(member) = &mut self.member {
            let now = member.cpu_time().max(self.cpu_time);
            self.unreported += now - self.cpu_time;
            self.cpu_time = now;
        }
    }

    /// Returns whether the task wants to run and was kept from its CPU, by a thread of higher
    /// priority or by another guest of the machine. The check is expensive, so a known sleeper is
    /// rarely checked.
    fn wants_cpu(&mut self) -> bool {
        self.turns_since_sleep_check += 1;
        if self.sleeps && self.turns_since_sleep_check < SLEEP_CHECK_TURNS {
            return false;
        }
        self.turns_since_sleep_check = 0;
        self.member.as_ref().is_some_and(Member::wants_cpu)
    }
}

impl<M: Member> Engine<M> {
    /// Reports to the policy the usage in the turn that ends: that of the favoured tasks, and that
    /// of all other tasks if the favoured tasks left time for them.
    pub(super) fn charge(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.turn_began);
        let long_enough = elapsed >= MIN_TURN && !self.turn_was_open;
        let mut favoured = Vec::new();
        let mut has_remainder = self.turn_was_open;
        for cpu in &self.cpus {
            let mut remainder = elapsed;
            for &task in &cpu.favoured {
                let slot = &mut self.slots[task.0];
                slot.read_cpu_time();
                if long_enough {
                    slot.sleeps = slot.unreported * 2 < remainder && !slot.wants_cpu();
                }
                remainder = remainder.saturating_sub(slot.unreported);
                favoured.push(task);
            }
            has_remainder |= remainder > elapsed / 50;
        }
        for id in (0..self.slots.len()).map(TaskId) {
            let slot = &mut self.slots[id.0];
            if has_remainder && !favoured.contains(&id) {
                slot.read_cpu_time();
            }
            if slot.member.is_some() && (slot.unreported > 0 || favoured.contains(&id)) {
                let usage = Usage {
                    task: id,
                    cpu_time: std::mem::take(&mut slot.unreported),
                    slept: slot.sleeps,
                };
                self.policy.used(usage, now);
            }
        }
    }

    pub(super) fn read_cpu_times(&mut self) {
        self.slots.iter_mut().for_each(Slot::read_cpu_time);
    }

    /// Returns whether the tasks have left ordinary threads their part of each CPU since
    /// [`Engine::begin_interval`], so that no open piece is needed. The scheduler's CPU time,
    /// `own_cpu_time`, counts on every CPU, and if any task has changed its CPU, so does that of
    /// all tasks. Reads the CPU time of every task.
    pub(super) fn ordinary_threads_had_their_part(
        &mut self,
        now: Nanos,
        own_cpu_time: Nanos,
    ) -> bool {
        self.read_cpu_times();
        let used_by_scheduler = own_cpu_time.saturating_sub(self.own_cpu_time_at_close);
        let mut used = vec![used_by_scheduler; self.cpus.len()];
        for slot in &self.slots {
            let used_by_task = slot.cpu_time - slot.cpu_time_at_close;
            for (cpu, used) in used.iter_mut().enumerate() {
                *used += if self.has_moved || slot.cpu == cpu {
                    used_by_task
                } else {
                    0
                };
            }
        }
        let elapsed = now.saturating_sub(self.closed_at) as f64;
        let max_used = elapsed * (1.0 - self.config.open_pieces.part.clamp(0.0, 0.9));
        used.into_iter().all(|used| used as f64 <= max_used)
    }

    /// Begins an interval at whose end ordinary threads must have had their part: closed time, and
    /// then an open piece if they need it. `own_cpu_time` is the scheduler's CPU time.
    pub(super) fn begin_interval(&mut self, now: Nanos, own_cpu_time: Nanos) {
        self.closed_at = now;
        self.own_cpu_time_at_close = own_cpu_time;
        self.has_moved = false;
        for slot in &mut self.slots {
            slot.cpu_time_at_close = slot.cpu_time;
        }
    }

    /// On each CPU without a favoured task, favours the *leader*, which is the task that used the
    /// most CPU time in this interval, so that an open piece does not change which task runs. The
    /// caller must have called [`Engine::read_cpu_times`] just before.
    pub(super) fn favour_leaders(&mut self) {
        if self.cpus.iter().all(|cpu| !cpu.favoured.is_empty()) {
            return;
        }
        let used: Vec<Nanos> = self
            .slots
            .iter()
            .map(|slot| slot.cpu_time - slot.cpu_time_at_close)
            .collect();
        for (index, cpu) in self.cpus.iter_mut().enumerate() {
            if !cpu.favoured.is_empty() {
                continue;
            }
            let here = self.slots.iter().enumerate();
            let here = here.filter(|(_, slot)| slot.cpu == index && slot.member.is_some());
            let leader = here.map(|(id, _)| id).max_by_key(|&id| used[id]);
            cpu.favoured.extend(leader.map(TaskId));
            cpu.has_leader = leader.is_some();
        }
    }

    /// Resets the leaders to the base priority. A thread that is lowered becomes the first of its
    /// new priority, so the leaders continue to run.
    pub(super) fn equalise_leaders(&mut self) -> Result<(), crate::SchedError> {
        for index in 0..self.cpus.len() {
            if !std::mem::take(&mut self.cpus[index].has_leader) {
                continue;
            }
            let favoured = std::mem::take(&mut self.cpus[index].favoured);
            for task in favoured {
                self.slots[task.0].notch.at = self.config.base;
                self.set(task, TaskClass::Fifo(self.config.base))?;
            }
        }
        Ok(())
    }

    pub(super) fn report(&mut self, now: Nanos, own_cpu_time: Nanos) -> Report {
        self.read_cpu_times();
        let used = |slot: &Slot<M>| slot.cpu_time - slot.cpu_time_at_start;
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
            own_cpu_time: own_cpu_time.saturating_sub(self.own_cpu_time_at_start),
            untraced: self.trace.lost_events(),
            tasks: self.slots.iter().map(task).collect(),
            ..self.report.clone()
        }
    }
}
