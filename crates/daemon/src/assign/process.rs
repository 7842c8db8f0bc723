//! One assigned process: its threads, its budget.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use upshift_elevate::{Class, Priority, Tid};

use crate::assign::{Assign, PERIOD, Traits};
use crate::roster::{EVERYWHERE, Hold, Owner};
use crate::shared::Shared;

/// See the module. Dropping it gives all its threads back.
#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    user: u32,
    rule: Assign,
    threads: HashMap<Tid, Thread>,
    /// Whether its threads are to be in SCHED_FIFO, and [`Shared::epoch`] when they were put there.
    urgent: bool,
    epoch: u64,
    /// When this period began, and what it had used by then.
    began: Instant,
    before: Duration,
    due: Instant,
    /// It has used its budget, and is ordinary until then.
    rests_until: Instant,
}

/// A thread in the roster; leaving it gives the thread back.
#[derive(Debug)]
struct Thread {
    hold: Arc<Hold>,
    clock: Arc<OwnedFd>,
    shared: Arc<Shared>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.shared.roster.remove(&self.hold);
    }
}

/// The last look before a budget is used up is no nearer: a fortieth of a full budget.
const LEAST: Duration = Duration::from_millis(1);

/// Below the bands of registered processes (12 and above), above the canary: eight steps.
fn priority(level: u8) -> Priority {
    Priority::new(2 + (63 - level.min(63)) / 8).unwrap_or(Priority::MIN)
}

impl Process {
    pub(super) fn attach(
        pid: i32,
        traits: &Traits,
        rule: &Assign,
        shared: &Arc<Shared>,
        room: usize,
        now: Instant,
    ) -> io::Result<Process> {
        let mut process = Process {
            pid,
            user: traits.user,
            rule: rule.clone(),
            threads: HashMap::new(),
            urgent: true,
            epoch: shared.epoch(),
            began: now,
            before: Duration::ZERO,
            due: now,
            rests_until: now,
        };
        process.count_threads(shared, room);
        process.before = process.used(shared);
        Ok(process)
    }

    pub(super) fn is_under(&self, rule: &Assign, user: u32) -> bool {
        self.rule == *rule && self.user == user
    }

    /// When to look at it next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// How many threads of it are held.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Takes in the threads it has and does not know, of which there is `room` for so many, and forgets those that have ended.
    pub(super) fn count_threads(&mut self, shared: &Arc<Shared>, room: usize) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid));
        let tids = tasks.into_iter().flatten().flatten();
        let tids: Vec<Tid> = tids
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        self.threads.retain(|tid, _| tids.contains(tid));
        let most = self.threads.len() + room;
        for tid in tids {
            if self.threads.len() < most {
                self.adopt(tid, shared);
            }
        }
    }

    /// A thread of it was born. One that cannot be had (it has ended, or has chosen a policy of its own) is left as it is.
    pub(super) fn adopt(&mut self, tid: Tid, shared: &Arc<Shared>) {
        let Some(elevator) = shared.elevator.as_ref() else {
            return;
        };
        if self.threads.contains_key(&tid) {
            return;
        }
        // Recorded first, which fixes the thread, and then proved to be of this process.
        let Ok(guard) = elevator.hold(tid) else {
            return;
        };
        let former = guard.former().map(|former| former.class());
        if !matches!(former, Some(Class::Other { .. })) {
            return;
        }
        let Ok(clock) = shared.machine.thread_clock(self.pid, tid) else {
            return;
        };
        let clock = Arc::new(clock);
        let owner = Owner {
            pid: self.pid,
            user: self.user,
            cpu: EVERYWHERE,
        };
        let hold = shared.roster.add(guard, owner, Arc::clone(&clock));
        if self.urgent {
            // If the kernel refuses, it stays as it is.
            let _ = hold.raise(priority(self.rule.level));
        }
        let thread = Thread {
            hold,
            clock,
            shared: Arc::clone(shared),
        };
        self.threads.insert(tid, thread);
    }

    /// A thread has ended; whether that was the last one.
    pub(super) fn lose(&mut self, tid: Tid) -> bool {
        self.threads.remove(&tid);
        self.threads.is_empty()
    }

    /// CPU time of the threads it has. What threads that have ended used does not count against it.
    fn used(&self, shared: &Shared) -> Duration {
        let machine = shared.machine.as_ref();
        let of = |thread: &Thread| machine.cpu_time(thread.clock.as_fd()).unwrap_or(0);
        Duration::from_nanos(self.threads.values().map(of).sum())
    }

    /// Puts it where its budget says, and decides when to look again.
    pub(super) fn settle(&mut self, shared: &Arc<Shared>, now: Instant) {
        let epoch = shared.epoch();
        let moved = std::mem::replace(&mut self.epoch, epoch) != epoch;
        if now < self.due && !moved {
            return;
        }
        let used = self.used(shared);
        let percent = self.rule.budget.clamp(1, 99);
        let budget = PERIOD * percent / 100;
        let spent = used.saturating_sub(self.before);
        let barred = shared.bars.is_barred(self.user, now);
        if self.urgent && spent >= budget {
            // Ordinary for so long that it has had its share of the time, however late this was noticed.
            self.rests_until = now + spent * (100 - percent) / percent;
        }
        let rests = now < self.rests_until;
        if !rests && (!self.urgent || now - self.began >= PERIOD) {
            (self.began, self.before) = (now, used);
        }
        let urgent = !rests && !barred;
        if urgent != self.urgent || moved {
            self.urgent = urgent;
            for thread in self.threads.values() {
                let hold = &thread.hold;
                // A thread that has ended is heard of, or found out.
                let _ = match urgent {
                    true => hold.raise(priority(self.rule.level)).map(drop),
                    false => hold.guard().set_fair(),
                };
            }
        }
        // All its threads may run at once, each on a CPU.
        let at_once = self.threads.len().clamp(1, shared.cpus) as u32;
        let left = budget.saturating_sub(used.saturating_sub(self.before));
        self.due = match (rests, urgent) {
            (true, _) => self.rests_until,
            (false, true) => (self.began + PERIOD).min(now + (left / at_once).max(LEAST)),
            (false, false) => now + PERIOD,
        };
    }
}
