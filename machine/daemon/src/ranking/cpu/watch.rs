//! Looks at the elevated threads of one CPU, and takes back time beyond their share.
//!
//! While vCPUs compete, the CPU time of the elevated threads is read every 36 ms (2 µs a thread):
//!
//! * **Breaths.** Ordinary programs are owed a share (`share.rs`). When enough is owed, there is a
//!   *breath* of 2 to 9 ms: the threads that used the CPU, and the vCPUs of the lowest class, run
//!   in SCHED_IDLE, so only when no other program wants the CPU. (SCHED_IDLE counts within a cgroup
//!   or session only; between groups the kernel shares equally.)
//! * **Dispatchers** of all users have a budget (`dispatchers.rs`).
//! * Threads of a cgroup with a quota are not elevated beyond it (`quota.rs`).
//! * A process that has executed a program with the set-user-id bit is put out: it has changed its
//!   user.
//! * A thread that has left its CPU is put out: given back, and not elevated until it is registered
//!   again.
//! * A thread that has ended without a word is forgotten before its number can come to mean another
//!   one.
//!
//! **Threads that leave between two looks** count, too, or coming and going would be free. Their
//! CPU time is read when they leave; a thread that ended before counts as having used all the time
//! since the last look.
//!
//! The first look is when the first worker rises, so no look comes later than that. Claims on
//! the page play no part in all this. A cooperative daemon has nothing to look at; it takes a
//! turn each quantum instead (each 36 ms while all vCPUs sleep), because a vCPU that falls
//! asleep keeps its rank and does not ring.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_board::wire::Role;
use upshift_elevate::sys::CpuSet;

use crate::config::Config;
use crate::cpu::dispatchers::{Dispatchers, Used};
use crate::cpu::entrant::Entry;
use crate::cpu::placing::{self, Charge, Place};
use crate::cpu::scheduler::Scheduler;
use crate::cpu::share::{Debt, Taken};
use crate::machine::Machine;
use crate::shared::Shared;

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(36);

/// How long a thread that was put out stays out.
const EJECTED: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    looked: Instant,
    /// Time between two looks, or turns.
    every: Duration,
    debt: Debt,
    breath: Breath,
    /// Whether everything steps back in the next breath.
    all_step_back: bool,
    /// Work of the scheduler itself since the last look, or in the breath under way.
    own: Duration,
    dispatchers: Dispatchers,
    /// Threads that have left since the last look.
    parted_workers: Parted,
    parted_dispatchers: HashMap<u32, Parted>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breath {
    None,
    /// The breath begins when the scheduler has placed everything for it.
    Due,
    Until(Instant),
}

/// CPU time of threads that are not there any more when it is looked at.
#[derive(Debug, Default)]
struct Parted {
    used: Duration,
    /// Whether any has ended, so that its time is not known.
    has_ended: bool,
}

impl Parted {
    fn add(&mut self, spent: std::io::Result<u64>) {
        match spent {
            Ok(spent) => self.used += Duration::from_nanos(spent),
            Err(_) => self.has_ended = true,
        }
    }

    /// Returns the most that it can be: `elapsed` for threads whose time is not known.
    fn of(&self, elapsed: Duration) -> Duration {
        if self.has_ended { elapsed } else { self.used }
    }
}

impl Watch {
    pub(super) fn new(config: &Config, enforcing: bool, now: Instant) -> Watch {
        Watch {
            looked: now,
            every: Watch::every(config, enforcing),
            debt: Debt::new(config.bystander_percent),
            breath: Breath::None,
            all_step_back: false,
            own: Duration::ZERO,
            dispatchers: Dispatchers::new(config.limits.dispatcher_percent, now),
            parted_workers: Parted::default(),
            parted_dispatchers: HashMap::new(),
        }
    }

    pub(super) fn configure(&mut self, config: &Config, enforcing: bool, now: Instant) {
        self.every = Watch::every(config, enforcing);
        self.debt.set_share(config.bystander_percent);
        self.dispatchers = Dispatchers::new(config.limits.dispatcher_percent, now);
    }

    fn every(config: &Config, enforcing: bool) -> Duration {
        if enforcing { LOOK } else { config.quantum }
    }

    /// Notes that a thread of `user` will not be there at the next look.
    pub(super) fn parts(&mut self, user: u32, charge: &mut Charge, machine: &dyn Machine) {
        if charge.was_elevated() {
            let spent = charge.spent(machine);
            self.parted(user, charge.role).add(spent);
        }
    }

    fn parted(&mut self, user: u32, role: Role) -> &mut Parted {
        match role {
            Role::Worker => &mut self.parted_workers,
            Role::Dispatcher => self.parted_dispatchers.entry(user).or_default(),
        }
    }

    /// When to look next; `idle`: no vCPU has anything to run now.
    pub(super) fn next_look(&self, idle: bool) -> Instant {
        self.looked
            + if idle {
                LOOK.max(self.every)
            } else {
                self.every
            }
    }

    /// How long a doorbell that rang too often is not listened to.
    pub(super) fn pause(&self) -> Duration {
        LOOK
    }

    pub(super) fn start_over(&mut self, now: Instant) {
        self.looked = self.looked.max(now - self.every);
    }

    /// Notes that the scheduler has worked for `time` until `now`, which no other thread has had.
    pub(super) fn worked(&mut self, time: Duration, now: Instant) {
        self.own += time;
        if self.breath == Breath::Due {
            self.own = Duration::ZERO;
            self.breath = Breath::Until(now + self.debt.owed());
        }
    }

    pub(super) fn is_breathing(&self) -> bool {
        self.breath != Breath::None
    }

    pub(super) fn breath_ends(&self) -> Option<Instant> {
        match self.breath {
            Breath::Until(until) => Some(until),
            Breath::None | Breath::Due => None,
        }
    }

    pub(super) fn dispatchers(&self) -> &Dispatchers {
        &self.dispatchers
    }
}

impl Scheduler {
    /// Ends a breath that is over, and looks if it is time to.
    pub(super) fn watch_over(&mut self, now: Instant) {
        match self.watch.breath {
            Breath::Until(until) if now >= until => self.end_breath(until, now),
            Breath::None => {}
            Breath::Until(_) | Breath::Due => return,
        }
        let elapsed = now - self.watch.looked;
        if elapsed < self.watch.every {
            return;
        }
        self.watch.looked = now;
        if self.shared.enforcing() {
            self.look(elapsed, now);
        }
    }

    fn end_breath(&mut self, until: Instant, now: Instant) {
        let length = self.watch.debt.owed() + (now - until);
        let machine = self.shared.machine.as_ref();
        let mut taken = Taken {
            own: std::mem::take(&mut self.watch.own),
            ..Taken::default()
        };
        for entry in &mut self.entries {
            for charge in &mut entry.charges {
                charge.burns = false;
                let is_idle = charge.place() == Place::Idle;
                if !is_idle && !charge.is_elevated() {
                    continue;
                }
                // One that has ended may have had all of it.
                let spent = charge.spent(machine).map_or(length, Duration::from_nanos);
                if is_idle {
                    taken.idle += spent;
                    continue;
                }
                taken.elevated += spent;
                if charge.role == Role::Dispatcher {
                    // The next look counts it with what they use until then.
                    self.watch.parted(entry.user, charge.role).used += spent;
                }
            }
        }
        self.watch.all_step_back = self.watch.debt.breathed(length, &taken);
        self.watch.breath = Breath::None;
        self.watch.looked = now;
    }

    /// Called before the first worker of the CPU rises: so far nothing is owed.
    pub(super) fn look_before_the_rise(&mut self, now: Instant) {
        let elapsed = now - std::mem::replace(&mut self.watch.looked, now);
        if !self.watch.is_breathing() {
            self.look(elapsed, now);
        }
    }

    fn look(&mut self, elapsed: Duration, now: Instant) {
        self.put_out_strays(now);
        let machine = self.shared.machine.as_ref();
        // Workers that have used something, and how much in all.
        let (mut users, mut used) = (0, 0);
        let mut dispatching = Used::new();
        for entry in &mut self.entries {
            charge_quotas(entry, &self.shared, now);
            put_out_strangers(entry, &self.shared, now);
            for charge in &mut entry.charges {
                charge.used = 0;
                if !charge.was_elevated() {
                    if charge.is_held() && charge.has_ended(machine) {
                        charge.end();
                    }
                    continue;
                }
                charge.used = match charge.spent(machine) {
                    Ok(spent) => spent,
                    Err(error) => {
                        if placing::is_over(&error) {
                            self.watch.parted(entry.user, charge.role).has_ended = true;
                            charge.end();
                        }
                        // It is read next time.
                        continue;
                    }
                };
                match charge.role {
                    Role::Worker => {
                        used += charge.used;
                        users += u64::from(charge.used > 0);
                    }
                    Role::Dispatcher => {
                        let spent = Duration::from_nanos(charge.used);
                        *dispatching.entry(entry.user).or_default() += spent;
                    }
                }
            }
            entry.charges.retain(Charge::exists);
        }
        // Nothing elevated runs while the scheduler, which is above, is late.
        let unseen = elapsed.min(self.watch.every);
        for (user, parted) in std::mem::take(&mut self.watch.parted_dispatchers) {
            *dispatching.entry(user).or_default() += parted.of(unseen);
        }
        self.bound_dispatchers(&dispatching, elapsed, now);
        let parted = std::mem::take(&mut self.watch.parted_workers).of(unseen);
        let own = std::mem::take(&mut self.watch.own);
        let all = Duration::from_nanos(used) + parted + dispatching.values().sum() + own;
        if self.watch.debt.look(elapsed, all).is_none() {
            return;
        }
        self.watch.breath = Breath::Due;
        for entry in &mut self.entries {
            let mut burns = false;
            for charge in &mut entry.charges {
                let burner = charge.role == Role::Worker && charge.used > 0;
                let most = charge.used * users * 2 >= used;
                charge.burns = self.watch.all_step_back || (burner && most);
                burns |= charge.burns;
            }
            entry.tally.breaths.fetch_add(u64::from(burns), Relaxed);
        }
    }

    fn bound_dispatchers(&mut self, used: &Used, elapsed: Duration, now: Instant) {
        for user in self.watch.dispatchers.charge(used, elapsed, now) {
            let cpu = self.cpu;
            self.shared.complain("dispatchers", || {
                format!("dispatchers of user {user} are ordinary for a while: those of all users together have used up their part of CPU {cpu}")
            });
            for entry in self.entries.iter().filter(|entry| entry.user == user) {
                let is_dispatcher = |charge: &Charge| charge.role == Role::Dispatcher;
                let has = entry.charges.iter().any(is_dispatcher);
                entry.tally.overdrafts.fetch_add(u64::from(has), Relaxed);
            }
        }
    }

    /// Puts out threads that have left this CPU: elevated they stand in the way of others there.
    /// One system call for each elevated thread.
    fn put_out_strays(&mut self, now: Instant) {
        let here = CpuSet::only(self.cpu);
        for entry in &mut self.entries {
            for charge in entry.charges.iter_mut().filter(|it| it.is_elevated()) {
                let cpus = self.shared.sys.sched_getaffinity(charge.tid);
                if cpus.is_ok_and(|cpus| Some(cpus) != here) {
                    let (tid, pid, cpu) = (charge.tid, entry.pid, self.cpu);
                    self.shared.eject(format!(
                        "thread {tid} of process {pid} is put out: it has left CPU {cpu}, to which it was registered"
                    ));
                    charge.put_out(now + EJECTED);
                }
            }
        }
    }
}

/// Puts the process out if it is another user's than the one that has registered it: it has
/// executed a program with the set-user-id bit.
fn put_out_strangers(entry: &mut Entry, shared: &Shared, now: Instant) {
    let machine = shared.machine.as_ref();
    if !entry.charges.iter().any(Charge::is_elevated) {
        return;
    }
    // The kernel says that one that has ended is root's.
    let lives = |entry: &Entry| entry.charges.iter().any(|it| !it.has_ended(machine));
    if let Ok(user) = machine.user(entry.process.as_fd())
        && user != entry.uid
        && lives(entry)
    {
        let (pid, before) = (entry.pid, entry.uid);
        shared.eject(format!(
            "process {pid} is put out: it was of user {before}, and is of {user}"
        ));
        for charge in &mut entry.charges {
            charge.put_out(now + EJECTED);
        }
    }
}

/// Charges what the threads of `entry` have used to the quotas of its cgroups.
fn charge_quotas(entry: &mut Entry, shared: &Shared, now: Instant) {
    let machine = shared.machine.as_ref();
    let charges = &mut entry.charges;
    let used = || {
        let all = charges.iter_mut().map(|it| it.newly_used(machine));
        Duration::from_nanos(all.sum())
    };
    entry.bill.charge(used, now);
}
