//! The canary: whether ordinary threads get to run, on every CPU, whatever it is that keeps them from it.
//!
//! ```text
//!   Calm ──silent for 80 ms──▶ Local ─answers─▶ Examined ──▶ Calm      Local: what is elevated on the silent CPUs is demoted
//!                                │ 10 ms            ▲                   Global: what is elevated anywhere is
//!                                ▼                  │                   Examined: culprits are found and barred, the others
//!                              Global ───answers────┘                             are elevated again; without culprits all
//!                                                                                rest, demoted, for a second
//!                                │ 10 ms
//!                                ▼
//!                              Foreign ─answers─▶ Calm                  Foreign: it was none of ours
//! ```
//!
//! While any thread is recorded for elevation, the *watch*, above everything else of the daemon, asks the canary of each CPU every
//! 20 ms to answer. A canary is pinned to its CPU, at the lowest priority of SCHED_FIFO: what keeps it from running keeps every ordinary
//! thread from running, and nothing else does. (An ordinary thread would be silent too where many ordinary threads compete
//! for what the elevated leave: beside a compiler in every second run of the tests.) One that has not answered for 80 ms has been kept from
//! its CPU for up to 100 ms ([`ROUND`] + [`PATIENCE`]), which the rules do not allow, so all that is elevated there is demoted at once.
//! What is elevated without the daemon's knowledge can only borrow from what is elevated with it (priority inheritance), maybe on
//! another CPU; so if the canary goes on being silent, all threads are demoted, everywhere.
//!
//! For a silence the watch trusts no account, the daemon's own included, and it takes no part in any decision. Its sign of life is also
//! the daemon's heartbeat for the guardian, which demotes all threads if the whole daemon is stopped.
//!
//! A canary that is late nearly always for half a second, with less elevated than that takes, shows the same; then nothing is demoted before
//! the culprits are known (`odds.rs`). What the host of a virtual machine takes is in `/proc/stat`, which is read twice a second. Therefore a round lasts 10 to 20 ms, as it happens.
//!
//! A round costs a wait, and a wake of each canary: some 15 µs a CPU. While none is recorded the watch sleeps.
//!
//! | file | concern |
//! |---|---|
//! | `thread.rs` | one CPU's canary |
//! | `alarm.rs` | what happens when one is silent |
//! | `inquiry.rs` | what scouts find then |
//! | `suspicion.rs` | what follows if that is not enough |
//! | `odds.rs` | whether one is nearly always late, though never silent for long |

mod alarm;
mod inquiry;
mod odds;
mod suspicion;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use alarm::Alarm;
use thread::Canary;

use crate::abort::AbortOnPanic;
use crate::draw::Draw;
use crate::shared::{HEARTBEAT, Shared, WATCH};

/// The longest time between two questions: a fifth of what the daemon may be silent itself.
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
        let mut canaries = Canaries {
            shared: Arc::clone(shared),
            stop: Arc::clone(&stop),
            all: Vec::new(),
            alarm: Alarm::default(),
            counted: Instant::now(),
            draw: Draw::default(),
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
    alarm: Alarm,
    /// When the CPUs were counted last.
    counted: Instant,
    draw: Draw,
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
            if self.shared.roster.is_empty() && self.alarm.is_over() {
                std::thread::park();
                // What was asked before the sleep was not meant for now.
                let now = Instant::now();
                let explained = self.shared.accounts.explained();
                for canary in &mut self.all {
                    drop(self.shared.accounts.take_unknown(canary.cpu));
                    canary.start_over(&self.shared.accounts, explained(canary.cpu), now);
                }
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
            self.alarm.step(&self.shared, &mut self.all, now);
            std::thread::park_timeout(if self.alarm.is_over() {
                ROUND.mul_f64(0.5 + 0.5 * self.draw.next())
            } else {
                HURRY
            });
        }
        self.shared.roster.resume();
    }

    /// A canary for each CPU that has none. One whose CPU has gone answers elsewhere, and goes back when it returns.
    fn add_missing(&mut self) -> io::Result<()> {
        for cpu in self.shared.online() {
            if !self.all.iter().any(|canary| canary.cpu == cpu) {
                let explained = self.shared.accounts.explained()(cpu);
                self.all.push(Canary::new(cpu, explained, &self.shared)?);
            }
        }
        Ok(())
    }
}
