//! The `[[assign]]` rules, which give a level to programs that do not register with the daemon.
//!
//! All threads of an assigned process run in SCHED_FIFO on all CPUs that they may use. Their
//! priority depends on the level. It is below every elevated thread of a registered process and
//! above ordinary programs. A process that was forked by a process under the same rule runs one
//! priority below its parent, so that forked work never delays a server.
//!
//! All threads of a process share a *budget* of CPU time for each [`PERIOD`]. A process that has
//! exhausted its budget is ordinary until its usage matches its share. In addition, the processes
//! of a *domain* (the CPUs that share a cache) together leave ordinary programs their share
//! (`domain.rs`), and no process is elevated beyond the CPU quota of its cgroup. If a CPU is
//! occupied nevertheless, the canaries detect this (`canary`).
//!
//! ```text
//!   Ordinary ─matches a rule─▶ Urgent ◀─period over── Throttled
//!      ▲                       ▲  │└────budget used─────▲
//!      │                       └──▼ pause of the domain: SCHED_IDLE
//!      └── matches none, or registers: the schedulers then decide about its threads,
//!                                      and its ceiling is at most the rule's level
//! ```
//!
//! The kernel reports new processes (`upshift_elevate::events`). A *sweep* looks up all processes.
//! Sweeps take place at the start, after lost events, and every [`SWEEP`], because the kernel does
//! not report moves to another cgroup.
//!
//! Reader threads look processes up and compare them with the rules (`lookup.rs`). One thread does
//! all other work, at the daemon's priority and within a work budget of 4 ms in each 20 ms. It
//! sleeps until an event, or until the first moment at which the budget of a process can be
//! exhausted, so a sleeping process costs one read of its CPU time each period.

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

use lookup::{Answer, Lookup, Lookups};

/// Period of budgets and shares, which is half of the silence that a canary tolerates, so that a
/// process that uses its whole budget is not mistaken for a process that occupies the CPU.
pub(crate) const PERIOD: Duration = Duration::from_millis(50);

/// Time between two sweeps. It is a tenth of this value if the kernel reports no events, or after
/// lost events.
const SWEEP: Duration = Duration::from_secs(10);

/// Maximum number of threads of all assigned programs together, which is half of the elevator's
/// capacity. The other half is reserved for registered processes.
const MAX_THREADS: usize = upshift_elevate::MAX_CAPACITY / 2;

#[derive(Debug)]
enum Message {
    /// The process has registered. The latch opens when its threads are restored.
    Registered(i32, Latch),
    /// A connection of the process has ended.
    Left(i32),
    /// The rules have changed, so all processes are looked up again.
    Reconsider,
    Stop,
}

/// The handle of the rules' thread. Dropping it ends the thread and restores all assigned threads.
#[derive(Debug)]
pub(crate) struct Assigner {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Mailbox {
    messages: Mutex<Vec<Message>>,
    eventfd: OwnedFd,
}

impl Mailbox {
    fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        let _ = upshift_board::os::ring(self.eventfd.as_fd());
    }
}

impl Assigner {
    /// Starts the rules' thread; `None` if there is no rule, or the daemon does not elevate.
    /// `registered` yields the process of each session.
    ///
    /// # Errors
    /// The system has no threads or descriptors left.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        registered: impl Iterator<Item = i32>,
    ) -> std::io::Result<Option<Assigner>> {
        if shared.config().assign.is_empty() {
            return Ok(None);
        }
        if !shared.enforcing() {
            // With `cooperative = true`, the remarks on the configuration already report this.
            if !shared.config().cooperative {
                shared.warn("assign", || {
                    "no program is assigned a level: this daemon is cooperative, so it elevates no threads"
                        .to_string()
                });
            }
            return Ok(None);
        }
        let mailbox = Arc::new(Mailbox {
            messages: Mutex::default(),
            eventfd: upshift_board::os::doorbell()?,
        });
        let events = Events::subscribe(Interest::All);
        if let Err(error) = &events {
            shared.warn("events", || {
                format!("the kernel does not report new processes ({error}): instead, all processes are looked up every second. The reports need CAP_NET_ADMIN and the machine's network namespace")
            });
        }
        let mut connections: HashMap<i32, u32> = HashMap::new();
        registered.for_each(|pid| *connections.entry(pid).or_default() += 1);
        let now = Instant::now();
        let work = Work {
            shared: Arc::clone(shared),
            mailbox: Arc::clone(&mailbox),
            events: events.ok(),
            processes: HashMap::new(),
            next_rotation: None,
            unranked: false,
            domains: Domains::read(shared.sys.as_ref(), &shared.online_cpus(), now),
            registered: connections,
            next_sweep: now,
            lookups: Lookups::new()?,
            unread_answers: VecDeque::new(),
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
            mailbox,
            thread: Some(thread),
        }))
    }

    /// Removes a process that has registered from the rules. Returns when its threads are restored,
    /// or after `timeout`.
    pub(crate) fn on_registration(&self, pid: i32, timeout: Duration) {
        let latch = Latch::default();
        self.mailbox.put(Message::Registered(pid, latch.clone()));
        latch.wait(timeout);
    }

    pub(crate) fn reconsider(&self) {
        self.mailbox.put(Message::Reconsider);
    }

    pub(crate) fn on_leave(&self, pid: i32) {
        self.mailbox.put(Message::Left(pid));
    }
}

impl Drop for Assigner {
    fn drop(&mut self) {
        self.mailbox.put(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    events: Option<Events>,
    processes: HashMap<i32, Process>,
    next_rotation: Option<Instant>,
    /// Set when processes were added or removed, so that children have to be ranked again.
    unranked: bool,
    domains: Domains,
    /// Number of connections of each registered process.
    registered: HashMap<i32, u32>,
    next_sweep: Instant,
    lookups: Lookups,
    unread_answers: VecDeque<Answer>,
    budget: WorkBudget,
}

impl Work {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let elevator = shared.elevator.as_ref();
        let _elevated = elevator.and_then(|elevator| elevator.elevate_current(DAEMON).ok());
        loop {
            self.wait();
            let began = Instant::now();
            if !self.read_mailbox() {
                return;
            }
            self.take_events(began);
            if began >= self.next_sweep {
                self.begin_sweep(began);
            }
            self.take_answers(began);
            self.lookups.resume(&shared);
            if std::mem::take(&mut self.unranked) {
                self.rank_children(began);
            }
            self.take_pauses(began);
            self.rotate_threads(began);
            for process in self.processes.values_mut() {
                process.update_class(&shared, began);
            }
            self.sleep_if_over_budget(began);
        }
    }

    fn wait(&self) {
        let next = self.processes.values().map(Process::next_check);
        let mut next = next.fold(self.next_sweep, Instant::min);
        if !self.processes.is_empty() {
            next = next.min(self.domains.period_end());
        }
        next = self.next_rotation.map_or(next, |at| next.min(at));
        let mut wait = next.saturating_duration_since(Instant::now());
        if !self.unread_answers.is_empty() {
            wait = Duration::ZERO;
        }
        let timeout = Timespec::try_from(wait).ok();
        let mut fds = vec![
            PollFd::new(&self.mailbox.eventfd, PollFlags::IN),
            PollFd::new(&self.lookups.answers.eventfd, PollFlags::IN),
        ];
        fds.extend(
            self.events
                .iter()
                .map(|events| PollFd::new(events, PollFlags::IN)),
        );
        // The caller looks for due work in the same way after a timeout, an event and an
        // interruption.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }

    fn read_mailbox(&mut self) -> bool {
        let mut word = [0u8; 8];
        let _ = rustix::io::read(&self.mailbox.eventfd, &mut word);
        let mut messages = self
            .mailbox
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
                    if let Some(connections) = self.registered.get_mut(&pid) {
                        *connections -= 1;
                    }
                    if self
                        .registered
                        .get(&pid)
                        .is_none_or(|&connections| connections == 0)
                    {
                        self.registered.remove(&pid);
                        self.ask(pid, None, Instant::now());
                    }
                }
                Message::Reconsider => self.next_sweep = Instant::now(),
                Message::Stop => return false,
            }
        }
        true
    }

    fn take_events(&mut self, now: Instant) {
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
                    let max_new = self.max_new_threads(process);
                    self.lookups.note_change(process);
                    if let Some(known) = self.processes.get_mut(&process)
                        && max_new > 0
                    {
                        known.adopt(thread, &self.shared);
                        self.lookups
                            .ask_for_clocks(process, known.take_without_clock());
                    }
                }
                Event::Ended { process, thread } => {
                    if let Some(known) = self.processes.get_mut(&process)
                        && known.remove_thread(thread)
                    {
                        self.forget(process, now);
                    }
                }
                Event::Changed { process } => self.ask(process, None, now),
                Event::Lost => self.next_sweep = self.next_sweep.min(now + SWEEP / 10),
            }
        }
    }

    fn max_new_threads(&self, pid: i32) -> usize {
        let user = self.processes.get(&pid).map(Process::user);
        user.map_or(0, |user| self.max_new_threads_of(user))
    }

    fn max_new_threads_of(&self, user: u32) -> usize {
        let (mut all_threads, mut user_threads) = (0, 0);
        for process in self.processes.values() {
            all_threads += process.threads();
            user_threads += if process.user() == user {
                process.threads()
            } else {
                0
            };
        }
        let limit = self.shared.config().limits.threads_per_user;
        // Each thread needs a descriptor; assigned programs may use a quarter of the descriptors.
        let max_threads = MAX_THREADS.min(self.shared.descriptors / 4);
        limit
            .saturating_sub(user_threads)
            .min(max_threads.saturating_sub(all_threads))
    }

    /// Requests the lookup of a process. If `parent` is given, it has just forked this process. If
    /// the lookup is not accepted, a sweep follows.
    fn ask(&mut self, pid: i32, parent: Option<i32>, now: Instant) {
        let started = parent.map(|parent| match self.processes.get(&parent) {
            Some(parent) => Some(parent.inheritance(&self.shared)),
            None => self.lookups.inheritance_of(parent),
        });
        if !self.lookups.ask(pid, started, &self.shared) {
            self.next_sweep = self.next_sweep.min(now + SWEEP / 10);
        }
    }

    fn take_answers(&mut self, now: Instant) {
        self.unread_answers.extend(self.lookups.answers.take());
        while now.elapsed() < BUDGET / 2
            && let Some(answer) = self.unread_answers.pop_front()
        {
            match answer {
                Answer::Lookup(lookup) => self.consider(*lookup, now),
                Answer::All(pids, listed_at) => {
                    let existing: HashSet<i32> = pids.iter().copied().collect();
                    let is_alive = |pid: &i32, process: &mut Process| {
                        existing.contains(pid) || process.assigned_at() >= listed_at
                    };
                    self.processes.retain(is_alive);
                    self.unranked = true;
                    self.lookups.take_list(pids);
                }
                Answer::Clocks(clocks) => {
                    self.lookups.clocks_opened();
                    for (pid, tid, clock) in clocks {
                        if let Some(process) = self.processes.get_mut(&pid) {
                            process.set_clock(tid, clock);
                        }
                    }
                }
            }
        }
    }

    /// Assigns a process that was looked up, updates it, or removes it from the rules.
    fn consider(&mut self, lookup: Lookup, now: Instant) {
        let pid = lookup.pid;
        let inheritance = self.lookups.finish(&lookup, &self.shared);
        let eligible = !self.registered.contains_key(&pid) && lookup.is_alive();
        let Some((rule, user)) = lookup.rule.clone().filter(|_| eligible) else {
            self.forget(pid, now);
            return;
        };
        let parent = self.processes.get(&lookup.parent);
        if rule.leaves_children && parent.is_some_and(|parent| *parent.rule() == rule) {
            self.forget(pid, now);
            return;
        }
        let known = self.processes.get(&pid);
        if !known.is_some_and(|process| process.is_under(&rule, user)) {
            self.forget(pid, now);
            if let Some(us) = lookup.limit {
                return kernel::report_time_limit(&self.shared, pid, us);
            }
            let process = Process::attach(pid, user, rule, inheritance, &self.shared, now);
            self.processes.insert(pid, process);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.parent = lookup.parent;
            self.unranked = true;
        }
        let max_new = self.max_new_threads_of(user);
        if let Some(process) = self.processes.get_mut(&pid) {
            let tids = (&lookup.tids, lookup.began);
            process.update_threads(tids, &self.shared, &self.domains, max_new);
            self.lookups
                .ask_for_clocks(pid, process.take_without_clock());
        }
        // If the process has ended, its threads may belong to another process with the same pid.
        if !lookup.is_alive() {
            self.forget(pid, now);
        }
    }

    /// Lowers the priority of each process whose parent is under the same rule, or removes the
    /// process if the rule has `children = false`. Both effects end with the parent. The cost is
    /// O(assigned processes).
    fn rank_children(&mut self, now: Instant) {
        let is_child = |process: &Process| {
            let parent = self.processes.get(&process.parent);
            parent.is_some_and(|parent| parent.rule() == process.rule())
        };
        let all = self.processes.iter();
        let ranks: Vec<(i32, bool)> = all
            .map(|(&pid, process)| (pid, is_child(process)))
            .collect();
        for (pid, is_child) in ranks {
            let Some(process) = self.processes.get_mut(&pid) else {
                continue;
            };
            if is_child && process.rule().leaves_children {
                if let Some(process) = self.processes.remove(&pid) {
                    process.charge_unreported(&mut self.domains, now);
                }
            } else {
                process.set_child(is_child);
            }
        }
    }

    fn forget(&mut self, pid: i32, now: Instant) {
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        process.charge_unreported(&mut self.domains, now);
        if process.rule().leaves_children {
            // Children that stayed ordinary because of this process may now be assigned.
            self.next_sweep = self.next_sweep.min(now + SWEEP / 10);
        }
        self.unranked = true;
    }

    /// Adds up the usage of the domains at the end of their period, and pauses the processes of
    /// crowded domains.
    fn take_pauses(&mut self, now: Instant) {
        if now < self.domains.period_end() {
            return;
        }
        for process in self.processes.values_mut() {
            process.report_usage(&self.shared, &mut self.domains, now);
        }
        let percent = self.shared.config().bystander_percent;
        self.domains
            .end_period(percent, self.shared.take_work(), now);
        for process in self.processes.values_mut() {
            process.pause(&self.shared, &self.domains, now);
        }
        self.next_rotation = Some(now);
    }

    fn rotate_threads(&mut self, now: Instant) {
        if self.next_rotation.is_none_or(|at| now < at) {
            return;
        }
        let mut computing: HashMap<Priority, usize> = HashMap::new();
        for process in self.processes.values_mut() {
            process.rotate_threads(&self.shared);
            let (priority, threads) = process.computing();
            *computing.entry(priority).or_default() += threads;
        }
        let must_rotate = computing.values().any(|&threads| threads > 1);
        self.next_rotation = must_rotate.then_some(now + SLICE);
    }

    fn begin_sweep(&mut self, now: Instant) {
        self.next_sweep = now
            + if self.events.is_some() {
                SWEEP
            } else {
                SWEEP / 10
            };
        self.lookups.ask_for_all(&self.shared);
        self.domains = Domains::read(self.shared.sys.as_ref(), &self.shared.online_cpus(), now);
    }

    fn sleep_if_over_budget(&mut self, began: Instant) {
        let worked = began.elapsed();
        self.shared.add_work(worked);
        self.budget.charge_and_sleep(worked);
    }
}
