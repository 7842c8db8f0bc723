//! Checks the elevated threads of one CPU periodically, and limits them to their share of its time.
//!
//! While vCPUs compete, a check every 36 ms reads the CPU time of the elevated threads (2 µs a
//! thread) and enforces these rules. To *eject* a thread is to restore its former policy and to bar
//! it from elevation for an hour, or until it is registered again.
//!
//! * **Pauses.** Elevated threads owe ordinary programs a share (`share.rs`). A large enough debt
//!   causes a *pause* of 2 to 9 ms. During a pause, the threads that used the CPU, and the vCPUs
//!   that are not elevated, run in SCHED_IDLE, that is, only while no other program wants the CPU.
//!   (SCHED_IDLE is relative to a cgroup or session; the kernel divides the CPU equally between
//!   groups.)
//! * **Dispatchers** of all users have a common budget (`dispatchers.rs`).
//! * **Quotas.** Threads of a cgroup with a CPU quota are not elevated beyond that quota
//!   (`quota.rs`).
//! * **Users.** A process whose user has changed is ejected: it has executed a program with the
//!   set-user-id bit.
//! * **CPUs.** A thread that has left its CPU is ejected.
//! * **Ends.** A thread that has ended without a report is removed before its TID can be reused.
//!
//! **Threads that leave between two checks** are charged, too, because a process could otherwise
//! evade its share by registering and leaving in turn. Their CPU time is read when they leave. A
//! thread that has already ended is charged for the whole time since the last check.
//!
//! The first check takes place when the first worker is elevated, and starts the period of the
//! checks. The checks do not use the levels that the processes claim, so a false claim cannot
//! influence them.
//!
//! A cooperative daemon elevates no threads. Instead of the checks, it reads the claimed levels
//! each quantum (every 36 ms while all vCPUs sleep), because a vCPU that falls asleep does not ring
//! its doorbell, so that the daemon would go on to rank it as before.

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

pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(36);

const EJECTION_TIME: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct LoadMonitor {
    last_check: Instant,
    /// Time between two checks, or, in cooperative mode, between two readings of the claims.
    interval: Duration,
    debt: Debt,
    pause: Pause,
    /// Set if the next pause applies to all threads, not only to the threads that used the CPU.
    pause_all: bool,
    /// Time for which the scheduler has worked since the last check or the start of the pause.
    scheduler_time: Duration,
    dispatchers: Dispatchers,
    /// CPU time of workers that have left since the last check.
    departed_workers: Departed,
    /// CPU time of dispatchers that have left since the last check, by user.
    departed_dispatchers: HashMap<u32, Departed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    None,
    /// Begins when the scheduler has moved the threads.
    Due,
    Until(Instant),
}

/// CPU time of threads that have left since the last check.
#[derive(Debug, Default)]
struct Departed {
    used: Duration,
    /// Set if a thread had ended before it left, so that its CPU time is unknown.
    is_time_unknown: bool,
}

impl Departed {
    fn add(&mut self, spent: std::io::Result<u64>) {
        match spent {
            Ok(spent) => self.used += Duration::from_nanos(spent),
            Err(_) => self.is_time_unknown = true,
        }
    }

    /// Returns the CPU time; if that of a thread is unknown, returns `elapsed` as an upper bound.
    fn upper_bound(&self, elapsed: Duration) -> Duration {
        if self.is_time_unknown {
            elapsed
        } else {
            self.used
        }
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

    pub(super) fn note_departure(
        &mut self,
        user: u32,
        thread: &mut ClientThread,
        machine: &dyn Machine,
    ) {
        if thread.was_elevated() {
            let spent = thread.take_cpu_time(machine);
            self.departed_mut(user, thread.role).add(spent);
        }
    }

    fn departed_mut(&mut self, user: u32, role: Role) -> &mut Departed {
        match role {
            Role::Worker => &mut self.departed_workers,
            Role::Dispatcher => self.departed_dispatchers.entry(user).or_default(),
        }
    }

    pub(super) fn next_check(&self, idle: bool) -> Instant {
        self.last_check
            + if idle {
                CHECK_INTERVAL.max(self.interval)
            } else {
                self.interval
            }
    }

    pub(super) fn doorbell_interval(&self) -> Duration {
        CHECK_INTERVAL
    }

    /// Makes the next check cover at most one interval. Called when a vCPU joins.
    pub(super) fn limit_next_check(&mut self, now: Instant) {
        self.last_check = self.last_check.max(now - self.interval);
    }

    /// Records that the scheduler has worked for `time` until `now`, while no other thread ran on
    /// the CPU. Starts a pause that is due.
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

    pub(super) fn pause_end(&self) -> Option<Instant> {
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
                // A thread that has ended may have used the whole pause.
                let spent = thread
                    .take_cpu_time(machine)
                    .map_or(length, Duration::from_nanos);
                if is_idle {
                    used_in_pause.idle += spent;
                    continue;
                }
                used_in_pause.elevated += spent;
                if thread.role == Role::Dispatcher {
                    // This time counts at the next check, like the CPU time after the pause.
                    self.monitor.departed_mut(entry.user, thread.role).used += spent;
                }
            }
        }
        self.monitor.pause_all = self.monitor.debt.end_pause(length, &used_in_pause);
        self.monitor.pause = Pause::None;
        self.monitor.last_check = now;
    }

    pub(super) fn check_before_elevation(&mut self, now: Instant) {
        let elapsed = now - std::mem::replace(&mut self.monitor.last_check, now);
        if !self.monitor.is_paused() {
            self.check(elapsed, now);
        }
    }

    /// Charges all threads for the CPU time since the last check, `elapsed` ago, ejects threads,
    /// and decides whether a pause is due.
    fn check(&mut self, elapsed: Duration, now: Instant) {
        self.eject_migrated(now);
        let machine = self.shared.machine.as_ref();
        // Number of workers that have used CPU time, and their CPU time.
        let (mut active, mut used) = (0, 0);
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
                thread.used = match thread.take_cpu_time(machine) {
                    Ok(spent) => spent,
                    Err(error) => {
                        if client_thread::is_gone(&error) {
                            self.monitor
                                .departed_mut(entry.user, thread.role)
                                .is_time_unknown = true;
                            thread.end();
                        }
                        // If the thread still exists, the next check reads its CPU time.
                        continue;
                    }
                };
                match thread.role {
                    Role::Worker => {
                        used += thread.used;
                        active += u64::from(thread.used > 0);
                    }
                    Role::Dispatcher => {
                        let spent = Duration::from_nanos(thread.used);
                        *dispatching.entry(entry.user).or_default() += spent;
                    }
                }
            }
            entry.threads.retain(ClientThread::exists);
        }
        // The scheduler has a higher priority than the elevated threads. Once a check is due, none
        // of them runs before the check, so at most one interval is unobserved.
        let unobserved = elapsed.min(self.monitor.interval);
        for (user, departed) in std::mem::take(&mut self.monitor.departed_dispatchers) {
            *dispatching.entry(user).or_default() += departed.upper_bound(unobserved);
        }
        self.charge_dispatchers(&dispatching, elapsed, now);
        let departed = std::mem::take(&mut self.monitor.departed_workers).upper_bound(unobserved);
        let scheduler_time = std::mem::take(&mut self.monitor.scheduler_time);
        let total =
            Duration::from_nanos(used) + departed + dispatching.values().sum() + scheduler_time;
        if self.monitor.debt.check(elapsed, total).is_none() {
            return;
        }
        self.monitor.pause = Pause::Due;
        for entry in &mut self.entries {
            let mut any_pauses = false;
            for thread in &mut entry.threads {
                let active_worker = thread.role == Role::Worker && thread.used > 0;
                let above_half_average = thread.used * active * 2 >= used;
                thread.pauses_now = self.monitor.pause_all || (active_worker && above_half_average);
                any_pauses |= thread.pauses_now;
            }
            entry
                .counters
                .pauses
                .fetch_add(u64::from(any_pauses), Relaxed);
        }
    }

    fn charge_dispatchers(&mut self, used: &UsageByUser, elapsed: Duration, now: Instant) {
        for user in self.monitor.dispatchers.charge(used, elapsed, now) {
            let cpu = self.cpu;
            self.shared.warn("dispatchers", || {
                format!("dispatchers of user {user} lose their priority for a while: the dispatchers of all users have used up their common budget on CPU {cpu}")
            });
            for entry in self.entries.iter().filter(|entry| entry.user == user) {
                let is_dispatcher = |thread: &ClientThread| thread.role == Role::Dispatcher;
                let any = entry.threads.iter().any(is_dispatcher);
                entry.counters.overdrafts.fetch_add(u64::from(any), Relaxed);
            }
        }
    }

    /// Ejects threads that have left this CPU, because an elevated thread would delay the threads
    /// of the other CPU. This costs one system call for each elevated thread.
    fn eject_migrated(&mut self, now: Instant) {
        let own_cpu = CpuSet::only(self.cpu);
        for entry in &mut self.entries {
            for thread in entry
                .threads
                .iter_mut()
                .filter(|thread| thread.is_elevated())
            {
                let cpus = self.shared.sys.sched_getaffinity(thread.tid);
                if cpus.is_ok_and(|cpus| Some(cpus) != own_cpu) {
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

/// Ejects the threads of a process whose user has changed. An ordinary process cannot change its
/// user, so such a process has executed a program with the set-user-id bit.
fn eject_changed_user(entry: &mut VcpuEntry, shared: &Shared, now: Instant) {
    let machine = shared.machine.as_ref();
    if !entry.threads.iter().any(ClientThread::is_elevated) {
        return;
    }
    // The directory of an ended process belongs to root.
    let is_alive = |entry: &VcpuEntry| {
        entry
            .threads
            .iter()
            .any(|thread| !thread.has_ended(machine))
    };
    if let Ok(user) = machine.user(entry.process.as_fd())
        && user != entry.uid
        && is_alive(entry)
    {
        let (pid, before) = (entry.pid, entry.uid);
        shared.eject(format!(
            "process {pid} is ejected: its user was {before} at the registration, and is {user} now"
        ));
        for thread in &mut entry.threads {
            thread.eject(now + EJECTION_TIME);
        }
    }
}

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
