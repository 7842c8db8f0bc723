//! The runtime: a domain, and a thread for each of its vCPUs.
//!
//! The thread that builds the runtime serves vCPU 0, while it is in
//! [`Runtime::block_on`]; each other vCPU has a thread of its own. Dropping the
//! runtime cancels every coroutine while all vCPUs still serve, so that I/O in
//! flight is cancelled by the rings that started it; then the threads leave.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use upshift_core::{
    Config, CoroutineId, Dead, Domain, Executor, Level, Priority, SpawnError, State,
};
use upshift_ring::{Mode, Ring};

use crate::affinity;
use crate::blocking::Pool;
use crate::clock;
use crate::context;
use crate::host::Linux;
use crate::task::JoinHandle;
use crate::time::Timers;
use crate::worker::Worker;

/// What all vCPUs share.
pub(crate) struct Shared {
    pub(crate) domain: Domain<Linux>,
    pub(crate) pool: Pool,
    pub(crate) spin: Duration,
    reap_interval: Duration,
    quantum: Duration,
    ring: upshift_ring::Config,
    name: String,
    pins: Vec<usize>,
    others: Mutex<Vec<Other>>,
    /// A ring that fails is reported once, not at every turn.
    reported: AtomicBool,
}

/// A vCPU with a thread of its own.
struct Other {
    index: usize,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Shared {
    /// A ring failed in a way that its operations do not see.
    #[cold]
    pub(crate) fn report(&self, error: &io::Error) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            eprintln!("upshift: io_uring_enter failed: {error}; retrying");
        }
        thread::sleep(Duration::from_millis(1));
    }

    fn worker(self: &Arc<Shared>, executor: Executor<Linux>) -> io::Result<Worker> {
        let index = executor.index();
        if let Some(&cpu) = self.pins.get(index) {
            affinity::pin(cpu)?;
        }
        let ring = Ring::new(self.ring.clone())?;
        self.domain.host().set_remote(index, Some(ring.remote()));
        Ok(Worker {
            executor,
            ring,
            timers: Arc::new(Timers::new(clock::now())),
            shared: self.clone(),
            quantum_ticks: clock::to_ticks(self.quantum),
            reap_ticks: clock::to_ticks(self.reap_interval),
            pending_level: Cell::new(u8::MAX),
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Starts a thread that serves one more vCPU. Returns its index.
    pub(crate) fn add_vcpu(self: &Arc<Shared>) -> io::Result<usize> {
        let executor = self.domain.add_vcpu().map_err(io::Error::other)?;
        let index = executor.index();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let shared = self.clone();
        let thread = thread::Builder::new()
            .name(format!("{}-{index}", self.name))
            .spawn(move || {
                let worker = match shared.worker(executor) {
                    Ok(worker) => worker,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                drop(shared);
                let stop = worker.stop.clone();
                let _ = ready.send(Ok(stop.clone()));
                worker.run(|| stop.load(Ordering::Relaxed));
                worker.retire();
            })?;
        let stop = is_ready
            .recv()
            .map_err(|_| io::Error::other("the thread of a vCPU ended before it began"))??;
        self.others().push(Other {
            index,
            stop,
            thread,
        });
        Ok(index)
    }

    /// Ends the vCPU that was added last. Returns its index.
    pub(crate) fn release_vcpu(&self) -> io::Result<usize> {
        let own = context::with(|worker| worker.executor.index());
        let other = {
            let mut others = self.others();
            let place = others.iter().rposition(|other| Some(other.index) != own);
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

    fn others(&self) -> std::sync::MutexGuard<'_, Vec<Other>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings of a runtime to be built.
///
/// ```
/// use std::time::Duration;
///
/// let runtime = upshift::Runtime::builder()
///     .vcpus(2)
///     .spin(Duration::ZERO)
///     .name("api")
///     .build()?;
/// assert_eq!(runtime.block_on(async { 1 + 1 }), 2);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    vcpus: usize,
    pins: Vec<usize>,
    ring: upshift_ring::Config,
    aging: Option<NonZeroU32>,
    chaos: Option<u64>,
    spin: Option<Duration>,
    reap_interval: Duration,
    quantum: Duration,
    blocking_threads: usize,
    main_level: Level,
    name: String,
}

impl Builder {
    fn new() -> Builder {
        Builder {
            vcpus: thread::available_parallelism().map_or(1, usize::from),
            pins: Vec::new(),
            ring: upshift_ring::Config::default(),
            aging: None,
            chaos: None,
            spin: None,
            reap_interval: Duration::from_micros(20),
            quantum: Duration::from_micros(500),
            blocking_threads: 64,
            main_level: Level::DEFAULT,
            name: "upshift".into(),
        }
    }

    /// How many vCPUs (default: one per CPU the process may use). At least 1.
    #[must_use]
    pub fn vcpus(mut self, vcpus: usize) -> Builder {
        self.vcpus = vcpus;
        self
    }

    /// Pins vCPU k to the k-th of these CPUs. Further vCPUs are not pinned.
    #[must_use]
    pub fn pin(mut self, cpus: impl IntoIterator<Item = usize>) -> Builder {
        self.pins = cpus.into_iter().collect();
        self
    }

    /// Entries of each ring's submission queue (default 256): so many operations
    /// are handed to the kernel at once.
    #[must_use]
    pub fn ring_entries(mut self, entries: u32) -> Builder {
        self.ring.entries = entries;
        self
    }

    /// Number (a power of two) and size in bytes of the receive buffers, from which
    /// [`recv`](crate::net::TcpStream::recv) is served: so many per vCPU and level
    /// that receives (default 1024 of 2 KiB), so that data which waits for less
    /// urgent coroutines does not keep buffers from more urgent ones.
    #[must_use]
    pub fn buffers(mut self, count: u16, size: u32) -> Builder {
        self.ring.buffers = count;
        self.ring.buffer_size = size;
        self
    }

    /// The best ring mode to try (default: the best the kernel has).
    #[must_use]
    pub fn ring_mode(mut self, mode: Mode) -> Builder {
        self.ring.mode = mode;
        self
    }

    /// Aging: every `turns`-th turn of a vCPU goes to its levels in rotation, so
    /// that none starves. Default: strict priority.
    #[must_use]
    pub fn aging(mut self, turns: NonZeroU32) -> Builder {
        self.aging = Some(turns);
        self
    }

    /// Test mode: shuffles the order within a level and makes every preemption
    /// test answer yes.
    #[must_use]
    pub fn chaos(mut self, seed: u64) -> Builder {
        self.chaos = Some(seed);
        self
    }

    /// How long a vCPU that is being woken by others spins before it parks
    /// (default 50 µs; zero with more vCPUs than CPUs, or one CPU). Zero: never.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Builder {
        self.spin = Some(spin);
        self
    }

    /// How long completions may wait in the ring while coroutines are ready
    /// (default 20 µs): shorter is more prompt, longer saves system calls.
    #[must_use]
    pub fn reap_interval(mut self, interval: Duration) -> Builder {
        self.reap_interval = interval;
        self
    }

    /// How long a poll may go on when [`yield_if_needed`](crate::yield_if_needed)
    /// finds an equal waiting (default 500 µs).
    #[must_use]
    pub fn quantum(mut self, quantum: Duration) -> Builder {
        self.quantum = quantum;
        self
    }

    /// The most threads for [`spawn_blocking`](crate::spawn_blocking) (default
    /// 64); they are started when needed.
    #[must_use]
    pub fn blocking_threads(mut self, threads: usize) -> Builder {
        self.blocking_threads = threads;
        self
    }

    /// The level of the main coroutine (default 32), which its children inherit.
    #[must_use]
    pub fn main_level(mut self, level: Level) -> Builder {
        self.main_level = level;
        self
    }

    /// The beginning of the names of the threads (default `upshift`).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = name.into();
        self
    }

    /// Builds the runtime and starts its threads.
    ///
    /// # Errors
    /// `InvalidInput` for zero vCPUs or a CPU that does not exist; what the kernel
    /// answered to the set-up of a ring, with what to change; what it answered to
    /// the start of a thread.
    pub fn build(self) -> io::Result<Runtime> {
        if self.vcpus == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a runtime needs at least one vCPU",
            ));
        }
        // Of the machine, not of this thread: whoever wakes may run elsewhere.
        let cpus = affinity::online_cpus();
        let default_spin = if cpus > 1 && self.vcpus <= cpus {
            Duration::from_micros(50)
        } else {
            Duration::ZERO
        };
        let config = Config {
            aging: self.aging,
            chaos: self.chaos,
            coarse_below: clock::to_ticks(Duration::from_nanos(300)),
            notify_above: clock::to_ticks(Duration::from_micros(20)),
            patience: 0,
        };
        let shared = Arc::new(Shared {
            domain: Domain::new(Linux::new(), config),
            pool: Pool::new(self.blocking_threads.max(1), self.name.clone()),
            spin: self.spin.unwrap_or(default_spin),
            reap_interval: self.reap_interval,
            quantum: self.quantum,
            ring: self.ring,
            name: self.name,
            pins: self.pins,
            others: Mutex::new(Vec::new()),
            reported: AtomicBool::new(false),
        });
        let affinity = (!shared.pins.is_empty())
            .then(affinity::current)
            .transpose()?;
        let executor = shared.domain.add_vcpu().map_err(io::Error::other)?;
        let worker = shared.worker(executor)?;
        let runtime = Runtime {
            worker,
            main_level: self.main_level,
            affinity,
            not_send: PhantomData,
        };
        for _ in 1..self.vcpus {
            runtime.worker.shared.add_vcpu()?;
        }
        Ok(runtime)
    }
}

/// Vcpus, threads and rings: everything coroutines need. See the [crate].
pub struct Runtime {
    worker: Worker,
    main_level: Level,
    /// The affinity of the building thread before it was pinned.
    affinity: Option<affinity::Mask>,
    not_send: PhantomData<*const ()>,
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
            shared: self.worker.shared.clone(),
        }
    }

    /// Runs `future` as the main coroutine on vCPU 0, which the calling thread
    /// serves meanwhile. Other coroutines of vCPU 0 rest when this returns.
    ///
    /// # Panics
    /// If the future panics, with its payload; or if called inside a coroutine.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            context::current_id().is_none(),
            "block_on inside a coroutine would stop its vCPU: use `.await`"
        );
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
            // ever serves vCPU 0; the handle stays here.
            let spawned = unsafe {
                self.worker
                    .executor
                    .spawn_pinned(main, Priority::At(self.main_level))
            };
            match spawned {
                Ok(handle) => {
                    self.worker.run(|| done.get());
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
        self.worker.ring.mode()
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
        let shared = self.worker.shared.clone();
        shared.domain.close();
        // Cancelled coroutines exit on their vCPUs; this thread serves its own.
        while shared.domain.cancel_all() != 0 {
            let turns = Cell::new(0);
            self.worker.run(|| {
                turns.set(turns.get() + 1);
                turns.get() > 64 || shared.domain.bitmap() == 0
            });
            thread::yield_now();
        }
        let others = std::mem::take(&mut *shared.others());
        for other in &others {
            shared.stop(other);
        }
        for other in others {
            // A thread that panicked has said so already.
            let _ = other.thread.join();
        }
        self.worker.retire();
        shared.pool.shut_down();
        if let Some(affinity) = self.affinity.take() {
            let _ = affinity::restore(&affinity);
        }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("vcpus", &self.worker.shared.domain.active_vcpus())
            .field("ring", &self.ring_mode())
            .finish()
    }
}

/// A runtime from outside: `Clone`, `Send`, usable from any thread.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// The runtime whose coroutine is calling.
    ///
    /// # Errors
    /// Outside a runtime.
    pub fn current() -> io::Result<Handle> {
        context::try_with(|worker| Handle {
            shared: worker.shared.clone(),
        })
    }

    /// Starts a coroutine. See [`crate::spawn`].
    ///
    /// # Errors
    /// [`SpawnError`] without memory, or while the runtime shuts down.
    pub fn spawn<F>(
        &self,
        future: F,
        priority: impl Into<Priority>,
    ) -> Result<JoinHandle<F::Output>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.shared.domain.spawn(future, priority.into())
    }

    /// Wakes a coroutine.
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    pub fn wake(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.domain.wake(id)
    }

    /// Gives a coroutine another level.
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    pub fn reprio(&self, id: CoroutineId, level: Level) -> Result<(), Dead> {
        self.shared.domain.reprio(id, level)
    }

    /// Asks a coroutine to end.
    ///
    /// # Errors
    /// [`Dead`] if it has exited.
    pub fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.domain.cancel(id)
    }

    /// The state of a coroutine.
    #[must_use]
    pub fn state(&self, id: CoroutineId) -> State {
        self.shared.domain.state(id)
    }

    /// How many vCPUs serve.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.shared.domain.active_vcpus()
    }

    /// What happened on each level since the start, over all vCPUs.
    #[must_use]
    pub fn level_stats(&self, level: Level) -> crate::stats::LevelStats {
        crate::stats::of_level(&self.shared.domain, level)
    }

    /// Bit L is set iff level L has a ready coroutine.
    #[must_use]
    pub fn bitmap(&self) -> u64 {
        self.shared.domain.bitmap()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.shared.domain).finish()
    }
}
