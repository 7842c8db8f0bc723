//! What runs in a process: its registers, and how long it may go on.

use alloc::boxed::Box;
use alloc::sync::Arc;

use os_abi::shared::{DRAINING, HANDLER};

use super::Process;
use crate::arch::trap::UserContext;
use crate::memory::space::SharedPage;

/// See [`super`].
pub(crate) struct Thread {
    /// Whose it is.
    pub(crate) process: Arc<Process>,
    /// Its registers while it does not run.
    pub(crate) context: UserContext,
    /// Ticks left of its quantum, while it does not run.
    pub(crate) quantum: u64,
    /// When its quantum ends, while it runs.
    pub(crate) until: u64,
    /// What a user interrupt has interrupted.
    pub(crate) interrupted: Option<Box<UserContext>>,
}

impl Thread {
    /// Delivers a user interrupt that is pending: the thread goes on in the
    /// handler its program has named, and what it was doing is kept for
    /// [`Thread::return_from_interrupt`]. Not while the program drains its ring,
    /// nor in the handler: then it looks by itself.
    pub(crate) fn deliver_interrupt(&mut self, page: &SharedPage) {
        // In the handler it stays pending until that has ended.
        if self.interrupted.is_some() || !self.process.take_interrupt() {
            return;
        }
        let handler = page.load(HANDLER) as usize;
        if handler == 0 || page.load(DRAINING) != 0 {
            return;
        }
        self.interrupted = Some(Box::new(self.context.clone()));
        self.context.enter_handler(handler);
    }

    /// Back to what was interrupted. False: nothing was.
    pub(crate) fn return_from_interrupt(&mut self) -> bool {
        let interrupted = self.interrupted.take();
        let some = interrupted.is_some();
        if let Some(interrupted) = interrupted {
            self.context = *interrupted;
        }
        some
    }
}
