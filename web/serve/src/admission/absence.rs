//! Time in which this process has no CPU: it is stopped, or other processes have the CPUs. A gate does not count it as waiting: the requests
//! that queue then are no sign of overload, and are served as soon as the process goes on.
//!
//! The gates read the clock with each request. If more than [`GLANCE`] has passed since the last look while something waited, the process
//! compares that time with the CPU time that it has used: the difference was an absence. A process that sleeps in a blocking call, in a
//! handler, looks the same; so absences come out of an account that holds [`HELD`] and receives what is counted. Of any time *t* the
//! gates therefore count at least (*t* − [`HELD`]) / 2, whatever the reason, and the bound on waiting still holds, up to that factor.
//!
//! Cost: a load and a comparison per reading; a system call and a look at all gates per [`GLANCE`] at most.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// What counts without a look, ns: the kernel's time slices are longer.
const GLANCE: u64 = 1_000_000;
/// What the account holds at most, ns: a longer stop is seen by clients in any case.
const HELD: u64 = 1_000_000_000;

/// See the module. Times are nanoseconds.
#[derive(Debug)]
pub(crate) struct Absence {
    /// When it was looked at last.
    looked: AtomicU64,
    /// All absences up to then.
    absent: AtomicU64,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    /// The CPU time of the process at the last look.
    used: u64,
    held: u64,
}

impl Absence {
    pub(crate) fn new() -> Absence {
        Absence {
            looked: AtomicU64::new(0),
            absent: AtomicU64::new(0),
            account: Mutex::new(Account {
                used: 0,
                held: HELD,
            }),
        }
    }

    /// The time without absences. `used` is the CPU time of the process, and `waits` says whether anything waits: without that there is nothing to
    /// count.
    #[inline]
    pub(crate) fn counted(
        &self,
        now: u64,
        used: impl FnOnce() -> u64,
        waits: impl FnOnce() -> bool,
    ) -> u64 {
        if now.saturating_sub(self.looked.load(Acquire)) > GLANCE {
            self.look(now, used, waits);
        }
        now.saturating_sub(self.absent.load(Relaxed))
    }

    #[cold]
    fn look(&self, now: u64, used: impl FnOnce() -> u64, waits: impl FnOnce() -> bool) {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_sub(self.looked.load(Relaxed));
        if passed <= GLANCE {
            // Another thread has looked.
            return;
        }
        let used = used();
        let ran = used.saturating_sub(account.used).max(GLANCE);
        account.used = used;
        let absent = match waits() {
            true => passed.saturating_sub(ran).min(account.held),
            false => 0,
        };
        account.held = (account.held - absent + (passed - absent)).min(HELD);
        // Seen by those that see the time of the look.
        self.absent.fetch_add(absent, Relaxed);
        self.looked.store(now, Release);
    }
}

/// The CPU time that the process has used, ns.
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
        // Stopped.
        assert_eq!(absence.counted(160 * MS, || 10 * MS, || true), 11 * MS);
        // Computing.
        assert_eq!(absence.counted(310 * MS, || 160 * MS, || true), 161 * MS);
        // Half of the CPU.
        assert_eq!(absence.counted(330 * MS, || 170 * MS, || true), 171 * MS);
        // What is short is not looked at.
        let not_asked = || unreachable!("it is too early to look");
        assert_eq!(absence.counted(331 * MS, not_asked, || true), 172 * MS);
    }

    #[test]
    fn an_idle_process_is_not_absent() {
        let absence = Absence::new();
        assert_eq!(absence.counted(900 * MS, || 0, || false), 900 * MS);
        assert_eq!(absence.counted(901 * MS, || 0, || false), 901 * MS);
    }

    #[test]
    fn at_least_half_of_what_goes_beyond_the_account_counts() {
        let absence = Absence::new();
        for step in 1..=100 {
            let now = step * 50 * MS;
            let counted = absence.counted(now, || 0, || true);
            assert!(
                counted >= now.saturating_sub(HELD) / 2,
                "{counted} of {now}"
            );
            assert!(counted <= now);
        }
    }
}
