//! Constructs a runtime from its settings.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use upshift_board::Role;
use upshift_core::{Config, Domain, Floor};
use upshift_ring::UseHooks;

use super::Builder;
use super::observation::Observation;
use crate::affinity;
use crate::blocking::pool::Pool;
use crate::board::{Board, Membership};
use crate::context::numbers::Number;
use crate::context::{self, RuntimeCell};
use crate::host::Linux;
use crate::notice::notice;
use crate::preempt::interrupt;
use crate::preempt::permit;
use crate::preempt::{self, Preemption};
use crate::runtime::driver::Choice;
use crate::runtime::shared::{Meters, Settings, Shared};
use crate::runtime::{Engine, Observers, Runtime};
use crate::stand_in::arrivals::AccessTable;
use crate::time::clock;
#[cfg(feature = "tokio-rt")]
use crate::tokio::embedded::TokioRuntime;
use crate::tokio::thread_hooks::ThreadHooks;

/// Cost of moving work to an idle vCPU. Most of it is the wake-up of a halted virtual CPU, which
/// takes about 40 µs.
const MIGRATION_COST: Duration = Duration::from_micros(50);
/// Default of [`Builder::quantum`].
const QUANTUM: Duration = Duration::from_micros(500);
/// Error text of calls that need a vCPU, on a thread for blocking functions.
const OUTSIDE: &str = "this is a thread for blocking functions, not a coroutine of upshift: do this before or after `spawn_blocking`, \
                       or in `upshift::spawn`";

impl Builder {
    /// Builds the runtime and starts its threads.
    ///
    /// # Errors
    /// * `InvalidInput` for no vCPU or more than 256, a name with a NUL, no thread for blocking
    ///   functions, a floor outside 1 to 99 percent, a stall limit of 0, or a CPU that does not
    ///   exist;
    /// * the kernel's error in the set-up of a ring, with advice, or in the start of a thread;
    /// * `PermissionDenied` with [`Preemption::Required`] if the vCPUs cannot be preemptible, with
    ///   the reason;
    /// * with [`Board::Required`], `NotFound` if there is no daemon, or the daemon's refusal.
    ///
    /// ```
    /// use upshift::Runtime;
    ///
    /// let runtime = Runtime::builder().vcpus(1).build()?;
    /// assert_eq!(runtime.block_on(async { 7 }), 7);
    /// let error = Runtime::builder().vcpus(0).build().err().unwrap();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn build(mut self) -> io::Result<Runtime> {
        self.check()
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let settings = match self.preemption {
            Preemption::Off if !self.blocking_tolerant => None,
            Preemption::Required => Some(self.preempt_settings()?),
            _ => self.preempt_settings().map_err(report_cooperative).ok(),
        };
        let choice = Choice::new(self.ring.driver)?;
        match self.clone().build_with_fallback(&choice, settings.clone()) {
            Err(error)
                if settings.is_some()
                    && self.preemption != Preemption::Required
                    && error.kind() == io::ErrorKind::PermissionDenied =>
            {
                report_cooperative(error);
                self.preemption = Preemption::Off;
                self.blocking_tolerant = false;
                self.build_with_fallback(&choice, None)
            }
            result => result,
        }
    }

    /// Builds with the chosen driver. If that driver does not work for all vCPUs, and the choice is
    /// open, builds with the other driver.
    fn build_with_fallback(
        self,
        choice: &Choice,
        settings: Option<preempt::Settings>,
    ) -> io::Result<Runtime> {
        let result = self
            .clone()
            .build_with_driver(choice.clone(), settings.clone());
        let fallback = result
            .as_ref()
            .err()
            .and_then(|error| choice.fallback(error));
        match fallback {
            Some(fallback) => self.build_with_driver(fallback, settings),
            None => result,
        }
    }

    fn build_with_driver(
        self,
        driver: Choice,
        settings: Option<preempt::Settings>,
    ) -> io::Result<Runtime> {
        let observation = Observation::new(&self)?;
        // Counts the CPUs of the machine, not those of this thread, because a waker may run on any
        // CPU.
        let cpus = affinity::online_cpus();
        let default_spin = if cpus > 1 && self.vcpus <= cpus && settings.is_none() {
            Duration::from_micros(50)
        } else {
            Duration::ZERO
        };
        let quantum = match &settings {
            Some(settings) if self.preemption != Preemption::Off => settings.quantum(),
            _ => self.quantum.unwrap_or(QUANTUM),
        };
        let config = self.core_config(quantum);
        // tokio's context encloses all user code, the user's hooks included.
        #[cfg_attr(
            not(feature = "tokio-rt"),
            expect(unused_mut, reason = "tokio's hook is added")
        )]
        let mut outer_hooks = ThreadHooks::default();
        let runtime_cell = RuntimeCell::default();
        #[cfg(feature = "tokio-rt")]
        let tokio = if self.tokio {
            let threads = self.blocking_threads.max(1);
            Some(TokioRuntime::new(&self.name, threads, &runtime_cell)?)
        } else {
            None
        };
        #[cfg(feature = "tokio-rt")]
        if let Some(tokio) = &tokio {
            outer_hooks.add(tokio.thread_hook());
        }
        let thread_hooks = outer_hooks.with(self.thread_hooks);
        let pool = Arc::new(Pool::new(
            self.blocking_threads.max(1),
            self.name.clone(),
            outer_hooks.clone(),
            {
                let runtime_cell = runtime_cell.clone();
                move || context::join_runtime(&runtime_cell, OUTSIDE)
            },
        ));
        let mut ring = self.ring;
        ring.driver = driver.driver;
        ring.offload = Some(pool.clone());
        ring.use_hooks = Some(UseHooks {
            enter: permit::begin_use,
            leave: permit::end_use,
        });
        let domain = Domain::new(Linux::new(), config);
        let shared = Arc::new(Shared {
            number: Number::new(&domain),
            domain,
            pool,
            settings: Settings {
                spin: self.spin.unwrap_or(default_spin),
                reap_interval: self.reap_interval,
                quantum,
                ring,
                driver,
                name: self.name,
                pins: self.pins,
                cpus: affinity::cpus(),
                preemption: settings,
            },
            vcpu_threads: Mutex::new(Vec::new()),
            reported: AtomicBool::new(false),
            running: AtomicBool::new(false),
            membership: Membership::find(self.board)?,
            built_at: clock::ticks(),
            meters: Meters::default(),
            access: AccessTable::default(),
            monitor: OnceLock::new(),
            outer_hooks,
            thread_hooks,
        });
        let _ = runtime_cell.set(Arc::downgrade(&shared));
        let (engine, affinity) = first_vcpu(&shared)?;
        let mut runtime = Runtime {
            shared,
            engine,
            main_level: self.main_level,
            observers: Observers::default(),
            affinity,
            #[cfg(feature = "tokio-rt")]
            _tokio: tokio,
            not_send: PhantomData,
        };
        for _ in 1..self.vcpus {
            runtime.shared.add_vcpu()?;
        }
        runtime.shared.running.store(true, Ordering::Relaxed);
        #[cfg(feature = "tokio-rt")]
        if let Some(tokio) = &runtime._tokio {
            tokio.drive_when_used(&runtime.shared, &runtime_cell)?;
        }
        join_board(&runtime.shared, self.board)?;
        observation.start(&mut runtime)?;
        Ok(runtime)
    }

    fn core_config(&self, quantum: Duration) -> Config {
        Config {
            floor: self.floor.map(|(from, percent)| Floor {
                from,
                percent,
                quantum: clock::to_ticks(quantum),
            }),
            chaos: self.chaos,
            coarse_below: clock::to_ticks(Duration::from_nanos(300)),
            notify_above: clock::to_ticks(Duration::from_micros(20)),
            long_poll_after: clock::to_ticks(MIGRATION_COST),
            suspended_delay: clock::to_ticks(preempt::SUSPENDED_DELAY),
        }
    }

    fn preempt_settings(&self) -> io::Result<preempt::Settings> {
        let cpu = affinity::current()?.cpus().first().copied().unwrap_or(0);
        let costs = preempt::costs(cpu);
        let requested_ns = clock::nanos(self.quantum.unwrap_or(QUANTUM));
        let rule = preempt::Rule {
            interrupts: self.preemption != Preemption::Off,
            ..preempt::Rule::new(costs.suspension, requested_ns)
        };
        let settings = preempt::Settings::new(
            rule,
            costs.looks,
            self.max_suspended.clamp(1, interrupt::MAX_THREADS) + 1,
        );
        let is_requested = rule.interrupts && self.quantum.is_some();
        if is_requested && settings.quantum() > Duration::from_nanos(requested_ns) {
            notice(format_args!(
                "the quantum is {:?} instead of {:?}: it cannot be less than four times the cost of suspending a poll",
                settings.quantum(),
                Duration::from_nanos(requested_ns)
            ));
        }
        Ok(settings)
    }
}

/// Adds vCPU 0 and starts its service. If this pins the calling thread, also returns the affinity
/// that the thread had before.
fn first_vcpu(shared: &Arc<Shared>) -> io::Result<(Engine, Option<affinity::Mask>)> {
    let executor = shared.domain.add_vcpu().map_err(io::Error::other)?;
    let pin = shared.pinned_cpu(0);
    let mut affinity = None;
    let engine = if shared.settings.preemption.is_some() {
        // The calling thread polls pinned coroutines in `block_on`, where it may be interrupted.
        interrupt::claim().map_err(preempt::refusal)?;
        let (first_thread, vcpu) = shared.start_vcpu(executor)?;
        if let (Some(membership), Some(cpu)) = (&shared.membership, pin) {
            // The calling thread polls the pinned coroutines.
            affinity = Some(affinity::current()?);
            affinity::pin(cpu)?;
            membership.enlist(0, Role::Worker);
        }
        shared.vcpu_threads().push(first_thread);
        match vcpu {
            Some(vcpu) => Engine::Preemptible(vcpu),
            None => unreachable!("with preemption, every vCPU is preemptible"),
        }
    } else {
        if pin.is_some() {
            affinity = Some(affinity::current()?);
        }
        Engine::Inline(Some(shared.worker(executor, pin)?.0))
    };
    Ok((engine, affinity))
}

fn join_board(shared: &Shared, board: Board) -> io::Result<()> {
    let Some(membership) = &shared.membership else {
        return Ok(());
    };
    match membership.join() {
        Ok(()) => {}
        Err(error) if board == Board::Required => return Err(error.into()),
        Err(error) => notice(format_args!("{error}; the vCPUs run without the board")),
    }
    membership.start_keeper(&shared.settings.name)
}

fn report_cooperative(error: io::Error) {
    notice(format_args!(
        "{error}; long polls are not interrupted, and one that blocks stops its vCPU"
    ));
}
