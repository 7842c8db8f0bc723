//! Starts, reloads and stops a daemon in the calling process.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use rustix::process::Resource;
use upshift_elevate::sys::{Kernel, Sys};
use upshift_elevate::{Elevator, MissingRights, Priority, Rights};

use crate::abort::AbortOnPanic;
use crate::admission::listen::{ListenError, Listener};
use crate::config::Config;
use crate::control::{Control, Order, OrderQueue};
use crate::machine::{Machine, Real};
use crate::proc::reader::ProcReader;
use crate::ranking::global::Global;
use crate::shared::{HEARTBEAT, Shared};

/// Maximum number of threads that can be recorded with the elevator at the same time.
const CAPACITY: usize = upshift_elevate::MAX_CAPACITY;

/// A running daemon. Dropping it stops it.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    orders: Arc<OrderQueue>,
    thread: Option<JoinHandle<()>>,
    mode: Mode,
}

/// Tells whether the daemon elevates threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// The daemon elevates threads.
    Enforcing,
    /// The daemon only publishes the most urgent levels; processes yield voluntarily.
    Cooperative {
        /// The missing rights, or `None` if the configuration selects this mode.
        missing: Option<MissingRights>,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Enforcing => f.write_str("enforcing: the most urgent process of each CPU runs"),
            Mode::Cooperative { missing: None } => {
                f.write_str("cooperative, as configured: processes give way by themselves")
            }
            Mode::Cooperative {
                missing: Some(missing),
            } => write!(
                f,
                "cooperative: processes give way by themselves, because {missing}"
            ),
        }
    }
}

/// The reason why a daemon did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The socket cannot be used.
    Listen(ListenError),
    /// Another system call failed.
    System {
        /// The attempted action, as text.
        what: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(error) => error.fmt(f),
            StartError::System { what, error } => write!(f, "cannot {what}: {error}"),
        }
    }
}

// The texts already contain the kernel's error; with `source` it would be printed twice.
impl Error for StartError {}

/// Settings of a [`Daemon`] with replaced system calls.
#[derive(Debug)]
pub struct Builder {
    config: Config,
    sys: Arc<dyn Sys>,
    machine: Arc<dyn Machine>,
}

impl Builder {
    /// Replaces the scheduling calls, for tests that inject faults.
    pub fn sys(mut self, sys: Arc<dyn Sys>) -> Builder {
        self.sys = sys;
        self
    }

    /// Replaces the other system calls, for tests that inject faults.
    pub fn machine(mut self, machine: Arc<dyn Machine>) -> Builder {
        self.machine = machine;
        self
    }

    /// Starts the daemon.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(self) -> Result<Daemon, StartError> {
        let failed = |what| move |error: io::Error| StartError::System { what, error };
        let listener = Listener::open(&self.config).map_err(StartError::Listen)?;
        let missing = if self.config.cooperative {
            None
        } else {
            let rights = Rights::probe_with(self.sys.as_ref());
            rights.require(Priority::MAX).err()
        };
        let mode = if self.config.cooperative || missing.is_some() {
            Mode::Cooperative { missing }
        } else {
            Mode::Enforcing
        };
        let elevator = match mode {
            Mode::Cooperative { .. } => None,
            Mode::Enforcing => {
                let builder = Elevator::builder().capacity(CAPACITY);
                let builder = builder.guardian(true).heartbeat(HEARTBEAT);
                let built = builder.sys(Arc::clone(&self.sys)).build();
                Some(built.map_err(failed("start the guardian"))?)
            }
        };
        let low_limit = raise_file_limit();
        let cpus = cpu_limit(self.sys.as_ref()).map_err(failed("count the CPUs"))?;
        let global = Global::new(generation(), cpus).map_err(failed("make the global page"))?;
        global.set_enforcing(mode == Mode::Enforcing);
        let reader = ProcReader::start().map_err(failed("start a thread"))?;
        let (config, sys, machine) = (self.config, self.sys, self.machine);
        let shared = Shared::new(config, elevator, sys, machine, global, cpus, reader);
        let shared = Arc::new(shared);
        if let Some(low_limit) = low_limit {
            shared.warn("descriptors", || {
                format!("the limit of {low_limit} open files is too low for all the clients that the configuration admits: raise it (LimitNOFILE={DESCRIPTORS})")
            });
        }
        let orders = Arc::new(OrderQueue::new().map_err(failed("make an eventfd"))?);
        let control_orders = Arc::clone(&orders);
        let control = Control::new(Arc::clone(&shared), listener, control_orders)
            .map_err(failed("make an epoll"))?;
        let thread = std::thread::Builder::new()
            .name("upshift-daemon".into())
            .spawn(move || {
                let abort = AbortOnPanic;
                control.run();
                std::mem::forget(abort);
            })
            .map_err(failed("start a thread"))?;
        Ok(Daemon {
            shared,
            orders,
            thread: Some(thread),
            mode,
        })
    }
}

impl Daemon {
    /// Starts a daemon that listens on `config.socket`.
    ///
    /// # Errors
    /// [`StartError`] if the socket belongs to another daemon or is not permitted, or a system call
    /// failed.
    pub fn start(config: Config) -> Result<Daemon, StartError> {
        Daemon::builder(config).start()
    }

    /// Returns a builder for a daemon with replaced system calls.
    pub fn builder(config: Config) -> Builder {
        Builder {
            config,
            sys: Arc::new(Kernel),
            machine: Arc::new(Real),
        }
    }

    /// Returns whether the daemon elevates threads, and the reason if it does not.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Returns the process id of the guardian, which restores the threads if the daemon dies;
    /// `None` in cooperative mode.
    pub fn guardian_pid(&self) -> Option<i32> {
        self.shared.elevator.as_ref()?.guardian_pid()
    }

    /// Applies a new configuration soon after the call. A client loses its connection only if a
    /// rule now denies it. Settings that cannot change in a running daemon (socket, cooperative,
    /// metrics) stay, and a line on standard error reports this.
    pub fn reload(&self, config: Config) {
        self.orders.put(Order::Reload(Box::new(config)));
    }

    /// Stops the daemon, restores every thread, and removes the socket.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.orders.put(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Number of descriptors for everything that the limits admit: two for a connection, one for a
/// vCPU, one for a thread.
const DESCRIPTORS: u64 = 65_536;

/// Raises the limit on open files to [`DESCRIPTORS`] if permitted (CAP_SYS_RESOURCE), otherwise to
/// the hard limit. Returns the limit if it is below a quarter of [`DESCRIPTORS`], because the
/// daemon then admits fewer clients.
fn raise_file_limit() -> Option<u64> {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let mut limit = before;
    let hard_limit = before.maximum?;
    limit.current = Some(hard_limit.max(DESCRIPTORS));
    limit.maximum = limit.current;
    if rustix::process::setrlimit(Resource::Nofile, limit).is_err() {
        limit = before;
        limit.current = limit.maximum;
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
    let after = rustix::process::getrlimit(Resource::Nofile);
    after.current.filter(|&limit| limit < DESCRIPTORS / 4)
}

/// Returns the time of the start, a number that no other run of a daemon has had.
fn generation() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(1, |since| since.as_nanos() as u64)
}

fn cpu_limit(sys: &dyn Sys) -> io::Result<usize> {
    let from_file = sys
        .read_file("/sys/devices/system/cpu/possible")
        .ok()
        .and_then(|text| upshift_units::cpus(&text).ok()?.into_iter().max());
    let last = match from_file {
        Some(last) => last,
        None => sys.sched_getaffinity(0)?.iter().last().unwrap_or(0),
    };
    Ok((last + 1).min(upshift_board::layout::CPUS))
}
