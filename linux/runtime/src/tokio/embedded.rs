//! A runtime of tokio beside this runtime (feature `tokio-rt`), for code that needs tokio.
//!
//! Threads that run user code (threads of vCPUs, threads of blocking functions, the watchdog) are
//! *within* tokio's runtime (its `Handle::enter`). So `tokio::{time, net, fs, signal, process}` and
//! `spawn_blocking` find a driver in coroutines. A thread of tokio runs that driver and wakes the
//! coroutines, which the vCPUs then poll at the coroutines' levels. That thread also polls the
//! tasks of `tokio::spawn`, which have no level. The thread has the shortest time slices that the
//! kernel allows, because urgent coroutines may wait for it while the vCPUs compute.
//!
//! ```text
//!         (1)            (2)                   (3)
//! built ───────► Idle ───────► Driven ───────────────────► Ended
//!                  └───────────────────(3)───────────────────┘
//! ```
//!
//! 1. [`TokioRuntime::new`] builds a `current_thread` runtime: an epoll set and its descriptors, no
//!    thread.
//! 2. The first registration of a timer, readiness of a socket, or spawn of a task makes tokio's
//!    epoll set readable. A coroutine waits for the set ([`TokioRuntime::drive_when_used`]) and
//!    starts the thread.
//! 3. At the end of the runtime the vCPUs leave first and cancel their coroutines within tokio's
//!    runtime. Then tokio's tasks are dropped. The drop waits for polls of the tasks and for
//!    blocking calls, for at most [`GRACE`].
//!
//! tokio's runtime costs five descriptors and one coroutine until its first use; afterwards, each
//! wake costs a switch from tokio's thread to the vCPU's. tokio's context is entered once per
//! thread, not per poll. The only internal of tokio that matters is that its driver waits in an
//! epoll set; if the set is not found, the thread starts at once.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::Location;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::runtime::{self, EnterGuard, Handle};
use upshift_core::{Level, Priority};
use upshift_ring::{Fd, op};

use crate::affinity::{self, Mask};
use crate::context::{self, RuntimeCell};
use crate::io::Descriptor;
use crate::net::is_cancelled;
use crate::notice::{no_thread, notice};
use crate::preempt;
use crate::runtime::shared::Shared;
use crate::sync::oneshot;
use crate::time::sleep;
use crate::tokio::servers;
use crate::tokio::thread_hooks::ThreadHook;
use crate::user_code::catch_panic::catch_panic;

/// Longest wait for tokio's tasks and blocking calls at the end of the runtime.
const GRACE: Duration = Duration::from_secs(1);
/// Time between two attempts to start the thread.
const RETRY: Duration = Duration::from_millis(100);

/// Error text of a call that needs a vCPU, on a thread of tokio.
const OUTSIDE: &str = "this is a task of tokio's (`tokio::spawn`, axum's `on_upgrade`), not a coroutine of upshift: do this in \
                       `upshift::spawn(…).await`, or spawn through `upshift::Handle::current()`";

/// tokio's runtime, which lives as long as the runtime beside it.
pub(crate) struct TokioRuntime {
    handle: Handle,
    driver: Arc<Driver>,
}

/// The part that is shared with the coroutine of [`TokioRuntime::drive_when_used`].
struct Driver {
    state: Mutex<State>,
    name: String,
    cpus: Option<Mask>,
}

/// State of tokio's runtime; the documentation of the module describes the transitions.
enum State {
    Idle(runtime::Runtime),
    Driven {
        /// Ends the thread when dropped.
        stop: oneshot::Sender<()>,
        /// Closed by the thread at its end.
        ended: mpsc::Receiver<()>,
        thread: JoinHandle<()>,
    },
    Ended,
}

impl TokioRuntime {
    /// Builds a runtime of tokio whose threads belong to `upshift_runtime`.
    pub(crate) fn new(
        name: &str,
        blocking_threads: usize,
        upshift_runtime: &RuntimeCell,
    ) -> io::Result<TokioRuntime> {
        let runtime_cell = upshift_runtime.clone();
        let cpus = affinity::current().ok();
        let process_cpus = cpus.clone();
        let runtime = runtime::Builder::new_current_thread()
            // tokio adds the number of its own threads.
            .max_blocking_threads(blocking_threads.min(usize::MAX / 2))
            .thread_name(format!("{name}-tokio"))
            .on_thread_start(move || {
                // The thread may have been started by a vCPU that is pinned to one CPU.
                process_cpus.as_ref().map(affinity::set);
                context::join_runtime(&runtime_cell, OUTSIDE);
            })
            .enable_all()
            .build()?;
        Ok(TokioRuntime {
            handle: runtime.handle().clone(),
            driver: Arc::new(Driver {
                state: Mutex::new(State::Idle(runtime)),
                name: format!("{name}-tokio"),
                cpus,
            }),
        })
    }

    pub(crate) fn thread_hook(&self) -> Arc<dyn ThreadHook> {
        Arc::new(EnterRuntime(self.handle.clone()))
    }

    /// Starts the thread at the first use of tokio's runtime.
    ///
    /// # Errors
    /// If the first use cannot be observed and the thread cannot be started now; or if there is no
    /// memory for the coroutine.
    pub(crate) fn drive_when_used(
        &self,
        shared: &Shared,
        runtime_cell: &RuntimeCell,
    ) -> io::Result<()> {
        let Some(epoll) = epoll_of(&self.handle) else {
            return self.driver.start(runtime_cell);
        };
        let (driver, runtime_cell) = (self.driver.clone(), runtime_cell.clone());
        let start_at_first_use = async move {
            let epoll = Descriptor::new(epoll);
            // If the ring reports an error, the first use cannot be observed, so the thread starts
            // now.
            let _ = readable(&epoll).await;
            let mut is_reported = false;
            while let Err(error) = driver.start(&runtime_cell) {
                if !std::mem::replace(&mut is_reported, true) {
                    notice(format_args!("{error}; trying again"));
                }
                sleep(RETRY).await;
            }
        };
        shared
            .domain
            .spawn_at(
                start_at_first_use,
                Priority::At(Level::MOST_URGENT),
                Location::caller(),
            )
            .map_err(io::Error::other)?
            .detach();
        Ok(())
    }
}

/// Waits until the set has an event. The operation is submitted at the level of its coroutine. Once
/// in flight, it counts as an operation of the least urgent level, since a vCPU reaps more often
/// while something urgent is in flight.
async fn readable(epoll: &Fd) -> io::Result<()> {
    loop {
        let wait = context::try_with(|worker| {
            let poll = op::PollAdd::new(epoll.clone(), libc::POLLIN as u32);
            worker.io_level();
            worker.ring().start(poll, Level::LEAST_URGENT.get())
        })?;
        match wait.await {
            // The vCPU that armed the operation has been released, so arm the operation on this
            // vCPU.
            Err(error) if is_cancelled(&error) => {}
            result => return result.map(drop),
        }
    }
}

impl Driver {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that runs tokio's driver and polls its tasks, unless the runtime has
    /// ended.
    fn start(&self, runtime_cell: &RuntimeCell) -> io::Result<()> {
        let mut state = self.state();
        let State::Idle(runtime) = std::mem::replace(&mut *state, State::Ended) else {
            return Ok(());
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (end_sender, ended) = mpsc::channel::<()>();
        // If the thread does not start, the runtime stays here.
        let runtime = Arc::new(Mutex::new(Some(runtime)));
        let take = |runtime: &Mutex<Option<runtime::Runtime>>| {
            let mut runtime = runtime.lock().unwrap_or_else(PoisonError::into_inner);
            runtime.take()
        };
        let (thread_runtime, runtime_cell) = (runtime.clone(), runtime_cell.clone());
        let cpus = self.cpus.clone();
        let drive = move || {
            let _end_sender = end_sender;
            // The CPUs are set before the first task runs. If that fails, the thread stays on the
            // CPUs of the thread that has started it.
            if let Some(cpus) = &cpus {
                let _ = affinity::set(cpus);
            }
            context::join_runtime(&runtime_cell, OUTSIDE);
            preempt::schedule_as_waiter();
            if let Some(runtime) = take(&thread_runtime) {
                let _ = runtime.block_on(async {
                    drop(tokio::spawn(servers::watch()));
                    stopped.await
                });
                runtime.shutdown_timeout(GRACE);
            }
        };
        match thread::Builder::new().name(self.name.clone()).spawn(drive) {
            Ok(thread) => {
                if let Some(cpus) = &self.cpus {
                    affinity::set_of_thread(&thread, cpus);
                }
                *state = State::Driven {
                    stop,
                    ended,
                    thread,
                };
                Ok(())
            }
            Err(error) => {
                if let Some(runtime) = take(&runtime) {
                    *state = State::Idle(runtime);
                }
                Err(no_thread("tokio's timers, sockets and tasks", &error))
            }
        }
    }
}

impl Drop for TokioRuntime {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *self.driver.state(), State::Ended);
        match state {
            State::Idle(runtime) => {
                // Drops the tasks that were spawned since the vCPUs left; destructors may panic.
                catch_panic(|| runtime.shutdown_background());
            }
            State::Driven {
                stop,
                ended,
                thread,
            } => {
                drop(stop);
                if ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
                    notice(format_args!(
                        "a task of tokio's, or a blocking call of one, did not end within a second of the runtime's shutdown; its thread is left behind"
                    ));
                } else {
                    // tokio reports a panic of a task's destructor; its payload may panic, too.
                    catch_panic(|| drop(thread.join()));
                }
            }
            State::Ended => {}
        }
    }
}

/// Returns a duplicate of the epoll set that tokio's driver waits in. tokio does not reveal the
/// number of the set, so the function searches for the set that contains a descriptor registered
/// with tokio.
fn epoll_of(handle: &Handle) -> Option<OwnedFd> {
    let _within = handle.enter();
    let probe = UnixDatagram::unbound().ok()?;
    let has_probe = |set: &RawFd| {
        let mut no_events = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: `no_events` is a local, valid during the call. The call only changes the events
        // of the probe, which is in no other set than tokio's, and fails for other descriptors.
        0 == unsafe {
            libc::epoll_ctl(
                *set,
                libc::EPOLL_CTL_MOD,
                probe.as_raw_fd(),
                &raw mut no_events,
            )
        }
    };
    // The kernel assigns the lowest free number, so the set, which is older than the probe, usually
    // has a lower number.
    let set = (0..probe.as_raw_fd()).rev().find(has_probe)?;
    // SAFETY: `F_DUPFD_CLOEXEC` takes no pointer. tokio's runtime, which `handle` refers to, keeps
    // the set open.
    let set = unsafe { libc::fcntl(set, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the kernel has just created this descriptor; nothing else owns it.
    (set >= 0).then(|| unsafe { OwnedFd::from_raw_fd(set) })
}

/// The hook through which a thread of a vCPU enters tokio's runtime.
struct EnterRuntime(Handle);

/// The entered context of tokio. The fields are dropped in this order: the guard goes first.
struct Entered {
    #[expect(dead_code, reason = "held for its drop")]
    guard: EnterGuard<'static>,
    #[expect(dead_code, reason = "borrowed by the guard")]
    handle: Box<Handle>,
}

thread_local! {
    /// The contexts that this thread has entered, the innermost last.
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

impl ThreadHook for EnterRuntime {
    fn begin(&self) {
        let handle = Box::new(self.0.clone());
        // SAFETY: the guard borrows from the boxed handle, so the longer lifetime holds if the
        // handle outlives the guard. It does, because both go into one `Entered`, which drops the
        // guard first, and the box stays in place.
        let guard =
            unsafe { std::mem::transmute::<EnterGuard<'_>, EnterGuard<'static>>(handle.enter()) };
        ENTERED.with_borrow_mut(|entered| entered.push(Entered { guard, handle }));
    }

    fn end(&self) {
        let last = ENTERED.with_borrow_mut(Vec::pop);
        drop(last);
    }
}
