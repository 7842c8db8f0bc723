//! What scouts find out for the thread of the rules, which opens no file of others itself (`scout.rs`).
//!
//! Looks are a process each, in the order in which the kernel told of them, or several of all there are. At most [`AT_ONCE`] scouts are on
//! their way; what does not fit in [`WAITING`] is found when everything is looked through.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use upshift_elevate::Tid;
use upshift_elevate::sys::time_limit;

use crate::config::Config;
use crate::machine::Machine;
use crate::proc::scout::Answers;
use crate::rules::process::Heritage;
use crate::rules::rule::{Assign, Traits};
use crate::shared::Shared;

/// Scouts on their way for looks, and for clocks.
const AT_ONCE: usize = 16;
const FOR_CLOCKS: usize = 4;

/// Processes that one scout looks at when everything is looked through.
const BATCH: usize = 16;

/// Processes that were heard of and wait to be looked at.
const WAITING: usize = 1024;

/// What a scout has found out.
pub(super) enum Found {
    /// The last of a batch says so.
    Look(Box<Look>, bool),
    /// The processes there were.
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

/// A process that is being looked at, or waits for that.
#[derive(Debug, Default)]
struct Asked {
    heritage: Option<Heritage>,
    under_way: bool,
    /// Something has happened since a scout set out.
    again: bool,
}

/// Looks that are asked for.
pub(super) struct Looks {
    pub(super) answers: Arc<Answers<Found>>,
    asked: HashMap<i32, Asked>,
    waiting: VecDeque<i32>,
    /// Of all processes, those that are to be looked at.
    left: Vec<i32>,
    under_way: usize,
    listing: bool,
    clockless: Vec<(i32, Tid)>,
    for_clocks: usize,
}

impl Looks {
    pub(super) fn new() -> std::io::Result<Looks> {
        Ok(Looks {
            answers: Arc::new(Answers::new()?),
            asked: HashMap::new(),
            waiting: VecDeque::new(),
            left: Vec::new(),
            under_way: 0,
            listing: false,
            clockless: Vec::new(),
            for_clocks: 0,
        })
    }

    /// What a child of `pid` takes over, if that itself is only being looked at.
    pub(super) fn heritage_of(&self, pid: i32) -> Option<Heritage> {
        self.asked.get(&pid)?.heritage.clone()
    }

    /// Has a process looked at; `born`: it is new, with what it takes over. `false`: there is no room.
    #[must_use]
    pub(super) fn ask(&mut self, pid: i32, born: Option<Option<Heritage>>) -> bool {
        if let Some(asked) = self.asked.get_mut(&pid) {
            asked.again |= asked.under_way;
            if let Some(heritage) = born {
                asked.heritage = heritage;
            }
            return true;
        }
        if self.asked.len() >= WAITING {
            return false;
        }
        let heritage = born.flatten();
        let asked = Asked {
            heritage,
            ..Asked::default()
        };
        self.asked.insert(pid, asked);
        self.waiting.push_back(pid);
        true
    }

    /// If the process is being looked at, that is to be done again.
    pub(super) fn has_changed(&mut self, pid: i32) {
        if let Some(asked) = self.asked.get_mut(&pid) {
            asked.again |= asked.under_way;
        }
    }

    /// Has all processes there are looked at.
    pub(super) fn ask_for_all(&mut self, shared: &Shared) {
        if std::mem::replace(&mut self.listing, true) {
            return;
        }
        let answers = Arc::clone(&self.answers);
        shared.scouts.send(move || {
            let began = Instant::now();
            let own = std::process::id() as i32;
            let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let pids = pids.filter(|&pid| pid != own).collect();
            answers.put(Found::All(pids, began));
        });
    }

    /// These are all processes.
    pub(super) fn have_all(&mut self, pids: Vec<i32>) {
        self.listing = false;
        self.left = pids;
    }

    /// The records of CPU time of these threads are to be opened.
    pub(super) fn ask_for_clocks(&mut self, pid: i32, tids: Vec<Tid>) {
        self.clockless
            .extend(tids.into_iter().map(|tid| (pid, tid)));
    }

    pub(super) fn have_clocks(&mut self) {
        self.for_clocks -= 1;
    }

    /// A look has come back: what the process takes over.
    pub(super) fn have(&mut self, pid: i32, last: bool) -> Option<Heritage> {
        self.under_way -= usize::from(last);
        let asked = self.asked.get_mut(&pid)?;
        if std::mem::take(&mut asked.again) {
            asked.under_way = false;
            let heritage = asked.heritage.clone();
            self.waiting.push_back(pid);
            return heritage;
        }
        self.asked.remove(&pid)?.heritage
    }

    /// Sends as many scouts as may be on their way.
    pub(super) fn send(&mut self, shared: &Shared) {
        while self.under_way < AT_ONCE {
            let mut pids: Vec<i32> = self.waiting.pop_front().into_iter().collect();
            while pids.is_empty() && !self.left.is_empty() {
                let batch = self.left.len().saturating_sub(BATCH);
                for pid in self.left.split_off(batch) {
                    match self.asked.get_mut(&pid) {
                        Some(asked) => asked.again |= asked.under_way,
                        None => pids.push(pid),
                    }
                }
            }
            if pids.is_empty() {
                break;
            }
            for &pid in &pids {
                self.asked.entry(pid).or_default().under_way = true;
            }
            self.under_way += 1;
            let (machine, config) = (Arc::clone(&shared.machine), shared.config());
            let answers = Arc::clone(&self.answers);
            shared.scouts.send(move || {
                for (index, &pid) in pids.iter().enumerate() {
                    let look = Box::new(Look::at(pid, machine.as_ref(), &config));
                    answers.put(Found::Look(look, index + 1 == pids.len()));
                }
            });
        }
        if self.for_clocks < FOR_CLOCKS && !self.clockless.is_empty() {
            self.for_clocks += 1;
            let threads = std::mem::take(&mut self.clockless);
            let (machine, answers) = (Arc::clone(&shared.machine), Arc::clone(&self.answers));
            shared.scouts.send(move || {
                let open = |(pid, tid)| Some((pid, tid, machine.thread_clock(pid, tid).ok()?));
                let clocks = threads.into_iter().filter_map(open).collect();
                answers.put(Found::Clocks(clocks));
            });
        }
    }
}
