//! Used CPU time: of the process for its domain and its quotas, of each thread for turns.
//!
//! Reading the total is one system call, whose time grows with the threads.

use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;

use super::{Process, ProcessClass, Thread};
use crate::rules::domain::{Domains, RECENT_TURNS, TURN};
use crate::shared::Shared;

/// CPU time in the last [`RECENT_TURNS`] turns of its domain from which on a thread counts as
/// computing: one in 50.
pub(super) const MIN_COMPUTING: Duration = Duration::from_millis(2);
const _: () = assert!(MIN_COMPUTING.as_millis() * 50 == TURN.as_millis() * RECENT_TURNS as u128);

/// Threads of one process that are sampled.
const MAX_SAMPLED_THREADS: usize = 128;

/// CPU time of a process.
#[derive(Debug)]
pub(super) struct Usage {
    /// Total at the last reading.
    pub(super) last_total: Duration,
    /// Total when the quotas were charged last.
    pub(super) charged: Duration,
    /// Time of the last report to the domain.
    reported: Instant,
    /// CPU time since then, and the part of it in SCHED_FIFO.
    unreported: (Duration, Duration),
    /// CPU time in the last [`RECENT_TURNS`] turns, earlier ones with less weight.
    pub(super) recent: Duration,
}

impl Usage {
    pub(super) fn new(pid: i32, shared: &Shared, now: Instant) -> Usage {
        let total = shared.machine.process_time(pid).unwrap_or(0);
        let total = Duration::from_nanos(total);
        Usage {
            last_total: total,
            charged: total,
            reported: now,
            unreported: Default::default(),
            recent: Duration::ZERO,
        }
    }
}

/// CPU time of a thread.
#[derive(Debug, Default)]
pub(super) struct ThreadUsage {
    /// Total at the last reading.
    pub(super) last_total: Duration,
    /// CPU time in the last turns, as [`Usage::recent`].
    pub(super) recent: Duration,
    /// Total when it was last put behind the others of its priority.
    pub(super) total_at_rotation: Duration,
}

impl Thread {
    /// Returns the total; `None` after its end, or while it is unknown.
    pub(super) fn total(&self, shared: &Shared) -> Option<Duration> {
        let total = self.entry.cpu_time(shared.machine.as_ref());
        total.map(Duration::from_nanos)
    }

    /// Adds the CPU time of the turn that ends to the recent usage. Returns whether the thread is
    /// alive.
    fn sample_turn(&mut self, shared: &Shared) -> bool {
        let total = self.total(shared);
        let usage = &mut self.usage;
        let now = total.unwrap_or(usage.last_total);
        let used = now.saturating_sub(std::mem::replace(&mut usage.last_total, now));
        usage.recent = usage.recent * (RECENT_TURNS - 1) / RECENT_TURNS + used;
        total.is_some()
    }
}

impl Process {
    /// Returns the CPU time of all its threads, including those that have ended.
    pub(super) fn total(&self, shared: &Shared) -> Duration {
        let total = shared.machine.process_time(self.pid);
        // After the end of the process the total is final.
        total.map_or(self.usage.last_total, Duration::from_nanos)
    }

    /// Adds the CPU time since the last call, which counts for the present class. Returns the
    /// total.
    pub(super) fn add_usage(&mut self, shared: &Shared) -> Duration {
        let total = self.total(shared);
        let usage = &mut self.usage;
        let used = total.saturating_sub(std::mem::replace(&mut usage.last_total, total));
        usage.unreported.0 += used;
        if self.class_state.class == ProcessClass::Urgent {
            usage.unreported.1 += used;
        }
        total
    }

    /// Charges the quotas of its cgroups.
    pub(super) fn charge_quotas(&mut self, total: Duration, now: Instant) {
        let charged = &mut self.usage.charged;
        let used = || total.saturating_sub(std::mem::replace(charged, total));
        self.quota_usage.charge(used, now);
    }

    /// Counts the CPUs that the process runs on: its threads that compute now, but no more than the
    /// CPUs that it may use. One system call for each thread.
    pub(super) fn count_cpus(&mut self, shared: &Shared) {
        let computes = |thread: &&Thread| {
            // A thread that has ended runs on no CPU.
            let total = thread.total(shared);
            total.is_some_and(|total| {
                thread.usage.recent + total.saturating_sub(thread.usage.last_total) >= MIN_COMPUTING
            })
        };
        let threads = self
            .threads
            .values()
            .take(MAX_SAMPLED_THREADS)
            .filter(computes);
        self.cpus.computing = (threads.count() as u32).clamp(1, self.cpus.width);
    }

    /// Reports the CPU time, and the CPUs that the process ran on, to its domain.
    pub(in crate::rules) fn report_usage(
        &mut self,
        shared: &Shared,
        domains: &mut Domains,
        now: Instant,
    ) {
        if shared.machine.process_time(self.pid).is_err() {
            // The end of the process has not been reported yet.
            self.charge_unreported(domains, now);
            self.usage.reported = now;
            return;
        }
        self.add_usage(shared);
        let usage = &mut self.usage;
        let (used, urgent) = std::mem::take(&mut usage.unreported);
        usage.reported = now;
        usage.recent = usage.recent * (RECENT_TURNS - 1) / RECENT_TURNS + used;
        self.cpus.computing = 1;
        if usage.recent < MIN_COMPUTING {
            return domains.charge(&self.cpus.allowed, urgent, 0);
        }
        let (mut cpus, mut threads, mut living) = (CpuSet::empty(), 0, 0);
        for (&tid, thread) in self.threads.iter_mut().take(MAX_SAMPLED_THREADS) {
            let lives = thread.sample_turn(shared);
            if thread.usage.recent >= MIN_COMPUTING {
                threads += 1;
                living += u32::from(lives);
                let there = shared.sys.sched_getaffinity(tid);
                cpus = cpus.or(&there.unwrap_or(self.cpus.allowed));
            }
        }
        self.cpus.computing = living.clamp(1, self.cpus.width);
        if threads == 0 {
            // The threads that computed have ended.
            (cpus, threads) = (self.cpus.allowed, 1);
        }
        domains.charge(&cpus, urgent, threads);
    }

    /// Charges the domain for a process that has ended, or leaves its rule. Its CPU time since the
    /// last report is unknown, so the longest possible time counts.
    pub(in crate::rules) fn charge_unreported(&self, domains: &mut Domains, now: Instant) {
        if self.class_state.class == ProcessClass::Urgent {
            let unknown = (now - self.usage.reported).min(TURN);
            domains.charge(&self.cpus.allowed, unknown, 0);
        }
    }
}
