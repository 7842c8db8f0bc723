//! The scheduler of one CPU: a thread that sleeps until a doorbell rings, reads the claims, and
//! puts threads into bands.
//!
//! ```text
//!        ┌──────────────── sleeps ◀───────────────┐
//!  doorbell, mailbox, tick                        │
//!        ▼                                        │
//!   read claims ─▶ rank ─▶ publish standings ─▶ move threads ─▶ publish the CPU's line
//! ```
//!
//! It is pinned to its CPU and runs above all threads that it decides about, so a ring switches to
//! it and back on one CPU, and a thread that it demotes does not run meanwhile. All state of the
//! CPU belongs to this thread; other threads put commands into its mailbox.
//!
//! System calls: the wait, and one for each thread whose band changes. While two or more vCPUs
//! compete it wakes once in 36 ms (and each quantum if equals share an elevated band), and checks
//! the elevated threads, which takes some µs. A cooperative daemon takes a turn each quantum then.
//!
//! | file | concern |
//! |---|---|
//! | `vcpu_entry.rs` | one vCPU: its claim, threads, doorbell |
//! | `mailbox.rs` | commands of other threads |
//! | `client_thread.rs` | one thread: from band to policy |
//! | `scheduler.rs` | the loop |
//! | `monitor.rs` | checks of elevated threads: limits them to their share |
//! | `share.rs` | CPU time that ordinary programs are owed: pure |
//! | `dispatchers.rs` | the budget of dispatchers: pure |

mod client_thread;
mod dispatchers;
mod mailbox;
mod monitor;
mod scheduler;
mod share;
mod vcpu_entry;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(crate) use client_thread::{ClientThread, is_gone};
pub(crate) use mailbox::{Command, Latch};
pub(crate) use vcpu_entry::{VcpuCounters, VcpuEntry};

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

    pub(crate) fn send(&self, command: Command) {
        self.mailbox.put(command);
    }
}

impl Drop for CpuScheduler {
    fn drop(&mut self) {
        self.mailbox.put(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // The thread has ended normally, or aborted the process.
            let _ = thread.join();
        }
    }
}
