//! The queue of commands from other threads to a CPU's scheduler.
//!
//! A sender pushes a command under a short lock and writes the eventfd. The scheduler executes the
//! commands before it reads the claims.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::cpu::client_thread::ClientThread;
use crate::cpu::vcpu_entry::VcpuEntry;

#[derive(Debug)]
pub(crate) enum Command {
    Join(Box<VcpuEntry>),
    /// The vCPU in this slot has left. The latch opens when its threads are restored.
    Leave(usize, Latch),
    /// The vCPU in this slot has a new thread.
    ThreadAdded(usize, ClientThread),
    /// The thread with this TID has left the vCPU in this slot. The latch opens when the thread is
    /// restored.
    ThreadRemoved(usize, i32, Latch),
    /// Sets the ceiling of the vCPU in this slot, and whether its user is trusted.
    Ceiling(usize, u8, bool),
    Configure(Arc<Config>),
    /// Restores all threads and ends the scheduler.
    Stop,
}

/// A one-time event that a thread can wait for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits until the latch is open. Returns `false` if `timeout` passes first.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (open, _) = self
            .0
            .1
            .wait_timeout_while(open, timeout, |open| !*open)
            .unwrap_or_else(PoisonError::into_inner);
        *open
    }
}

#[derive(Debug)]
pub(super) struct Mailbox {
    commands: Mutex<VecDeque<Command>>,
    pub(super) eventfd: OwnedFd,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            commands: Mutex::default(),
            eventfd: upshift_board::os::doorbell()?,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, command: Command) {
        self.lock().push_back(command);
        // Writing a non-blocking eventfd fails only if its counter is full, and then the scheduler
        // is woken as well.
        let _ = upshift_board::os::ring(self.eventfd.as_fd());
    }

    pub(super) fn take(&self) -> Option<Command> {
        self.lock().pop_front()
    }
}
