//! The part of a process that other processes see: its number, parent, status and waiters.
//!
//! It outlives the program: see [`super`].

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;

use super::{Process, Share};
use crate::arch::lock::IrqLock;
use crate::waiters::{Awaited, Waiters};

/// State of a process towards its waiters.
pub(crate) struct Life {
    /// The status, once it has ended.
    pub(super) status: Option<isize>,
    /// Number of calls whose coroutines exist. Waiters wait until these are gone, and with them the
    /// files they use.
    calls: usize,
    /// True while the process counts among the living of its share.
    counts: bool,
    pub(super) waiters: Waiters,
}

impl Awaited for Life {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Life {
    /// Returns the status, once nothing is left of the process.
    pub(super) fn over(&self) -> Option<isize> {
        self.status.filter(|_| self.calls == 0)
    }
}

/// A call in flight; dropped last of all that the call has.
pub(crate) struct Flight(Arc<Process>);

impl Flight {
    /// Begins a call of the process.
    pub(crate) fn new(process: Arc<Process>) -> Flight {
        process.identity.life.lock().calls += 1;
        Flight(process)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.identity.change(|life| life.calls -= 1);
    }
}

/// The part of a process that other processes see.
pub(crate) struct Identity {
    /// Number of the process: place in the table plus a generation.
    pub(crate) number: usize,
    /// The process that may wait for this one; 0: none.
    pub(super) parent: AtomicUsize,
    pub(super) life: IrqLock<Life>,
    /// Limits of the process, together with all others in that share.
    pub(super) share: Arc<Share>,
    /// The share is over when it ends.
    pub(super) begins_share: bool,
}

impl Identity {
    pub(super) fn new(
        number: usize,
        parent: usize,
        share: Arc<Share>,
        begins_share: bool,
    ) -> Arc<Identity> {
        Arc::new(Identity {
            number,
            parent: AtomicUsize::new(parent),
            share,
            begins_share,
            life: IrqLock::new(Life {
                status: None,
                calls: 0,
                counts: false,
                waiters: Waiters::new(),
            }),
        })
    }

    /// Returns the number of the process that may wait for this one; 0: none.
    pub(super) fn parent(&self) -> usize {
        self.parent.load(SeqCst)
    }

    /// Notes that the process has ended with a status; called once.
    pub(super) fn ended(&self, status: isize) {
        self.change(|life| life.status = Some(status));
    }

    /// Counts the process among the living of its share from now on.
    pub(super) fn counts(&self) {
        self.life.lock().counts = true;
        self.share.one_more();
    }

    /// Changes something that others may wait for.
    fn change(&self, change: impl FnOnce(&mut Life)) {
        let mut life = self.life.lock();
        change(&mut life);
        if life.status.is_none() {
            return;
        }
        let counted = life.over().is_some() && core::mem::take(&mut life.counts);
        let waiters = life.waiters.take();
        drop(life);
        waiters.wake();
        if counted {
            self.share.one_less();
        }
    }
}
