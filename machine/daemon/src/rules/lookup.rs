//! Looks up processes for the thread of the rules. That thread itself opens no file of other
//! processes, because a read of `/proc` may block (`proc/reader.rs`).
//!
//! A lookup is a job of a reader thread for one process. A process that changes during its lookup
//! is looked up again. At most [`MAX_LOOKUPS`] run at a time. A sweep, which looks up all
//! processes, starts no more than half of them.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use upshift_elevate::Tid;
use upshift_elevate::sys::time_limit;

use crate::config::Config;
use crate::machine::Machine;
use crate::proc::reader::JobClass;
use crate::proc::stack::Answers;
use crate::rules::process::Inheritance;
use crate::rules::rule::{Assign, Traits};
use crate::shared::Shared;

const MAX_LOOKUPS: usize = 1024;

pub(super) enum Answer {
    Lookup(Box<Lookup>),
    /// The pids of all processes, and the time at which they were read.
    All(Vec<i32>, Instant),
    /// CPU clocks of threads, by process and thread.
    Clocks(Vec<(i32, Tid, OwnedFd)>),
}

pub(super) struct Lookup {
    pub(super) pid: i32,
    pub(super) began: Instant,
    /// First rule that the process matches, if any, and the accountable user.
    pub(super) rule: Option<(Assign, u32)>,
    pub(super) parent: i32,
    /// RLIMIT_RTTIME of the process, µs; `None` without a limit.
    pub(super) limit: Option<u64>,
    pub(super) tids: HashSet<Tid>,
    pidfd: Option<OwnedFd>,
}

impl Lookup {
    fn read(pid: i32, machine: &dyn Machine, config: &Config) -> Lookup {
        let mut lookup = Lookup {
            pid,
            began: Instant::now(),
            rule: None,
            parent: 0,
            limit: None,
            tids: HashSet::new(),
            // Opened before the reads, because all facts are about this process if it is alive
            // after the reads.
            pidfd: machine.pidfd(pid).ok(),
        };
        let traits = lookup.pidfd.as_ref().and_then(|_| Traits::read(pid));
        let Some(traits) = traits else { return lookup };
        let Some(rule) = config.assign.iter().find(|rule| rule.fits(&traits)) else {
            return lookup;
        };
        let Ok(limit) = time_limit(pid) else {
            return lookup;
        };
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        let names = tasks.into_iter().flatten().flatten();
        let tids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        lookup.tids = tids.collect();
        lookup.limit = limit;
        lookup.parent = traits.parent;
        lookup.rule = Some((rule.clone(), config.accountable_user(traits.user)));
        lookup
    }

    /// Returns whether the process is still alive, at the cost of one system call.
    pub(super) fn is_alive(&self) -> bool {
        let no_wait = Timespec::default();
        self.pidfd.as_ref().is_some_and(|pidfd| {
            let mut poll = [PollFd::new(pidfd, PollFlags::IN)];
            rustix::event::poll(&mut poll, Some(&no_wait)).is_ok_and(|ready| ready == 0)
        })
    }
}

struct PendingLookup {
    inheritance: Option<Inheritance>,
    /// Time of the process's last change. A lookup that began earlier is outdated.
    changed: Instant,
}

pub(super) struct Lookups {
    pub(super) answers: Arc<Answers<Answer>>,
    pending: HashMap<i32, PendingLookup>,
    /// Processes of a sweep that wait for their lookup.
    waiting: Vec<i32>,
    /// Set while a reader lists all processes.
    is_listing: bool,
    without_clock: Vec<(i32, Tid)>,
    /// Set while a reader opens CPU clocks.
    is_opening: bool,
}

impl Lookups {
    pub(super) fn new() -> std::io::Result<Lookups> {
        Ok(Lookups {
            answers: Arc::new(Answers::new()?),
            pending: HashMap::new(),
            waiting: Vec::new(),
            is_listing: false,
            without_clock: Vec::new(),
            is_opening: false,
        })
    }

    /// Returns the inheritance (the state that a child takes over from its parent) of a process
    /// that is being looked up. A child that this process forks now inherits the same.
    pub(super) fn inheritance_of(&self, pid: i32) -> Option<Inheritance> {
        self.pending.get(&pid)?.inheritance.clone()
    }

    /// Looks up a process that has changed, or that has started with an inheritance (`started`).
    /// Returns `false` if too many lookups are in progress.
    #[must_use]
    pub(super) fn ask(
        &mut self,
        pid: i32,
        started: Option<Option<Inheritance>>,
        shared: &Shared,
    ) -> bool {
        let changed = Instant::now();
        if let Some(pending) = self.pending.get_mut(&pid) {
            pending.changed = changed;
            if let Some(inheritance) = started {
                pending.inheritance = inheritance;
            }
            return true;
        }
        if self.pending.len() >= MAX_LOOKUPS {
            return false;
        }
        let inheritance = started.flatten();
        self.pending.insert(
            pid,
            PendingLookup {
                inheritance,
                changed,
            },
        );
        self.lookup(pid, shared);
        true
    }

    pub(super) fn note_change(&mut self, pid: i32) {
        if let Some(pending) = self.pending.get_mut(&pid) {
            pending.changed = Instant::now();
        }
    }

    pub(super) fn ask_for_all(&mut self, shared: &Shared) {
        if std::mem::replace(&mut self.is_listing, true) {
            return;
        }
        let answers = Arc::clone(&self.answers);
        shared.reader.send(JobClass::Rules, move || {
            let began = Instant::now();
            let own_pid = std::process::id() as i32;
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let pids = pids.filter(|&pid| pid != own_pid).collect();
            answers.put(Answer::All(pids, began));
        });
    }

    /// Stores the list of all processes, which are then looked up gradually.
    pub(super) fn take_list(&mut self, pids: Vec<i32>) {
        self.is_listing = false;
        self.waiting = pids;
    }

    pub(super) fn ask_for_clocks(&mut self, pid: i32, tids: Vec<Tid>) {
        self.without_clock
            .extend(tids.into_iter().map(|tid| (pid, tid)));
    }

    pub(super) fn clocks_opened(&mut self) {
        self.is_opening = false;
    }

    /// Ends a lookup and returns the inheritance of its process. A process that has changed since
    /// the lookup began is looked up again.
    pub(super) fn finish(&mut self, lookup: &Lookup, shared: &Shared) -> Option<Inheritance> {
        let pending = self.pending.get(&lookup.pid)?;
        if lookup.began < pending.changed {
            self.lookup(lookup.pid, shared);
            return self.inheritance_of(lookup.pid);
        }
        self.pending.remove(&lookup.pid)?.inheritance
    }

    /// Starts waiting lookups up to the limit for a sweep, and the opening of CPU clocks.
    pub(super) fn resume(&mut self, shared: &Shared) {
        while self.pending.len() < MAX_LOOKUPS / 2
            && let Some(pid) = self.waiting.pop()
        {
            // The condition of the loop guarantees that the lookup is accepted.
            let _ = self.ask(pid, None, shared);
        }
        if !self.is_opening && !self.without_clock.is_empty() {
            self.is_opening = true;
            let threads = std::mem::take(&mut self.without_clock);
            let (machine, answers) = (Arc::clone(&shared.machine), Arc::clone(&self.answers));
            shared.reader.send(JobClass::Rules, move || {
                let open = |(pid, tid)| Some((pid, tid, machine.thread_clock(pid, tid).ok()?));
                let clocks = threads.into_iter().filter_map(open).collect();
                answers.put(Answer::Clocks(clocks));
            });
        }
    }

    fn lookup(&self, pid: i32, shared: &Shared) {
        let (machine, config) = (Arc::clone(&shared.machine), shared.config());
        let answers = Arc::clone(&self.answers);
        shared.reader.send(JobClass::Rules, move || {
            let lookup = Box::new(Lookup::read(pid, machine.as_ref(), &config));
            answers.put(Answer::Lookup(lookup));
        });
    }
}
