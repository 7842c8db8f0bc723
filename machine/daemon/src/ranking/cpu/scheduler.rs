//! The main loop of one CPU's scheduler.
//!
//! One iteration reads every claim, ranks the vCPUs, publishes the standings, and reads the claims
//! again. (A change of a claim in between is not missed, because the process sees the new standing,
//! or the second reading sees the change.) Then the scheduler moves the threads whose band has
//! changed, and publishes the CPU's line of the global page.
//!
//! The cost is O(n) memory accesses for the n vCPUs of this CPU, of which one user has at most
//! `limits.per_user`, and a system call for each change. Iterations use at most a fifth of the CPU.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use upshift_board::wire::Role;
use upshift_board::{Claim, NO_LEVEL, Standing};
use upshift_elevate::{Elevated, Priority};

use upshift_core::TokenBucket;

use crate::bounds::bucket_per_second;
use crate::config::Config;
use crate::cpu::client_thread::{ClientThread, MoveOutcome, ThreadClass};
use crate::cpu::mailbox::{Command, Mailbox};
use crate::cpu::monitor::LoadMonitor;
use crate::cpu::vcpu_entry::VcpuEntry;
use crate::ranking::rank::{self, Contender};
use crate::shared::{DAEMON, DISPATCHER, Shared, WorkBudget};

/// Key of the mailbox's eventfd in the epoll instance; the key of a doorbell is its slot.
const MAILBOX: u64 = u64::MAX;

/// Maximum number of times that an iteration reads the claims, if the standings keep changing.
const MAX_READS: usize = 3;

/// Time without competition after which every thread is restored.
const RESTORE_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of rings per second that the scheduler answers, from all doorbells together.
/// Answering them takes about 6 % of the CPU.
const RINGS_PER_SECOND: u64 = 20_000;

const EVENT_BATCH: usize = 64;

pub(super) struct Scheduler {
    pub(super) cpu: usize,
    pub(super) shared: Arc<Shared>,
    config: Arc<Config>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    pub(super) entries: Vec<VcpuEntry>,
    claims: Vec<Claim>,
    contenders: Vec<Contender>,
    standings: Vec<Standing>,
    /// Index from which the winner is searched, so that vCPUs of equal level alternate.
    search_start: usize,
    last_rotation: Instant,
    /// Slot of the winner.
    winner: Option<usize>,
    pub(super) monitor: LoadMonitor,
    /// Time since which no vCPU has been elevated; `None` while a vCPU is elevated.
    uncontested_since: Option<Instant>,
    rings: TokenBucket,
    budget: WorkBudget,
}

impl Scheduler {
    pub(super) fn new(
        cpu: usize,
        shared: Arc<Shared>,
        mailbox: Arc<Mailbox>,
    ) -> std::io::Result<Scheduler> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let machine = &shared.machine;
        machine.watch(epoll.as_fd(), mailbox.eventfd.as_fd(), MAILBOX)?;
        let now = Instant::now();
        Ok(Scheduler {
            monitor: LoadMonitor::new(&shared.config(), shared.enforcing(), now),
            cpu,
            config: shared.config(),
            shared,
            mailbox,
            epoll,
            entries: Vec::new(),
            claims: Vec::new(),
            contenders: Vec::new(),
            standings: Vec::new(),
            search_start: 0,
            last_rotation: now,
            winner: None,
            uncontested_since: None,
            rings: bucket_per_second(RINGS_PER_SECOND, RINGS_PER_SECOND / 50, now),
            budget: WorkBudget::new(now),
        })
    }

    pub(super) fn run(mut self) {
        let _elevated = self.elevate();
        let mut events = Vec::with_capacity(EVENT_BATCH);
        loop {
            let timeout = self.timeout(Instant::now());
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // The code below looks for due work in the same way after a timeout, an event and an
            // interruption.
            let _ = epoll::wait(&self.epoll, spare, timeout.as_ref());
            self.repin();
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    MAILBOX => {
                        if !self.read_mail(now) {
                            return self.restore_all();
                        }
                    }
                    slot => self.answer_ring(slot as usize, now),
                }
            }
            self.reenable_doorbells(now);
            self.monitor_threads(now);
            self.run_iteration(now);
            self.sleep_if_over_budget(now);
        }
    }

    /// Ends an iteration that began at `began`. If the iterations have exceeded their budget, the
    /// thread sleeps until the budget is refilled, or until a check of the elevated threads is due.
    /// At this priority, elapsed time equals CPU time, and reading it costs no system call.
    fn sleep_if_over_budget(&mut self, began: Instant) {
        let now = Instant::now();
        self.monitor.note_scheduler_work(now - began, now);
        let wait = self.budget.charge(now - began, now);
        if !wait.is_zero() && self.shared.enforcing() {
            std::thread::sleep(self.timeout(now).map_or(wait, |due| due.min(wait)));
        }
    }

    /// Moves the thread back to its CPU, after the CPU was unplugged or removed from its cpuset.
    fn repin(&self) {
        if rustix::thread::sched_getcpu() != self.cpu
            && let Some(only) = upshift_elevate::sys::CpuSet::only(self.cpu)
        {
            // Fails while the CPU is still unavailable.
            let _ = self.shared.sys.sched_setaffinity(0, &only);
        }
    }

    /// Pins the thread to its CPU, and elevates it above all threads that it schedules.
    fn elevate(&self) -> Option<Elevated> {
        let cpus = upshift_elevate::sys::CpuSet::only(self.cpu);
        let pinned = cpus.map(|cpus| self.shared.sys.sched_setaffinity(0, &cpus));
        if let Some(Err(error)) = pinned {
            let cpu = self.cpu;
            self.shared.warn("pin", || {
                format!("the scheduler of CPU {cpu} cannot be pinned there ({error}): it runs on another CPU")
            });
        }
        let elevator = self.shared.elevator.as_ref()?;
        elevator
            .elevate_current(DAEMON)
            .inspect_err(|error| self.shared.warn("elevate", || error.to_string()))
            .ok()
    }

    /// Executes the commands in the mailbox. Returns `false` after [`Command::Stop`].
    fn read_mail(&mut self, now: Instant) -> bool {
        while let Some(command) = self.mailbox.take() {
            match command {
                Command::Join(entry) => self.join(*entry, now),
                Command::Leave(slot, latch) => {
                    self.leave(slot);
                    latch.open();
                }
                Command::ThreadAdded(slot, thread) => {
                    if let Some(entry) = self.entries.iter_mut().find(|entry| entry.slot == slot) {
                        entry.threads.push(thread);
                    }
                }
                Command::ThreadRemoved(slot, tid, latch) => {
                    if let Some(entry) = self.entries.iter_mut().find(|entry| entry.slot == slot) {
                        let machine = self.shared.machine.as_ref();
                        for thread in entry.threads.iter_mut().filter(|thread| thread.tid == tid) {
                            self.monitor.note_departure(entry.user, thread, machine);
                        }
                        entry.threads.retain(|thread| thread.tid != tid);
                    }
                    latch.open();
                }
                Command::Ceiling(slot, ceiling, trusted) => {
                    if let Some(entry) = self.entries.iter_mut().find(|entry| entry.slot == slot) {
                        (entry.ceiling, entry.trusted) = (ceiling, trusted);
                    }
                }
                Command::Configure(config) => {
                    self.monitor
                        .configure(&config, self.shared.enforcing(), now);
                    self.config = config;
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn join(&mut self, entry: VcpuEntry, now: Instant) {
        let key = entry.slot as u64;
        let result = self
            .shared
            .machine
            .watch(self.epoll.as_fd(), entry.doorbell.as_fd(), key);
        if let Err(error) = result {
            self.shared.warn("doorbell", || {
                format!(
                    "the doorbell of process {} cannot be added to epoll ({error}): its rings are not noticed before the next check",
                    entry.pid
                )
            });
        }
        self.entries.push(entry);
        self.monitor.limit_next_check(now);
    }

    fn leave(&mut self, slot: usize) {
        let Some(index) = self.entries.iter().position(|entry| entry.slot == slot) else {
            return;
        };
        let mut entry = self.entries.remove(index);
        for thread in &mut entry.threads {
            let machine = self.shared.machine.as_ref();
            self.monitor.note_departure(entry.user, thread, machine);
        }
        let _ = epoll::delete(&self.epoll, &entry.doorbell);
        if let Some(word) = self.shared.global.page().slot(slot) {
            word.store(0, Release);
        }
        self.winner = None;
        // The drop of `entry` restores its threads.
    }

    fn restore_all(&mut self) {
        for slot in self
            .entries
            .iter()
            .map(|entry| entry.slot)
            .collect::<Vec<_>>()
        {
            self.leave(slot);
        }
        self.publish(None);
    }

    /// Counts a ring of the doorbell in `slot`, and ignores the doorbell for a while if it rings
    /// too often.
    fn answer_ring(&mut self, slot: usize, now: Instant) {
        let interval = self.monitor.doorbell_interval();
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.slot == slot) else {
            return;
        };
        if !entry.count_ring(now, interval, &mut self.rings) {
            let _ = epoll::delete(&self.epoll, &entry.doorbell);
        }
    }

    fn reenable_doorbells(&mut self, now: Instant) {
        for entry in &mut self.entries {
            if entry.ignored_until.is_some_and(|until| now >= until) {
                entry.ignored_until = None;
                let machine = &self.shared.machine;
                let key = entry.slot as u64;
                let doorbell = entry.doorbell.as_fd();
                if machine.watch(self.epoll.as_fd(), doorbell, key).is_err() {
                    entry.ignored_until = Some(now + self.monitor.doorbell_interval());
                }
            }
        }
    }

    fn run_iteration(&mut self, now: Instant) {
        for _ in 0..MAX_READS {
            self.read();
            let bystanders = self.config.bystander_level;
            rank::rank(&self.contenders, bystanders, &mut self.standings);
            if !self.publish_standings() {
                break;
            }
            fence(SeqCst);
        }
        self.rotate_equals(now);
        let winner = rank::winner(&self.contenders, self.search_start);
        self.move_all(winner, now);
        self.publish(winner);
    }

    fn read(&mut self) {
        self.claims.clear();
        self.contenders.clear();
        for entry in &self.entries {
            let (contender, claim) = entry.read_claim(self.shared.enforcing());
            self.contenders.push(contender);
            self.claims.push(claim);
        }
    }

    fn publish_standings(&self) -> bool {
        let page = self.shared.global.page();
        let mut changed = false;
        for (entry, standing) in self.entries.iter().zip(&self.standings) {
            if let Some(word) = page.slot(entry.slot)
                && word.load(Relaxed) != standing.word()
            {
                word.store(standing.word(), Release);
                changed = true;
            }
        }
        changed
    }

    /// After a quantum, lets the next vCPU win if vCPUs of equal level share an elevated band.
    fn rotate_equals(&mut self, now: Instant) {
        if now - self.last_rotation < self.config.quantum {
            return;
        }
        self.last_rotation = now;
        if let Some(winner) = rank::winner(&self.contenders, self.search_start)
            && self.sharers(winner) > 1
        {
            self.search_start = winner + 1;
        }
    }

    /// Returns the number of runnable vCPUs that share the elevated band of contender `index`; 0 if
    /// that contender is not elevated.
    fn sharers(&self, index: usize) -> usize {
        let level = self.contenders[index].runnable;
        if self.standings[index].band == 0 {
            return 0;
        }
        let equal = |contender: &&Contender| contender.runnable == level;
        self.contenders.iter().filter(equal).count()
    }

    fn is_contested(&self) -> bool {
        self.standings.iter().any(|standing| standing.band > 0)
    }

    /// Moves each thread to the class that follows from its vCPU's band, the pause, and the
    /// budgets.
    fn move_all(&mut self, winner: Option<usize>, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let Some(elevator) = &shared.elevator else {
            return;
        };
        let contested = self.is_contested();
        if contested && self.uncontested_since.is_some() {
            self.check_before_elevation(now);
        }
        let uncontested = self.is_uncontested(contested, now);
        let paused = self.monitor.is_paused();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let band = self.standings[index].band;
            let pid = entry.pid;
            let overspent = self.monitor.dispatchers().has_overspent(entry.user);
            let mut gone = false;
            for thread in &mut entry.threads {
                let target = match thread.role {
                    _ if entry.quota_usage.is_overdrawn() => ThreadClass::Fair,
                    Role::Dispatcher if paused && thread.pauses_now => ThreadClass::Idle,
                    Role::Dispatcher if contested && !overspent => ThreadClass::Fifo(DISPATCHER),
                    Role::Dispatcher => ThreadClass::Fair,
                    Role::Worker => {
                        if paused && (thread.pauses_now || band == 0) {
                            ThreadClass::Idle
                        } else if band > 0 {
                            ThreadClass::Fifo(priority(band, winner == Some(index)))
                        } else {
                            ThreadClass::Fair
                        }
                    }
                };
                let target = if uncontested && target == ThreadClass::Fair {
                    ThreadClass::Own
                } else {
                    target
                };
                match thread.move_to(target, elevator, &shared, now) {
                    MoveOutcome::Unchanged | MoveOutcome::Moved => {}
                    MoveOutcome::Gone => gone = true,
                    MoveOutcome::Refused(error) => {
                        let tid = thread.tid;
                        shared.warn("refused", || {
                            format!("thread {tid} of process {pid} is not elevated: {error}")
                        });
                    }
                }
            }
            if gone {
                for thread in entry.threads.iter_mut().filter(|thread| !thread.exists()) {
                    let machine = shared.machine.as_ref();
                    self.monitor.note_departure(entry.user, thread, machine);
                }
                entry.threads.retain(ClientThread::exists);
            }
        }
    }

    fn is_uncontested(&mut self, contested: bool, now: Instant) -> bool {
        if contested {
            self.uncontested_since = None;
            return false;
        }
        let since = *self.uncontested_since.get_or_insert(now);
        now - since >= RESTORE_AFTER
    }

    fn publish(&mut self, winner: Option<usize>) {
        let bitmap = self
            .claims
            .iter()
            .fold(0, |all, claim| all | claim.levels());
        let level = winner.map_or(NO_LEVEL, |index| self.contenders[index].runnable);
        let present = self
            .contenders
            .iter()
            .filter(|contender| contender.potential < NO_LEVEL);
        let (contenders, slot) = (
            present.count(),
            winner.map(|index| self.entries[index].slot),
        );
        for (entry, standing) in self.entries.iter().zip(&self.standings) {
            let is_winner = Some(entry.slot) == slot;
            entry.counters.band.store(standing.band, Relaxed);
            if entry.counters.winner.swap(is_winner, Relaxed) != is_winner && is_winner {
                entry.counters.wins.fetch_add(1, Relaxed);
            }
        }
        if self.entries.is_empty() {
            self.claims.clear();
        }
        if let Some(line) = self.shared.global.page().cpu(self.cpu) {
            line.publish(bitmap, slot, level, contenders as u32);
        }
        self.winner = slot;
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        let present = self
            .contenders
            .iter()
            .filter(|contender| contender.potential < NO_LEVEL);
        let competing = present.count() > 1 || self.is_contested();
        let mut next = None;
        let mut wake_by =
            |time: Instant| next = Some(next.map_or(time, |next: Instant| next.min(time)));
        if competing {
            let idle = self
                .contenders
                .iter()
                .all(|contender| contender.runnable >= NO_LEVEL);
            wake_by(self.monitor.next_check(idle));
            if rank::winner(&self.contenders, self.search_start)
                .is_some_and(|index| self.sharers(index) > 1)
            {
                wake_by(self.last_rotation + self.config.quantum);
            }
        } else if let Some(since) = self.uncontested_since
            && self
                .entries
                .iter()
                .any(|entry| entry.threads.iter().any(|thread| thread.is_recorded()))
        {
            wake_by(since + RESTORE_AFTER);
        }
        self.monitor.pause_end().into_iter().for_each(&mut wake_by);
        for entry in &self.entries {
            entry.ignored_until.into_iter().for_each(&mut wake_by);
        }
        next.map(|time| time.saturating_duration_since(now))
    }
}

/// Returns the SCHED_FIFO priority of a band. Each band has two priorities, of which the upper is
/// the winner's, so that only one of several vCPUs in a band runs.
fn priority(band: u8, is_winner: bool) -> Priority {
    let value = 10 + 2 * band.min(rank::BANDS) + u8::from(is_winner);
    Priority::new(value).unwrap_or(Priority::MIN)
}
