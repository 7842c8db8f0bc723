//! The runtime: a domain, and a thread for each of its vCPUs.
//!
//! The thread that builds the runtime serves vCPU 0, while it is in
//! [`Runtime::block_on`]; each other vCPU has a thread of its own. Dropping the
//! runtime cancels every coroutine while all vCPUs still serve, so that I/O in
//! flight is cancelled by the rings that started it; then the threads leave.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use upshift_core::{Domain, Executor, Level, MAX_VCPUS, Priority};
use upshift_ring::{Driver, Mode, Ring};

use crate::affinity;
use crate::blocking::Pool;
use crate::board::{BoardStats, Membership};
use crate::builder::Builder;
use crate::clock;
use crate::context;
use crate::coop;
use crate::driver::{Choice, Report};
use crate::handle::Handle;
use crate::host::Linux;
use crate::metrics::Meter;
use crate::notice::notice;
use crate::numbers::Number;
use crate::observe::{Watch, Watchdog};
use crate::preempt::{self, Preemptible, PreemptionStats};
use crate::reach::Reaches;
use crate::time::Timers;
use crate::worker::Worker;

/// What all vCPUs share.
pub(crate) struct Shared {
    pub(crate) domain: Domain<Linux>,
    /// How locks name it.
    pub(crate) number: Number,
    pub(crate) pool: Arc<Pool>,
    pub(crate) spin: Duration,
    pub(crate) reap_interval: Duration,
    pub(crate) quantum: Duration,
    pub(crate) ring: upshift_ring::Config,
    pub(crate) driver: Choice,
    pub(crate) name: String,
    pub(crate) pins: Vec<usize>,
    pub(crate) others: Mutex<Vec<Other>>,
    /// A ring that fails is reported once, not at every turn.
    pub(crate) reported: AtomicBool,
    /// How vCPUs interrupt polls; `None`: they do not.
    pub(crate) preemption: Option<preempt::Settings>,
    /// The CPUs of the process, for vCPUs that must be pinned and are not by the user.
    pub(crate) cpus: Vec<usize>,
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
    /// What threads are within while they poll.
    pub(crate) surroundings: crate::around::Surroundings,
}

/// What each vCPU says of itself; one that is released and added again goes on with its own.
#[derive(Default)]
pub(crate) struct Meters(Mutex<Vec<Arc<Meter>>>);

/// A vCPU with a thread of its own.
pub(crate) struct Other {
    index: usize,
    stop: Arc<AtomicBool>,
    pub(crate) preemptible: Option<Arc<Preemptible>>,
    thread: thread::JoinHandle<()>,
}

impl Shared {
    /// A ring failed in a way that its operations do not see.
    #[cold]
    pub(crate) fn report(&self, error: &io::Error) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            let call = match self.driver.driver {
                Driver::Readiness => "epoll_wait",
                Driver::Auto | Driver::Ring => "io_uring_enter",
            };
            notice(format_args!("{call} failed: {error}; retrying"));
        }
        thread::sleep(Duration::from_millis(1));
    }

    /// The vCPU with a ring of the calling thread, which is pinned if `pin` says so.
    pub(crate) fn worker(
        self: &Arc<Shared>,
        executor: Executor<Linux>,
        pin: Option<usize>,
    ) -> io::Result<Box<Worker>> {
        let index = executor.index();
        if let Some(cpu) = pin {
            affinity::pin(cpu)?;
        }
        let ring = Ring::new(self.ring.clone())?;
        ring.set_own(Domain::<Linux>::waker_table());
        self.domain.host().set_remote(index, Some(ring.remote()));
        let timers = Arc::new(Timers::new(clock::now()));
        self.reaches.set(index, Some(&timers));
        let post = match (&self.membership, pin) {
            (Some(membership), Some(cpu)) => {
                let has_watcher = self.preemption.is_some();
                membership.post(self, index, cpu, &ring, &timers, has_watcher)?
            }
            _ => None,
        };
        let meter = self.meter(index);
        meter.enter_service();
        self.domain.host().recorder().welcome(index);
        let worker = Box::new(Worker {
            executor,
            ring,
            timers,
            shared: self.clone(),
            meter,
            quantum_ticks: clock::to_ticks(self.quantum),
            reap_ticks: clock::to_ticks(self.reap_interval),
            look_ticks: clock::to_ticks(self.reap_interval / 4).max(1),
            share_ticks: clock::to_ticks(coop::SHARE),
            pending_level: Cell::new(u8::MAX),
            neighbours_deadline: Cell::new(None),
            is_ending: Cell::new(false),
            arrivals: OnceCell::new(),
            bells: RefCell::default(),
            stop: Arc::new(AtomicBool::new(false)),
            preemptible: OnceCell::new(),
            post,
        });
        if let Some(settings) = &self.preemption {
            let cpu = pin.unwrap_or(0);
            // SAFETY: it is in a box, which `Worker::retire` keeps for ever if the vCPU does not come to its end.
            let preemptible = unsafe { Preemptible::start(&worker, cpu, settings.clone())? };
            let _ = worker.preemptible.set(preemptible);
        }
        Ok(worker)
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
        let by_user = self.pins.get(index).copied();
        let needs_one = self.membership.is_some() || self.preemption.is_some();
        by_user.or_else(|| self.cpu_of(index).filter(|_| needs_one))
    }

    fn cpu_of(&self, index: usize) -> Option<usize> {
        self.cpus.get(index % self.cpus.len().max(1)).copied()
    }

    /// Starts the thread that serves one more vCPU. Returns its index.
    pub(crate) fn add_vcpu(self: &Arc<Shared>) -> io::Result<usize> {
        let executor = self.domain.add_vcpu().map_err(io::Error::other)?;
        let index = executor.index();
        let other = self.start_other(executor)?;
        self.others().push(other);
        if self.running.load(Ordering::Relaxed) {
            self.join_again();
        }
        Ok(index)
    }

    /// The daemon is told of a vCPU that was added.
    fn join_again(&self) {
        if let Some(membership) = &self.membership
            && let Err(error) = membership.join()
        {
            notice(format_args!("{error}; the vCPUs run without the board"));
        }
    }

    pub(crate) fn start_other(self: &Arc<Shared>, executor: Executor<Linux>) -> io::Result<Other> {
        let index = executor.index();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let shared = self.clone();
        let thread = thread::Builder::new()
            .name(format!("{}-{index}", self.name))
            .spawn(move || {
                let worker = match shared.worker(executor, shared.pin_of(index)) {
                    Ok(worker) => worker,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                drop(shared);
                let stop = worker.stop.clone();
                let preemptible = worker.preemptible.get().cloned();
                let _ = ready.send(Ok((stop.clone(), preemptible)));
                worker.run(|| stop.load(Ordering::Relaxed) && !worker.has_stopped_polls());
                worker.retire();
            })
            .map_err(no_thread)?;
        let (stop, preemptible) = is_ready
            .recv()
            .map_err(|_| io::Error::other("the thread of a vCPU ended before it began"))??;
        Ok(Other {
            index,
            stop,
            preemptible,
            thread,
        })
    }

    /// Ends the vCPU that was added last. Returns its index.
    pub(crate) fn release_vcpu(&self) -> io::Result<usize> {
        let own = context::with(|worker| worker.executor.index());
        let other = {
            let mut others = self.others();
            let place = others
                .iter()
                .rposition(|other| Some(other.index) != own && other.index != 0);
            place.map(|place| others.remove(place))
        };
        let other = other.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "no vCPU to release: the one that serves the caller and the first one stay",
            )
        })?;
        self.stop(&other);
        Ok(other.index)
    }

    fn stop(&self, other: &Other) {
        other.stop.store(true, Ordering::Relaxed);
        upshift_core::Host::pend(self.domain.host(), other.index);
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

    pub(crate) fn others(&self) -> std::sync::MutexGuard<'_, Vec<Other>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a thread of a vCPU could not be started, and what to do.
pub(crate) fn no_thread(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "no thread for a vCPU: {error}: raise RLIMIT_NPROC (`ulimit -u`), pids.max of the cgroup, or the limit on memory"
        ),
    )
}

/// Vcpus, threads and rings: everything coroutines need. See the [crate].
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Engine,
    pub(crate) main_level: Level,
    /// The affinity of the building thread before it was pinned.
    pub(crate) affinity: Option<affinity::Mask>,
    pub(crate) observers: Observers,
    /// Ends when the vCPUs have.
    #[cfg(feature = "tokio-rt")]
    pub(crate) _beside: Option<crate::beside::Beside>,
    pub(crate) not_send: PhantomData<*const ()>,
}

/// Threads that look on; they end first.
#[derive(Default)]
pub(crate) struct Observers {
    pub(crate) watchdog: Option<Watchdog>,
    #[cfg(feature = "observe")]
    pub(crate) view: Option<crate::observe::Server>,
}

/// How vCPU 0 is served.
pub(crate) enum Engine {
    /// By the thread that built the runtime, while it is in `block_on`. `None` when it has ended.
    Inline(Option<Box<Worker>>),
    /// By threads of its own, all the time; what is pinned by the thread that built the runtime.
    Preemptible(Arc<Preemptible>),
}

impl Runtime {
    /// A runtime with the default settings: one vCPU per CPU.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> io::Result<Runtime> {
        Runtime::builder().build()
    }

    /// Settings for a runtime.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A handle to spawn, wake and inspect from any thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            shared: self.shared.clone(),
        }
    }

    /// Runs `future` as the main coroutine on vCPU 0, which the calling thread
    /// serves meanwhile. Other coroutines of vCPU 0 rest when this returns.
    ///
    /// With preemption, vCPU 0 has threads of its own, which go on when this
    /// returns. The calling thread polls the main coroutine and those of
    /// [`spawn_local`](crate::spawn_local) only, at the price of two switches a
    /// poll: spawn what is hot. They are interrupted like others; while one of them is, the others wait for it.
    ///
    /// # Panics
    /// If the future panics, with its payload; or if called inside a coroutine.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            context::current_id().is_none(),
            "block_on inside a coroutine would stop its vCPU: use `.await`"
        );
        let location = std::panic::Location::caller();
        let mut output = None;
        let done = Cell::new(false);
        {
            let main = Main {
                future: Box::pin(future),
                output: &mut output,
                done: &done,
            };
            // SAFETY: the coroutine borrows from this frame. It is gone when the
            // loop below returns: `done` is set by the drop of `main`, and the
            // loop does not unwind (`AbortOnUnwind`).
            let main: Pin<Box<dyn Future<Output = ()> + 'static>> = unsafe {
                std::mem::transmute(Box::pin(main) as Pin<Box<dyn Future<Output = ()> + '_>>)
            };
            let abort = AbortOnUnwind;
            // SAFETY: `Runtime` is not `Send`, so this thread is the only one that
            // ever polls what is pinned to vCPU 0; the handle stays here.
            let spawned = unsafe {
                self.executor()
                    .spawn_pinned_at(main, Priority::At(self.main_level), location)
            };
            match spawned {
                Ok(handle) => {
                    match &self.engine {
                        Engine::Preemptible(vcpu) => vcpu.stay_home(false, &|| done.get()),
                        Engine::Inline(_) => self.worker().run(|| done.get()),
                    }
                    std::mem::forget(abort);
                    // The output of a coroutine whose future is dropped is there,
                    // once its exit is complete, which the loop has waited for.
                    handle.detach();
                }
                Err(error) => {
                    std::mem::forget(abort);
                    panic!("the main coroutine could not be spawned: {error}");
                }
            }
        }
        match output {
            Some(Ok(output)) => output,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => panic!("the main coroutine was cancelled"),
        }
    }

    /// How the rings of this runtime run.
    #[must_use]
    pub fn ring_mode(&self) -> Mode {
        self.worker().ring.mode()
    }

    /// Which driver carries its I/O out, why, and what there is to gain.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::new(self.shared.driver.clone(), self.ring_mode())
    }

    fn executor(&self) -> &Executor<Linux> {
        &self.worker().executor
    }

    /// Of one that is preemptible, what is safe from any thread.
    fn worker(&self) -> &Worker {
        match &self.engine {
            Engine::Inline(Some(worker)) => worker,
            Engine::Preemptible(vcpu) => vcpu.of_any_thread(),
            Engine::Inline(None) => unreachable!("taken by the drop"),
        }
    }
}

/// The main coroutine: a future of `block_on`'s frame, and where its output goes.
struct Main<'a, F: Future> {
    future: Pin<Box<F>>,
    output: &'a mut Option<std::thread::Result<F::Output>>,
    done: &'a Cell<bool>,
}

impl<F: Future> Future for Main<'_, F> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.future.as_mut().poll(cx)
        }));
        let output = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(panic),
        };
        *self.output = Some(output);
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Main<'_, F> {
    fn drop(&mut self) {
        self.done.set(true);
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.observers = Observers::default();
        let shared = self.shared.clone();
        shared.domain.close();
        // A poll that does not return keeps a runtime with preemption only so long.
        let limit = shared
            .preemption
            .is_some()
            .then(|| Instant::now() + Preemptible::grace());
        let is_over = || limit.is_some_and(|limit| Instant::now() > limit);
        if let Engine::Inline(Some(worker)) = &self.engine {
            worker.is_ending.set(true);
        }
        // Cancelled coroutines exit on their vCPUs; this thread serves its own, or what is pinned to it.
        while shared.domain.cancel_all() != 0 && !is_over() {
            let turns = Cell::new(0);
            let done = |most| {
                turns.set(turns.get() + 1);
                turns.get() > most || shared.domain.bitmap() == 0
            };
            match &self.engine {
                Engine::Preemptible(vcpu) => vcpu.stay_home(true, &|| done(1)),
                Engine::Inline(_) => self.worker().run(|| done(64)),
            }
            thread::yield_now();
        }
        let others = std::mem::take(&mut *shared.others());
        for other in &others {
            shared.stop(other);
        }
        let mut given_up = 0;
        for Other { thread, .. } in others {
            while limit.is_some_and(|limit| Instant::now() < limit) && !thread.is_finished() {
                thread::sleep(Duration::from_micros(200));
            }
            if limit.is_none() || thread.is_finished() {
                // A thread that panicked has said so already.
                drop(thread.join());
            } else {
                given_up += 1;
            }
        }
        if let Engine::Inline(worker) = &mut self.engine
            && let Some(worker) = worker.take()
        {
            worker.retire();
        }
        if given_up != 0 {
            // They would be dropped on the thread that serves vCPU 0 now.
            if let Some(vcpu) = shared.domain.vcpus().find(|vcpu| vcpu.index() == 0) {
                // SAFETY: this thread built the runtime, so what is pinned there is its own, and it polls nothing now.
                unsafe { vcpu.discard_pinned() };
            }
            notice(format_args!(
                "a poll did not end within a second of the runtime's shutdown; its thread goes on without it"
            ));
            // Its domain stays for as long as it goes on.
            std::mem::forget(shared.clone());
        }
        if let Some(membership) = &shared.membership {
            membership.end();
        }
        shared.pool.shut_down();
        if let Some(affinity) = self.affinity.take() {
            let _ = affinity::restore(&affinity);
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("vcpus", &self.shared.domain.active_vcpus())
            .field("ring", &self.ring_mode())
            .finish()
    }
}
