//! Commands of other threads to a CPU's scheduler.
//!
//! A command is pushed under a short lock, then the eventfd is written; the scheduler takes
//! commands between two turns.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::config::Config;
use crate::cpu::client_thread::ClientThread;
use crate::cpu::vcpu_entry::VcpuEntry;

/// A command of the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// A vCPU has joined.
    Join(Box<VcpuEntry>),
    /// The vCPU in this slot has left; the latch opens when its threads are restored.
    Leave(usize, Latch),
    /// A thread of the vCPU in this slot was born.
    ThreadAdded(usize, ClientThread),
    /// A thread of the vCPU in this slot is to be forgotten.
    ThreadRemoved(usize, i32, Latch),
    /// A new ceiling of the vCPU in this slot, and whether its user is trusted.
    Ceiling(usize, u8, bool),
    /// A new configuration.
    Configure(Arc<Config>),
    /// Restore all threads and end.
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

    /// Waits until the latch is open; `false` after `timeout`.
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

/// Commands for one scheduler, and the eventfd that announces them.
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
        // An eventfd that is open and does not block can always be rung.
        let _ = upshift_board::os::ring(self.eventfd.as_fd());
    }

    pub(super) fn take(&self) -> Option<Command> {
        self.lock().pop_front()
    }
}
