//! What a process is to others: its number, its parent, its status, who waits for it.
//!
//! It outlives the program: see [`super`].

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;

use super::Process;
use crate::arch::lock::IrqLock;
use crate::waiters::{Awaited, Waiters};

/// How a process stands towards those who wait for it.
pub(crate) struct Life {
    /// The status, once it has ended.
    pub(super) status: Option<isize>,
    /// Calls whose coroutines exist. It is waited for until they are gone, and
    /// with them the files they use.
    calls: usize,
    pub(super) waiters: Waiters,
}

impl Awaited for Life {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Life {
    /// The status, once nothing is left of the process.
    pub(super) fn over(&self) -> Option<isize> {
        self.status.filter(|_| self.calls == 0)
    }
}

/// A call in flight; dropped last of all that the call has.
pub(crate) struct Flight(Arc<Process>);

impl Flight {
    /// A call of the process begins.
    pub(crate) fn new(process: Arc<Process>) -> Flight {
        process.identity.life.lock().calls += 1;
        Flight(process)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut life = self.0.identity.life.lock();
        life.calls -= 1;
        if life.over().is_none() {
            return;
        }
        let waiters = life.waiters.take();
        drop(life);
        waiters.wake();
    }
}

/// What a process is to others.
pub(crate) struct Identity {
    /// Its number: place in the table plus a generation.
    pub(crate) number: usize,
    /// Who may wait for it; 0: nobody.
    pub(super) parent: AtomicUsize,
    pub(super) life: IrqLock<Life>,
}

impl Identity {
    pub(super) fn new(number: usize, parent: usize) -> Arc<Identity> {
        Arc::new(Identity {
            number,
            parent: AtomicUsize::new(parent),
            life: IrqLock::new(Life {
                status: None,
                calls: 0,
                waiters: Waiters::new(),
            }),
        })
    }
}
