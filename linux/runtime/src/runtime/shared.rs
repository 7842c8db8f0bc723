//! State that all vCPUs (worker threads with their queues) of a runtime share.
//!
//! | state | written by | read by |
//! |---|---|---|
//! | `domain`, `pool`, `access`, `meters` | all, by the rules of their types | all |
//! | `number`, `settings`, `membership`, `built_at` | set by the builder | all |
//! | `outer_hooks`, `thread_hooks` | set by the builder | all |
//! | `vcpu_threads` | threads that add or release a vCPU, under its lock | the same, the end |
//! | `reported` | the first vCPU whose ring fails | vCPUs whose rings fail |
//! | `running` | the builder, once | threads that add a vCPU |
//! | `monitor` | the builder, before polls begin | vCPUs, after each wait |

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
use crate::observe::Monitor;
use crate::preempt::{self, PreemptionStats};
use crate::runtime::driver::Choice;
use crate::stand_in::arrivals::AccessTable;
use crate::tokio::thread_hooks::ThreadHooks;

/// The shared state of a runtime.
pub(crate) struct Shared {
    pub(crate) domain: Domain<Linux>,
    pub(crate) number: Number,
    pub(crate) pool: Arc<Pool>,
    pub(crate) settings: Settings,
    pub(crate) vcpu_threads: Mutex<Vec<VcpuThread>>,
    /// Set once the failure of a ring has been reported.
    pub(crate) reported: AtomicBool,
    /// Set once the builder has added its vCPUs.
    pub(crate) running: AtomicBool,
    pub(crate) membership: Option<Arc<Membership>>,
    /// Tick at which the runtime was built.
    pub(crate) built_at: u64,
    pub(crate) meters: Meters,
    /// Access of vCPUs to each other's timers and rings, for standing in.
    pub(crate) access: AccessTable,
    /// Set if a watchdog observes the polls.
    pub(crate) monitor: OnceLock<Arc<Monitor>>,
    /// Hooks that put a thread into the context (tokio's, for example) in which all user code runs.
    pub(crate) outer_hooks: ThreadHooks,
    /// Hooks of threads that poll: `outer_hooks` and the user's hooks.
    pub(crate) thread_hooks: ThreadHooks,
}

/// The settings with which a runtime was built.
pub(crate) struct Settings {
    pub(crate) spin: Duration,
    /// The interval between two reaps while coroutines are ready.
    pub(crate) reap_interval: Duration,
    /// The longest run of a coroutine before it goes to the tail of its level.
    pub(crate) quantum: Duration,
    pub(crate) ring: upshift_ring::Config,
    pub(crate) driver: Choice,
    pub(crate) name: String,
    /// CPUs that the user has chosen, by vCPU.
    pub(crate) pins: Vec<usize>,
    /// CPUs of the process, for vCPUs that must be pinned and that the user did not pin.
    pub(crate) cpus: Vec<usize>,
    /// How vCPUs interrupt polls; `None` if they do not.
    pub(crate) preemption: Option<preempt::Settings>,
}

/// A thread that serves a vCPU.
pub(crate) struct VcpuThread {
    pub(crate) index: usize,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) thread: thread::JoinHandle<()>,
}

/// Meters of the vCPUs. A vCPU that is released and added again continues its own.
#[derive(Default)]
pub(crate) struct Meters(Mutex<Vec<Arc<Meter>>>);

impl Shared {
    /// Reports a failure of a ring that no operation would report. Only the first failure is
    /// reported, since failures may recur in every pass.
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

    pub(crate) fn meter(&self, index: usize) -> Arc<Meter> {
        debug_assert!(index < MAX_VCPUS);
        let mut meters = self.meters.0.lock().unwrap_or_else(PoisonError::into_inner);
        while meters.len() <= index {
            meters.push(Arc::default());
        }
        meters[index].clone()
    }

    /// Returns the CPU of a vCPU: the user's choice or, with the board or preemption, a CPU of the
    /// process.
    pub(crate) fn pinned_cpu(&self, index: usize) -> Option<usize> {
        let by_user = self.settings.pins.get(index).copied();
        let needs_cpu = self.membership.is_some() || self.settings.preemption.is_some();
        by_user.or_else(|| self.cpu_of(index).filter(|_| needs_cpu))
    }

    fn cpu_of(&self, index: usize) -> Option<usize> {
        let cpus = &self.settings.cpus;
        cpus.get(index % cpus.len().max(1)).copied()
    }

    pub(crate) fn preemption_stats(&self) -> PreemptionStats {
        let mut stats = PreemptionStats::default();
        self.domain.host().add_preemption_to(&mut stats);
        for vcpu in self.domain.vcpus() {
            stats.suspended += vcpu.suspended();
            stats.suspensions += vcpu.suspensions();
        }
        stats
    }

    pub(crate) fn board_stats(&self) -> BoardStats {
        self.membership
            .as_ref()
            .map_or_else(BoardStats::default, |membership| membership.stats())
    }
}
