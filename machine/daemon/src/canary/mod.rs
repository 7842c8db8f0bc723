//! The canary: whether ordinary threads get to run on every CPU, in all cases that other rules
//! miss.
//!
//! While any thread is recorded for elevation, the *watch*, above everything else of the daemon,
//! asks the canary of each CPU every 20 ms to answer. A canary is pinned to its CPU, at the
//! lowest priority of SCHED_FIFO: a cause that keeps a canary from running keeps every ordinary
//! thread from running, and nothing else does. (An ordinary thread would be silent too where
//! many ordinary threads compete for the time that elevated ones leave.)
//!
//! A canary that is silent for 80 ms ([`PATIENCE`]) has been kept from its CPU for up to 100 ms,
//! so everything elevated there becomes ordinary for a second; if that does not help within 20
//! ms, everything on all CPUs does, because a priority may be lent from another CPU (priority
//! inheritance). `rule.rs` has the rule. No user is blamed: demoting everybody needs no proof.
//!
//! The watch trusts no account, the daemon's own included, and takes no part in any other
//! decision. Its sign of life is also the daemon's heartbeat for the guardian, which demotes all
//! threads if the whole daemon is stopped.
//!
//! A round costs a wait, and a wake of each canary: some 15 µs per CPU. While no thread is
//! recorded, the watch sleeps.
//!
//! | file | concern |
//! |---|---|
//! | `rule.rs` | when threads rest, and for how long: pure |
//! | `thread.rs` | one CPU's canary |

mod rule;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rule::{Heard, Rest};
use thread::Canary;

use crate::abort::AbortOnPanic;
use crate::ranking::roster::{Hold, Resting};
use crate::shared::{HEARTBEAT, Shared, WATCH};

/// Time between two questions: a fifth of the time that the daemon itself may be silent.
const ROUND: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 / 5);

/// How long a canary may be silent after a question.
const PATIENCE: Duration = HEARTBEAT.saturating_sub(ROUND);

/// Time between two searches for new CPUs.
const CPUS: Duration = Duration::from_millis(500);

/// The watch's thread. Dropping it ends it and the canaries.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the canaries of all CPUs and their watch.
    ///
    /// # Errors
    /// No threads are left.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut canaries = Canaries {
            shared: Arc::clone(shared),
            stop: Arc::clone(&stop),
            all: Vec::new(),
            resting: Resting::default(),
            counted: Instant::now(),
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
        Ok(Watch { stop, thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The watch's side.
struct Canaries {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    all: Vec<Canary>,
    /// Threads that rest now.
    resting: Resting,
    /// When the CPUs were counted last.
    counted: Instant,
}

impl Canaries {
    fn run(mut self) {
        let elevator = self.shared.elevator.as_ref();
        let _own = elevator.and_then(|elevator| match elevator.elevate_current(WATCH) {
            Ok(own) => Some(own),
            Err(error) => {
                self.shared.complain("rise", || error.to_string());
                None
            }
        });
        self.shared.roster.is_watched_by_this_thread();
        while !self.stop.load(Acquire) {
            if self.shared.roster.is_empty() && self.resting == Resting::default() {
                std::thread::park();
                // Questions from before the sleep do not count.
                let now = Instant::now();
                self.all.iter_mut().for_each(|it| it.start_over(now));
                continue;
            }
            if let Some(elevator) = &self.shared.elevator {
                elevator.beat();
            }
            let now = Instant::now();
            if now - self.counted >= CPUS {
                self.counted = now;
                if let Err(error) = self.add_missing() {
                    let text = || format!("a CPU has no canary: {error}");
                    self.shared.complain("canary", text);
                }
            }
            self.listen(now);
            std::thread::park_timeout(ROUND);
        }
        self.shared.roster.rest(Resting::default());
    }

    /// Listens to all canaries, and has the threads rest that the rule names.
    fn listen(&mut self, now: Instant) {
        let shared = &self.shared;
        let mut resting = Resting::default();
        for canary in &mut self.all {
            let before = canary.rest();
            let heard = canary.listen(|| shared.roster.any(Hold::is_up), now);
            let cpu = canary.cpu;
            if let Heard::Alarm(rest) = heard {
                let (still, there) = match before {
                    Rest::Calm => ("", "there"),
                    Rest::Here | Rest::Everywhere => (" even then", "on all CPUs"),
                };
                if before == Rest::Calm {
                    shared.counts.alarms.fetch_add(1, Relaxed);
                }
                let ms = rest.as_millis();
                shared.log.say(format!(
                    "ordinary programs did not run on CPU {cpu}{still}: everything elevated {there} is ordinary for {ms} ms"
                ));
            }
            match canary.rest() {
                Rest::Calm => {}
                Rest::Here => {
                    resting.cpus.insert(cpu);
                }
                Rest::Everywhere => resting.everywhere = true,
            }
        }
        if resting != self.resting {
            self.resting = resting.clone();
            shared.roster.rest(resting);
        }
    }

    /// Adds a canary for each CPU that has none. A canary whose CPU has gone answers elsewhere,
    /// and goes back when the CPU returns.
    fn add_missing(&mut self) -> io::Result<()> {
        for cpu in self.shared.online() {
            if !self.all.iter().any(|canary| canary.cpu == cpu) {
                self.all.push(Canary::new(cpu, &self.shared)?);
            }
        }
        Ok(())
    }
}
