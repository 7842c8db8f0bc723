//! The client: a process's page, and its connection to the daemon while there is one.
//!
//! ```no_run
//! use upshift_board::{Board, Role, ThreadSpec, VcpuSpec, os};
//!
//! let board = Board::new()?;                       // works without a daemon, too: the words are just memory
//! let vcpu = board.vcpu(0).expect("a page has 252");
//! # let (cpu, tid) = (0, 1);
//! let worker = ThreadSpec { tid, role: Role::Worker };
//! if let Some(path) = upshift_board::client::find() {
//!     match board.join(&path, &[VcpuSpec { cpu, threads: vec![worker] }]) {
//!         Ok(joined) => println!("enforcing: {}", joined.enforcing),
//!         Err(error) => eprintln!("without the daemon: {error}"),
//!     }
//! }
//! vcpu.line().set_running(2);                      // publish: one store …
//! vcpu.settle()?;                                  // … and a ring, only if the order on the CPU may have changed
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Invariants:
//! * The words of a page stay where they are for the life of the [`Board`], whether it is joined, leaves, loses the daemon or
//!   joins another one: a vCPU may use the bitmap word of its line as its own bitmap.
//! * A [`Vcpu`] never waits: reading and publishing are loads and stores, ringing is one system call that does not block.
//! * There are no hidden threads. Joining, leaving, updating and asking for the census wait for the daemon, at most two
//!   seconds, and exclude each other.
//! * Without a daemon every [`Vcpu`] is alone: it never wants to ring and is never outranked.
//!
//! To learn at once that the daemon has gone, wait for [`Board::closed`] to become readable, then calls
//! [`Board::is_joined`]; the others call that from time to time. [`Board::rejoin`] joins again with the same threads.

mod connection;
mod error;
mod inner;
mod vcpu;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

pub use crate::wire::Role;
pub use error::JoinError;
pub use vcpu::Vcpu;

use crate::layout::VCPUS;
use inner::Inner;

/// Where the system's daemon listens.
pub const SYSTEM_SOCKET: &str = "/run/upshift/daemon.sock";

/// The environment variable that names another socket.
pub const SOCKET_VARIABLE: &str = "UPSHIFT_DAEMON_SOCKET";

/// One thread of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSpec {
    /// Its id (`gettid`). It must be pinned to the CPU of its vCPU and to no other.
    pub tid: i32,
    /// What it does.
    pub role: Role,
}

/// One vCPU of a registration: its place in the list is its line of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuSpec {
    /// The CPU its threads are pinned to.
    pub cpu: usize,
    /// Its threads.
    pub threads: Vec<ThreadSpec>,
}

/// What the daemon said when this process joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Whether the daemon elevates. If not, processes give way by themselves: [`Vcpu::is_outranked`].
    pub enforcing: bool,
    /// Names this life of the daemon.
    pub generation: u64,
    /// Names the registration.
    pub session: u32,
}

/// The state of the whole machine: JSON, as `upshift daemon` documents it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// The text.
    pub json: String,
}

/// A process's page. Cloning gives another handle to it.
#[derive(Debug, Clone)]
pub struct Board {
    inner: Arc<Inner>,
}

impl Board {
    /// A page of one's own, joined to nothing.
    ///
    /// # Errors
    /// The kernel's: no memory, no descriptors.
    pub fn new() -> io::Result<Board> {
        Ok(Board {
            inner: Arc::new(Inner::new()?),
        })
    }

    /// The handle of vCPU `index`; `None` from [`VCPUS`] on.
    pub fn vcpu(&self, index: usize) -> Option<Vcpu> {
        (index < VCPUS).then(|| Vcpu::new(Arc::clone(&self.inner), index))
    }

    /// Joins the daemon that listens at `socket`. A connection that exists is left first.
    ///
    /// # Errors
    /// [`JoinError`]; the process is then alone, and goes on.
    pub fn join(&self, socket: &Path, vcpus: &[VcpuSpec]) -> Result<Joined, JoinError> {
        self.inner.join(socket, vcpus)
    }

    /// Joins again as the last [`Board::join`] did, with the threads that updates have left.
    ///
    /// # Errors
    /// [`JoinError`]; `NeverJoined` if there was none.
    pub fn rejoin(&self) -> Result<Joined, JoinError> {
        self.inner.rejoin()
    }

    /// Tells the daemon of threads that were born (with the index of their vCPU) or have gone. Without a daemon it is
    /// remembered for [`Board::rejoin`].
    ///
    /// # Errors
    /// [`JoinError`]. If the daemon refused, the registration is as it was.
    pub fn update(&self, added: &[(usize, ThreadSpec)], removed: &[i32]) -> Result<(), JoinError> {
        self.inner.update(added, removed)
    }

    /// Leaves: returns when the daemon has given every thread back, or is gone.
    pub fn leave(&self) {
        self.inner.leave();
    }

    /// Whether the daemon is there. One system call. If it has gone, the process is alone from now on.
    pub fn is_joined(&self) -> bool {
        self.inner.is_joined()
    }

    /// A descriptor that becomes readable when the daemon goes; `None` without a connection. Only for waiting.
    pub fn closed(&self) -> Option<OwnedFd> {
        self.inner.closed()
    }

    /// The state of the machine.
    ///
    /// # Errors
    /// [`JoinError`]; `NotJoined` without a connection.
    pub fn census(&self) -> Result<Census, JoinError> {
        self.inner.census()
    }

    /// When the daemon last showed that it lives, CLOCK_MONOTONIC in ns; 0 without one. It does so every half second. One load.
    pub fn heartbeat(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        self.inner.global().header().heartbeat.load(Relaxed)
    }
}

/// Asks the daemon at `socket` for the state of the machine, without joining.
///
/// # Errors
/// [`JoinError`].
pub fn census(socket: &Path) -> Result<Census, JoinError> {
    connection::Connection::open(socket)?.census()
}

/// The socket of a daemon that seems to be there: `UPSHIFT_DAEMON_SOCKET`, [`SYSTEM_SOCKET`], or
/// `$XDG_RUNTIME_DIR/upshift/daemon.sock`, whichever exists first.
pub fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE) {
        return Some(path.into());
    }
    let user = std::env::var_os("XDG_RUNTIME_DIR")
        .map(|directory| PathBuf::from(directory).join("upshift/daemon.sock"));
    std::iter::once(PathBuf::from(SYSTEM_SOCKET))
        .chain(user)
        .find(|path| path.exists())
}
