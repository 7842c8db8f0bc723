//! Checks of the elevated threads of one CPU, which limit them to their share.
//!
//! While vCPUs compete, the CPU time of the elevated threads is read every 36 ms (2 µs a thread):
//!
//! * **Pauses.** Ordinary programs are owed a share (`share.rs`). When enough is owed, there is a
//!   *pause* of 2 to 9 ms: the threads that used the CPU, and the vCPUs of the lowest class, run in
//!   SCHED_IDLE, so only when no other program wants the CPU. (SCHED_IDLE is relative to a cgroup
//!   or session; between groups the kernel shares equally.)
//! * **Dispatchers** of all users have a budget (`dispatchers.rs`).
//! * Threads of a cgroup with a quota are not elevated beyond it (`quota.rs`).
//! * A process that has executed a program with the set-user-id bit is ejected: it has changed its
//!   user.
//! * A thread that has left its CPU is ejected: restored, and not elevated until it is registered
//!   again.
//! * A thread that has ended silently is forgotten before its number can be reused.
//!
//! **Threads that leave between two checks** count, too, or coming and going would be free. Their
//! CPU time is read when they leave; a thread that ended earlier counts as having used all the time
//! since the last check.
//!
//! The first check is when the first worker is elevated, so no check is later than that. Claims on
//! the page play no part in this. A cooperative daemon has no elevated threads; it takes a turn
//! each quantum instead (each 36 ms while all vCPUs sleep), because a vCPU that falls asleep keeps
//! its rank and does not ring.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_board::wire::Role;
use upshift_elevate::sys::CpuSet;

use crate::config::Config;
use crate::cpu::client_thread::{self, ClientThread, ThreadClass};
use crate::cpu::dispatchers::{Dispatchers, UsageByUser};
use crate::cpu::scheduler::Scheduler;
use crate::cpu::share::{Debt, PauseUsage};
use crate::cpu::vcpu_entry::VcpuEntry;
use crate::machine::Machine;
use crate::shared::Shared;

/// Time between two checks.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(36);

/// Time for which an ejected thread is left alone.
const EJECTION_TIME: Duration = Duration::from_secs(3600);

/// State of the checks; see the module.
#[derive(Debug)]
pub(super) struct LoadMonitor {
    last_check: Instant,
    /// Time between two checks, or turns.
    interval: Duration,
    debt: Debt,
    pause: Pause,
    /// Set if all threads are to pause the next time.
    pause_all: bool,
    /// CPU time of the scheduler itself since the last check, or in the present pause.
    scheduler_time: Duration,
    dispatchers: Dispatchers,
    /// Threads that have left since the last check.
    departed_workers: Departed,
    departed_dispatchers: HashMap<u32, Departed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    None,
    /// Begins when the scheduler has moved all threads for it.
    Due,
    Until(Instant),
}

/// CPU time of threads that have left before the check.
#[derive(Debug, Default)]
struct Departed {
    used: Duration,
    /// Set if a thread has ended, so that its time is unknown.
    has_ended: bool,
}

impl Departed {
    fn add(&mut self, spent: std::io::Result<u64>) {
        match spent {
            Ok(spent) => self.used += Duration::from_nanos(spent),
            Err(_) => self.has_ended = true,
        }
    }

    /// Returns the most CPU time that the threads can have used: `elapsed` if that of a thread is
    /// unknown.
    fn upper_bound(&self, elapsed: Duration) -> Duration {
        if self.has_ended { elapsed } else { self.used }
    }
}

impl LoadMonitor {
    pub(super) fn new(config: &Config, enforcing: bool, now: Instant) -> LoadMonitor {
        LoadMonitor {
            last_check: now,
            interval: LoadMonitor::interval(config, enforcing),
            debt: Debt::new(config.bystander_percent),
            pause: Pause::None,
            pause_all: false,
            scheduler_time: Duration::ZERO,
            dispatchers: Dispatchers::new(config.limits.dispatcher_percent, now),
            departed_workers: Departed::default(),
            departed_dispatchers: HashMap::new(),
        }
    }

    pub(super) fn configure(&mut self, config: &Config, enforcing: bool, now: Instant) {
        self.interval = LoadMonitor::interval(config, enforcing);
        self.debt.set_share(config.bystander_percent);
        self.dispatchers = Dispatchers::new(config.limits.dispatcher_percent, now);
    }

    fn interval(config: &Config, enforcing: bool) -> Duration {
        if enforcing {
            CHECK_INTERVAL
        } else {
            config.quantum
        }
    }

    /// Records the CPU time of a thread of `user` that leaves before the next check.
    pub(super) fn note_departure(
        &mut self,
        user: u32,
        thread: &mut ClientThread,
        machine: &dyn Machine,
    ) {
        if thread.was_elevated() {
            let spent = thread.spent(machine);
            self.departed(user, thread.role).add(spent);
        }
    }

    fn departed(&mut self, user: u32, role: Role) -> &mut Departed {
        match role {
            Role::Worker => &mut self.departed_workers,
            Role::Dispatcher => self.departed_dispatchers.entry(user).or_default(),
        }
    }

    /// Returns the time of the next check; `idle`: no vCPU is runnable.
    pub(super) fn next_check(&self, idle: bool) -> Instant {
        self.last_check
            + if idle {
                CHECK_INTERVAL.max(self.interval)
            } else {
                self.interval
            }
    }

    /// Returns the time for which a doorbell that rang too often is ignored.
    pub(super) fn doorbell_pause(&self) -> Duration {
        CHECK_INTERVAL
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.last_check = self.last_check.max(now - self.interval);
    }

    /// Records that the scheduler ran for `time` until `now`; no other thread ran meanwhile.
    pub(super) fn note_scheduler_work(&mut self, time: Duration, now: Instant) {
        self.scheduler_time += time;
        if self.pause == Pause::Due {
            self.scheduler_time = Duration::ZERO;
            self.pause = Pause::Until(now + self.debt.owed());
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pause != Pause::None
    }

    pub(super) fn pause_ends(&self) -> Option<Instant> {
        match self.pause {
            Pause::Until(until) => Some(until),
            Pause::None | Pause::Due => None,
        }
    }

    pub(super) fn dispatchers(&self) -> &Dispatchers {
        &self.dispatchers
    }
}

impl Scheduler {
    /// Ends a pause that is over, and checks the threads if that is due.
    pub(super) fn monitor_threads(&mut self, now: Instant) {
        match self.monitor.pause {
            Pause::Until(until) if now >= until => self.end_pause(until, now),
            Pause::None => {}
            Pause::Until(_) | Pause::Due => return,
        }
        let elapsed = now - self.monitor.last_check;
        if elapsed < self.monitor.interval {
            return;
        }
        self.monitor.last_check = now;
        if self.shared.enforcing() {
            self.check(elapsed, now);
        }
    }

    fn end_pause(&mut self, until: Instant, now: Instant) {
        let length = self.monitor.debt.owed() + (now - until);
        let machine = self.shared.machine.as_ref();
        let mut used_in_pause = PauseUsage {
            scheduler_time: std::mem::take(&mut self.monitor.scheduler_time),
            ..PauseUsage::default()
        };
        for entry in &mut self.entries {
            for thread in &mut entry.threads {
                thread.pauses_now = false;
                let is_idle = thread.class() == ThreadClass::Idle;
                if !is_idle && !thread.is_elevated() {
                    continue;
                }
                // A thread that has ended may have used all of it.
                let spent = thread.spent(machine).map_or(length, Duration::from_nanos);
                if is_idle {
                    used_in_pause.idle += spent;
                    continue;
                }
                used_in_pause.elevated += spent;
                if thread.role == Role::Dispatcher {
                    // The next check counts it with the time until then.
                    self.monitor.departed(entry.user, thread.role).used += spent;
                }
            }
        }
        self.monitor.pause_all = self.monitor.debt.end_pause(length, &used_in_pause);
        self.monitor.pause = Pause::None;
        self.monitor.last_check = now;
    }

    /// Checks before the first worker of the CPU is elevated: nothing is owed so far.
    pub(super) fn check_before_elevation(&mut self, now: Instant) {
        let elapsed = now - std::mem::replace(&mut self.monitor.last_check, now);
        if !self.monitor.is_paused() {
            self.check(elapsed, now);
        }
    }

    fn check(&mut self, elapsed: Duration, now: Instant) {
        self.eject_migrated(now);
        let machine = self.shared.machine.as_ref();
        // Number of workers that have used CPU time, and their total, ns.
        let (mut users, mut used) = (0, 0);
        let mut dispatching = UsageByUser::new();
        for entry in &mut self.entries {
            charge_quotas(entry, &self.shared, now);
            eject_changed_user(entry, &self.shared, now);
            for thread in &mut entry.threads {
                thread.used = 0;
                if !thread.was_elevated() {
                    if thread.is_recorded() && thread.has_ended(machine) {
                        thread.end();
                    }
                    continue;
                }
                thread.used = match thread.spent(machine) {
                    Ok(spent) => spent,
                    Err(error) => {
                        if client_thread::is_gone(&error) {
                            self.monitor.departed(entry.user, thread.role).has_ended = true;
                            thread.end();
                        }
                        // The time is read in the next check.
                        continue;
                    }
                };
                match thread.role {
                    Role::Worker => {
                        used += thread.used;
                        users += u64::from(thread.used > 0);
                    }
                    Role::Dispatcher => {
                        let spent = Duration::from_nanos(thread.used);
                        *dispatching.entry(entry.user).or_default() += spent;
                    }
                }
            }
            entry.threads.retain(ClientThread::exists);
        }
        // While the scheduler, which is above, is late, no elevated thread runs.
        let unseen = elapsed.min(self.monitor.interval);
        for (user, departed) in std::mem::take(&mut self.monitor.departed_dispatchers) {
            *dispatching.entry(user).or_default() += departed.upper_bound(unseen);
        }
        self.charge_dispatchers(&dispatching, elapsed, now);
        let departed = std::mem::take(&mut self.monitor.departed_workers).upper_bound(unseen);
        let scheduler_time = std::mem::take(&mut self.monitor.scheduler_time);
        let all =
            Duration::from_nanos(used) + departed + dispatching.values().sum() + scheduler_time;
        if self.monitor.debt.check(elapsed, all).is_none() {
            return;
        }
        self.monitor.pause = Pause::Due;
        for entry in &mut self.entries {
            let mut pauses_now = false;
            for thread in &mut entry.threads {
                let computed = thread.role == Role::Worker && thread.used > 0;
                let most = thread.used * users * 2 >= used;
                thread.pauses_now = self.monitor.pause_all || (computed && most);
                pauses_now |= thread.pauses_now;
            }
            entry
                .counters
                .pauses
                .fetch_add(u64::from(pauses_now), Relaxed);
        }
    }

    fn charge_dispatchers(&mut self, used: &UsageByUser, elapsed: Duration, now: Instant) {
        for user in self.monitor.dispatchers.charge(used, elapsed, now) {
            let cpu = self.cpu;
            self.shared.warn("dispatchers", || {
                format!("dispatchers of user {user} are ordinary for a while: those of all users together have used up their part of CPU {cpu}")
            });
            for entry in self.entries.iter().filter(|entry| entry.user == user) {
                let is_dispatcher = |thread: &ClientThread| thread.role == Role::Dispatcher;
                let has = entry.threads.iter().any(is_dispatcher);
                entry.counters.overdrafts.fetch_add(u64::from(has), Relaxed);
            }
        }
    }

    /// Ejects threads that have left this CPU: elevated, they would delay others there. One system
    /// call for each elevated thread.
    fn eject_migrated(&mut self, now: Instant) {
        let here = CpuSet::only(self.cpu);
        for entry in &mut self.entries {
            for thread in entry
                .threads
                .iter_mut()
                .filter(|thread| thread.is_elevated())
            {
                let cpus = self.shared.sys.sched_getaffinity(thread.tid);
                if cpus.is_ok_and(|cpus| Some(cpus) != here) {
                    let (tid, pid, cpu) = (thread.tid, entry.pid, self.cpu);
                    self.shared.eject(format!(
                        "thread {tid} of process {pid} is ejected: it has left CPU {cpu}, to which it was registered"
                    ));
                    thread.eject(now + EJECTION_TIME);
                }
            }
        }
    }
}

/// Ejects the process if it belongs to another user than the one that has registered it: it has
/// executed a program with the set-user-id bit.
fn eject_changed_user(entry: &mut VcpuEntry, shared: &Shared, now: Instant) {
    let machine = shared.machine.as_ref();
    if !entry.threads.iter().any(ClientThread::is_elevated) {
        return;
    }
    // An ended process belongs to root.
    let lives = |entry: &VcpuEntry| {
        entry
            .threads
            .iter()
            .any(|thread| !thread.has_ended(machine))
    };
    if let Ok(user) = machine.user(entry.process.as_fd())
        && user != entry.uid
        && lives(entry)
    {
        let (pid, before) = (entry.pid, entry.uid);
        shared.eject(format!(
            "process {pid} is ejected: it was of user {before}, and is of {user}"
        ));
        for thread in &mut entry.threads {
            thread.eject(now + EJECTION_TIME);
        }
    }
}

/// Charges the CPU time of the threads of `entry` to the quotas of its cgroups.
fn charge_quotas(entry: &mut VcpuEntry, shared: &Shared, now: Instant) {
    let machine = shared.machine.as_ref();
    let threads = &mut entry.threads;
    let used = || {
        let all = threads
            .iter_mut()
            .map(|thread| thread.uncharged_time(machine));
        Duration::from_nanos(all.sum())
    };
    entry.quota_usage.charge(used, now);
}
