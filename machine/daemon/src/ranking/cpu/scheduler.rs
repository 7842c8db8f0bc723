//! The loop of one CPU's scheduler.
//!
//! One *turn*: read every claim, rank, publish the standings, read again (a process that changed its claim in between has seen
//! either its old standing, and rings, or the new one), place the threads whose band has changed, publish the CPU's line.
//!
//! O(n) in the vCPUs of this CPU, in memory, of which one user has at most `limits.per_user`;
//! system calls only for changes. Turns have a fifth of the CPU at most.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use upshift_board::wire::Role;
use upshift_board::{Claim, NOTHING, Standing};
use upshift_elevate::{Elevated, Priority};

use upshift_core::TokenBucket;

use crate::bounds::per_second;
use crate::config::Config;
use crate::cpu::entrant::Entry;
use crate::cpu::mailbox::{Command, Mailbox};
use crate::cpu::placing::{Charge, Place, Placed};
use crate::cpu::watch::Watch;
use crate::ranking::rank::{self, Entrant};
use crate::shared::{DAEMON, DISPATCHER, Shared, WorkBudget};

/// Key of the mailbox's eventfd in the epoll; doorbells have their slot.
const MAILBOX: u64 = u64::MAX;

/// How often claims are read until they hold still.
const SETTLE: usize = 3;

/// After so long without competition every thread is given back.
const CALM: Duration = Duration::from_secs(1);

/// Rings a second that one CPU answers, from all its doorbells together: some 6 % of it.
const RINGS: u64 = 20_000;

/// Events taken at once.
const EVENTS: usize = 64;

/// See the module.
pub(super) struct Scheduler {
    pub(super) cpu: usize,
    pub(super) shared: Arc<Shared>,
    config: Arc<Config>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    pub(super) entries: Vec<Entry>,
    claims: Vec<Claim>,
    entrants: Vec<Entrant>,
    standings: Vec<Standing>,
    /// Among equals, which is next.
    turn: usize,
    turned: Instant,
    winner: Option<usize>,
    pub(super) watch: Watch,
    calm_since: Option<Instant>,
    /// Limits the rings of all doorbells together.
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
            watch: Watch::new(&shared.config(), shared.enforcing(), now),
            cpu,
            config: shared.config(),
            shared,
            mailbox,
            epoll,
            entries: Vec::new(),
            claims: Vec::new(),
            entrants: Vec::new(),
            standings: Vec::new(),
            turn: 0,
            turned: now,
            winner: None,
            calm_since: None,
            rings: per_second(RINGS, RINGS / 50, now),
            budget: WorkBudget::new(now),
        })
    }

    /// Runs until it is told to stop; then everything is given back.
    pub(super) fn run(mut self) {
        let _own = self.rise();
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let timeout = self.timeout(Instant::now());
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            // Interrupted or not: what there is to do is found out below.
            let _ = epoll::wait(&self.epoll, room, timeout.as_ref());
            self.stay_here();
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    MAILBOX => {
                        if !self.read_mail(now) {
                            return self.give_all_back();
                        }
                    }
                    slot => self.rang(slot as usize, now),
                }
            }
            self.listen_again(now);
            self.watch_over(now);
            self.take_turn(now);
            self.keep_to_budget(now);
        }
    }

    /// Ends a turn that began at `began`: if turns have taken too long, this thread sleeps until
    /// their budget is refilled, or until a look at the elevated threads is due. At this
    /// priority the time that passes is the time that is used, and reading it costs no system
    /// call.
    fn keep_to_budget(&mut self, began: Instant) {
        let now = Instant::now();
        self.watch.worked(now - began, now);
        let rest = self.budget.rest(now - began, now);
        if !rest.is_zero() && self.shared.enforcing() {
            std::thread::sleep(self.timeout(now).map_or(rest, |due| due.min(rest)));
        }
    }

    /// Comes back to its CPU, which was unplugged and is there again, or which was taken from it.
    fn stay_here(&self) {
        if rustix::thread::sched_getcpu() != self.cpu
            && let Some(only) = upshift_elevate::sys::CpuSet::only(self.cpu)
        {
            // Not while the CPU is away.
            let _ = self.shared.sys.sched_setaffinity(0, &only);
        }
    }

    /// Pins itself to its CPU, above everything it decides about.
    fn rise(&self) -> Option<Elevated> {
        let cpus = upshift_elevate::sys::CpuSet::only(self.cpu);
        let pinned = cpus.map(|cpus| self.shared.sys.sched_setaffinity(0, &cpus));
        if let Some(Err(error)) = pinned {
            let cpu = self.cpu;
            self.shared.complain("pin", || {
                format!("the scheduler of CPU {cpu} cannot be pinned there ({error}): it works, from further away")
            });
        }
        let elevator = self.shared.elevator.as_ref()?;
        elevator
            .elevate_current(DAEMON)
            .inspect_err(|error| self.shared.complain("rise", || error.to_string()))
            .ok()
    }

    /// Does what the control thread asks for; `false`: to end.
    fn read_mail(&mut self, now: Instant) -> bool {
        while let Some(command) = self.mailbox.take() {
            match command {
                Command::Join(entry) => self.join(*entry, now),
                Command::Leave(slot, latch) => {
                    self.leave(slot);
                    latch.open();
                }
                Command::Born(slot, charge) => {
                    if let Some(entry) = self.entries.iter_mut().find(|it| it.slot == slot) {
                        entry.charges.push(charge);
                    }
                }
                Command::Gone(slot, tid, latch) => {
                    if let Some(entry) = self.entries.iter_mut().find(|it| it.slot == slot) {
                        let machine = self.shared.machine.as_ref();
                        for charge in entry.charges.iter_mut().filter(|it| it.tid == tid) {
                            self.watch.parts(entry.user, charge, machine);
                        }
                        entry.charges.retain(|charge| charge.tid != tid);
                    }
                    latch.open();
                }
                Command::Ceiling(slot, ceiling, trusted) => {
                    if let Some(entry) = self.entries.iter_mut().find(|it| it.slot == slot) {
                        (entry.ceiling, entry.trusted) = (ceiling, trusted);
                    }
                }
                Command::Configure(config) => {
                    self.watch.configure(&config, self.shared.enforcing(), now);
                    self.config = config;
                }
                Command::Stop => return false,
            }
        }
        true
    }

    fn join(&mut self, entry: Entry, now: Instant) {
        let key = entry.slot as u64;
        let watched = self
            .shared
            .machine
            .watch(self.epoll.as_fd(), entry.doorbell.as_fd(), key);
        if let Err(error) = watched {
            self.shared.complain("doorbell", || {
                format!(
                    "the doorbell of process {} cannot be listened to ({error}): it is looked at in turns only",
                    entry.pid
                )
            });
        }
        self.entries.push(entry);
        self.watch.start_over(now);
    }

    fn leave(&mut self, slot: usize) {
        let Some(at) = self.entries.iter().position(|it| it.slot == slot) else {
            return;
        };
        let mut entry = self.entries.remove(at);
        for charge in &mut entry.charges {
            let machine = self.shared.machine.as_ref();
            self.watch.parts(entry.user, charge, machine);
        }
        let _ = epoll::delete(&self.epoll, &entry.doorbell);
        if let Some(word) = self.shared.global.page().slot(slot) {
            word.store(0, Release);
        }
        self.winner = None;
        // Dropping the entry gives its threads back.
    }

    fn give_all_back(&mut self) {
        for slot in self.entries.iter().map(|it| it.slot).collect::<Vec<_>>() {
            self.leave(slot);
        }
        self.publish(None);
    }

    fn rang(&mut self, slot: usize, now: Instant) {
        let pause = self.watch.pause();
        let Some(entry) = self.entries.iter_mut().find(|it| it.slot == slot) else {
            return;
        };
        if !entry.rang(now, pause, &mut self.rings) {
            let _ = epoll::delete(&self.epoll, &entry.doorbell);
        }
    }

    /// Listens again to doorbells that rang too often.
    fn listen_again(&mut self, now: Instant) {
        for entry in &mut self.entries {
            if entry.deaf_until.is_some_and(|until| now >= until) {
                entry.deaf_until = None;
                let machine = &self.shared.machine;
                let key = entry.slot as u64;
                let doorbell = entry.doorbell.as_fd();
                if machine.watch(self.epoll.as_fd(), doorbell, key).is_err() {
                    entry.deaf_until = Some(now + self.watch.pause());
                }
            }
        }
    }

    /// Reads, ranks, publishes, places.
    fn take_turn(&mut self, now: Instant) {
        for _ in 0..SETTLE {
            self.read();
            let bystanders = self.config.bystander_level;
            rank::rank(&self.entrants, bystanders, &mut self.standings);
            if !self.publish_standings() {
                break;
            }
            fence(SeqCst);
        }
        self.advance(now);
        let winner = rank::winner(&self.entrants, self.turn);
        self.place_all(winner, now);
        self.publish(winner);
    }

    fn read(&mut self) {
        self.claims.clear();
        self.entrants.clear();
        for entry in &self.entries {
            let (entrant, claim) = entry.read(self.shared.enforcing());
            self.entrants.push(entrant);
            self.claims.push(claim);
        }
    }

    /// Stores what has changed; says whether anything did.
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

    /// Gives the turn on if the quantum is over and equals share an elevated band.
    fn advance(&mut self, now: Instant) {
        if now - self.turned < self.config.quantum {
            return;
        }
        self.turned = now;
        if let Some(winner) = rank::winner(&self.entrants, self.turn)
            && self.sharers(winner) > 1
        {
            self.turn = winner + 1;
        }
    }

    /// How many runnable vCPUs share the elevated band of entrant `index`; 0 if it is not elevated.
    fn sharers(&self, index: usize) -> usize {
        let level = self.entrants[index].runnable;
        if self.standings[index].band == 0 {
            return 0;
        }
        let equal = |entrant: &&Entrant| entrant.runnable == level;
        self.entrants.iter().filter(equal).count()
    }

    /// Whether anything is elevated on this CPU.
    fn contested(&self) -> bool {
        self.standings.iter().any(|standing| standing.band > 0)
    }

    fn place_all(&mut self, winner: Option<usize>, now: Instant) {
        let shared = Arc::clone(&self.shared);
        let Some(elevator) = &shared.elevator else {
            return;
        };
        let contested = self.contested();
        if contested && self.calm_since.is_some() {
            self.look_before_the_rise(now);
        }
        let calm = self.is_calm(contested, now);
        let breathing = self.watch.is_breathing();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            let band = self.standings[index].band;
            let pid = entry.pid;
            let overspent = self.watch.dispatchers().has_overspent(entry.user);
            let mut gone = false;
            for charge in &mut entry.charges {
                let target = match charge.role {
                    _ if entry.bill.is_overdrawn() => Place::Fair,
                    Role::Dispatcher if breathing && charge.burns => Place::Idle,
                    Role::Dispatcher if contested && !overspent => Place::Fifo(DISPATCHER),
                    Role::Dispatcher => Place::Fair,
                    Role::Worker => {
                        if breathing && (charge.burns || band == 0) {
                            Place::Idle
                        } else if band > 0 {
                            Place::Fifo(priority(band, winner == Some(index)))
                        } else {
                            Place::Fair
                        }
                    }
                };
                let target = if calm && target == Place::Fair {
                    Place::Own
                } else {
                    target
                };
                match charge.move_to(target, elevator, &shared, now) {
                    Placed::Already | Placed::Moved => {}
                    Placed::Gone => gone = true,
                    Placed::Refused(error) => {
                        let tid = charge.tid;
                        shared.complain("refused", || {
                            format!("thread {tid} of process {pid} is not elevated: {error}")
                        });
                    }
                }
            }
            if gone {
                for charge in entry.charges.iter_mut().filter(|it| !it.exists()) {
                    let machine = shared.machine.as_ref();
                    self.watch.parts(entry.user, charge, machine);
                }
                entry.charges.retain(Charge::exists);
            }
        }
    }

    /// Whether nothing has been elevated here for so long that everything is given back.
    fn is_calm(&mut self, contested: bool, now: Instant) -> bool {
        if contested {
            self.calm_since = None;
            return false;
        }
        let since = *self.calm_since.get_or_insert(now);
        now - since >= CALM
    }

    /// Publishes the CPU's line.
    fn publish(&mut self, winner: Option<usize>) {
        let bitmap = self
            .claims
            .iter()
            .fold(0, |all, claim| all | claim.levels());
        let level = winner.map_or(NOTHING, |index| self.entrants[index].runnable);
        let present = self.entrants.iter().filter(|it| it.potential < NOTHING);
        let (contenders, slot) = (
            present.count(),
            winner.map(|index| self.entries[index].slot),
        );
        for (entry, standing) in self.entries.iter().zip(&self.standings) {
            let wins = Some(entry.slot) == slot;
            entry.tally.band.store(standing.band, Relaxed);
            if entry.tally.winner.swap(wins, Relaxed) != wins && wins {
                entry.tally.wins.fetch_add(1, Relaxed);
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

    /// How long to sleep if nothing rings; `None`: for ever.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let present = self.entrants.iter().filter(|it| it.potential < NOTHING);
        let competing = present.count() > 1 || self.contested();
        let mut next = None;
        let mut by = |at: Instant| next = Some(next.map_or(at, |next: Instant| next.min(at)));
        if competing {
            let idle = self.entrants.iter().all(|it| it.runnable >= NOTHING);
            by(self.watch.next_look(idle));
            if rank::winner(&self.entrants, self.turn).is_some_and(|it| self.sharers(it) > 1) {
                by(self.turned + self.config.quantum);
            }
        } else if let Some(since) = self.calm_since
            && self
                .entries
                .iter()
                .any(|entry| entry.charges.iter().any(|charge| charge.is_held()))
        {
            by(since + CALM);
        }
        self.watch.breath_ends().into_iter().for_each(&mut by);
        for entry in &self.entries {
            entry.deaf_until.into_iter().for_each(&mut by);
        }
        next.map(|at| at.saturating_duration_since(now))
    }
}

/// The SCHED_FIFO priority of a band: two each, the upper one for the winner, so that of equals one runs.
fn priority(band: u8, wins: bool) -> Priority {
    let value = 10 + 2 * band.min(rank::BANDS) + u8::from(wins);
    Priority::new(value).unwrap_or(Priority::MIN)
}
