//! The client of the daemon: the shared page of a process, and its connection to the daemon.
//!
//! ```no_run
//! use upshift_board::{Board, Role, ThreadSpec, VcpuSpec, os};
//!
//! let board = Board::new()?; // works without a daemon, too: the words are just memory
//! let vcpu = board.vcpu(0).expect("a page has 252 vCPUs");
//! # let (cpu, tid) = (0, 1);
//! let worker = ThreadSpec { tid, role: Role::Worker };
//! if let Some(path) = upshift_board::client::find() {
//!     match board.join(&path, &[VcpuSpec { cpu, threads: vec![worker] }]) {
//!         Ok(joined) => println!("enforcing: {}", joined.enforcing),
//!         Err(error) => eprintln!("without the daemon: {error}"),
//!     }
//! }
//! vcpu.line().set_running(2);                      // publish: one store …
//! vcpu.settle()?;   // … and a ring, only if the order on the CPU may have changed
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Invariants:
//! * The words of a page keep their addresses for the life of the [`Board`], with and without a
//!   connection. So a vCPU may use the bitmap word of its line as its own bitmap.
//! * A [`Vcpu`] never waits, because reading and publishing are loads and stores, and ringing is
//!   one system call that does not block.
//! * There are no hidden threads. Joining, leaving, updating and the census wait for the daemon, at
//!   most two seconds, and exclude each other.
//! * Without a daemon every [`Vcpu`] is alone, so it never has to ring and is never outranked.
//!
//! To notice the end of the daemon at once, a process waits until [`Board::closed`] is readable and
//! then calls [`Board::is_joined`]. A process that can notice the end later just calls
//! [`Board::is_joined`] from time to time. [`Board::rejoin`] joins again with the same threads.

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

/// Socket of the system's daemon.
pub const SYSTEM_SOCKET: &str = "/run/upshift/daemon.sock";

/// Environment variable that names a different socket.
pub const SOCKET_VARIABLE: &str = "UPSHIFT_DAEMON_SOCKET";

/// A thread of a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSpec {
    /// Thread id (`gettid`). The thread must be pinned to the CPU of its vCPU and to no other.
    pub tid: i32,
    /// Function of the thread.
    pub role: Role,
}

/// A vCPU of a registration. Its index in the list of vCPUs is the index of its line on the local
/// page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VcpuSpec {
    /// CPU to which the threads are pinned.
    pub cpu: usize,
    /// The threads of the vCPU.
    pub threads: Vec<ThreadSpec>,
}

/// The daemon's reply to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Whether the daemon elevates threads. If not, processes yield voluntarily:
    /// [`Vcpu::is_outranked`].
    pub enforcing: bool,
    /// Number that identifies the running daemon; changes with each start.
    pub generation: u64,
    /// Number that identifies the registration.
    pub session: u32,
}

/// State of the whole machine, as the JSON that `upshift daemon` documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// The JSON text.
    pub json: String,
}

/// The page of a process. A clone is another handle of the same page.
#[derive(Debug, Clone)]
pub struct Board {
    inner: Arc<Inner>,
}

impl Board {
    /// Creates a page that is joined to no daemon.
    ///
    /// # Errors
    /// Errors of the kernel, for memory or descriptors.
    pub fn new() -> io::Result<Board> {
        Ok(Board {
            inner: Arc::new(Inner::new()?),
        })
    }

    /// Returns the handle of vCPU `index`; `None` from [`VCPUS`] on.
    pub fn vcpu(&self, index: usize) -> Option<Vcpu> {
        (index < VCPUS).then(|| Vcpu::new(Arc::clone(&self.inner), index))
    }

    /// Joins the daemon that listens on `socket`. If the process is joined already, it first leaves
    /// that daemon.
    ///
    /// # Errors
    /// [`JoinError`]; the process is then alone and continues.
    pub fn join(&self, socket: &Path, vcpus: &[VcpuSpec]) -> Result<Joined, JoinError> {
        self.inner.join(socket, vcpus)
    }

    /// Repeats the last [`Board::join`], with the threads as updated since.
    ///
    /// # Errors
    /// [`JoinError`]; [`JoinError::NeverJoined`] without a previous `join`.
    pub fn rejoin(&self) -> Result<Joined, JoinError> {
        self.inner.rejoin()
    }

    /// Tells the daemon which threads were started (with the index of their vCPU) and which have
    /// ended. Without a daemon the change is stored for [`Board::rejoin`].
    ///
    /// # Errors
    /// [`JoinError`]. After a refusal the registration is unchanged.
    pub fn update(&self, added: &[(usize, ThreadSpec)], removed: &[i32]) -> Result<(), JoinError> {
        self.inner.update(added, removed)
    }

    /// Leaves the daemon. Returns when the daemon has restored every thread, or has ended.
    pub fn leave(&self) {
        self.inner.leave();
    }

    /// Returns whether the daemon's end of the connection is open. One system call. If it is
    /// closed, the process is alone from now on.
    pub fn is_joined(&self) -> bool {
        self.inner.is_joined()
    }

    /// Returns a descriptor that becomes readable when the daemon ends; `None` without a
    /// connection. The descriptor is only for waiting.
    pub fn closed(&self) -> Option<OwnedFd> {
        self.inner.closed()
    }

    /// Asks the daemon for the state of the machine.
    ///
    /// # Errors
    /// [`JoinError`]; [`JoinError::NotJoined`] without a connection.
    pub fn census(&self) -> Result<Census, JoinError> {
        self.inner.census()
    }

    /// Returns the time at which the daemon last published a heartbeat, CLOCK_MONOTONIC in ns; 0
    /// without a daemon. The daemon publishes one every half second. One load.
    pub fn heartbeat(&self) -> u64 {
        use std::sync::atomic::Ordering::Relaxed;
        self.inner.global().header().heartbeat.load(Relaxed)
    }
}

/// Asks the daemon on `socket` for the state of the machine, without joining.
///
/// # Errors
/// [`JoinError`].
pub fn census(socket: &Path) -> Result<Census, JoinError> {
    connection::Connection::open(socket)?.census()
}

/// Returns the socket of a daemon: `UPSHIFT_DAEMON_SOCKET` if it is set, otherwise the first
/// existing path of [`SYSTEM_SOCKET`] and `$XDG_RUNTIME_DIR/upshift/daemon.sock`.
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
