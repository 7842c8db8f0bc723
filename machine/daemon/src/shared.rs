//! State that all threads of the daemon share. Each part is constant, atomic, or protected by a
//! lock that is held only briefly.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Resource;
use upshift_elevate::sys::Sys;
use upshift_elevate::{Elevator, Priority};

use crate::bounds::quota::Quotas;
use upshift_core::TokenBucket;

use crate::bounds::{bucket_per_second, nanos, timestamp_ns};
use crate::config::Config;
use crate::machine::Machine;
use crate::proc::reader::ProcReader;
use crate::ranking::global::Global;
use crate::ranking::roster::Roster;
use crate::status::log::Log;

/// Priority of dispatchers, above all workers.
pub(crate) const DISPATCHER: Priority = Priority::of::<44>();

/// Priority of the daemon's own threads, above all threads that the daemon elevates, and below the
/// guardian.
pub(crate) const DAEMON: Priority = Priority::of::<46>();

/// Priority of canaries, above every ordinary thread and below all other elevated threads.
pub(crate) const CANARY: Priority = Priority::MIN;

/// Priority of the canaries' monitor, above the daemon's other threads.
pub(crate) const MONITOR: Priority = Priority::of::<47>();

/// Time without a heartbeat after which the guardian demotes all threads. A canary that cannot run
/// is noticed within the same time.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(100);

/// Maximum time for which each thread of the daemon works in each [`WINDOW`].
pub(crate) const BUDGET: Duration = Duration::from_millis(4);
/// Length of the window to which [`BUDGET`] applies.
pub(crate) const WINDOW: Duration = Duration::from_millis(20);

/// The limit on the work of one of the daemon's threads, ns. It is a fifth of the time, with bursts
/// of [`BUDGET`].
#[derive(Debug)]
pub(crate) struct WorkBudget(TokenBucket);

impl WorkBudget {
    pub(crate) fn new(now: Instant) -> WorkBudget {
        let rate = Duration::from_secs(1).mul_f64(BUDGET.div_duration_f64(WINDOW));
        WorkBudget(bucket_per_second(nanos(rate), nanos(BUDGET), now))
    }

    pub(crate) fn charge_and_sleep(&mut self, time: Duration) {
        std::thread::sleep(self.charge(time, Instant::now()));
    }

    /// Counts work that ends at `now`, and returns the time to sleep until the budget is full
    /// again. A full budget means that few wake-ups are needed. The time is at most an eighth of a
    /// second, since the machine may have stood still meanwhile.
    pub(crate) fn charge(&mut self, time: Duration, now: Instant) -> Duration {
        if self.0.charge(nanos(time.min(WINDOW)), timestamp_ns(now)) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.0.wait(u64::MAX, timestamp_ns(now)))
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    config: Mutex<Arc<Config>>,
    pub(crate) log: Log,
    /// `None` in cooperative mode.
    pub(crate) elevator: Option<Elevator>,
    pub(crate) sys: Arc<dyn Sys>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) global: Global,
    /// Upper bound of the numbers of CPUs, exclusive.
    pub(crate) cpus: usize,
    pub(crate) descriptors: usize,
    pub(crate) counts: Counts,
    pub(crate) roster: Roster,
    pub(crate) quotas: Quotas,
    /// Ordinary threads that open files of other processes, and close descriptors of clients.
    pub(crate) reader: ProcReader,
    /// Work since the last [`Shared::take_work`] by those threads of the daemon that have no fixed
    /// CPU, ns.
    work: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) joined: AtomicU64,
    /// Number of refused requests.
    pub(crate) refused: AtomicU64,
    pub(crate) ejected: AtomicU64,
    /// Number of times that a canary was silent for too long.
    pub(crate) alarms: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        elevator: Option<Elevator>,
        sys: Arc<dyn Sys>,
        machine: Arc<dyn Machine>,
        global: Global,
        cpus: usize,
        reader: ProcReader,
    ) -> Shared {
        Shared {
            config: Mutex::new(Arc::new(config)),
            log: Log::start(),
            elevator,
            sys,
            machine,
            global,
            cpus,
            descriptors: rustix::process::getrlimit(Resource::Nofile)
                .current
                .map_or(usize::MAX, |limit| limit as usize),
            counts: Counts::default(),
            roster: Roster::default(),
            quotas: Quotas::start(),
            reader,
            work: AtomicU64::new(0),
        }
    }

    pub(crate) fn enforcing(&self) -> bool {
        self.elevator.is_some()
    }

    /// Returns a number that changes when the monitor or the guardian, but no scheduler, has moved
    /// threads.
    pub(crate) fn epoch(&self) -> u64 {
        let guardian = self.elevator.as_ref().map_or(0, Elevator::demotions);
        self.roster.epoch().wrapping_add(guardian)
    }

    /// Counts work that a thread of the daemon without a fixed CPU has done at the daemon's
    /// priority.
    pub(crate) fn add_work(&self, time: Duration) {
        self.work.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn take_work(&self) -> Duration {
        Duration::from_nanos(self.work.swap(0, Relaxed))
    }

    /// Returns the online CPUs, or only the first CPU if they are unknown.
    pub(crate) fn online_cpus(&self) -> Vec<usize> {
        let text = self.sys.read_file("/sys/devices/system/cpu/online");
        parse_cpus(text.as_deref().unwrap_or("0"))
    }

    /// Prints a line on standard error, at most one of each kind every ten seconds.
    pub(crate) fn warn(&self, kind: &'static str, text: impl FnOnce() -> String) {
        self.log.warn(kind, text);
    }

    /// Counts an ejection, and prints its reason.
    pub(crate) fn eject(&self, text: String) {
        self.counts.ejected.fetch_add(1, Relaxed);
        self.log.say(text);
    }

    pub(crate) fn config(&self) -> Arc<Config> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config)
    }

    pub(crate) fn set_config(&self, config: Arc<Config>) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// Parses a list of CPUs of the kernel. Returns no CPU if the list is invalid.
pub(crate) fn parse_cpus(list: &str) -> Vec<usize> {
    let mut cpus = upshift_units::cpus(list).unwrap_or_default();
    cpus.truncate(upshift_board::layout::CPUS);
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_used_its_budget_sleeps_until_it_has_a_fifth_of_the_time() {
        let ms = Duration::from_millis;
        let began = Instant::now() + ms(1000);
        let mut budget = WorkBudget::new(began);
        assert_eq!(budget.charge(ms(3), began), ms(0));
        assert_eq!(budget.charge(ms(2), began), ms(25));
        assert_eq!(budget.charge(ms(2), began + ms(5)), ms(30));
        assert_eq!(budget.charge(ms(3), began + ms(1000)), ms(0));
        assert!(budget.charge(ms(9000), began + ms(10_000)) <= ms(125));
    }
}
