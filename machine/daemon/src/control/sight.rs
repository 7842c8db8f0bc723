//! What is to be known of a process before it registers, or adds threads: looked up by a scout, because the control thread opens no file
//! that may be another's (`scout.rs`).
//!
//! ```text
//!   Register ──checks──▶ pending ──its user's line──▶ scout ──▶ checks, joined ──▶ Welcome
//!                           │  a second                             │
//!                           └──────────▶ Refused ◀──────────────────┘
//! ```
//!
//! A connection that is pending is not read. Of one user [`PER_USER`] look-ups are under way at once, so what one user's processes hold
//! up is that user's.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use upshift_board::LocalPage;
use upshift_board::os::Mapping;
use upshift_board::wire::{Reason, Thread};

use crate::admission::Load;
use crate::admission::listen::command_of;
use crate::config::Config;
use crate::control::names::{self, Named};
use crate::control::requests::{Outcome, Refusal};
use crate::control::{Connection, Control};
use crate::machine::Machine;

/// How long a connection is pending at most, and half a second.
const PATIENCE: Duration = Duration::from_secs(1);

/// Look-ups of one user at once.
const PER_USER: usize = 2;

/// What a scout has found out of a process.
pub(super) struct Sight {
    /// Each thread with its clock.
    pub(super) threads: Outcome<Vec<(Named, io::Result<OwnedFd>)>>,
    /// Its directory, and real, effective, saved and file system user.
    pub(super) process: io::Result<(OwnedFd, [u32; 4])>,
    pub(super) command: String,
    /// What a rule of this configuration assigns to it.
    pub(super) level: Option<u8>,
    pub(super) config: Arc<Config>,
}

impl Sight {
    fn of(pid: i32, threads: &[Thread], machine: &dyn Machine, config: Arc<Config>) -> Sight {
        let process = machine.process(pid);
        let users = |process: OwnedFd| Ok((machine.users(process.as_fd())?, process));
        let clock = |it: Named| (it, machine.thread_clock(pid, it.tid));
        Sight {
            process: process.and_then(users).map(|(users, it)| (it, users)),
            threads: names::translate(pid, threads)
                .map(|named| named.into_iter().map(clock).collect()),
            command: command_of(pid),
            level: config.assigned_level(pid),
            config,
        }
    }
}

/// An answer of a scout.
pub(super) enum Found {
    Sight {
        key: u64,
        number: u64,
        user: u32,
        sight: Box<Sight>,
    },
    /// Levels that the rules of another configuration assign to these sessions.
    Levels(Arc<Config>, Vec<(u64, u32, Option<u8>)>),
}

/// What a connection waits for.
#[derive(Debug)]
pub(crate) struct Pending {
    number: u64,
    asked: Instant,
    intent: Intent,
}

/// What is to be done when it is known.
#[derive(Debug)]
pub(super) enum Intent {
    /// Register threads, so many, on the vCPUs of these CPUs.
    Register {
        page: Arc<Mapping<LocalPage>>,
        cpus: Vec<usize>,
        threads: usize,
    },
    /// Add them, and remove those of these names.
    Update { removed: Vec<i32>, kind: u16 },
}

/// Look-ups by user.
#[derive(Debug, Default)]
pub(super) struct Lines {
    users: HashMap<u32, Line>,
    next: u64,
}

#[derive(Debug, Default)]
struct Line {
    under_way: usize,
    waiting: VecDeque<Asked>,
}

#[derive(Debug)]
struct Asked {
    key: u64,
    number: u64,
    threads: Vec<Thread>,
}

impl Control {
    /// Has `threads` of the connection's process looked up; what is intended is done then.
    pub(super) fn look_up(&mut self, key: u64, threads: Vec<Thread>, intent: Intent) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let number = self.lines.next;
        self.lines.next += 1;
        connection.pending = Some(Pending {
            number,
            asked: Instant::now(),
            intent,
        });
        let data = EventData::new_u64(key);
        let _ = epoll::modify(&self.epoll, &connection.socket, data, EventFlags::empty());
        let user = connection.peer.user;
        let line = self.lines.users.entry(user).or_default();
        line.waiting.push_back(Asked {
            key,
            number,
            threads,
        });
        self.send_scouts(user);
    }

    /// Sends scouts for what waits in a user's line.
    fn send_scouts(&mut self, user: u32) {
        let Some(line) = self.lines.users.get_mut(&user) else {
            return;
        };
        while line.under_way < PER_USER
            && let Some(Asked {
                key,
                number,
                threads,
            }) = line.waiting.pop_front()
        {
            let Some(connection) = self.connections.get(&key) else {
                continue;
            };
            if connection.pending.as_ref().map(|it| it.number) != Some(number) {
                continue;
            }
            line.under_way += 1;
            let pid = connection.peer.pid;
            let (machine, config) = (Arc::clone(&self.shared.machine), self.shared.config());
            let answers = Arc::clone(&self.answers);
            self.shared.scouts.send(move || {
                let sight = Sight::of(pid, &threads, machine.as_ref(), config);
                let sight = Box::new(sight);
                answers.put(Found::Sight {
                    key,
                    number,
                    user,
                    sight,
                });
            });
        }
        if line.under_way == 0 {
            self.lines.users.remove(&user);
        }
    }

    /// Takes what scouts have found out.
    pub(super) fn hear_scouts(&mut self) {
        for found in self.answers.take() {
            match found {
                Found::Levels(config, levels) => self.apply_levels(&config, levels),
                Found::Sight {
                    key,
                    number,
                    user,
                    sight,
                } => {
                    if let Some(line) = self.lines.users.get_mut(&user) {
                        line.under_way -= 1;
                    }
                    self.send_scouts(user);
                    self.go_on(key, number, *sight);
                }
            }
        }
    }

    fn go_on(&mut self, key: u64, number: u64, sight: Sight) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let Some(pending) = connection.pending.take_if(|it| it.number == number) else {
            return;
        };
        listen(&self.epoll, key, connection);
        let answered = match pending.intent {
            Intent::Register {
                page,
                cpus,
                threads,
            } => self.register_seen(key, page, &cpus, threads, sight),
            Intent::Update { removed, kind } => self.update_seen(key, kind, sight, &removed),
        };
        if answered.is_err() {
            self.drop_connection(key);
        }
    }

    /// Refuses what has been pending for too long.
    pub(super) fn refuse_late(&mut self) {
        let mut late = Vec::new();
        for (&key, connection) in &mut self.connections {
            let is_late = |it: &mut Pending| it.asked.elapsed() >= PATIENCE;
            if let Some(pending) = connection.pending.take_if(is_late) {
                listen(&self.epoll, key, connection);
                late.push((key, connection.peer.pid, connection.peer.user, pending));
            }
        }
        for (key, pid, user, pending) in late {
            self.forget_pending(user, &pending);
            let text = format!(
                "process {pid} could not be looked at within {PATIENCE:?}: its files in /proc are held, or the machine is overloaded; try again"
            );
            let refused = self.send_refusal(key, Refusal(Reason::Failed, text));
            if refused.is_err() {
                self.drop_connection(key);
            }
        }
    }

    /// It will not come to what was intended.
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

/// Its messages are read again.
fn listen(epoll: &OwnedFd, key: u64, connection: &Connection) {
    let data = EventData::new_u64(key);
    let _ = epoll::modify(epoll, &connection.socket, data, EventFlags::IN);
}
