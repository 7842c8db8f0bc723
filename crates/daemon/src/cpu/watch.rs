//! Who takes more than his share of one CPU.
//!
//! While vCPUs compete, each 36 ms the CPU time of the elevated threads is looked at (2 µs a thread):
//!
//! * If workers have used so much of it that nobody else can have had his share, there is a *breath*: for some 2 ms those who used
//!   it, and the vCPUs of the lowest class, run in SCHED_IDLE, that is: only if no other program wants the CPU. So a
//!   program that is not registered keeps `bystander_percent` of each CPU, in short pieces, and the kernel's throttling of
//!   real-time threads (50 ms of nothing each second) is never met. If nobody else wants the CPU a breath takes nothing from anyone.
//! * A dispatcher that has used more than its share goes to what it had for a second.
//! * A thread that has been moved to another CPU, where it would stand in the way of others, is put out: given back and not
//!   elevated until it is registered again.
//!
//! * A thread that has ended without a word is forgotten before its number can come to mean another one.
//!
//! What a process *says* plays no part in this. A cooperative daemon has nobody to look at; it takes a turn each quantum instead
//! (each 36 ms while all sleep), because who falls asleep keeps its rank and does not ring, and those who give way to it go on only
//! when they see that.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_board::wire::Role;
use upshift_elevate::sys::CpuSet;

use crate::config::Config;
use crate::cpu::placing::{self, Charge};
use crate::cpu::scheduler::Scheduler;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(36);

/// A breath is due if elevated workers have used this share of the time, percent. Less than what would starve others, because
/// the kernel's figures of a running thread are up to a tick (4 ms) old.
const BURNING: u64 = 75;

/// How long who overspends is moved down, and how long who was put out stays out.
const PENALTY: Duration = Duration::from_secs(1);
const EJECTED: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    looked: Instant,
    /// Time between two looks, or turns.
    every: Duration,
    breath: Duration,
    breath_until: Option<Instant>,
    dispatcher_percent: u64,
}

impl Watch {
    pub(super) fn new(config: &Config, enforcing: bool, now: Instant) -> Watch {
        // A little more than asked for, because waking up takes time.
        let share = f64::from(config.bystander_percent + 1) / 100.0;
        Watch {
            looked: now,
            every: if enforcing { LOOK } else { config.quantum },
            breath: LOOK.mul_f64(share / (1.0 - share)),
            breath_until: None,
            dispatcher_percent: u64::from(config.limits.dispatcher_percent),
        }
    }

    /// When to look next; `idle`: nobody has anything to run now.
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

    pub(super) fn is_breathing(&self, now: Instant) -> bool {
        self.breath_until.is_some_and(|until| now < until)
    }

    pub(super) fn breath_ends(&self) -> Option<Instant> {
        self.breath_until
    }
}

impl Scheduler {
    /// Ends a breath that is over, and looks if it is time to.
    pub(super) fn watch_over(&mut self, now: Instant) {
        if self.watch.breath_until.is_some_and(|until| now >= until) {
            self.watch.breath_until = None;
            self.watch.looked = now;
            for charge in self.entries.iter_mut().flat_map(|entry| &mut entry.charges) {
                if std::mem::take(&mut charge.burns) {
                    // What it used in the breath was nobody's loss.
                    let _ = charge.spent(self.shared.machine.as_ref());
                }
            }
        }
        let elapsed = now - self.watch.looked;
        if elapsed < self.watch.every || self.watch.breath_until.is_some() {
            return;
        }
        self.watch.looked = now;
        if self.shared.enforcing() {
            self.look(elapsed, now);
        }
    }

    fn look(&mut self, elapsed: Duration, now: Instant) {
        let elapsed = elapsed.as_nanos() as u64;
        let machine = self.shared.machine.as_ref();
        let here = CpuSet::only(self.cpu);
        let (mut used, mut users) = (0, 0);
        for entry in &mut self.entries {
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
                        charge.end();
                        continue;
                    }
                    // It is read next time.
                    Err(_) => 0,
                };
                charge.used = spent;
                let affinity = self.shared.sys.sched_getaffinity(charge.tid);
                if affinity.is_ok_and(|cpus| Some(cpus) != here) {
                    self.shared.counts.ejected.fetch_add(1, Relaxed);
                    charge.bar(now + EJECTED);
                } else if charge.role == Role::Worker {
                    used += spent;
                    users += u64::from(spent > 0);
                } else if spent * 100 > elapsed * self.watch.dispatcher_percent {
                    entry.tally.overdrafts.fetch_add(1, Relaxed);
                    charge.bar(now + PENALTY);
                }
            }
            entry.charges.retain(Charge::exists);
        }
        // One look's figures may hold what was used a little earlier: never more than a tick.
        if used * 100 < elapsed * BURNING {
            return;
        }
        self.watch.breath_until = Some(now + self.watch.breath);
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
