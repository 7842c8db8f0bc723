//! Measures the time in which this process has no CPU, because it is stopped or other processes
//! have the CPUs. Admission control does not count this time, an *absence*, as waiting. Requests
//! that queue during an absence are not a sign of overload, and are served as soon as the process
//! resumes.
//!
//! The gates read the clock with each request. If more than [`CHECK_INTERVAL`] has passed since the
//! last check and requests wait, the process compares this time with its own CPU time. The
//! difference counts as an absence. A handler that sleeps in a blocking call cannot be
//! distinguished from an absence. Therefore absences are taken from a budget of at most
//! [`MAX_ABSENCE`], which counted time refills. Of any time *t* the gates count at least (*t* −
//! [`MAX_ABSENCE`]) / 2, so the bound on waiting holds up to a factor of two.
//!
//! Cost: a load and a comparison per reading; a system call and a pass over all gates at most once
//! per [`CHECK_INTERVAL`].

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// Minimum time between two checks, in ns. This much of the time between two checks always counts;
/// the kernel's time slices are longer.
const CHECK_INTERVAL: u64 = 1_000_000;
/// Largest budget for absences, in ns; clients notice a longer stop in any case.
const MAX_ABSENCE: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Absence {
    /// Time of the last check, in ns.
    checked_at: AtomicU64,
    /// Sum of all absences, in ns.
    absent: AtomicU64,
    budget: Mutex<Budget>,
}

#[derive(Debug)]
struct Budget {
    /// CPU time of the process at the last check, in ns.
    cpu_time: u64,
    /// Absence that may still be left out, in ns.
    left: u64,
}

impl Absence {
    pub(crate) fn new() -> Absence {
        Absence {
            checked_at: AtomicU64::new(0),
            absent: AtomicU64::new(0),
            budget: Mutex::new(Budget {
                cpu_time: 0,
                left: MAX_ABSENCE,
            }),
        }
    }

    /// Returns the time `now` without absences. `cpu_time` returns the CPU time of the process, and
    /// `is_waiting` whether any request waits. If no request waits, there is no absence.
    #[inline]
    pub(crate) fn counted(
        &self,
        now: u64,
        cpu_time: impl FnOnce() -> u64,
        is_waiting: impl FnOnce() -> bool,
    ) -> u64 {
        if now.saturating_sub(self.checked_at.load(Acquire)) > CHECK_INTERVAL {
            self.check(now, cpu_time, is_waiting);
        }
        now.saturating_sub(self.absent.load(Relaxed))
    }

    #[cold]
    fn check(&self, now: u64, cpu_time: impl FnOnce() -> u64, is_waiting: impl FnOnce() -> bool) {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_sub(self.checked_at.load(Relaxed));
        if elapsed <= CHECK_INTERVAL {
            // Another thread has checked meanwhile.
            return;
        }
        let cpu_time = cpu_time();
        let cpu_time_used = cpu_time.saturating_sub(budget.cpu_time).max(CHECK_INTERVAL);
        budget.cpu_time = cpu_time;
        let absent = if is_waiting() {
            elapsed.saturating_sub(cpu_time_used).min(budget.left)
        } else {
            0
        };
        budget.left = (budget.left - absent + (elapsed - absent)).min(MAX_ABSENCE);
        // A thread that acquires the new `checked_at` also sees this sum.
        self.absent.fetch_add(absent, Relaxed);
        self.checked_at.store(now, Release);
    }
}

/// Returns the CPU time of the process, in ns.
pub(crate) fn process_cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanos = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    u64::try_from(nanos).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_stop_does_not_count_and_a_long_poll_does() {
        let absence = Absence::new();
        assert_eq!(absence.counted(10 * MS, || 10 * MS, || true), 10 * MS);
        // The process was stopped.
        assert_eq!(absence.counted(160 * MS, || 10 * MS, || true), 11 * MS);
        // The process computed.
        assert_eq!(absence.counted(310 * MS, || 160 * MS, || true), 161 * MS);
        // The process had half of a CPU.
        assert_eq!(absence.counted(330 * MS, || 170 * MS, || true), 171 * MS);
        // A short interval is not checked.
        let not_asked = || unreachable!("it is too early for a check");
        assert_eq!(absence.counted(331 * MS, not_asked, || true), 172 * MS);
    }

    #[test]
    fn an_idle_process_is_not_absent() {
        let absence = Absence::new();
        assert_eq!(absence.counted(900 * MS, || 0, || false), 900 * MS);
        assert_eq!(absence.counted(901 * MS, || 0, || false), 901 * MS);
    }

    #[test]
    fn at_least_half_of_the_time_beyond_the_budget_counts() {
        let absence = Absence::new();
        for step in 1..=100 {
            let now = step * 50 * MS;
            let counted = absence.counted(now, || 0, || true);
            assert!(
                counted >= now.saturating_sub(MAX_ABSENCE) / 2,
                "{counted} of {now}"
            );
            assert!(counted <= now);
        }
    }
}
