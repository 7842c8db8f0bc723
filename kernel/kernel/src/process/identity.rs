//! The part of a process that other processes access: its number, parent, status and waiters.
//!
//! It outlives the program: see [`super`].

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;

use super::{Process, Share};
use crate::arch::lock::IrqLock;
use crate::waiters::{Awaited, Waiters};

pub(crate) struct ExitState {
    pub(super) status: Option<isize>,
    /// Number of calls whose coroutines exist. Waiters wait until these have ended and released
    /// their files.
    calls: usize,
    /// True while the process counts among the live processes of its share.
    is_counted: bool,
    pub(super) waiters: Waiters,
}

impl Awaited for ExitState {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl ExitState {
    /// Returns the status, after all calls have ended.
    pub(super) fn final_status(&self) -> Option<isize> {
        self.status.filter(|_| self.calls == 0)
    }
}

/// Counts a call in flight; dropped after all other resources of the call.
pub(crate) struct CallGuard(Arc<Process>);

impl CallGuard {
    pub(crate) fn new(process: Arc<Process>) -> CallGuard {
        process.identity.exit_state.lock().calls += 1;
        CallGuard(process)
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.identity.change(|exit_state| exit_state.calls -= 1);
    }
}

/// The part of a process that other processes access.
pub(crate) struct Identity {
    /// Number of the process: slot in the table plus a generation.
    pub(crate) number: usize,
    /// Number of the process that may wait for this one, or 0 if there is none.
    pub(super) parent: AtomicUsize,
    pub(super) exit_state: IrqLock<ExitState>,
    pub(super) share: Arc<Share>,
    /// Set for the process that was created together with its share. When this process ends, all
    /// other processes in the share are killed.
    pub(super) owns_share: bool,
}

impl Identity {
    pub(super) fn new(
        number: usize,
        parent: usize,
        share: Arc<Share>,
        owns_share: bool,
    ) -> Arc<Identity> {
        Arc::new(Identity {
            number,
            parent: AtomicUsize::new(parent),
            share,
            owns_share,
            exit_state: IrqLock::new(ExitState {
                status: None,
                calls: 0,
                is_counted: false,
                waiters: Waiters::new(),
            }),
        })
    }

    pub(super) fn parent(&self) -> usize {
        self.parent.load(SeqCst)
    }

    /// Sets the status of an ended process. Called once.
    pub(super) fn set_status(&self, status: isize) {
        self.change(|exit_state| exit_state.status = Some(status));
    }

    /// Counts the process among the live processes of its share from now on.
    pub(super) fn count_as_live(&self) {
        self.exit_state.lock().is_counted = true;
        self.share.add_process();
    }

    /// Changes the exit state, and wakes its waiters if the process has ended.
    fn change(&self, change: impl FnOnce(&mut ExitState)) {
        let mut exit_state = self.exit_state.lock();
        change(&mut exit_state);
        if exit_state.status.is_none() {
            return;
        }
        let was_counted =
            exit_state.final_status().is_some() && core::mem::take(&mut exit_state.is_counted);
        let waiters = exit_state.waiters.take();
        drop(exit_state);
        waiters.wake();
        if was_counted {
            self.share.remove_process();
        }
    }
}
