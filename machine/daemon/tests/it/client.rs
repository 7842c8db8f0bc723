//! A client that sends the messages itself, so that a test or an attacker can send messages that
//! the client of `upshift-board` does not send.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::Scope;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use upshift_board::LocalPage;
use upshift_board::os::{self, Mapping};
use upshift_board::wire::{self, Reason, Reply, Role, Thread};
use upshift_elevate::current_tid;

use crate::child::{number, setting};

/// Connects to the daemon at `path`. Sends and receives fail after 5 s.
pub(crate) fn connect(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).unwrap();
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let timeout = Some(Duration::from_secs(5));
    for direction in [
        rustix::net::sockopt::Timeout::Recv,
        rustix::net::sockopt::Timeout::Send,
    ] {
        rustix::net::sockopt::set_socket_timeout(&socket, direction, timeout).unwrap();
    }
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// Sends a registration. Returns the descriptors that the daemon sends, or the reason for a
/// refusal.
pub(crate) fn register(
    socket: &OwnedFd,
    cpus: &[u32],
    threads: &[Thread],
    page: &OwnedFd,
) -> Result<Vec<OwnedFd>, Reason> {
    let mut message = wire::buffer();
    let length = wire::encode_register(&mut message, cpus, threads).unwrap();
    os::send(socket.as_fd(), &message[..length], &[page.as_fd()]).unwrap();
    let mut answer = wire::buffer();
    let (length, fds) = os::receive(socket.as_fd(), &mut answer, RecvFlags::empty()).unwrap();
    match Reply::decode(&answer[..length]).unwrap() {
        Reply::Welcome { .. } => Ok(fds),
        Reply::Refused { reason, text } => {
            assert!(!text.is_empty());
            Err(reason)
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn worker(tid: i32) -> Thread {
    Thread {
        tid,
        vcpu: 0,
        role: Role::Worker,
    }
}

pub(crate) struct Registration {
    pub(crate) socket: OwnedFd,
    pub(crate) page: Mapping<LocalPage>,
    pub(crate) doorbells: Vec<OwnedFd>,
}

impl Registration {
    /// Registers vCPU 0 on `CPU` with `threads`, and publishes that it runs at `LEVEL`.
    pub(crate) fn new(threads: &[(i32, Role)]) -> Registration {
        Registration::try_new(threads).unwrap()
    }

    /// Like [`Registration::new`], but returns `None` after a refusal.
    pub(crate) fn try_new(threads: &[(i32, Role)]) -> Option<Registration> {
        let socket = connect(&PathBuf::from(setting("SOCKET")));
        let (file, page) = os::local_page().unwrap();
        let threads: Vec<Thread> = threads
            .iter()
            .map(|&(tid, role)| Thread { tid, vcpu: 0, role })
            .collect();
        let cpu = number("CPU") as u32;
        let mut doorbells = register(&socket, &[cpu], &threads, &file).ok()?;
        doorbells.remove(0);
        let registration = Registration {
            socket,
            page,
            doorbells,
        };
        registration.run(number("LEVEL") as u8);
        Some(registration)
    }

    /// Adds the calling thread to the registration. Returns whether the daemon accepts it.
    pub(crate) fn add_current(&self, role: Role) -> bool {
        let own_thread = Thread {
            tid: current_tid(),
            vcpu: 0,
            role,
        };
        let mut message = wire::buffer();
        let length = wire::encode_update(&mut message, &[own_thread], &[]).unwrap();
        os::send(self.socket.as_fd(), &message[..length], &[]).unwrap();
        let mut answer = wire::buffer();
        let (length, _) =
            os::receive(self.socket.as_fd(), &mut answer, RecvFlags::empty()).unwrap();
        let reply = Reply::decode(&answer[..length]).unwrap();
        !matches!(reply, Reply::Refused { .. })
    }

    /// Publishes that the vCPU runs at `level`, and rings.
    pub(crate) fn run(&self, level: u8) {
        self.page.vcpu(0).unwrap().set_running(level);
        os::ring(&self.doorbells[0]).unwrap();
    }
}

/// Starts `count` threads that block until `mutex` is free. Returns them as workers.
pub(crate) fn start_blocked_threads<'scope>(
    mutex: &'scope Mutex<()>,
    scope: &'scope Scope<'scope, '_>,
    count: u64,
) -> Vec<(i32, Role)> {
    let (sender, tids) = std::sync::mpsc::channel();
    for _ in 0..count {
        let sender = sender.clone();
        let builder = std::thread::Builder::new().stack_size(64 * 1024);
        let body = move || {
            sender.send(current_tid()).unwrap();
            drop(sender);
            drop(mutex.lock());
        };
        builder.spawn_scoped(scope, body).unwrap();
    }
    drop(sender);
    tids.iter().map(|tid| (tid, Role::Worker)).collect()
}

/// Registers the thread `tid` over `connection`. Returns the outcome as text: `accepted`, or the
/// reason for the refusal.
pub(crate) fn registration_outcome(connection: &OwnedFd, tid: i32) -> String {
    let worker = Thread {
        tid,
        vcpu: 0,
        role: Role::Worker,
    };
    let (file, _page) = os::local_page().unwrap();
    let outcome = register(connection, &[number("CPU") as u32], &[worker], &file);
    outcome.map_or_else(|reason| format!("{reason:?}"), |_| "accepted".to_string())
}

pub(crate) fn census(socket: &Path) -> Value {
    let census = upshift_board::client::census(socket).unwrap();
    serde_json::from_str(&census.json).unwrap()
}

/// Returns the number of registered processes.
pub(crate) fn processes(socket: &Path) -> usize {
    census(socket)["processes"].as_array().unwrap().len()
}

pub(crate) fn vcpu_counter(census: &Value, pid: i32, field: &str) -> u64 {
    let processes = census["processes"].as_array().unwrap();
    let process = processes
        .iter()
        .find(|process| process["pid"] == pid)
        .unwrap();
    process["vcpus"][0][field].as_u64().unwrap()
}
