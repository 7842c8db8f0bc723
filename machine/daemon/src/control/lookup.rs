//! Looks up facts about a process that registers or adds threads. A reader thread does this,
//! because the control thread opens no file that may belong to another process (`proc/reader.rs`).
//!
//! ```text
//!   Register ──checks──▶ pending ──queue of its user─▶ reader ──▶ checks, joined ──▶ Welcome
//!                           │  after 1 s                             │
//!                           └──────────▶ Refused ◀───────────────────┘
//! ```
//!
//! While a connection is pending, none of its further messages is read.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use upshift_board::LocalPage;
use upshift_board::os::Mapping;
use upshift_board::wire::{Reason, Thread};

use crate::admission::Load;
use crate::admission::listen::command_of;
use crate::config::Config;
use crate::control::names::{self, NamedThread};
use crate::control::requests::{Outcome, Refusal};
use crate::control::{Connection, Control};
use crate::machine::Machine;
use crate::proc::reader::JobClass;

/// Maximum time for which a connection is pending, which is checked with each heartbeat.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Facts {
    pub(super) threads: Outcome<Vec<(NamedThread, io::Result<OwnedFd>)>>,
    /// Directory of the process, and its real, effective, saved and file system user.
    pub(super) process: io::Result<(OwnedFd, [u32; 4])>,
    pub(super) command: String,
    /// Level that a rule of this configuration assigns to the process.
    pub(super) level: Option<u8>,
    pub(super) config: Arc<Config>,
}

impl Facts {
    fn read(pid: i32, threads: &[Thread], machine: &dyn Machine, config: Arc<Config>) -> Facts {
        let process = machine.process(pid);
        let users = |process: OwnedFd| Ok((machine.users(process.as_fd())?, process));
        let clock = |thread: NamedThread| (thread, machine.thread_clock(pid, thread.tid));
        Facts {
            process: process
                .and_then(users)
                .map(|(users, process)| (process, users)),
            threads: names::translate(pid, threads)
                .map(|named| named.into_iter().map(clock).collect()),
            command: command_of(pid),
            level: config.assigned_level(pid),
            config,
        }
    }
}

pub(super) enum Answer {
    /// Facts for the connection with this key, and the identity of the request that needs them.
    Facts(u64, Weak<()>, Box<Facts>),
    /// Levels that the rules of a new configuration assign to the sessions of these connections.
    Levels(Arc<Config>, Vec<(u64, u32, Option<u8>)>),
}

#[derive(Debug)]
pub(crate) struct Pending {
    /// Identity of the request, which is dropped with the request.
    identity: Arc<()>,
    since: Instant,
    intent: Intent,
}

/// The change to make when the facts are known.
#[derive(Debug)]
pub(super) enum Intent {
    Register {
        page: Arc<Mapping<LocalPage>>,
        cpus: Vec<usize>,
        threads: usize,
    },
    /// Adds the threads, and removes the threads with these names.
    Update { removed: Vec<i32>, kind: u16 },
}

impl Control {
    pub(super) fn look_up(&mut self, key: u64, threads: Vec<Thread>, intent: Intent) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let identity = Arc::new(());
        let request = Arc::downgrade(&identity);
        connection.pending = Some(Pending {
            identity,
            since: Instant::now(),
            intent,
        });
        let data = EventData::new_u64(key);
        let _ = epoll::modify(&self.epoll, &connection.socket, data, EventFlags::empty());
        let (pid, user) = (connection.peer.pid, connection.peer.user);
        let (machine, config) = (Arc::clone(&self.shared.machine), self.shared.config());
        let answers = Arc::clone(&self.answers);
        self.shared.reader.send(JobClass::User(user), move || {
            // The connection may have been closed meanwhile.
            if request.strong_count() > 0 {
                let facts = Facts::read(pid, &threads, machine.as_ref(), config);
                answers.put(Answer::Facts(key, request, Box::new(facts)));
            }
        });
    }

    pub(super) fn take_lookups(&mut self) {
        for answer in self.answers.take() {
            match answer {
                Answer::Levels(config, levels) => self.apply_levels(&config, levels),
                Answer::Facts(key, request, facts) => self.resume(key, &request, *facts),
            }
        }
    }

    fn resume(&mut self, key: u64, request: &Weak<()>, facts: Facts) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let is_same = |pending: &mut Pending| Arc::as_ptr(&pending.identity) == request.as_ptr();
        let Some(pending) = connection.pending.take_if(is_same) else {
            return;
        };
        listen(&self.epoll, key, connection);
        let answered = match pending.intent {
            Intent::Register {
                page,
                cpus,
                threads,
            } => self.register_known(key, page, &cpus, threads, facts),
            Intent::Update { removed, kind } => self.update_known(key, kind, facts, &removed),
        };
        if answered.is_err() {
            self.drop_connection(key);
        }
    }

    pub(super) fn refuse_late(&mut self) {
        let mut refusals = Vec::new();
        for (&key, connection) in &mut self.connections {
            let is_late = |pending: &mut Pending| pending.since.elapsed() >= TIMEOUT;
            if let Some(pending) = connection.pending.take_if(is_late) {
                listen(&self.epoll, key, connection);
                refusals.push((key, connection.peer.pid, connection.peer.user, pending));
            }
        }
        for (key, pid, user, pending) in refusals {
            self.forget_pending(user, &pending);
            let text = format!(
                "process {pid} could not be read within {TIMEOUT:?}: another thread blocks access to its files in /proc (for example with a lease), or the machine is overloaded; try again"
            );
            let refused = self.send_refusal(key, Refusal(Reason::Failed, text));
            if refused.is_err() {
                self.drop_connection(key);
            }
        }
    }

    pub(super) fn forget_pending(&mut self, user: u32, pending: &Pending) {
        if let Intent::Register { cpus, threads, .. } = &pending.intent {
            let load = Load {
                threads: *threads,
                cpus,
            };
            self.admission.unregister(user, load);
        }
    }
}

fn listen(epoll: &OwnedFd, key: u64, connection: &Connection) {
    let data = EventData::new_u64(key);
    let _ = epoll::modify(epoll, &connection.socket, data, EventFlags::IN);
}
