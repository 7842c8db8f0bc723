//! What takes more than its share of one CPU.
//!
//! While vCPUs compete, each 36 ms the CPU time of the elevated threads is looked at (2 µs a thread):
//!
//! * What others had less than their share while workers were elevated is *owed*. When half of a breath is, there is a *breath*: for
//!   some 2 ms the threads that used the CPU, and the vCPUs of the lowest class, run in SCHED_IDLE, that is: only if no other program wants
//!   it. So a program that is not registered keeps `bystander_percent` of each CPU, in short pieces, waits some 40 ms at most, and
//!   the kernel's throttling of real-time threads (50 ms of nothing each second) is never met. If nothing else wants the CPU a breath
//!   takes nothing. SCHED_IDLE counts within a cgroup (or session) only: between groups the kernel shares equally. So a
//!   breath goes on, up to [`PIECES`] times, until others have had what is theirs, or have left most of two pieces unused. What is in no
//!   account of the daemon counts as what others had, but for the time in which the canary of the CPU owes an answer (`canary`): then other real-time
//!   programs had it, or a priority that is lent. Without that a thread that is elevated by the rules would be blamed for their part. Dispatchers
//!   that take more than a quarter of a piece step back in the next. A thread that takes so much although it is in SCHED_IDLE, while the canary waits, has
//!   borrowed a priority, and is remembered for the canary (`evidence.rs`). The first look is when the first worker rises, so that none comes later than that.
//! * Dispatchers of all users together have a budget, `dispatcher_percent` of the CPU. If they use more, those of the users that had
//!   more than an equal part of it go to what they had, for a second at first, then for longer (`bars.rs`).
//! * Threads of a cgroup with a quota are not elevated beyond it (`quota.rs`).
//! * A process that is not its user's any more, because it has executed a program with the set-user-id bit, is put out.
//! * A thread that has been moved to another CPU, where it would stand in the way of others, is put out: given back and not
//!   elevated until it is registered again (`strays.rs`).
//! * A thread that has ended without a word is forgotten before its number can come to mean another one.
//!
//! **What leaves between two looks** is counted, too, or coming and going would be free. What it used is read where it still lives; where
//! it does not, it counts as having used all the time since the last look: for breaths at once; for the canaries as unknown (`accounts.rs`); for dispatchers as a *debt* of the user,
//! which the budget pays off, and for which the user is barred when it is more than [`DEBT`], because honest processes end as well. Of a look that
//! is late no more than the time between two looks is unknown or a debt (`evidence.rs`): the scheduler is above all that it elevates, so
//! while it is kept from the CPU none of that runs there.
//!
//! What a process *says* plays no part in this. A cooperative daemon has nothing to look at; it takes a turn each quantum instead
//! (each 36 ms while all sleep), because a vCPU that falls asleep keeps its rank and does not ring, and those that give way to it go on only
//! when they see that.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_board::wire::Role;

use crate::config::Config;
use crate::cpu::debts::Debts;
use crate::cpu::entrant::Entry;
use crate::cpu::placing::{self, Charge, Place};
use crate::cpu::scheduler::Scheduler;
use crate::evidence;
use crate::machine::Machine;
use crate::shared::Shared;

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(36);

/// Pieces a breath can have: enough for a bystander beside three groups of registered programs.
const PIECES: u32 = 4;

/// How long a thread that was put out stays out.
pub(super) const EJECTED: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    looked: Instant,
    /// Time between two looks, or turns.
    every: Duration,
    /// What is to stay for others, of one.
    share: f64,
    breath: Duration,
    /// How much of that others did not have.
    owed: Duration,
    /// What the scheduler itself has taken since the last look.
    own: Duration,
    breath_until: Option<Instant>,
    /// A piece begins when the scheduler has placed everything for it.
    begins: bool,
    /// What the scheduler has taken of the piece under way.
    own_of_piece: Duration,
    /// Pieces of the breath under way so far, and what others have had of them.
    pieces: u32,
    theirs: Duration,
    /// Pieces beside these that were taken by threads that were to leave the CPU.
    intrusions: u32,
    dispatcher_percent: u64,
    /// What has left since the last look, by user.
    parted: HashMap<u32, Parted>,
    debts: Debts,
}

/// What threads used that are not there any more when it is looked at, ns.
#[derive(Debug, Default)]
struct Parted {
    working: u64,
    dispatching: u64,
    /// Whether any has ended, so that what it used is not known.
    worker_ended: bool,
    dispatcher_ended: bool,
}

/// What the threads used that have left since the last look, ns.
#[derive(Debug, Default)]
struct Left {
    working: u64,
    /// What workers that have ended may have used beside that.
    maybe_working: u64,
    /// What threads of any kind that have ended may have used beside what is known.
    unknown: u64,
}

impl Watch {
    pub(super) fn new(config: &Config, enforcing: bool, now: Instant) -> Watch {
        let mut watch = Watch {
            looked: now,
            every: LOOK,
            share: 0.0,
            breath: Duration::ZERO,
            owed: Duration::ZERO,
            own: Duration::ZERO,
            breath_until: None,
            begins: false,
            own_of_piece: Duration::ZERO,
            pieces: 0,
            theirs: Duration::ZERO,
            intrusions: 0,
            dispatcher_percent: 0,
            parted: HashMap::new(),
            debts: Debts::default(),
        };
        watch.configure(config, enforcing);
        watch
    }

    pub(super) fn configure(&mut self, config: &Config, enforcing: bool) {
        // A little more than asked for, because waking up takes time.
        self.share = f64::from(config.bystander_percent + 1) / 100.0;
        self.breath = LOOK.mul_f64(self.share / (1.0 - self.share));
        self.every = if enforcing { LOOK } else { config.quantum };
        self.dispatcher_percent = u64::from(config.limits.dispatcher_percent);
    }

    /// A thread of `user` will not be there at the next look.
    pub(super) fn parts(&mut self, user: u32, charge: &mut Charge, machine: &dyn Machine) {
        if !charge.was_elevated() {
            return;
        }
        let parted = self.parted.entry(user).or_default();
        match (charge.role, charge.spent(machine)) {
            (Role::Worker, Ok(spent)) => parted.working += spent,
            (Role::Worker, Err(_)) => parted.worker_ended = true,
            (Role::Dispatcher, Ok(spent)) => parted.dispatching += spent,
            (Role::Dispatcher, Err(_)) => parted.dispatcher_ended = true,
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

    /// The time since the last look, which ends now.
    fn lap(&mut self, now: Instant) -> Duration {
        now - std::mem::replace(&mut self.looked, now)
    }

    /// The scheduler has worked for so long until `now`, which no other thread has had.
    pub(super) fn worked(&mut self, time: Duration, now: Instant) {
        self.own += time;
        self.own_of_piece += time;
        if std::mem::take(&mut self.begins) {
            self.own_of_piece = Duration::ZERO;
            self.breath_until = Some(now + self.breath);
        }
    }

    /// The next piece is for others.
    fn breathe(&mut self, now: Instant) {
        self.begins = true;
        self.breath_until = Some(now + self.breath);
    }

    /// Counts that others had all but `used` of the time since the last look, and that no thread had `lost` of it; whether a breath is due.
    /// Nor have ordinary threads had any of the last `silent`, whatever has.
    fn owes(
        &mut self,
        elapsed: Duration,
        used: Duration,
        lost: Duration,
        silent: Duration,
    ) -> bool {
        let audible = elapsed.saturating_sub(silent);
        let elapsed = elapsed.saturating_sub(lost);
        let rest = elapsed.saturating_sub(used + std::mem::take(&mut self.own));
        let theirs = rest.min(audible);
        self.owed = (self.owed + elapsed.mul_f64(self.share)).saturating_sub(theirs);
        self.owed * 2 >= self.breath
    }

    pub(super) fn is_breathing(&self, now: Instant) -> bool {
        self.begins || self.breath_until.is_some_and(|until| now < until)
    }

    pub(super) fn breath_ends(&self) -> Option<Instant> {
        self.breath_until
    }
}

impl Scheduler {
    /// Ends a breath that is over, and looks if it is time to.
    pub(super) fn watch_over(&mut self, now: Instant) {
        if let Some(until) = self.watch.breath_until
            && now >= until
        {
            self.end_piece(until, now);
        }
        let elapsed = now - self.watch.looked;
        if self.watch.breath_until.is_some() || elapsed < self.watch.every {
            return;
        }
        self.watch.looked = now;
        if self.shared.enforcing() {
            self.look(elapsed, now);
        }
    }

    /// A piece of a breath is over: another one follows if others want more of what is theirs.
    fn end_piece(&mut self, until: Instant, now: Instant) {
        let length = self.watch.breath + (now - until);
        let machine = self.shared.machine.as_ref();
        let silence = self.shared.accounts.silence(self.cpu, now);
        let entries = self.entries.iter_mut();
        let charges =
            entries.flat_map(|entry| entry.charges.iter_mut().map(|charge| (entry.user, charge)));
        let (mut used, mut elevated, mut working) = (0, 0, 0);
        let mut intruders: Vec<&mut Charge> = Vec::new();
        for (user, charge) in charges {
            if charge.place() != Place::Idle && !charge.is_elevated() {
                continue;
            }
            let spent = match charge.spent(machine) {
                Ok(spent) => spent,
                // It may have had the whole piece; the next look charges it to its user.
                Err(_) => {
                    used += length.as_nanos() as u64;
                    continue;
                }
            };
            used += spent;
            let time = Duration::from_nanos(spent);
            if charge.place() == Place::Idle
                && evidence::is_intrusion(time, length, silence, now - until)
            {
                charge.intrudes(now);
            }
            if charge.is_elevated() && spent > 0 {
                elevated += spent;
                match charge.role {
                    Role::Worker => working += spent,
                    // The next look counts it with what they use until then.
                    Role::Dispatcher => {
                        self.watch.parted.entry(user).or_default().dispatching += spent;
                    }
                }
                intruders.push(charge);
            }
        }
        let accounts = &self.shared.accounts;
        accounts.add(Some(self.cpu), Duration::from_nanos(working));
        // They had used little, or are dispatchers, and now, together, take what others were to have: they step back, too.
        let intruded = evidence::is_much(Duration::from_nanos(elevated), length);
        if intruded {
            intruders.into_iter().for_each(|charge| charge.burns = true);
        }
        let theirs = length.saturating_sub(Duration::from_nanos(used) + self.watch.own_of_piece);
        if intruded && self.watch.intrusions < PIECES {
            self.watch.intrusions += 1;
        } else {
            self.watch.pieces += 1;
        }
        self.watch.theirs += theirs;
        // A piece is shorter than a slice of the kernel, so that one does not say whether it is wanted.
        let wanted = self.watch.pieces < 2 || self.watch.theirs * 4 > self.watch.breath;
        let had = self.watch.theirs * 10 > self.watch.breath * 9;
        if (intruded || (wanted && !had)) && self.watch.pieces < PIECES {
            self.watch.breathe(now);
            return;
        }
        self.watch.breath_until = None;
        self.watch.looked = now;
        for charge in self.entries.iter_mut().flat_map(|entry| &mut entry.charges) {
            charge.burns = false;
        }
    }

    /// Called before the first worker of the CPU rises: so far nothing is owed.
    pub(super) fn look_before_the_rise(&mut self, now: Instant) {
        let elapsed = self.watch.lap(now);
        if self.watch.breath_until.is_none() {
            self.look(elapsed, now);
        }
    }

    /// Adds what dispatchers used that have left, and says what all of them used.
    fn count_the_parted(
        &mut self,
        dispatching: &mut HashMap<u32, u64>,
        (time, budget): (Duration, u64),
        now: Instant,
    ) -> Left {
        self.watch.debts.pay(Duration::from_nanos(budget));
        let elapsed = time.as_nanos() as u64;
        let unseen = evidence::counted(time, self.watch.every);
        let mut left = Left::default();
        for (user, parted) in std::mem::take(&mut self.watch.parted) {
            left.working += parted.working;
            if parted.worker_ended || parted.dispatcher_ended {
                self.shared.accounts.add_unknown(self.cpu, user, unseen);
                left.unknown += elapsed;
                left.maybe_working += if parted.worker_ended { elapsed } else { 0 };
            }
            if parted.dispatching > 0 {
                *dispatching.entry(user).or_default() += parted.dispatching;
            }
            if parted.dispatcher_ended && self.watch.debts.add(user, unseen) {
                let secs = self.shared.overdrafts.punish(user, now).as_secs();
                self.shared.eject(format!(
                    "dispatchers of user {user} are not elevated for {secs} s: one after the other ends before it can be seen what it used"
                ));
            }
        }
        left
    }

    /// If the dispatchers of all users have used more than their budget, those of the users that had more than an equal part of it are
    /// moved down.
    fn bar_dispatchers(&mut self, used: &HashMap<u32, u64>, budget: u64, now: Instant) {
        if used.values().sum::<u64>() <= budget {
            return;
        }
        let busy = used.values().filter(|&&it| it > 0).count() as u64;
        for (&user, _) in used.iter().filter(|&(_, &it)| it * busy > budget) {
            let secs = self.shared.overdrafts.punish(user, now).as_secs();
            let percent = self.watch.dispatcher_percent;
            self.shared.eject(format!(
                "dispatchers of user {user} are not elevated for {secs} s: with others they use more than {percent} % of CPU {}",
                self.cpu
            ));
            for entry in self.entries.iter().filter(|entry| entry.user == user) {
                let is_dispatcher = |charge: &Charge| charge.role == Role::Dispatcher;
                let has = entry.charges.iter().any(is_dispatcher);
                entry.tally.overdrafts.fetch_add(u64::from(has), Relaxed);
            }
        }
    }

    fn look(&mut self, time: Duration, now: Instant) {
        let elapsed = time.as_nanos() as u64;
        self.put_out_strays(now);
        self.glance.choose(self.watch.every, now);
        let machine = self.shared.machine.as_ref();
        let (mut used, mut users) = (0, 0);
        // By user, ns.
        let mut dispatching: HashMap<u32, u64> = HashMap::new();
        for entry in &mut self.entries {
            charge_quotas(entry, &self.shared, now);
            let elevated = entry.charges.iter().any(Charge::is_elevated);
            let user = elevated.then(|| machine.user(entry.process.as_fd()));
            // The kernel says that one that has ended is root's.
            let lives = |entry: &Entry| entry.charges.iter().any(|it| !it.has_ended(machine));
            if let Some(Ok(user)) = user
                && user != entry.uid
                && lives(entry)
            {
                let (pid, before) = (entry.pid, entry.uid);
                self.shared.eject(format!(
                    "process {pid} is put out: it was of user {before}, and is of {user}"
                ));
                for charge in &mut entry.charges {
                    charge.bar(now + EJECTED);
                }
            }
            for charge in &mut entry.charges {
                charge.used = 0;
                if !charge.was_elevated() {
                    if charge.is_held() && charge.has_ended(machine) {
                        charge.end();
                    }
                    continue;
                }
                let spent = match charge.spent(machine) {
                    Ok(spent) => spent,
                    Err(error) if placing::is_over(&error) => {
                        let parted = self.watch.parted.entry(entry.user).or_default();
                        match charge.role {
                            Role::Worker => parted.worker_ended = true,
                            Role::Dispatcher => parted.dispatcher_ended = true,
                        }
                        charge.end();
                        continue;
                    }
                    // It is read next time.
                    Err(_) => 0,
                };
                charge.used = spent;
                if charge.role == Role::Worker {
                    used += spent;
                    users += u64::from(spent > 0);
                } else {
                    *dispatching.entry(entry.user).or_default() += spent;
                }
            }
            entry.charges.retain(Charge::exists);
        }
        let budget = elapsed * self.watch.dispatcher_percent / 100;
        let left = self.count_the_parted(&mut dispatching, (time, budget), now);
        self.bar_dispatchers(&dispatching, budget, now);
        let known = used + left.working + dispatching.values().sum::<u64>();
        used += left.working + left.maybe_working;
        let accounts = &self.shared.accounts;
        accounts.add(Some(self.cpu), Duration::from_nanos(known));
        let taken = Duration::from_nanos(known + left.unknown);
        let lost = accounts.lost(self.cpu, time);
        let silent = accounts.silence(self.cpu, now);
        if !self.watch.owes(time, taken, lost, silent) {
            return;
        }
        self.watch.owed = Duration::ZERO;
        (self.watch.pieces, self.watch.theirs) = (0, Duration::ZERO);
        self.watch.intrusions = 0;
        self.watch.breathe(now);
        for entry in &mut self.entries {
            let mut burns = false;
            for charge in &mut entry.charges {
                let worker = charge.role == Role::Worker && charge.used > 0;
                charge.burns = worker && charge.used * users * 2 >= used;
                burns |= charge.burns;
            }
            entry.tally.breaths.fetch_add(u64::from(burns), Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_real_time_programs_have_delays_no_breath() {
        let watch = || Watch::new(&Config::default(), true, Instant::now());
        let (mut heard, mut silent) = (watch(), watch());
        // Another program has a third, and the elevated thread the rest.
        let used = LOOK * 2 / 3;
        for _ in 0..100 {
            assert!(!heard.owes(LOOK, used, Duration::ZERO, Duration::ZERO));
        }
        assert!(silent.owes(LOOK, used, Duration::ZERO, LOOK));
        // The canary has answered in between, and others may have had their part before it was asked again.
        let mut half = watch();
        assert!(!half.owes(LOOK, used, Duration::ZERO, LOOK / 2));
    }
}
