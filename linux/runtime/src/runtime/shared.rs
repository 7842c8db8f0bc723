//! What all vCPUs of a runtime share.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `domain`, `pool`, `reaches`, `meters` | all, as they document | all |
//! | `number`, `settings`, `membership`, `built` | set by the builder | all |
//! | `outermost`, `surroundings` | set by the builder | all |
//! | `others` | threads that add or release a vCPU, under its lock | the same, the end |
//! | `reported`, `retired` | the first vCPU that sees the failure | vCPUs that see it |
//! | `running` | the builder, once | threads that add a vCPU |
//! | `watch` | the builder, before polls begin | vCPUs, after each wait |

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use upshift_core::{Domain, MAX_VCPUS};
use upshift_ring::Driver;

use crate::blocking::pool::Pool;
use crate::board::{BoardStats, Membership};
use crate::context::numbers::Number;
use crate::host::Linux;
use crate::metrics::Meter;
use crate::notice::notice;
use crate::observe::Watch;
use crate::preempt::{self, PreemptionStats};
use crate::runtime::driver::Choice;
use crate::stand_in::arrivals::Reaches;
use crate::tokio::around::Surroundings;

/// See the module.
pub(crate) struct Shared {
    pub(crate) domain: Domain<Linux>,
    /// How locks name it.
    pub(crate) number: Number,
    pub(crate) pool: Arc<Pool>,
    pub(crate) settings: Settings,
    pub(crate) others: Mutex<Vec<Other>>,
    /// A ring that fails is reported once, not at every turn.
    pub(crate) reported: AtomicBool,
    /// All vCPUs of the builder have been started.
    pub(crate) running: AtomicBool,
    /// This process among the others of the machine.
    pub(crate) membership: Option<Arc<Membership>>,
    /// When it was built, ticks.
    pub(crate) built: u64,
    pub(crate) meters: Meters,
    /// The vCPUs, as they reach each other.
    pub(crate) reaches: Reaches,
    /// Set if polls are watched.
    pub(crate) watch: OnceLock<Arc<Watch>>,
    /// Contexts of all threads that run code of users.
    pub(crate) outermost: Surroundings,
    /// Contexts of threads while they poll: the same, and hooks.
    pub(crate) surroundings: Surroundings,
}

/// Constants that vCPUs are made with.
pub(crate) struct Settings {
    /// The longest spin before a wait.
    pub(crate) spin: Duration,
    /// Between two reaps, beside something more urgent.
    pub(crate) reap_interval: Duration,
    /// The longest run of a coroutine before it goes to the tail of its level.
    pub(crate) quantum: Duration,
    pub(crate) ring: upshift_ring::Config,
    pub(crate) driver: Choice,
    /// Beginning of the names of threads.
    pub(crate) name: String,
    /// The CPUs that the user has chosen, by vCPU.
    pub(crate) pins: Vec<usize>,
    /// The CPUs of the process, for vCPUs that must be pinned and are not by the user.
    pub(crate) cpus: Vec<usize>,
    /// How vCPUs interrupt polls; `None`: they do not.
    pub(crate) preemption: Option<preempt::Settings>,
}

/// A vCPU with a thread of its own.
pub(crate) struct Other {
    pub(crate) index: usize,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) thread: thread::JoinHandle<()>,
}

/// What each vCPU says of itself; one that is released and added again goes on with its own.
#[derive(Default)]
pub(crate) struct Meters(Mutex<Vec<Arc<Meter>>>);

impl Shared {
    /// A ring failed in a way that its operations do not see.
    #[cold]
    pub(crate) fn report(&self, error: &io::Error) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            let call = match self.settings.driver.driver {
                Driver::Readiness => "epoll_wait",
                Driver::Auto | Driver::Ring => "io_uring_enter",
            };
            notice(format_args!("{call} failed: {error}; retrying"));
        }
        thread::sleep(Duration::from_millis(1));
    }

    /// What a vCPU says of itself.
    pub(crate) fn meter(&self, index: usize) -> Arc<Meter> {
        debug_assert!(index < MAX_VCPUS);
        let mut meters = self.meters.0.lock().unwrap_or_else(PoisonError::into_inner);
        while meters.len() <= index {
            meters.push(Arc::default());
        }
        meters[index].clone()
    }

    /// The CPU that the user wants a vCPU on; with the board, or preemption, every vCPU has one.
    pub(crate) fn pin_of(&self, index: usize) -> Option<usize> {
        let by_user = self.settings.pins.get(index).copied();
        let needs_one = self.membership.is_some() || self.settings.preemption.is_some();
        by_user.or_else(|| self.cpu_of(index).filter(|_| needs_one))
    }

    fn cpu_of(&self, index: usize) -> Option<usize> {
        let cpus = &self.settings.cpus;
        cpus.get(index % cpus.len().max(1)).copied()
    }

    /// What preemption has done so far.
    pub(crate) fn preemption_stats(&self) -> PreemptionStats {
        let mut stats = PreemptionStats::default();
        self.domain.host().add_preemption_to(&mut stats);
        for vcpu in self.domain.vcpus() {
            stats.suspended += vcpu.suspended();
            stats.suspensions += vcpu.suspensions();
        }
        stats
    }

    /// How the process stands with the daemon.
    pub(crate) fn board_stats(&self) -> BoardStats {
        self.membership
            .as_ref()
            .map_or_else(BoardStats::default, |membership| membership.stats())
    }
}
