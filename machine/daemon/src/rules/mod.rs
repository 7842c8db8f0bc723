//! `[[assign]]`: programs as they are, at a level that the configuration gives them.
//!
//! All threads of an assigned process run in SCHED_FIFO, below everything registered that is
//! elevated and above ordinary programs, the more urgent the higher, on all CPUs that they may
//! use: the kernel runs the most urgent on each. A process that was forked by a process under
//! the same rule is a step below it, so that the work that a server forks off never delays the
//! server. A process is urgent within its *budget*, for all threads together, in each
//! [`PERIOD`]; having used it, it is ordinary for as long as brings that to its share. All
//! processes of a *domain* together leave ordinary programs their part (`domain.rs`), none is
//! elevated beyond the CPU quota of its cgroup, and the canary bounds the rest.
//!
//! ```text
//!   Ordinary ──fits a rule──▶ Urgent ◀──period over── Overdrawn      registers itself: its threads are the schedulers' then, and its
//!      ▲                       ▲  │└─────budget used────▲             ceiling is at most the rule's level
//!      │                       └──▼ breath of the domain: SCHED_IDLE
//!      └──── fits none, registers
//! ```
//!
//! What starts later is heard of from the kernel (`upshift_elevate::events`); everything is looked through at the start, when events were lost, and
//! each [`SWEEP`], because nothing tells that a process was moved to another cgroup.
//!
//! Readers look processes up and hold them against the rules (`lookup.rs`). The rest is one
//! thread, at the daemon's priority and within the same budget of 4 of 20 ms. It sleeps until an
//! event, or until the first moment at which a budget can be used up: a process that sleeps
//! costs one read of its CPU time each period.

mod domain;
mod kernel;
mod lookup;
mod process;
pub(crate) mod rule;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use upshift_elevate::Priority;
use upshift_elevate::events::{Event, Events, Interest};

use crate::abort::AbortOnPanic;
use crate::cpu::Latch;
use crate::shared::{BUDGET, DAEMON, Shared, WorkBudget};

use domain::Domains;
use process::{Process, SLICE};
pub use rule::{Assign, Bound, Fitting};

use lookup::{Found, Look, Looks};

/// Budgets and shares are for so long: half of what the canary allows, so that a process at its budget never looks like one that keeps the CPU.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);

/// How often all processes are looked through, though nothing was heard; without events, or after a loss, tenfold.
const SWEEP: Duration = Duration::from_secs(10);

/// Threads of all assigned programs: half of what can be recorded; the other half is for those that register.
const THREADS: usize = upshift_elevate::MAX_CAPACITY / 2;

/// What the control thread has to say.
#[derive(Debug)]
enum Message {
    /// It has registered: answer when none of its threads is held.
    Registered(i32, Latch),
    /// It has not any more.
    Left(i32),
    /// The rules have changed.
    Reconsider,
    Stop,
}

/// The thread's handle. Dropping it ends it, and gives everything back.
#[derive(Debug)]
pub(crate) struct Assigner {
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Post {
    messages: Mutex<Vec<Message>>,
    eventfd: OwnedFd,
}

impl Post {
    fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        let _ = upshift_board::os::ring(self.eventfd.as_fd());
    }
}

impl Assigner {
    /// Starts the thread, if there is anything to do for it. `registered`: the process of each session there is.
    ///
    /// # Errors
    /// No threads or descriptors are left.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        registered: impl Iterator<Item = i32>,
    ) -> std::io::Result<Option<Assigner>> {
        if shared.config().assign.is_empty() {
            return Ok(None);
        }
        if !shared.enforcing() {
            // With `cooperative = true` the remarks on the configuration say it.
            if !shared.config().cooperative {
                shared.complain("assign", || {
                    "no program is assigned a level: that takes elevating, and this daemon is cooperative"
                        .to_string()
                });
            }
            return Ok(None);
        }
        let post = Arc::new(Post {
            messages: Mutex::default(),
            eventfd: upshift_board::os::doorbell()?,
        });
        let events = Events::subscribe(Interest::All);
        if let Err(error) = &events {
            shared.complain("events", || {
                format!("the kernel does not tell of new processes ({error}): they are looked for each second. It takes CAP_NET_ADMIN and the machine's network namespace")
            });
        }
        let mut times: HashMap<i32, u32> = HashMap::new();
        registered.for_each(|pid| *times.entry(pid).or_default() += 1);
        let now = Instant::now();
        let work = Work {
            shared: Arc::clone(shared),
            post: Arc::clone(&post),
            events: events.ok(),
            processes: HashMap::new(),
            turns: None,
            unranked: false,
            domains: Domains::of(shared.sys.as_ref(), &shared.online(), now),
            registered: times,
            sweep: now,
            looks: Looks::new()?,
            arrived: VecDeque::new(),
            budget: WorkBudget::new(now),
        };
        let thread = std::thread::Builder::new()
            .name("upshift-assign".into())
            .spawn(move || {
                let abort = AbortOnPanic;
                work.run();
                std::mem::forget(abort);
            })?;
        Ok(Some(Assigner {
            post,
            thread: Some(thread),
        }))
    }

    /// The process has registered; returns when its threads are free, or after `patience`.
    pub(crate) fn registered(&self, pid: i32, patience: Duration) {
        let latch = Latch::default();
        self.post.put(Message::Registered(pid, latch.clone()));
        latch.wait(patience);
    }

    /// Holds everything against the rules as they are now.
    pub(crate) fn reconsider(&self) {
        self.post.put(Message::Reconsider);
    }

    pub(crate) fn left(&self, pid: i32) {
        self.post.put(Message::Left(pid));
    }
}

impl Drop for Assigner {
    fn drop(&mut self) {
        self.post.put(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    shared: Arc<Shared>,
    post: Arc<Post>,
    events: Option<Events>,
    processes: HashMap<i32, Process>,
    /// When threads of one priority that compute take turns again, if several do.
    turns: Option<Instant>,
    /// Set when processes have come or gone: children are told from their parents again.
    unranked: bool,
    domains: Domains,
    /// That have registered themselves, and how often: over several connections.
    registered: HashMap<i32, u32>,
    /// When everything is looked through again.
    sweep: Instant,
    looks: Looks,
    /// Answers of readers that are not dealt with yet.
    arrived: VecDeque<Found>,
    budget: WorkBudget,
}

impl Work {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let elevator = shared.elevator.as_ref();
        let _own = elevator.and_then(|elevator| elevator.elevate_current(DAEMON).ok());
        loop {
            self.wait();
            let began = Instant::now();
            if !self.read_post() {
                return;
            }
            self.hear(began);
            if began >= self.sweep {
                self.begin_to_look_around(began);
            }
            self.learn(began);
            self.looks.go_on(&shared);
            if std::mem::take(&mut self.unranked) {
                self.rank_children(began);
            }
            self.breathe(began);
            self.take_turns(began);
            for process in self.processes.values_mut() {
                process.settle(&shared, began);
            }
            self.keep_to_budget(began);
        }
    }

    fn wait(&self) {
        let next = self.processes.values().map(Process::due);
        let mut next = next.fold(self.sweep, Instant::min);
        if !self.processes.is_empty() {
            next = next.min(self.domains.due());
        }
        next = self.turns.map_or(next, |turns| next.min(turns));
        let mut rest = next.saturating_duration_since(Instant::now());
        if !self.arrived.is_empty() {
            rest = Duration::ZERO;
        }
        let timeout = Timespec::try_from(rest).ok();
        let mut fds = vec![
            PollFd::new(&self.post.eventfd, PollFlags::IN),
            PollFd::new(&self.looks.answers.eventfd, PollFlags::IN),
        ];
        fds.extend(self.events.iter().map(|it| PollFd::new(it, PollFlags::IN)));
        // Interrupted or not: what there is to do is found out.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }

    /// `false`: to end.
    fn read_post(&mut self) -> bool {
        let mut word = [0u8; 8];
        let _ = rustix::io::read(&self.post.eventfd, &mut word);
        let mut messages = self
            .post
            .messages
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *messages);
        drop(messages);
        for message in all {
            match message {
                Message::Registered(pid, latch) => {
                    *self.registered.entry(pid).or_default() += 1;
                    self.forget(pid, Instant::now());
                    latch.open();
                }
                Message::Left(pid) => {
                    if let Some(times) = self.registered.get_mut(&pid) {
                        *times -= 1;
                    }
                    if self.registered.get(&pid).is_none_or(|&times| times == 0) {
                        self.registered.remove(&pid);
                        self.ask(pid, None, Instant::now());
                    }
                }
                Message::Reconsider => self.sweep = Instant::now(),
                Message::Stop => return false,
            }
        }
        true
    }

    /// Takes what the kernel tells, as much as fits into the thread's budget.
    fn hear(&mut self, now: Instant) {
        while now.elapsed() < BUDGET / 2
            && let Some(event) = self.events.as_ref().and_then(Events::next)
        {
            match event {
                Event::Born {
                    parent,
                    process,
                    thread,
                } if process == thread => self.ask(process, Some(parent), now),
                Event::Born {
                    process, thread, ..
                } => {
                    let room = self.room(process);
                    self.looks.has_changed(process);
                    if let Some(known) = self.processes.get_mut(&process)
                        && room > 0
                    {
                        known.adopt(thread, &self.shared);
                        self.looks.ask_for_clocks(process, known.take_clockless());
                    }
                }
                Event::Ended { process, thread } => {
                    if let Some(known) = self.processes.get_mut(&process)
                        && known.lose(thread)
                    {
                        self.forget(process, now);
                    }
                }
                Event::Changed { process } => self.ask(process, None, now),
                Event::Lost => self.sweep = self.sweep.min(now + SWEEP / 10),
            }
        }
    }

    /// For how many threads more of this process there is room: of its user's, and of all.
    fn room(&self, pid: i32) -> usize {
        let user = self.processes.get(&pid).map(Process::user);
        user.map_or(0, |user| self.room_of(user))
    }

    fn room_of(&self, user: u32) -> usize {
        let (mut all, mut own) = (0, 0);
        for process in self.processes.values() {
            all += process.threads();
            own += if process.user() == user {
                process.threads()
            } else {
                0
            };
        }
        let limit = self.shared.config().limits.threads_per_user;
        // A descriptor for each, of which they have a quarter.
        let most = THREADS.min(self.shared.descriptors / 4);
        limit.saturating_sub(own).min(most.saturating_sub(all))
    }

    /// Has a process looked at. `parent` has just forked it.
    fn ask(&mut self, pid: i32, parent: Option<i32>, now: Instant) {
        let born = parent.map(|parent| match self.processes.get(&parent) {
            Some(parent) => Some(parent.heritage(&self.shared)),
            None => self.looks.heritage_of(parent),
        });
        if !self.looks.ask(pid, born, &self.shared) {
            self.sweep = self.sweep.min(now + SWEEP / 10);
        }
    }

    /// Takes the answers of readers, as many as fit into the thread's budget.
    fn learn(&mut self, now: Instant) {
        self.arrived.extend(self.looks.answers.take());
        while now.elapsed() < BUDGET / 2
            && let Some(found) = self.arrived.pop_front()
        {
            match found {
                Found::Look(look) => self.consider(*look, now),
                Found::All(pids, then) => {
                    let there: HashSet<i32> = pids.iter().copied().collect();
                    let lives =
                        |pid: &i32, it: &mut Process| there.contains(pid) || it.since() >= then;
                    self.processes.retain(lives);
                    self.unranked = true;
                    self.looks.have_all(pids);
                }
                Found::Clocks(clocks) => {
                    self.looks.have_clocks();
                    for (pid, tid, clock) in clocks {
                        if let Some(process) = self.processes.get_mut(&pid) {
                            process.give_clock(tid, clock);
                        }
                    }
                }
            }
        }
    }

    /// Deals with a process that was held against the rules.
    fn consider(&mut self, look: Look, now: Instant) {
        let pid = look.pid;
        let heritage = self.looks.have(&look, &self.shared);
        let fits = !self.registered.contains_key(&pid) && look.is_alive();
        let Some((rule, user)) = look.rule.clone().filter(|_| fits) else {
            self.forget(pid, now);
            return;
        };
        let parent = self.processes.get(&look.parent);
        if rule.leaves_children && parent.is_some_and(|parent| *parent.rule() == rule) {
            self.forget(pid, now);
            return;
        }
        let known = self.processes.get(&pid);
        if !known.is_some_and(|it| it.is_under(&rule, user)) {
            self.forget(pid, now);
            if let Some(us) = look.limit {
                return kernel::tell_time_limit(&self.shared, pid, us);
            }
            let process = Process::attach(pid, user, rule, heritage, &self.shared, now);
            self.processes.insert(pid, process);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.parent = look.parent;
            self.unranked = true;
        }
        let room = self.room_of(user);
        if let Some(process) = self.processes.get_mut(&pid) {
            let seen = (&look.tids, look.began);
            process.count_threads(seen, &self.shared, &self.domains, room);
            self.looks.ask_for_clocks(pid, process.take_clockless());
        }
        // What it was held against the rules for, and its threads, are of one process.
        if !look.is_alive() {
            self.forget(pid, now);
        }
    }

    /// Puts processes a step below their parent if that is under the same rule, or leaves them
    /// ordinary if the rule says so. Either ends when the parent ends. O(assigned processes).
    fn rank_children(&mut self, now: Instant) {
        let is_child = |it: &Process| {
            let parent = self.processes.get(&it.parent);
            parent.is_some_and(|parent| parent.rule() == it.rule())
        };
        let all = self.processes.iter();
        let ranks: Vec<(i32, bool)> = all.map(|(&pid, it)| (pid, is_child(it))).collect();
        for (pid, is_child) in ranks {
            let Some(process) = self.processes.get_mut(&pid) else {
                continue;
            };
            if is_child && process.rule().leaves_children {
                if let Some(process) = self.processes.remove(&pid) {
                    process.part(&mut self.domains, now);
                }
            } else {
                process.set_child(is_child);
            }
        }
    }

    /// Gives a process back.
    fn forget(&mut self, pid: i32, now: Instant) {
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        process.part(&mut self.domains, now);
        if process.rule().leaves_children {
            // Children that it leaves are programs of their own now.
            self.sweep = self.sweep.min(now + SWEEP / 10);
        }
        self.unranked = true;
    }

    /// Counts what was used by domain, when that is due, and lets the processes of domains that take a breath step aside.
    fn breathe(&mut self, now: Instant) {
        if now < self.domains.due() {
            return;
        }
        for process in self.processes.values_mut() {
            process.count(&self.shared, &mut self.domains, now);
        }
        let percent = self.shared.config().bystander_percent;
        self.domains.turn(percent, self.shared.worked(), now);
        for process in self.processes.values_mut() {
            process.heed(&self.shared, &self.domains, now);
        }
        self.turns = Some(now);
    }

    /// Has threads of one priority that compute take turns, when that is due.
    fn take_turns(&mut self, now: Instant) {
        if self.turns.is_none_or(|turns| now < turns) {
            return;
        }
        let mut computing: HashMap<Priority, usize> = HashMap::new();
        for process in self.processes.values_mut() {
            process.take_turns(&self.shared);
            let (priority, threads) = process.computing();
            *computing.entry(priority).or_default() += threads;
        }
        let several = computing.values().any(|&threads| threads > 1);
        self.turns = several.then_some(now + SLICE);
    }

    fn begin_to_look_around(&mut self, now: Instant) {
        self.sweep = now
            + if self.events.is_some() {
                SWEEP
            } else {
                SWEEP / 10
            };
        self.looks.ask_for_all(&self.shared);
        self.domains = Domains::of(self.shared.sys.as_ref(), &self.shared.online(), now);
    }

    fn keep_to_budget(&mut self, began: Instant) {
        let worked = began.elapsed();
        self.shared.has_worked(worked);
        self.budget.keep(worked);
    }
}
