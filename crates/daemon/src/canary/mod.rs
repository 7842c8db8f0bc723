//! The canary: whether ordinary threads get to run, on every CPU, whatever it is that keeps them from it.
//!
//! ```text
//!   Calm ──silent for 80 ms──▶ Local ──sings──▶ Examined ──▶ Calm      Local: what is elevated on the silent CPUs is demoted
//!                                │ 10 ms            ▲                   Global: what is elevated anywhere is
//!                                ▼                  │                   Examined: culprits are found and barred, the others
//!                              Global ────sings─────┘                             are elevated again
//!                                │ 10 ms
//!                                ▼
//!                              Foreign ──sings──▶ Calm                  Foreign: it was none of ours
//! ```
//!
//! While any thread is recorded for elevation, the *watch*, above everything else of the daemon, asks the canary of each CPU every
//! 20 ms to sing. A canary is pinned to its CPU, at the lowest priority of SCHED_FIFO: what keeps it from running keeps every ordinary
//! thread from running, and nothing else does. (An ordinary thread would be silent too where many ordinary threads compete
//! for what the elevated leave: beside a compiler in every second run of the tests.) One that has not sung for 80 ms has been kept from
//! its CPU for up to 100 ms ([`ROUND`] + [`PATIENCE`]), which the rules do not allow, so all that is elevated there is demoted at once.
//! What is elevated without the daemon's knowledge can only borrow from what is elevated with it (priority inheritance), maybe on
//! another CPU; so if the canary goes on being silent, all threads are demoted, everywhere.
//!
//! The watch trusts no account, the daemon's own included, and takes no part in any decision. Its sign of life is also
//! the daemon's heartbeat for the guardian, which demotes all threads if the whole daemon is stopped.
//!
//! A round costs a wait, and a wake of each canary: some 15 µs a CPU. While none is recorded the watch sleeps.
//!
//! | file | concern |
//! |---|---|
//! | `cage.rs` | one CPU's canary |
//! | `alarm.rs` | what happens when one is silent |

mod alarm;
mod cage;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::abort::AbortOnPanic;
use crate::shared::{HEARTBEAT, Shared, WATCH};

use alarm::Alarm;
use cage::Cage;

/// Time between two questions: a fifth of what the daemon may be silent itself.
const ROUND: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 / 5);

/// How long a canary may be silent after a question.
const PATIENCE: Duration = HEARTBEAT.saturating_sub(ROUND);

/// Time between two looks during an alarm.
const HURRY: Duration = Duration::from_millis(2);

/// How often CPUs that have come are looked for.
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
        let mut aviary = Aviary {
            shared: Arc::clone(shared),
            stop: Arc::clone(&stop),
            cages: Vec::new(),
            alarm: Alarm::default(),
            counted: Instant::now(),
        };
        aviary.add_cages()?;
        let thread = std::thread::Builder::new()
            .name("upshift-watch".into())
            .spawn(move || {
                let abort = AbortOnPanic;
                aviary.run();
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
struct Aviary {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    cages: Vec<Cage>,
    alarm: Alarm,
    /// When the CPUs were counted last.
    counted: Instant,
}

impl Aviary {
    fn run(mut self) {
        let elevator = self.shared.elevator.as_ref();
        let own = elevator.map(|elevator| elevator.elevate_current(WATCH));
        if let Some(Err(error)) = &own {
            self.shared.complain("rise", || error.to_string());
        }
        self.shared.roster.is_watched_by_this_thread();
        while !self.stop.load(Acquire) {
            if self.shared.roster.is_empty() && self.alarm.is_over() {
                std::thread::park();
                // What was asked before the sleep was not meant for now.
                let now = Instant::now();
                self.cages.iter_mut().for_each(|cage| cage.ask(now));
                continue;
            }
            if let Some(elevator) = &self.shared.elevator {
                elevator.beat();
            }
            let now = Instant::now();
            if now - self.counted >= CPUS {
                self.counted = now;
                if let Err(error) = self.add_cages() {
                    let text = || format!("a CPU has no canary: {error}");
                    self.shared.complain("canary", text);
                }
            }
            self.alarm.step(&self.shared, &mut self.cages, now);
            std::thread::park_timeout(if self.alarm.is_over() { ROUND } else { HURRY });
        }
        self.shared.roster.resume();
    }

    /// A canary for each CPU that has none. One whose CPU has gone sings elsewhere, and goes back when it returns.
    fn add_cages(&mut self) -> io::Result<()> {
        for cpu in self.shared.online() {
            if !self.cages.iter().any(|cage| cage.cpu == cpu) {
                self.cages.push(Cage::new(cpu, &self.shared)?);
            }
        }
        Ok(())
    }
}
