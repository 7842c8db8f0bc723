//! Detects that real-time threads keep all ordinary threads from a CPU. The detection covers all
//! cases that other rules miss. The *canary* of a CPU is a thread that answers questions, and that
//! cannot answer while real-time threads occupy its CPU. The *monitor* is the thread that asks the
//! questions.
//!
//! While any thread is recorded for elevation, the monitor, above all other threads of the daemon,
//! checks the canary of each CPU every 20 ms, and asks again if the canary has answered. A canary
//! is pinned to its CPU, at the lowest priority of SCHED_FIFO. So exactly the causes that keep
//! every ordinary thread from running keep the canary from running. (An ordinary thread would also
//! be silent while many ordinary threads compete for the time that elevated threads leave.)
//!
//! A canary that is silent for 80 ms ([`MAX_SILENCE`]) has been kept from its CPU for up to 100 ms,
//! so all threads that are elevated on this CPU become ordinary for a second. If the canary is
//! still silent 20 ms later, all threads on all CPUs become ordinary, because a priority may be
//! lent from another CPU (priority inheritance). `rule.rs` contains the rule. No user is blamed,
//! because demoting all threads needs no proof.
//!
//! The monitor depends on no other accounting, not even the daemon's own, and takes no part in
//! other decisions. Its heartbeat is the daemon's heartbeat for the guardian, which demotes all
//! threads if the whole daemon is stopped.
//!
//! While no thread is recorded, the monitor sleeps. Otherwise each round costs a wait and a wake-up
//! of each canary.
//!
//! | file | concern |
//! |---|---|
//! | `rule.rs` | time and length of demotions |
//! | `thread.rs` | the canary of one CPU |

mod rule;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rule::{Check, Demotion};
use thread::Canary;

use crate::abort::AbortOnPanic;
use crate::ranking::roster::{RosterEntry, Suspension};
use crate::shared::{HEARTBEAT, MONITOR, Shared};

/// Time between two checks of the canaries, which is a fifth of the daemon's heartbeat.
const ROUND: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 / 5);

/// Maximum silence of a canary after a question.
const MAX_SILENCE: Duration = HEARTBEAT.saturating_sub(ROUND);

/// Time between two searches for CPUs that have no canary.
const CPU_SCAN_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Monitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Monitor> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut canaries = Canaries {
            shared: Arc::clone(shared),
            stop: Arc::clone(&stop),
            canaries: Vec::new(),
            suspension: Suspension::default(),
            scanned_at: Instant::now(),
        };
        canaries.add_missing()?;
        let thread = std::thread::Builder::new()
            .name("upshift-watch".into())
            .spawn(move || {
                let abort = AbortOnPanic;
                canaries.run();
                std::mem::forget(abort);
            })?;
        let thread = Some(thread);
        Ok(Monitor { stop, thread })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct Canaries {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    canaries: Vec<Canary>,
    suspension: Suspension,
    scanned_at: Instant,
}

impl Canaries {
    fn run(mut self) {
        let elevator = self.shared.elevator.as_ref();
        let _own = elevator.and_then(|elevator| match elevator.elevate_current(MONITOR) {
            Ok(own) => Some(own),
            Err(error) => {
                self.shared.warn("elevate", || error.to_string());
                None
            }
        });
        self.shared.roster.set_monitor_to_this_thread();
        while !self.stop.load(Acquire) {
            if self.shared.roster.is_empty() && self.suspension == Suspension::default() {
                std::thread::park();
                // Answers from before the sleep do not count.
                let now = Instant::now();
                self.canaries
                    .iter_mut()
                    .for_each(|canary| canary.restart(now));
                continue;
            }
            if let Some(elevator) = &self.shared.elevator {
                elevator.beat();
            }
            let now = Instant::now();
            if now - self.scanned_at >= CPU_SCAN_INTERVAL {
                self.scanned_at = now;
                if let Err(error) = self.add_missing() {
                    let text = || format!("a CPU has no canary: {error}");
                    self.shared.warn("canary", text);
                }
            }
            self.check(now);
            std::thread::park_timeout(ROUND);
        }
        self.shared.roster.suspend(Suspension::default());
    }

    fn check(&mut self, now: Instant) {
        let shared = &self.shared;
        let mut suspension = Suspension::default();
        for canary in &mut self.canaries {
            let old_demotion = canary.demotion();
            let check = canary.check(|| shared.roster.any(RosterEntry::is_raised), now);
            let cpu = canary.cpu;
            if let Check::Alarm(length) = check {
                let (still, there) = match old_demotion {
                    Demotion::None => ("", "there"),
                    Demotion::Here | Demotion::Everywhere => (" even then", "on all CPUs"),
                };
                if old_demotion == Demotion::None {
                    shared.counts.alarms.fetch_add(1, Relaxed);
                }
                let ms = length.as_millis();
                shared.log.say(format!(
                    "ordinary programs did not run on CPU {cpu}{still}: everything elevated {there} is ordinary for {ms} ms"
                ));
            }
            match canary.demotion() {
                Demotion::None => {}
                Demotion::Here => {
                    suspension.cpus.insert(cpu);
                }
                Demotion::Everywhere => suspension.everywhere = true,
            }
        }
        if suspension != self.suspension {
            self.suspension = suspension.clone();
            shared.roster.suspend(suspension);
        }
    }

    /// Adds a canary for each CPU that has none. A canary whose CPU is unplugged answers on another
    /// CPU, and returns to its own CPU when this CPU is back.
    fn add_missing(&mut self) -> io::Result<()> {
        for cpu in self.shared.online_cpus() {
            if !self.canaries.iter().any(|canary| canary.cpu == cpu) {
                self.canaries.push(Canary::new(cpu, &self.shared)?);
            }
        }
        Ok(())
    }
}
