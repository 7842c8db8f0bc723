//! One preemptible vCPU: what its threads share, its birth and its end.
//!
//! Who may touch what: `worker`, `aside` and what is reached through them belong to
//! the *current* seat while its permit is in use. The sentinel reads atomics, and
//! acts only when it has revoked that permit. The rest is atomic, behind a lock, or
//! set once before the threads start.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use upshift_core::{Executor, Running};
use upshift_elevate::dispatch::{Limits, Seats, Worth, register_barrier};
use upshift_elevate::{Bands, Elevator, Priority};
use upshift_ring::{Mode, Watch};

use super::home::Home;
use super::seat::{self, Go, Seat};
use super::service::{self, Service};
use super::suspend::ByOwner;
use super::{PreemptionStats, refusal, sentinel};
use crate::clock;
use crate::context;
use crate::host::Linux;
use crate::runtime::Shared;
use crate::worker::Worker;

/// The seat whose thread made the ring.
pub(super) const RING_SEAT: usize = 0;
/// How long polls that are suspended when the runtime is dropped may take to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// A poll that has gone on for so long computes in the background.
const BACKGROUND_AFTER: Duration = Duration::from_millis(50);
/// A vCPU that has not been idle for so long has no time to spare.
const BUSY_AFTER: Duration = Duration::from_micros(500);
/// No timer is set.
pub(super) const NEVER: u64 = u64::MAX;

/// What a preemptible vCPU is made with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// Threads per vCPU that run coroutines: all but one can hold a suspended poll.
    pub(crate) seats: usize,
    pub(crate) bands: Bands,
    /// So long after it was last idle (ticks) a vCPU looks at its ring less often, and at more at once.
    pub(super) busy_after: u64,
    /// A poll this old (ticks) goes on at ordinary priority when it is resumed.
    pub(super) background_after: u64,
    /// The priority of the ring's owner while it answers: above the current seat.
    pub(crate) service: Priority,
}

impl Settings {
    /// For this quantum, on a machine where a look costs so much.
    pub(crate) fn new(
        bands: Bands,
        quantum: Duration,
        look_cost: Duration,
        seats: usize,
    ) -> Settings {
        let look_cost = clock::nanos(look_cost).max(1_000);
        let service = Priority::new(bands.elevated().get() + 1).unwrap_or(bands.elevated());
        Settings {
            limits: Limits {
                quantum: clock::nanos(quantum),
                grace: look_cost / 2,
                hidden: 2 * look_cost,
                look_cost,
                ..Limits::default()
            },
            seats,
            bands,
            busy_after: clock::to_ticks(BUSY_AFTER),
            background_after: clock::to_ticks(BACKGROUND_AFTER),
            service,
        }
    }
}

/// See the module.
pub(crate) struct Split {
    pub(super) shared: Arc<Shared>,
    pub(super) index: usize,
    cpu: usize,
    pub(super) settings: Settings,
    elevator: Elevator,
    /// Made and dropped by the thread of seat 0.
    worker: Shareable<UnsafeCell<Option<Worker>>>,
    pub(super) seats: Box<[Seat]>,
    roles: Mutex<Seats>,
    /// The current seat, for the sentinel.
    pub(super) current: AtomicUsize,
    /// How many polls are suspended.
    pub(super) suspended: AtomicUsize,
    /// Pinned coroutines that wait for `block_on` to be called.
    pub(super) aside: Shareable<UnsafeCell<Vec<Running<'static, Linux>>>>,
    pub(super) home: Home,
    pub(super) service: Service,
    pub(super) watch: OnceLock<Watch>,
    timer: OwnedFd,
    /// The sentinel will look soon on behalf of somebody who waits.
    pub(super) watched: AtomicBool,
    /// When the timer goes off, ns; NEVER.
    pub(super) armed: AtomicU64,
    /// The sentinel does not listen before this time, ticks.
    pub(super) deaf_until: AtomicU64,
    /// No timer of the quantum is set before this time, ticks.
    pub(super) precise_from: AtomicU64,
    /// How long a poll may run before it is suspended for an equal, ns.
    pub(super) slice: AtomicU64,
    /// [`Worth`]. Written by the current seat.
    pub(super) worth: AtomicU64,
    /// A poll of this level, and one, was suspended to find out whether something is more urgent; 0: no.
    pub(super) guess: AtomicU8,
    /// How often something was.
    pub(super) hits: AtomicU64,
    pub(super) looks: AtomicU64,
    pub(super) useless: AtomicU64,
    /// The vCPU is to leave.
    pub(super) stop: AtomicBool,
    /// The vCPU is out of service, and its threads have ended.
    left: AtomicBool,
    /// The sentinel is to end.
    pub(super) ended: AtomicBool,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// What is shared between threads by the rules of this module.
pub(super) struct Shareable<T>(pub(super) T);
// SAFETY: the rules of this module: one thread at a time touches it.
unsafe impl<T> Send for Shareable<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shareable<T> {}

thread_local! {
    static SPLIT: Cell<*const Split> = const { Cell::new(null()) };
}

impl Split {
    /// Makes a preemptible vCPU, with its threads.
    ///
    /// # Errors
    /// What is missing; nothing is left behind but the retired executor.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        executor: Executor<Linux>,
        cpu: usize,
        settings: Settings,
    ) -> io::Result<Arc<Split>> {
        register_barrier()?;
        let index = executor.index();
        let split = Arc::new(Split {
            shared: shared.clone(),
            index,
            cpu,
            elevator: Elevator::new()?,
            worker: Shareable(UnsafeCell::new(None)),
            seats: (0..settings.seats.max(2)).map(|_| Seat::new()).collect(),
            roles: Mutex::new(Seats::new()),
            current: AtomicUsize::new(RING_SEAT),
            suspended: AtomicUsize::new(0),
            aside: Shareable(UnsafeCell::new(Vec::new())),
            home: Home::new(),
            service: Service::new(),
            watch: OnceLock::new(),
            timer: timerfd()?,
            watched: AtomicBool::new(false),
            armed: AtomicU64::new(NEVER),
            deaf_until: AtomicU64::new(0),
            precise_from: AtomicU64::new(0),
            slice: AtomicU64::new(settings.limits.quantum),
            worth: AtomicU64::new(Worth::START.to_bits()),
            guess: AtomicU8::new(0),
            hits: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            useless: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            left: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            settings,
        });
        let started = split.start_threads(executor);
        if let Err(error) = started {
            split.seats[RING_SEAT].tell(Go::End);
            return Err(error);
        }
        Ok(split)
    }

    fn start_threads(self: &Arc<Split>, executor: Executor<Linux>) -> io::Result<()> {
        let split = self.clone();
        self.thread("seat-0", move |ready| {
            split.ring_thread(executor, ready);
        })?;
        let split = self.clone();
        self.thread("sentinel", move |ready| {
            let dispatcher = split.settings.bands.dispatcher();
            match split.elevate(dispatcher) {
                Err(error) => report(&ready, Err(error)),
                Ok(_elevated) => {
                    report(&ready, Ok(()));
                    sentinel::run(&split);
                }
            }
        })?;
        // All at once: a thread that is needed later could not start, for the CPU belongs to threads of higher priority.
        for number in 1..self.seats.len() {
            let split = self.clone();
            self.thread(&format!("seat-{number}"), move |ready| {
                match split.take_seat(number) {
                    Err(error) => report(&ready, Err(error)),
                    Ok(()) => {
                        report(&ready, Ok(()));
                        split.serve_as(number);
                    }
                }
                split.rise();
            })?;
            self.roles().add();
        }
        self.seats[RING_SEAT].tell(Go::Serve);
        Ok(())
    }

    /// Starts a thread and waits for its word that it is ready.
    fn thread(
        &self,
        role: &str,
        main: impl FnOnce(mpsc::SyncSender<io::Result<()>>) + Send + 'static,
    ) -> io::Result<()> {
        let (ready, is_ready) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("{}-{}/{role}", self.shared.name, self.index))
            .spawn(move || main(ready))?;
        self.threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(thread);
        is_ready
            .recv()
            .map_err(|_| io::Error::other("a thread of a vCPU ended before it began"))?
    }

    /// Elevates and pins the calling thread.
    pub(super) fn elevate(&self, priority: Priority) -> io::Result<upshift_elevate::Elevated> {
        let elevated = self.elevator.elevate_current(priority).map_err(refusal)?;
        elevated.pin(self.cpu).map_err(|error| {
            refusal(format_args!(
                "cannot pin a thread to CPU {}: {error}",
                self.cpu
            ))
        })?;
        Ok(elevated)
    }

    /// The thread of seat 0: makes the ring, serves, and takes the vCPU out of service.
    fn ring_thread(&self, executor: Executor<Linux>, ready: mpsc::SyncSender<io::Result<()>>) {
        let made = self
            .take_seat(RING_SEAT)
            .and_then(|()| self.make_worker(executor));
        if let Err(error) = made {
            report(&ready, Err(error));
            self.rise();
            return;
        }
        report(&ready, Ok(()));
        if self.serve_as(RING_SEAT) {
            self.worker().retire();
        }
        // The others end first: the ring goes last.
        self.end_others();
        // SAFETY: all other threads of the vCPU have ended.
        drop(unsafe { (*self.worker.0.get()).take() });
        service::retire();
        self.rise();
        self.left.store(true, Release);
    }

    fn make_worker(&self, executor: Executor<Linux>) -> io::Result<()> {
        let worker = self.shared.worker(executor, None)?;
        if worker.ring.mode() != Mode::DeferTaskrun {
            return Err(refusal(
                "it needs a ring with deferred task work: Linux 6.1 or newer, and no lower `Builder::ring_mode`",
            ));
        }
        let watch = worker.ring.watch()?;
        // SAFETY: this thread calls `service::retire` before it ends, and the service lives in `self`, which the thread's
        // closure holds.
        unsafe { self.service.attend()? };
        worker.ring.set_proxy(Box::new(ByOwner(self)));
        self.shared
            .domain
            .host()
            .set_bell(self.index, Some(watch.clone()));
        let _ = self.watch.set(watch);
        // SAFETY: nobody looks before this thread has said that it is ready.
        unsafe { *self.worker.0.get() = Some(worker) };
        Ok(())
    }

    /// The calling thread sits down.
    fn take_seat(&self, number: usize) -> io::Result<()> {
        let elevated = self.elevate(self.settings.bands.elevated())?;
        let seat = &self.seats[number];
        let _ = seat.thread.set(elevated);
        // SAFETY: `rise` is called before the thread ends; seats live in `self`, which the thread's closure holds.
        unsafe { seat.sit() };
        Ok(())
    }

    fn rise(&self) {
        seat::stand_up();
        SPLIT.set(null());
    }

    /// Serves whenever told to, until told to end. True: the vCPU is to leave.
    fn serve_as(&self, number: usize) -> bool {
        let seat = &self.seats[number];
        SPLIT.set(self);
        // From here on the permit is in use but in polls.
        seat.permit.enter();
        let mut leaves = false;
        while !leaves && seat.wait() == Go::Serve {
            let _entered = context::enter(self.worker());
            leaves = self.serve(number);
        }
        let _ = seat.permit.leave();
        leaves
    }

    pub(super) fn roles(&self) -> MutexGuard<'_, Seats> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vCPU with its ring. Only for the current seat, and for what is `Sync` of it.
    pub(super) fn worker(&self) -> &Worker {
        // SAFETY: set before the other threads were started, taken after they have ended.
        match unsafe { &*self.worker.0.get() } {
            Some(worker) => worker,
            None => unreachable!("seats serve after the worker was made"),
        }
    }

    pub(super) fn watch(&self) -> &Watch {
        match self.watch.get() {
            Some(watch) => watch,
            None => unreachable!("seats serve after the ring was made"),
        }
    }

    /// Wakes the sentinel of the vCPU whose seat the calling thread has.
    pub(super) fn tell_sentinel() {
        Split::with_current(|split| split.watch().ring_bell());
    }

    /// Calls `f` with the vCPU that the calling thread has a seat of.
    pub(super) fn with_current(f: impl FnOnce(&Split)) {
        // SAFETY: set while the thread serves, whose closure holds the vCPU.
        if let Some(split) = unsafe { SPLIT.get().as_ref() } {
            f(split);
        }
    }

    pub(super) fn timer(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Sets the sentinel's timer to a time of CLOCK_MONOTONIC, ns.
    pub(super) fn set_timer(&self, at: u64) {
        self.armed.store(at, Relaxed);
        let time = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (at / 1_000_000_000) as i64,
                tv_nsec: (at % 1_000_000_000) as i64,
            },
        };
        // SAFETY: a pointer to a local.
        unsafe {
            libc::timerfd_settime(
                self.timer(),
                libc::TFD_TIMER_ABSTIME,
                &raw const time,
                std::ptr::null_mut(),
            );
        }
    }

    /// Asks the vCPU to leave: what is suspended is finished first.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Release);
        upshift_core::Host::pend(self.shared.domain.host(), self.index);
    }

    /// Waits for the end of the vCPU that was asked to leave. False: a poll that is
    /// suspended does not come to its end by `limit`; it is given up with its
    /// threads, which go on at the policy that they had before.
    pub(crate) fn join(&self, limit: Instant) -> bool {
        while !self.left.load(Acquire) {
            if Instant::now() > limit {
                self.give_up();
                return false;
            }
            thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Serves what is pinned until `done`, which is asked after each poll.
    pub(crate) fn block_on(&self, done: impl Fn() -> bool) {
        // Without rights (they may have gone meanwhile) it works more slowly.
        let _elevated = self.elevate(self.settings.bands.elevated());
        self.stay_home(false, done);
    }

    /// The vCPU's executor, for what is safe from any thread.
    pub(crate) fn executor(&self) -> &Executor<Linux> {
        &self.worker().executor
    }

    pub(crate) fn ring_mode(&self) -> Mode {
        self.worker().ring.mode()
    }

    /// Adds the figures of this vCPU.
    pub(crate) fn add_to(&self, stats: &mut PreemptionStats) {
        stats.vcpus += 1;
        stats.looks += self.looks.load(Relaxed);
        stats.useless += self.useless.load(Relaxed);
        stats.services += self.service.served.load(Relaxed);
    }

    /// How long suspended polls may take to end at shutdown.
    pub(crate) fn shutdown_grace() -> Duration {
        SHUTDOWN_GRACE
    }

    /// Ends all threads but that of seat 0, which calls this.
    fn end_others(&self) {
        self.shared.domain.host().set_bell(self.index, None);
        self.end_sentinel();
        for seat in &self.seats[1..] {
            seat.tell(Go::End);
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                // A thread that panicked has said so already.
                let _ = thread.join();
            }
        }
    }

    fn end_sentinel(&self) {
        self.ended.store(true, SeqCst);
        if let Some(watch) = self.watch.get() {
            watch.ring_bell();
        }
    }

    /// Nobody stays elevated.
    fn give_up(&self) {
        self.shared.domain.host().set_bell(self.index, None);
        self.end_sentinel();
        for seat in &self.seats {
            if let Some(thread) = seat.thread.get() {
                // What fails here is tried again when the process exits.
                let _ = thread.restore();
            }
        }
    }
}

fn report(to: &mpsc::SyncSender<io::Result<()>>, result: io::Result<()>) {
    // The receiver waits for it.
    let _ = to.send(result);
}

fn timerfd() -> io::Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
