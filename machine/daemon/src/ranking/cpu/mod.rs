//! The scheduler of one CPU. It is a thread that sleeps until a doorbell rings, reads the claims of
//! the vCPUs (the levels that they have published), and moves their threads into bands.
//!
//! ```text
//!        ┌──────────────── sleeps ◀───────────────┐
//!  doorbell, mailbox, tick                        │
//!        ▼                                        │
//!   read claims ─▶ rank ─▶ publish standings ─▶ move threads ─▶ publish the CPU's line
//! ```
//!
//! The *line* of a CPU is the part of the global page that names the vCPU that runs first on it.
//!
//! The scheduler is pinned to its CPU and runs above all threads that it schedules. So a ring
//! causes two switches on one CPU, and a thread does not run while the scheduler demotes it. All
//! state of the CPU belongs to the scheduler; other threads put commands into its mailbox.
//!
//! An iteration makes a system call for its wait, and one for each thread whose band changes. While
//! vCPUs compete, the scheduler wakes every 36 ms (and each quantum if vCPUs of equal level share
//! an elevated band) to check the elevated threads, which takes some µs. In cooperative mode it
//! instead wakes each quantum.
//!
//! | file | concern |
//! |---|---|
//! | `vcpu_entry.rs` | one vCPU: its claim, threads, doorbell |
//! | `mailbox.rs` | commands from other threads |
//! | `client_thread.rs` | one thread: its band as a policy |
//! | `scheduler.rs` | the loop |
//! | `monitor.rs` | periodic checks, which limit elevated threads to their share |
//! | `share.rs` | the debt of CPU time to ordinary programs |
//! | `dispatchers.rs` | the budget of dispatchers |

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

    /// Queues a command for the scheduler, and wakes it.
    pub(crate) fn send(&self, command: Command) {
        self.mailbox.put(command);
    }
}

impl Drop for CpuScheduler {
    fn drop(&mut self) {
        self.mailbox.put(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has aborted the process, so the thread has ended normally.
            let _ = thread.join();
        }
    }
}
