//! The scheduler of one CPU: a thread that sleeps until a doorbell rings, reads the claims, and puts threads into bands.
//!
//! ```text
//!        ┌──────────────── sleeps ◀───────────────┐
//!  doorbell, mailbox, tick                        │
//!        ▼                                        │
//!   read claims ─▶ rank ─▶ publish standings ─▶ place what has changed ─▶ publish the CPU's line
//! ```
//!
//! It is pinned to its CPU and sits above everything it decides about, so a ring is a switch to it and back on one CPU, and
//! what it demotes stops before it goes on. All state of the CPU belongs to this thread; others put commands into its mailbox.
//!
//! System calls: the wait; one per thread whose band changes. While no band changes there is none but the wait. While two or more
//! vCPUs compete it wakes by itself twice in 36 ms (and each quantum if equals share an elevated band), and looks at what is
//! elevated: some µs. A cooperative daemon takes a turn each quantum then.
//!
//! | file | concern |
//! |---|---|
//! | `entrant.rs` | one vCPU: its claim, threads, doorbell |
//! | `placing.rs` | one thread: from band to policy |
//! | `scheduler.rs` | the loop |
//! | `watch.rs` | what takes more than its share |
//! | `strays.rs` | threads that have left the CPU |

mod entrant;
mod placing;
mod scheduler;
mod strays;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use entrant::{Entry, Tally};
pub(crate) use placing::{Charge, is_over};

use crate::config::Config;
use crate::shared::Shared;
use scheduler::Scheduler;

/// What the control thread asks of a CPU's scheduler.
#[derive(Debug)]
pub(crate) enum Command {
    /// A vCPU has joined.
    Join(Box<Entry>),
    /// The vCPU in this slot has left; answer when all is given back.
    Leave(usize, Latch),
    /// A thread of the vCPU in this slot was born.
    Born(usize, Charge),
    /// A thread of the vCPU in this slot is to be forgotten.
    Gone(usize, i32, Latch),
    /// Another ceiling of the vCPU in this slot, and whether its user is trusted.
    Ceiling(usize, u8, bool),
    /// Another configuration.
    Configure(Arc<Config>),
    /// Give everything back and end.
    Stop,
}

/// A signal from one thread to another, once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open; false if that takes too long.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (open, _) = self
            .0
            .1
            .wait_timeout_while(open, patience, |open| !*open)
            .unwrap_or_else(PoisonError::into_inner);
        *open
    }
}

/// Commands for one scheduler, and the bell that announces them.
#[derive(Debug)]
pub(crate) struct Mailbox {
    commands: Mutex<VecDeque<Command>>,
    bell: OwnedFd,
}

impl Mailbox {
    fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            commands: Mutex::default(),
            bell: upshift_board::os::doorbell()?,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, command: Command) {
        self.lock().push_back(command);
        // An eventfd that is open and does not block can always be rung.
        let _ = upshift_board::os::ring(self.bell.as_fd());
    }

    fn take(&self) -> Option<Command> {
        self.lock().pop_front()
    }
}

/// The control thread's handle of one CPU's scheduler. Dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct CpuScheduler {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl CpuScheduler {
    /// Starts the scheduler of `cpu`.
    pub(crate) fn start(cpu: usize, shared: &Arc<Shared>) -> io::Result<CpuScheduler> {
        let mailbox = Arc::new(Mailbox::new()?);
        let scheduler = Scheduler::new(cpu, Arc::clone(shared), Arc::clone(&mailbox))?;
        let thread = std::thread::Builder::new()
            .name(format!("upshift-cpu{cpu}"))
            .spawn(move || {
                let abort = AbortOnPanic;
                scheduler.run();
                std::mem::forget(abort);
            })?;
        Ok(CpuScheduler {
            mailbox,
            thread: Some(thread),
        })
    }

    pub(crate) fn tell(&self, command: Command) {
        self.mailbox.put(command);
    }
}

impl Drop for CpuScheduler {
    fn drop(&mut self) {
        self.mailbox.put(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It has ended in good order or aborted the process.
            let _ = thread.join();
        }
    }
}

/// A scheduler that panicked would leave its CPU as it is: better the process ends, and the guardian gives everything back.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}
