//! Facts about processes for the thread of the rules, which opens no file of others itself
//! (`proc/reader.rs`).
//!
//! A look is a job for one process. A process that changes while it is looked at is looked at
//! again. Of those that are only found when everything is looked through, no more are asked for
//! at a time than half of [`ASKED`].

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use upshift_elevate::Tid;
use upshift_elevate::sys::time_limit;

use crate::config::Config;
use crate::machine::Machine;
use crate::proc::reader::Lane;
use crate::proc::stack::Answers;
use crate::rules::process::Heritage;
use crate::rules::rule::{Assign, Traits};
use crate::shared::Shared;

/// Processes that are asked for at once.
const ASKED: usize = 1024;

/// An answer of a reader.
pub(super) enum Found {
    /// A process.
    Look(Box<Look>),
    /// All processes at that time.
    All(Vec<i32>, Instant),
    /// Records of CPU time, by process and thread.
    Clocks(Vec<(i32, Tid, OwnedFd)>),
}

/// One process, as it was.
pub(super) struct Look {
    pub(super) pid: i32,
    pub(super) began: Instant,
    /// The rule that it fits, if any, and the user that answers for it.
    pub(super) rule: Option<(Assign, u32)>,
    /// Its parent process.
    pub(super) parent: i32,
    /// Its RLIMIT_RTTIME, in us.
    pub(super) limit: Option<u64>,
    pub(super) tids: HashSet<Tid>,
    pidfd: Option<OwnedFd>,
}

impl Look {
    fn at(pid: i32, machine: &dyn Machine, config: &Config) -> Look {
        let mut look = Look {
            pid,
            began: Instant::now(),
            rule: None,
            parent: 0,
            limit: None,
            tids: HashSet::new(),
            // First: what is the same process afterwards was the same all the time.
            pidfd: machine.pidfd(pid).ok(),
        };
        let traits = look.pidfd.as_ref().and_then(|_| Traits::of(pid));
        let Some(traits) = traits else { return look };
        let Some(rule) = config.assign.iter().find(|rule| rule.fits(&traits)) else {
            return look;
        };
        let Ok(limit) = time_limit(pid) else {
            return look;
        };
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        let names = tasks.into_iter().flatten().flatten();
        let tids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        look.tids = tids.collect();
        look.limit = limit;
        look.parent = traits.parent;
        look.rule = Some((rule.clone(), config.person(traits.user)));
        look
    }

    /// Whether the process has not ended since.
    pub(super) fn is_alive(&self) -> bool {
        let now = Timespec::default();
        self.pidfd.as_ref().is_some_and(|pidfd| {
            let mut poll = [PollFd::new(pidfd, PollFlags::IN)];
            rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready == 0)
        })
    }
}

/// A process that is being looked at.
struct Asked {
    heritage: Option<Heritage>,
    /// Time of its last change: a look that began before is out of date.
    changed: Instant,
}

/// Looks that are under way.
pub(super) struct Looks {
    pub(super) answers: Arc<Answers<Found>>,
    asked: HashMap<i32, Asked>,
    /// Processes that are to be looked at when there is room.
    left: Vec<i32>,
    /// Set while a reader lists all processes.
    lists: bool,
    /// Threads whose record of CPU time is to be opened.
    clockless: Vec<(i32, Tid)>,
    /// Set while a reader opens such records.
    opens: bool,
}

impl Looks {
    pub(super) fn new() -> std::io::Result<Looks> {
        Ok(Looks {
            answers: Arc::new(Answers::new()?),
            asked: HashMap::new(),
            left: Vec::new(),
            lists: false,
            clockless: Vec::new(),
            opens: false,
        })
    }

    /// Returns the heritage of a child of `pid`, if `pid` itself is only being looked at.
    pub(super) fn heritage_of(&self, pid: i32) -> Option<Heritage> {
        self.asked.get(&pid)?.heritage.clone()
    }

    /// Has a process looked at that was born, with its heritage, or has changed. Returns whether
    /// there is room.
    #[must_use]
    pub(super) fn ask(
        &mut self,
        pid: i32,
        born: Option<Option<Heritage>>,
        shared: &Shared,
    ) -> bool {
        let changed = Instant::now();
        if let Some(asked) = self.asked.get_mut(&pid) {
            asked.changed = changed;
            if let Some(heritage) = born {
                asked.heritage = heritage;
            }
            return true;
        }
        if self.asked.len() >= ASKED {
            return false;
        }
        let heritage = born.flatten();
        self.asked.insert(pid, Asked { heritage, changed });
        self.look(pid, shared);
        true
    }

    /// Notes that a process has changed: if it is being looked at, it is looked at again.
    pub(super) fn has_changed(&mut self, pid: i32) {
        if let Some(asked) = self.asked.get_mut(&pid) {
            asked.changed = Instant::now();
        }
    }

    /// Has all processes looked at.
    pub(super) fn ask_for_all(&mut self, shared: &Shared) {
        if std::mem::replace(&mut self.lists, true) {
            return;
        }
        let answers = Arc::clone(&self.answers);
        shared.reader.send(Lane::Rules, move || {
            let began = Instant::now();
            let own = std::process::id() as i32;
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let pids = pids.filter(|&pid| pid != own).collect();
            answers.put(Found::All(pids, began));
        });
    }

    /// Takes the list of all processes.
    pub(super) fn have_all(&mut self, pids: Vec<i32>) {
        self.lists = false;
        self.left = pids;
    }

    /// Has the records of CPU time of these threads opened.
    pub(super) fn ask_for_clocks(&mut self, pid: i32, tids: Vec<Tid>) {
        self.clockless
            .extend(tids.into_iter().map(|tid| (pid, tid)));
    }

    /// Notes that records of CPU time have come.
    pub(super) fn have_clocks(&mut self) {
        self.opens = false;
    }

    /// Takes a look that has come back, and returns the heritage of its process. A process that has
    /// changed since is looked at again.
    pub(super) fn have(&mut self, look: &Look, shared: &Shared) -> Option<Heritage> {
        let asked = self.asked.get(&look.pid)?;
        if look.began < asked.changed {
            self.look(look.pid, shared);
            return self.heritage_of(look.pid);
        }
        self.asked.remove(&look.pid)?.heritage
    }

    /// Asks for more of the processes and records that are left.
    pub(super) fn go_on(&mut self, shared: &Shared) {
        while self.asked.len() < ASKED / 2
            && let Some(pid) = self.left.pop()
        {
            // There is room.
            let _ = self.ask(pid, None, shared);
        }
        if !self.opens && !self.clockless.is_empty() {
            self.opens = true;
            let threads = std::mem::take(&mut self.clockless);
            let (machine, answers) = (Arc::clone(&shared.machine), Arc::clone(&self.answers));
            shared.reader.send(Lane::Rules, move || {
                let open = |(pid, tid)| Some((pid, tid, machine.thread_clock(pid, tid).ok()?));
                let clocks = threads.into_iter().filter_map(open).collect();
                answers.put(Found::Clocks(clocks));
            });
        }
    }

    fn look(&self, pid: i32, shared: &Shared) {
        let (machine, config) = (Arc::clone(&shared.machine), shared.config());
        let answers = Arc::clone(&self.answers);
        shared.reader.send(Lane::Rules, move || {
            let look = Box::new(Look::at(pid, machine.as_ref(), &config));
            answers.put(Found::Look(look));
        });
    }
}
