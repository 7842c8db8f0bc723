//! Threads that have left the CPU to which they are registered: elevated they stand in the way of others there.
//!
//! They are looked for at each look of the watch, and once at an unpredictable moment between two: every process can read the scheduler's
//! switches in `/proc`, so a thread could be elsewhere for most of the time, and here for each look. One that is found is put
//! out, and if the CPU is still there, its user is barred as for any offence (`bars.rs`).

use std::time::{Duration, Instant};

use upshift_elevate::sys::CpuSet;

use crate::cpu::scheduler::Scheduler;
use crate::cpu::watch::EJECTED;
use crate::draw::Draw;

/// When to look between two looks of the watch.
#[derive(Debug)]
pub(super) struct Glance {
    draw: Draw,
    at: Option<Instant>,
}

impl Glance {
    pub(super) fn new() -> Glance {
        Glance {
            draw: Draw::default(),
            at: None,
        }
    }

    /// The next look of the watch is in `every`: chooses a moment before.
    pub(super) fn choose(&mut self, every: Duration, now: Instant) {
        self.at = Some(now + every.mul_f64(self.draw.next()));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.at
    }

    /// Whether the moment has come; once.
    fn is_now(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| now >= *at).is_some()
    }
}

impl Scheduler {
    /// Looks for strays if the chosen moment has come.
    pub(super) fn glance(&mut self, now: Instant) {
        if self.glance.is_now(now) && self.shared.enforcing() {
            self.put_out_strays(now);
        }
    }

    /// One system call for each elevated thread.
    pub(super) fn put_out_strays(&mut self, now: Instant) {
        let here = CpuSet::only(self.cpu);
        let mut offenders = Vec::new();
        for entry in &mut self.entries {
            for charge in entry.charges.iter_mut().filter(|it| it.is_elevated()) {
                let cpus = self.shared.sys.sched_getaffinity(charge.tid);
                if cpus.is_ok_and(|cpus| Some(cpus) != here) {
                    let (tid, pid, cpu) = (charge.tid, entry.pid, self.cpu);
                    self.shared.eject(format!(
                        "thread {tid} of process {pid} is put out: it has left CPU {cpu}, to which it was registered"
                    ));
                    charge.bar(now + EJECTED);
                    offenders.push(entry.user);
                }
            }
        }
        // Of a CPU that is unplugged the kernel moves them, and this thread as well, before it says so.
        let is_here = rustix::thread::sched_getcpu() == self.cpu;
        if !offenders.is_empty() && is_here && self.shared.online().contains(&self.cpu) {
            offenders.sort_unstable();
            offenders.dedup();
            for user in offenders {
                self.shared.bars.punish(user, now);
            }
        }
    }
}
