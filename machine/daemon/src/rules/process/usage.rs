//! Accounts for CPU time. The CPU time of the whole process counts for its domain and its quotas.
//! The CPU time of each thread counts for the rotation (`rotation.rs`).
//!
//! Reading the total of a process is one system call, which takes longer the more threads the
//! process has.

use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;

use super::{Process, ProcessClass, Thread};
use crate::rules::domain::{DOMAIN_PERIOD, Domains, RECENT_PERIODS};
use crate::shared::Shared;

/// CPU time from which a thread counts as computing, which is a fiftieth of the last
/// [`RECENT_PERIODS`] periods of its domain.
pub(super) const MIN_COMPUTING: Duration = Duration::from_millis(2);
const _: () =
    assert!(MIN_COMPUTING.as_millis() * 50 == DOMAIN_PERIOD.as_millis() * RECENT_PERIODS as u128);

/// Maximum number of threads that are sampled in one process.
const MAX_SAMPLED_THREADS: usize = 128;

#[derive(Debug)]
pub(super) struct Usage {
    pub(super) last_total: Duration,
    /// CPU time that the quotas have been charged for.
    pub(super) charged: Duration,
    reported_at: Instant,
    /// CPU time since the last report, and the part of it in SCHED_FIFO.
    unreported: (Duration, Duration),
    /// CPU time in the last [`RECENT_PERIODS`] periods; earlier periods have less weight.
    pub(super) recent: Duration,
}

impl Usage {
    pub(super) fn new(pid: i32, shared: &Shared, now: Instant) -> Usage {
        let total = shared.machine.process_time(pid).unwrap_or(0);
        let total = Duration::from_nanos(total);
        Usage {
            last_total: total,
            charged: total,
            reported_at: now,
            unreported: Default::default(),
            recent: Duration::ZERO,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ThreadUsage {
    pub(super) last_total: Duration,
    pub(super) recent: Duration,
    /// Total when the thread was last moved behind the other threads of its priority.
    pub(super) total_at_rotation: Duration,
}

impl Thread {
    /// Returns the CPU time since the thread started; `None` if the thread has ended, or while its
    /// CPU time is unknown.
    pub(super) fn total(&self, shared: &Shared) -> Option<Duration> {
        let total = self.entry.cpu_time(shared.machine.as_ref());
        total.map(Duration::from_nanos)
    }

    /// Records the CPU time of the period that ends. Returns whether the thread is alive.
    fn sample_period(&mut self, shared: &Shared) -> bool {
        let total = self.total(shared);
        let usage = &mut self.usage;
        let now = total.unwrap_or(usage.last_total);
        let used = now.saturating_sub(std::mem::replace(&mut usage.last_total, now));
        usage.recent = usage.recent * (RECENT_PERIODS - 1) / RECENT_PERIODS + used;
        total.is_some()
    }
}

impl Process {
    /// Returns the CPU time of all threads, including threads that have ended.
    pub(super) fn total(&self, shared: &Shared) -> Duration {
        let total = shared.machine.process_time(self.pid);
        // After the end of the process the total is final.
        total.map_or(self.usage.last_total, Duration::from_nanos)
    }

    /// Records the CPU time since the last call as used in the current class. Returns the total.
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

    pub(super) fn charge_quotas(&mut self, total: Duration, now: Instant) {
        let charged = &mut self.usage.charged;
        let used = || total.saturating_sub(std::mem::replace(charged, total));
        self.quota_usage.charge(used, now);
    }

    /// Counts the CPUs that the process occupies. This is the number of its threads that compute,
    /// up to the number of CPUs that the process may use. This costs one system call for each
    /// thread.
    pub(super) fn count_cpus(&mut self, shared: &Shared) {
        let computes = |thread: &&Thread| {
            // A thread that has ended occupies no CPU.
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

    /// Reports the CPU time, and the CPUs that the process occupied, to its domain.
    pub(in crate::rules) fn report_usage(
        &mut self,
        shared: &Shared,
        domains: &mut Domains,
        now: Instant,
    ) {
        if shared.machine.process_time(self.pid).is_err() {
            // The process has ended, but the kernel's report has not arrived.
            self.charge_unreported(domains, now);
            self.usage.reported_at = now;
            return;
        }
        self.add_usage(shared);
        let usage = &mut self.usage;
        let (used, urgent) = std::mem::take(&mut usage.unreported);
        usage.reported_at = now;
        usage.recent = usage.recent * (RECENT_PERIODS - 1) / RECENT_PERIODS + used;
        self.cpus.computing = 1;
        if usage.recent < MIN_COMPUTING {
            return domains.charge(&self.cpus.allowed, urgent, 0);
        }
        let (mut cpus, mut threads, mut living) = (CpuSet::empty(), 0, 0);
        for (&tid, thread) in self.threads.iter_mut().take(MAX_SAMPLED_THREADS) {
            let is_alive = thread.sample_period(shared);
            if thread.usage.recent >= MIN_COMPUTING {
                threads += 1;
                living += u32::from(is_alive);
                let allowed = shared.sys.sched_getaffinity(tid);
                cpus = cpus.or(&allowed.unwrap_or(self.cpus.allowed));
            }
        }
        self.cpus.computing = living.clamp(1, self.cpus.width);
        if threads == 0 {
            // The threads that computed have ended.
            (cpus, threads) = (self.cpus.allowed, 1);
        }
        domains.charge(&cpus, urgent, threads);
    }

    /// Charges the domain for a process that has ended or leaves its rule. Its CPU time since the
    /// last report is unknown, so the domain is charged for the whole time since then.
    pub(in crate::rules) fn charge_unreported(&self, domains: &mut Domains, now: Instant) {
        if self.class_state.class == ProcessClass::Urgent {
            let unreported = (now - self.usage.reported_at).min(DOMAIN_PERIOD);
            domains.charge(&self.cpus.allowed, unreported, 0);
        }
    }
}
