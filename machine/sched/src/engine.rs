//! [`Engine`] is the loop that carries out the decisions of a [`Policy`], by changing the
//! SCHED_FIFO priorities of threads.
//!
//! ```text
//!        ┌──────────────────────────────────────────────────────────────────────────────┐
//!        ▼                                                                              │
//!   wait (one call) ─▶ ended? ─▶ turn over? charge, pick, place, raise ─▶ piece? ─▶ scan? ─┘
//! ```
//!
//! Invariants:
//! * On each CPU, between two waits, the favoured tasks have falling notches (priorities, see
//!   `ratchet.rs`) above all other tasks. In an open piece, which is a time for ordinary threads
//!   ([`OpenPieces`](crate::OpenPieces)), the first favoured task is `Fair` and all other tasks are
//!   `Idle`.
//! * A turn that changes nothing makes no system call except the wait, and the calls that read CPU
//!   time if the policy wants the usage.
//! * Work without an exact time (pieces, scans) is done at the end of a turn if one is near
//!   (`due.rs`), because an additional wake-up costs the task in front more than the work itself.
//! * If a CPU becomes unavailable (unplugged, or removed from a cpuset), the engine moves its tasks
//!   to the other CPUs. Losing the last CPU ends the loop.
//! * However the loop ends, the owner of the engine drops the members, which restores them.
//!
//! One thread runs the engine, above all tasks. It takes no lock, and allocates a few short vectors
//! for each turn.

mod due;
mod front;
mod usage;

use std::time::Duration;

use upshift_elevate::Priority;

use crate::clock::Clock;
use crate::config::Config;
use crate::control::{Change, Control};
use crate::error::SchedError;
use crate::member::{Member, TaskClass};
use crate::policy::{Nanos, Policy, TaskId, Turn};
use crate::ratchet::{Notch, Ratchet};
use crate::report::{EventKind, Report, Samples, Trace};
use due::WorkTimes;

/// If a wake-up is later than this, in ns, the scheduler was stopped or the machine was suspended.
const MAX_LATENESS: Nanos = 1_000_000_000;
/// Time between reports, ns.
const PUBLISH_INTERVAL: Nanos = 1_000_000_000;

/// A policy, its tasks, and the loop that connects them.
pub struct Engine<M> {
    config: Config,
    policy: Box<dyn Policy>,
    wants_usage: bool,
    control: Control,
    slots: Vec<Slot<M>>,
    ratchet: Ratchet,
    cpus: Vec<Cpu>,
    /// Set during an open piece.
    is_open: bool,
    /// Beginning of the interval in which ordinary threads are due their part.
    closed_at: Nanos,
    /// Set if a task has changed its CPU in this interval.
    has_moved: bool,
    turn: Turn,
    turn_began: Nanos,
    /// Set when an open piece overlapped the turn, because usage then says little about which tasks
    /// slept.
    turn_was_open: bool,
    began: Nanos,
    /// The scheduler's own CPU time when the engine began, and at [`Engine::closed_at`].
    own_cpu_time_at_start: Nanos,
    own_cpu_time_at_close: Nanos,
    /// Times by which turns began too late, ns.
    late: Samples,
    /// Durations of turns that changed the task in front of a CPU, ns.
    cost: Samples,
    trace: Trace,
    report: Report,
}

#[derive(Debug)]
struct Slot<M> {
    /// `None` after the task has ended.
    member: Option<M>,
    label: String,
    left_out: bool,
    cpu: usize,
    notch: Notch,
    sleeps: bool,
    /// Number of turns since the member was last asked whether it sleeps.
    turns_since_sleep_check: u32,
    /// CPU time when the engine began, at the last reading, and since the last report to the
    /// policy.
    cpu_time_at_start: Nanos,
    cpu_time: Nanos,
    unreported: Nanos,
    cpu_time_at_close: Nanos,
    turns: u64,
}

impl<M> Slot<M> {
    fn new(label: String, task: TaskId, base: Priority) -> Slot<M> {
        Slot {
            member: None,
            label,
            left_out: false,
            cpu: 0,
            notch: Notch {
                task: task.0,
                at: base,
            },
            sleeps: false,
            turns_since_sleep_check: 0,
            cpu_time_at_start: 0,
            cpu_time: 0,
            unreported: 0,
            cpu_time_at_close: 0,
            turns: 0,
        }
    }
}

#[derive(Debug)]
struct Cpu {
    number: usize,
    favoured: Vec<TaskId>,
    /// The task that competes with ordinary threads in an open piece.
    fair: Option<TaskId>,
    /// Set if the policy favours no task, and the task that used most CPU time is in front during
    /// an open piece.
    has_leader: bool,
}

impl Cpu {
    fn front(&self) -> Option<TaskId> {
        self.favoured.first().copied()
    }
}

impl<M: Member> Engine<M> {
    /// Creates an engine without tasks.
    pub fn new(config: Config, policy: Box<dyn Policy>) -> Engine<M> {
        let cpu = |&number: &usize| Cpu {
            number,
            favoured: Vec::new(),
            fair: None,
            has_leader: false,
        };
        let cpus: Vec<Cpu> = config.cpus.iter().map(cpu).collect();
        Engine {
            wants_usage: policy.wants_usage(),
            turn: Turn::new(cpus.len()),
            trace: Trace::new(config.trace),
            report: Report {
                policy: policy.name(),
                ..Report::default()
            },
            ratchet: Ratchet::new(config.base, config.top),
            cpus,
            config,
            policy,
            control: Control::default(),
            slots: Vec::new(),
            is_open: false,
            closed_at: 0,
            has_moved: false,
            turn_began: 0,
            turn_was_open: false,
            began: 0,
            own_cpu_time_at_start: 0,
            own_cpu_time_at_close: 0,
            late: Samples::default(),
            cost: Samples::default(),
        }
    }

    /// Adds a task, which waits at [`Config::base`]. The task gets a CPU immediately; the policy
    /// learns of it when the engine runs.
    ///
    /// # Errors
    /// The CPU cannot be used, or a right is missing.
    pub fn add(&mut self, mut member: M) -> Result<TaskId, SchedError> {
        let task = TaskId(self.slots.len());
        let load = |cpu: usize| self.live().filter(|(_, slot)| slot.cpu == cpu).count();
        let cpu = (0..self.cpus.len())
            .min_by_key(|&cpu| load(cpu))
            .unwrap_or(0);
        if let Some(cpu) = self.cpus.get(cpu) {
            member.pin(cpu.number)?;
        }
        let slot = Slot::new(member.label().to_owned(), task, self.config.base);
        let cpu_time_at_start = member.cpu_time();
        self.slots.push(Slot {
            member: Some(member),
            cpu,
            cpu_time_at_start,
            cpu_time: cpu_time_at_start,
            cpu_time_at_close: cpu_time_at_start,
            ..slot
        });
        Ok(task)
    }

    /// Adds a task that ended before it could be attached. The task keeps its number, and the
    /// policy sees its beginning and its end.
    pub fn add_ended(&mut self, label: impl Into<String>) -> TaskId {
        self.add_without_member(label.into(), false)
    }

    /// Adds a task that cannot be scheduled. The task keeps its number, and the policy treats it
    /// like a task that has ended.
    pub fn add_left_out(&mut self, label: impl Into<String>) -> TaskId {
        self.add_without_member(label.into(), true)
    }

    fn add_without_member(&mut self, label: String, left_out: bool) -> TaskId {
        let task = TaskId(self.slots.len());
        let slot = Slot::new(label, task, self.config.base);
        self.slots.push(Slot { left_out, ..slot });
        task
    }

    /// Returns a handle for other threads.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Returns the trace, which is empty unless [`Config::trace`] is set.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Iterates over the members that have not ended.
    pub fn members(&self) -> impl Iterator<Item = (TaskId, &M)> {
        let member = |(id, slot): (usize, &'_ Slot<M>)| (TaskId(id), slot.member.is_some());
        let ids = self.slots.iter().enumerate().map(member);
        ids.filter(|&(_, lives)| lives)
            .filter_map(|(id, _)| Some((id, self.slots[id.0].member.as_ref()?)))
    }

    /// Runs until every task has ended or [`Control::stop`] is called. The calling thread must be
    /// elevated above [`Config::top`].
    ///
    /// # Errors
    /// A right or the last CPU was lost. Dropping the engine restores the tasks.
    pub fn run(&mut self, clock: &mut dyn Clock) -> Result<Report, SchedError> {
        self.own_cpu_time_at_start = self.own_cpu_time(clock);
        self.own_cpu_time_at_close = self.own_cpu_time_at_start;
        self.began = clock.now();
        self.turn_began = self.began;
        self.closed_at = self.began;
        for (task, slot) in self.slots.iter_mut().enumerate() {
            slot.read_cpu_time();
            (slot.cpu_time_at_start, slot.unreported) = (slot.cpu_time, 0);
            slot.cpu_time_at_close = slot.cpu_time;
            self.policy.added(TaskId(task), self.began);
            if slot.member.is_none() {
                self.policy.removed(TaskId(task), self.began);
            }
        }
        let scan = nanos(self.config.scan_interval);
        let pieces = self.config.open_pieces.pieces(self.threads());
        let mut due = WorkTimes::new(self.began, pieces, scan);
        while !self.control.is_stopped() && self.live().next().is_some() {
            let now = clock.now();
            match self.work(now, clock, &mut due) {
                // The next turn repeats the work with the remaining CPUs.
                Err(SchedError::Cpu { cpu, .. }) if self.drop_cpu(cpu)? => due.turn_end = Some(now),
                done => done?,
            }
            if self.control.take_bell() {
                continue;
            }
            self.report.waits += 1;
            clock.wait(Some(due.next()), &self.control);
        }
        let now = clock.now();
        let own_cpu_time = self.own_cpu_time(clock);
        let report = self.report(now, own_cpu_time);
        self.control.publish(|| report.clone());
        Ok(report)
    }

    fn work(
        &mut self,
        now: Nanos,
        clock: &mut dyn Clock,
        due: &mut WorkTimes,
    ) -> Result<(), SchedError> {
        // While the scheduler was stopped or suspended, thread ids may have been reused.
        let was_stopped = now.saturating_sub(due.next()) > MAX_LATENESS;
        self.apply_changes()?;
        if self.control.take_scan_request() || was_stopped {
            self.scan(true, now, due)?;
        }
        if due.turn_end.is_some_and(|at| now >= at) {
            let switches = self.report.switches;
            self.next_turn(now, due)?;
            due.align_piece(now);
            if self.report.switches > switches {
                self.cost.add(clock.now().saturating_sub(now));
            }
        }
        if due.piece_is_due(now) {
            let pieces = self.config.open_pieces.pieces(self.threads());
            let own_cpu_time = self.own_cpu_time(clock);
            if !self.is_open && self.ordinary_threads_had_their_part(now, own_cpu_time) {
                self.begin_interval(now, own_cpu_time);
                due.postpone_piece(now, pieces);
            } else {
                if self.is_open {
                    self.close(now)?;
                    let own_cpu_time = self.own_cpu_time(clock);
                    self.begin_interval(now, own_cpu_time);
                } else {
                    self.open(now)?;
                }
                due.record_piece(now, self.is_open, pieces);
            }
        }
        if due.wants_scan(now) {
            let before = self.threads();
            self.scan(due.is_thorough(now), now, due)?;
            let threads = self.threads();
            due.record_scan(now, threads > before, threads);
        }
        if now >= due.publish {
            due.publish = now + PUBLISH_INTERVAL;
            let control = self.control.clone();
            let own_cpu_time = self.own_cpu_time(clock);
            control.publish(|| self.report(now, own_cpu_time));
        }
        Ok(())
    }

    /// Adds new threads, and forgets threads that have ended. Must run before a thread is raised by
    /// its id, which may belong to a later thread by now.
    fn apply_changes(&mut self) -> Result<(), SchedError> {
        for change in self.control.take_changes() {
            for member in self
                .slots
                .iter_mut()
                .filter_map(|slot| slot.member.as_mut())
            {
                match change {
                    Change::ThreadStarted {
                        parent,
                        process,
                        thread,
                    } => member.on_thread_start(parent, process, thread)?,
                    Change::ThreadEnded { process, thread } => {
                        member.on_thread_end(process, thread)
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves the tasks of CPU `number`, which can no longer be used, to other CPUs; `false` if it
    /// was the last CPU.
    fn drop_cpu(&mut self, number: usize) -> Result<bool, SchedError> {
        let Some(lost_index) = self.cpus.iter().position(|cpu| cpu.number == number) else {
            return Ok(false);
        };
        if self.cpus.len() == 1 {
            return Ok(false);
        }
        self.cpus.remove(lost_index);
        self.has_moved = true;
        self.report.lost.push(number);
        self.turn = Turn::new(self.cpus.len());
        for id in 0..self.slots.len() {
            let slot = &mut self.slots[id];
            if slot.cpu != lost_index {
                slot.cpu -= usize::from(slot.cpu > lost_index);
                continue;
            }
            slot.cpu = id % self.cpus.len();
            let (number, open) = (self.cpus[slot.cpu].number, self.is_open);
            slot.notch.at = self.config.base;
            let waiting = if open {
                TaskClass::Idle
            } else {
                TaskClass::Fifo(self.config.base)
            };
            if let Some(member) = &mut slot.member {
                self.report.calls += u64::from(member.set(waiting)?);
                match member.pin(number) {
                    // If this CPU also fails, a later turn drops it.
                    Err(SchedError::Cpu { .. }) | Ok(()) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(true)
    }

    fn live(&self) -> impl Iterator<Item = (TaskId, &Slot<M>)> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| slot.member.is_some())
            .map(|(id, slot)| (TaskId(id), slot))
    }

    /// Returns the CPU time that this thread and the thread of the
    /// [`ProcessMonitor`](crate::ProcessMonitor) have used together, ns.
    fn own_cpu_time(&self, clock: &dyn Clock) -> Nanos {
        clock.own_cpu_time() + self.control.monitor_cpu_time()
    }

    fn threads(&self) -> usize {
        let threads = |slot: &Slot<M>| slot.member.as_ref().map_or(0, Member::threads);
        self.slots.iter().map(threads).sum()
    }

    fn scan(&mut self, thorough: bool, now: Nanos, due: &mut WorkTimes) -> Result<(), SchedError> {
        for id in 0..self.slots.len() {
            let slot = &mut self.slots[id];
            let Some(member) = &mut slot.member else {
                continue;
            };
            if member.scan(thorough)? {
                continue;
            }
            slot.read_cpu_time();
            slot.member = None;
            let task = TaskId(id);
            for cpu in &mut self.cpus {
                cpu.favoured.retain(|&other| other != task);
            }
            self.policy.removed(task, now);
            self.trace.add(now - self.began, EventKind::Ended(task));
            due.turn_end = Some(now);
        }
        Ok(())
    }
}

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests;
