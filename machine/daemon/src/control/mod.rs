//! The control thread, which handles connections, registrations, deaths and the heartbeat.
//!
//! ```text
//!   connect ─▶ Connected ──Register──▶ Pending ──▶ Joined ──Leave──▶ Connected
//!                  │                      │           │
//!                  └── closes, dies ──────┴───────────┴─▶ restored, forgotten
//! ```
//!
//! The thread owns every connection and session. Schedulers receive commands through their
//! mailboxes and reply through latches, within a second. Readers open files that may belong to
//! other processes and close the descriptors of clients, while the control thread continues.
//!
//! The thread runs at the schedulers' priority, because otherwise the threads that it has to
//! restore could delay it. So it limits its own time, and works for at most 4 ms of each 20 ms.
//!
//! | file | concern |
//! |---|---|
//! | `requests.rs` | messages and replies |
//! | `session.rs` | one registration |
//! | `lookup.rs` | facts about a process that registers |
//! | `checks.rs` | acceptance of threads and processes |
//! | `census.rs` | memory of census replies |
//! | `names.rs` | TIDs in other pid namespaces |
//! | `reload.rs` | a new configuration |
//! | `slots.rs` | words of the global page |

mod census;
mod checks;
mod lookup;
mod names;
mod reload;
mod requests;
mod session;
mod slots;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{RecvFlags, Shutdown, SocketFlags};
use rustix::time::ClockId;
use upshift_board::layout::LOCAL_BYTES;
use upshift_board::wire;

use crate::admission::listen::Listener;
use crate::admission::peer::Peer;
use crate::admission::{Admission, Load};
use crate::canary::Monitor;
use crate::config::Config;
use crate::cpu::{Command, CpuScheduler, Latch};
use crate::proc::stack::Answers;
use crate::rules::Assigner;
use crate::shared::{DAEMON, Shared, WINDOW, WorkBudget};
use crate::status::notify::Notify;
use upshift_units::socket_file::SocketFile;

use census::Censuses;
use lookup::{Answer, Pending};
pub(crate) use session::Session;
use slots::Slots;

/// Time between the heartbeats of the control thread, which go to the global page and to the
/// service manager.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Maximum time for which the control thread waits until a scheduler has restored threads.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

const MAX_ACCEPTS: usize = 16;

const LISTENER_KEY: u64 = 0;
/// Key of the eventfd for orders.
const ORDERS_KEY: u64 = u64::MAX;
const LOOKUPS_KEY: u64 = u64::MAX - 2;
/// Key of the first connection; a connection has two keys, the second for its pidfd.
const FIRST_CONNECTION_KEY: u64 = 2;

#[derive(Debug)]
pub(crate) enum Order {
    Reload(Box<Config>),
    Stop,
}

pub(crate) type OrderQueue = Answers<Order>;

pub(crate) struct Control {
    pub(crate) shared: Arc<Shared>,
    /// Dropped before the listener, whose lock keeps a successor of this daemon out.
    metrics: Option<SocketFile>,
    listener: Listener,
    orders: Arc<OrderQueue>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    next_key: u64,
    next_session: u32,
    admission: Admission,
    slots: Slots,
    schedulers: HashMap<usize, CpuScheduler>,
    /// Set from the first registration or `[[assign]]` rule on, if the daemon elevates threads.
    monitor: Option<Monitor>,
    assigner: Option<Assigner>,
    censuses: Censuses,
    /// Threads that belong to a session, and the key of its connection.
    claimed: HashMap<i32, u64>,
    pub(crate) started: Instant,
    answers: Arc<Answers<Answer>>,
    notify: Notify,
    budget: WorkBudget,
    /// CPU time of the control thread that the budget has been charged for.
    charged_time: Duration,
}

#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) session: Option<Session>,
    pending: Option<Pending>,
}

impl Control {
    pub(crate) fn new(
        shared: Arc<Shared>,
        listener: Listener,
        orders: Arc<OrderQueue>,
    ) -> io::Result<Control> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let level_triggered = EventFlags::IN;
        epoll::add(
            &epoll,
            &listener.socket,
            EventData::new_u64(LISTENER_KEY),
            level_triggered,
        )?;
        epoll::add(
            &epoll,
            &orders.eventfd,
            EventData::new_u64(ORDERS_KEY),
            level_triggered,
        )?;
        let answers = Arc::new(Answers::new()?);
        epoll::add(
            &epoll,
            &answers.eventfd,
            EventData::new_u64(LOOKUPS_KEY),
            level_triggered,
        )?;
        Ok(Control {
            admission: Admission::new(shared.config().limits).with_descriptors(shared.descriptors),
            shared,
            metrics: None,
            listener,
            orders,
            epoll,
            connections: HashMap::new(),
            next_key: FIRST_CONNECTION_KEY,
            next_session: 1,
            slots: Slots::new(),
            schedulers: HashMap::new(),
            monitor: None,
            assigner: None,
            censuses: Censuses::default(),
            claimed: HashMap::new(),
            started: Instant::now(),
            answers,
            notify: Notify::new(),
            budget: WorkBudget::new(Instant::now()),
            charged_time: Duration::ZERO,
        })
    }

    pub(crate) fn run(mut self) {
        let _elevated = self.shared.elevator.as_ref().and_then(|elevator| {
            let elevated = elevator.elevate_current(DAEMON);
            elevated
                .inspect_err(|error| self.shared.warn("elevate", || error.to_string()))
                .ok()
        });
        self.print_remarks();
        self.start_assigning();
        self.metrics = self.serve_metrics();
        self.notify.ready(if self.shared.enforcing() {
            "enforcing"
        } else {
            "cooperative"
        });
        let mut events = Vec::with_capacity(64);
        let mut next_beat = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_beat {
                next_beat = now + HEARTBEAT;
                self.heartbeat();
            }
            let timeout = Timespec::try_from(next_beat.saturating_duration_since(now)).ok();
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            let _ = epoll::wait(&self.epoll, spare, timeout.as_ref());
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    LISTENER_KEY => self.accept(),
                    ORDERS_KEY => {
                        for order in self.orders.take() {
                            match order {
                                Order::Reload(config) => self.reload(*config),
                                Order::Stop => return self.end(),
                            }
                        }
                    }
                    LOOKUPS_KEY => self.take_lookups(),
                    key if key % 2 == 1 => self.drop_connection(key - 1),
                    key => self.read(key, flags),
                }
            }
            self.sleep_if_over_budget();
        }
    }

    fn serve_metrics(&self) -> Option<SocketFile> {
        let config = self.shared.config();
        let address = config.metrics.as_ref()?;
        let served = crate::status::metrics::serve(address, self.listener.path().to_path_buf());
        served
            .inspect_err(|error| {
                self.shared.warn("metrics", || {
                    format!("metrics cannot be served at {address}: {error}")
                });
            })
            .ok()?
    }

    pub(super) fn print_remarks(&self) {
        for remark in self.shared.config().remarks() {
            self.shared.log.say(remark);
        }
    }

    fn start_assigning(&mut self) {
        if self.shared.config().assign.is_empty() {
            return;
        }
        let monitored = self.start_monitor();
        let sessions = self
            .connections
            .values()
            .filter_map(|connection| connection.session.as_ref());
        let pids = sessions.map(|session| session.pid);
        match monitored.and_then(|()| Assigner::start(&self.shared, pids)) {
            Ok(assigner) => self.assigner = assigner,
            Err(error) => self.shared.warn("assign", || {
                format!("no program is assigned a level: {error}")
            }),
        }
    }

    fn heartbeat(&mut self) {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        self.shared.global.beat(ns);
        self.notify.beat();
        self.refuse_late();
        if let Some(elevator) = &self.shared.elevator
            && (!self.claimed.is_empty() || !self.shared.roster.is_empty())
            && let Err(error) = elevator.ensure_guardian()
        {
            self.shared.warn("guardian", || error.to_string());
        }
    }

    fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTS {
            if self.shared.reader.closes_too_much() {
                self.shared.warn("closing", || {
                    "new clients wait until the descriptors of former clients are closed: a client has sent descriptors that take long to close"
                        .to_string()
                });
                std::thread::sleep(WINDOW);
                return;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.listener.socket, flags) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                    self.shared.warn("files", || {
                        "no descriptors left: raise the limit on open files (LimitNOFILE)"
                            .to_string()
                    });
                    // The connection stays queued; without the sleep this loop would spin.
                    std::thread::sleep(WINDOW);
                    return;
                }
                Err(_) => return,
            };
            if let Err((socket, error)) = self.add(socket) {
                // The client notices the shutdown at once, however long closing takes.
                let _ = rustix::net::shutdown(&socket, Shutdown::Both);
                self.shared.reader.close(vec![socket]);
                self.shared.counts.refused.fetch_add(1, Relaxed);
                self.shared
                    .warn("connection", || format!("a connection was closed: {error}"));
            }
        }
    }

    /// Adds a connection. An error contains the socket, which must not be closed here.
    fn add(&mut self, socket: OwnedFd) -> Result<(), (OwnedFd, io::Error)> {
        let config = self.shared.config();
        let accountable = |uid: u32| config.accountable_user(uid);
        let peer = match Peer::identify(socket.as_fd(), self.shared.machine.as_ref(), accountable) {
            Ok(peer) => peer,
            Err(error) => return Err((socket, error)),
        };
        let trust = config.trust_of(peer.uid, &peer.groups);
        if let Err(text) = self.admission.connect(peer.user, trust, Instant::now()) {
            return Err((socket, io::Error::other(text)));
        }
        let key = self.next_key;
        self.next_key += 2;
        let watched = epoll::add(
            &self.epoll,
            &socket,
            EventData::new_u64(key),
            EventFlags::IN,
        )
        .and_then(|()| {
            let key = EventData::new_u64(key + 1);
            epoll::add(&self.epoll, &peer.pidfd, key, EventFlags::IN)
        });
        if let Err(error) = watched {
            self.admission.disconnect(peer.user);
            return Err((socket, error.into()));
        }
        let connection = Connection {
            socket,
            peer,
            session: None,
            pending: None,
        };
        self.connections.insert(key, connection);
        Ok(())
    }

    /// Reads one message of a connection. The next message is read in the next round, so that no
    /// client delays other clients.
    fn read(&mut self, key: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get(&key) else {
            return;
        };
        if connection.pending.is_some() {
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.drop_connection(key);
            }
            return;
        }
        let mut message = wire::buffer();
        let received = upshift_board::os::receive_any(
            connection.socket.as_fd(),
            &mut message,
            RecvFlags::DONTWAIT,
        );
        let packet = match received {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                    self.drop_connection(key);
                }
                return;
            }
            Err(_) => return self.drop_connection(key),
        };
        let answered = match packet.bytes {
            _ if !packet.whole => self.refuse_malformed(key),
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => self.answer(key, &message[..length], &packet.fds),
        };
        let slow_fds = packet.fds.into_iter().filter(|file| !closes_fast(file));
        let slow_fds: Vec<OwnedFd> = slow_fds.collect();
        let too_much = !slow_fds.is_empty() && self.shared.reader.closes_too_much();
        if !slow_fds.is_empty() {
            self.shared.reader.close(slow_fds);
        }
        // The client has closed the connection, does not read its replies, or sends too many
        // descriptors.
        if answered.is_err() || too_much {
            self.drop_connection(key);
        }
    }

    fn drop_connection(&mut self, key: u64) {
        if let Some(mut connection) = self.connections.remove(&key) {
            let _ = epoll::delete(&self.epoll, &connection.socket);
            let _ = epoll::delete(&self.epoll, &connection.peer.pidfd);
            if let Some(session) = connection.session.take() {
                self.end_session(session, connection.peer.user);
            }
            if let Some(pending) = connection.pending.take() {
                self.forget_pending(connection.peer.user, &pending);
            }
            if !self.admission.disconnect(connection.peer.user) {
                self.censuses.forget(connection.peer.user);
            }
            // The client notices the shutdown at once, however long closing takes.
            let _ = rustix::net::shutdown(&connection.socket, Shutdown::Both);
            self.shared.reader.close(vec![connection.socket]);
        }
    }

    pub(crate) fn end_session(&mut self, session: Session, user: u32) {
        let mut latches = Vec::new();
        for vcpu in &session.vcpus {
            if let Some(scheduler) = self.schedulers.get(&vcpu.cpu) {
                let latch = Latch::default();
                scheduler.send(Command::Leave(vcpu.slot, latch.clone()));
                latches.push(latch);
            }
            for thread in &vcpu.threads {
                self.claimed.remove(&thread.tid);
            }
        }
        let are_restored = latches.iter().all(|latch| latch.wait(RESTORE_TIMEOUT));
        if !are_restored {
            self.shared.warn("slow", || {
                "a scheduler did not restore its threads within a second: the machine is overloaded"
                    .to_string()
            });
        }
        if let Some(assigner) = &self.assigner {
            assigner.on_leave(session.pid);
        }
        self.slots.free(session.slot, session.vcpus.len());
        let cpus: Vec<usize> = session.vcpus.iter().map(|vcpu| vcpu.cpu).collect();
        let load = Load {
            threads: session.threads(),
            cpus: &cpus,
        };
        self.admission.unregister(user, load);
    }

    pub(crate) fn scheduler(&mut self, cpu: usize) -> io::Result<&CpuScheduler> {
        use std::collections::hash_map::Entry;
        match self.schedulers.entry(cpu) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(CpuScheduler::start(cpu, &self.shared)?)),
        }
    }

    pub(crate) fn start_monitor(&mut self) -> io::Result<()> {
        if self.shared.enforcing() && self.monitor.is_none() {
            self.monitor = Some(Monitor::start(&self.shared)?);
        }
        Ok(())
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = (&Connection, &Session)> {
        let connections = self.connections.values();
        connections.filter_map(|connection| Some((connection, connection.session.as_ref()?)))
    }

    fn sleep_if_over_budget(&mut self) {
        if !self.shared.enforcing() {
            return;
        }
        let cpu_time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        let Ok(cpu_time) = Duration::try_from(cpu_time) else {
            return;
        };
        let worked = cpu_time.saturating_sub(std::mem::replace(&mut self.charged_time, cpu_time));
        self.shared.add_work(worked);
        self.budget.charge_and_sleep(worked);
    }

    fn end(mut self) {
        self.notify.stopping();
        let keys: Vec<u64> = self.connections.keys().copied().collect();
        for key in keys {
            self.drop_connection(key);
        }
        self.schedulers.clear();
        self.assigner = None;
        self.monitor = None;
    }
}

/// Returns whether closing the file neither waits nor takes long. This is true if the file has
/// seals, which only memory files have, and occupies at most as much memory as a page of the board.
fn closes_fast(file: &OwnedFd) -> bool {
    let bytes = rustix::fs::fstat(file).map_or(i64::MAX, |stat| stat.st_blocks * 512);
    rustix::fs::fcntl_get_seals(file).is_ok() && bytes <= LOCAL_BYTES as i64
}
