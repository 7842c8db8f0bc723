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
//! System calls: the wait; one per thread whose band changes. While no band changes there is
//! none but the wait. While two or more vCPUs compete it wakes by itself once in 36 ms (and each
//! quantum if equals share an elevated band), and looks at the elevated threads: some µs. A
//! cooperative daemon takes a turn each quantum then.
//!
//! | file | concern |
//! |---|---|
//! | `entrant.rs` | one vCPU: its claim, threads, doorbell |
//! | `mailbox.rs` | what other threads ask of it |
//! | `placing.rs` | one thread: from band to policy |
//! | `scheduler.rs` | the loop |
//! | `watch.rs` | looks at elevated threads: more than their share is taken back |
//! | `share.rs` | CPU time that ordinary programs are owed: pure |
//! | `dispatchers.rs` | the budget of dispatchers: pure |

mod dispatchers;
mod entrant;
mod mailbox;
mod placing;
mod scheduler;
mod share;
mod watch;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(crate) use entrant::{Entry, Tally};
pub(crate) use mailbox::{Command, Latch};
pub(crate) use placing::{Charge, is_over};

use crate::abort::AbortOnPanic;
use crate::shared::Shared;
use mailbox::Mailbox;
use scheduler::Scheduler;

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
