//! What the threads of the daemon share: all of it constant, atomic, or behind a short lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Resource;
use upshift_elevate::sys::Sys;
use upshift_elevate::{Elevator, Priority};

use crate::bounds::quota::Quotas;
use upshift_core::TokenBucket;

use crate::bounds::{ns, per_second, whole};
use crate::config::Config;
use crate::machine::Machine;
use crate::proc::reader::ProcReader;
use crate::ranking::global::Global;
use crate::ranking::roster::Roster;
use crate::status::log::Log;

/// Dispatchers of processes, above all workers.
pub(crate) const DISPATCHER: Priority = Priority::of::<44>();

/// The daemon's own threads, above everything they decide about, below the guardian.
pub(crate) const DAEMON: Priority = Priority::of::<46>();

/// Canaries, above every ordinary thread and below everything that is elevated.
pub(crate) const CANARY: Priority = Priority::MIN;

/// The canary's watch, above the daemon's other threads too.
pub(crate) const WATCH: Priority = Priority::of::<47>();

/// How long the daemon may be without a sign of life before the guardian demotes all threads: as long as the canary of a CPU.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(100);

/// What each of the daemon's threads limits itself to: so much work in so much time.
pub(crate) const BUDGET: Duration = Duration::from_millis(4);
pub(crate) const WINDOW: Duration = Duration::from_millis(20);

/// The limit that a thread of the daemon keeps to, ns of work: a fifth of the time, [`BUDGET`] at
/// once.
#[derive(Debug)]
pub(crate) struct WorkBudget(TokenBucket);

impl WorkBudget {
    pub(crate) fn new(now: Instant) -> WorkBudget {
        let rate = Duration::from_secs(1).mul_f64(BUDGET.div_duration_f64(WINDOW));
        WorkBudget(per_second(whole(rate), whole(BUDGET), now))
    }

    /// Counts work, and sleeps if the budget is used up.
    pub(crate) fn keep(&mut self, time: Duration) {
        std::thread::sleep(self.rest(time, Instant::now()));
    }

    /// Counts work that ends at `now`, and returns how long to rest: until the whole budget is
    /// there again, so that few wakes are needed. That is an eighth of a second at most, since
    /// the machine may have stood still meanwhile.
    pub(crate) fn rest(&mut self, time: Duration, now: Instant) -> Duration {
        if self.0.charge(whole(time.min(WINDOW)), ns(now)) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.0.wait(u64::MAX, ns(now)))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    config: Mutex<Arc<Config>>,
    pub(crate) log: Log,
    /// `None`: cooperative.
    pub(crate) elevator: Option<Elevator>,
    pub(crate) sys: Arc<dyn Sys>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) global: Global,
    /// CPUs are numbered below this.
    pub(crate) cpus: usize,
    /// So many files may be open at once.
    pub(crate) descriptors: usize,
    pub(crate) counts: Counts,
    /// Threads of clients that are recorded.
    pub(crate) roster: Roster,
    pub(crate) quotas: Quotas,
    /// Ordinary threads that open files of other processes, and close descriptors of clients.
    pub(crate) reader: ProcReader,
    /// ns that the daemon's threads which are not of one CPU have worked since [`Shared::worked`] was called.
    work: AtomicU64,
}

/// Counters of the whole daemon.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Registrations so far.
    pub(crate) joined: AtomicU64,
    /// Requests refused.
    pub(crate) refused: AtomicU64,
    /// Threads put out for what they did.
    pub(crate) ejected: AtomicU64,
    /// How often the canary of some CPU did not sing.
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
                .map_or(usize::MAX, |it| it as usize),
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

    /// Changes when others than the schedulers, the canary's watch or the guardian, have moved threads.
    pub(crate) fn epoch(&self) -> u64 {
        let guardian = self.elevator.as_ref().map_or(0, Elevator::demotions);
        self.roster.epoch().wrapping_add(guardian)
    }

    /// A thread of the daemon that is not of one CPU has worked for so long, at its priority, on some CPU.
    pub(crate) fn has_worked(&self, time: Duration) {
        self.work.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// What such threads have worked since the last call.
    pub(crate) fn worked(&self) -> Duration {
        Duration::from_nanos(self.work.swap(0, Relaxed))
    }

    /// The CPUs that are there now; only the first if the kernel does not tell.
    pub(crate) fn online(&self) -> Vec<usize> {
        let text = self.sys.read_file("/sys/devices/system/cpu/online");
        cpus(text.as_deref().unwrap_or("0"))
    }

    /// Prints a line on standard error, at most one of a kind each ten seconds.
    pub(crate) fn complain(&self, kind: &'static str, text: impl FnOnce() -> String) {
        self.log.complain(kind, text);
    }

    /// Counts, and says in a line of its own, that something is not elevated any more for what it did.
    pub(crate) fn eject(&self, text: String) {
        self.counts.ejected.fetch_add(1, Relaxed);
        self.log.say(text);
    }

    /// The configuration as it is now.
    pub(crate) fn config(&self) -> Arc<Config> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config)
    }

    pub(crate) fn set_config(&self, config: Arc<Config>) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// The CPUs of a list of the kernel; none if it is not one.
pub(crate) fn cpus(list: &str) -> Vec<usize> {
    let mut cpus = upshift_units::cpus(list).unwrap_or_default();
    cpus.truncate(upshift_board::layout::CPUS);
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_used_its_budget_rests_until_it_has_a_fifth_of_the_time() {
        let ms = Duration::from_millis;
        let began = Instant::now() + ms(1000);
        let mut budget = WorkBudget::new(began);
        assert_eq!(budget.rest(ms(3), began), ms(0));
        assert_eq!(budget.rest(ms(2), began), ms(25));
        assert_eq!(budget.rest(ms(2), began + ms(5)), ms(30));
        assert_eq!(budget.rest(ms(3), began + ms(1000)), ms(0));
        assert!(budget.rest(ms(9000), began + ms(10_000)) <= ms(125));
    }
}
