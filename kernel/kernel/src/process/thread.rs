//! A thread: its registers, its level, and its time.

use alloc::boxed::Box;
use alloc::sync::Arc;

use os_abi::shared::{DRAINING, HANDLER};
use os_abi::thread::{CRITICAL, LOCAL_BITMAP, YIELD_REQUESTED};
use upshift_core::Level;

use super::Process;
use crate::arch::csr;
use crate::arch::trap::{Fault, Interrupted, UserContext};
use crate::memory::pagetable::Access;
use crate::memory::space::AddressSpace;
use crate::memory::user::UserSlice;
use crate::run_queue::QueueSlot;
use crate::trace::{self, TraceState};
use crate::{clock, executor, switching};

/// Grace of a thread in a critical section after its quantum, in microseconds.
const GRACE_MICROS: u64 = 100;

/// `scause` of faults that a missing mapping may cause.
const LOAD_PAGE_FAULT: usize = 13;
const STORE_PAGE_FAULT: usize = 15;

pub(crate) struct Thread {
    pub(crate) process: Arc<Process>,
    /// Index among the threads of the process.
    pub(crate) line: usize,
    pub(crate) queue_slot: QueueSlot,
    /// Registers while the thread does not run.
    pub(crate) context: UserContext,
    /// Level that the program has set.
    pub(crate) own_level: Level,
    /// Level to which the thread is raised until it has handled a user interrupt or a completion.
    pub(crate) raised: Level,
    /// Effective level: the most urgent of `own_level`, `raised`, and the lent level
    /// (`lending.rs`).
    pub(crate) level: Level,
    /// Remaining ticks of the quantum, while the thread does not run.
    pub(crate) quantum_left: u64,
    /// End of the quantum, in ticks, while the thread runs.
    pub(crate) quantum_end: u64,
    /// End of the grace in which the thread may continue, in ticks, or 0 if the thread has no
    /// grace.
    pub(crate) grace_end: u64,
    /// State of the interrupted code, while the thread is in the handler of a user interrupt.
    pub(crate) interrupted: Option<Box<Interrupted>>,
}

impl Thread {
    /// Creates a thread that has not started; it owns `line` and `queue_slot`.
    pub(crate) fn new(
        process: Arc<Process>,
        (line, queue_slot): (usize, QueueSlot),
        context: UserContext,
        level: Level,
    ) -> Thread {
        let thread = Thread {
            process,
            line,
            queue_slot,
            context,
            own_level: level,
            raised: Level::LEAST_URGENT,
            level,
            quantum_left: switching::quantum(),
            quantum_end: 0,
            grace_end: 0,
            interrupted: None,
        };
        trace::thread(&thread, TraceState::Created);
        thread
    }

    /// Adopts the level that the program has set, within the ceiling of the process, as the
    /// thread's own level. If the program sets none, the own level stays. Returns true if the
    /// effective level has changed.
    pub(crate) fn follow_bitmap(&mut self, space: &AddressSpace) -> bool {
        if self.raised != Level::LEAST_URGENT && self.has_handled_raise(space) {
            self.raised = Level::LEAST_URGENT;
        }
        match space.line(self.line, LOCAL_BITMAP) {
            0 => self.update_level(),
            bits => self.set_own_level(bits.trailing_zeros() as u8),
        }
    }

    /// Returns whether the program has handled the event for which the thread was raised, which is
    /// so if no interrupt is pending, the thread is in no handler, and the program is not draining
    /// its ring.
    fn has_handled_raise(&self, space: &AddressSpace) -> bool {
        self.interrupted.is_none()
            && !self.process.has_interrupt()
            && space.shared().load(DRAINING) == 0
    }

    fn set_own_level(&mut self, level: u8) -> bool {
        let least = executor::LEAST_URGENT_WORK.get();
        let level = level.clamp(self.process.ceiling.get(), least);
        self.own_level = Level::new(level).unwrap_or(executor::LEAST_URGENT_WORK);
        self.update_level()
    }

    /// Recomputes the effective level. Returns true if the level has changed.
    #[inline]
    pub(crate) fn update_level(&mut self) -> bool {
        let lent = self.process.lent(self.line);
        let level = self.own_level.get().min(self.raised.get()).min(lent);
        if level == self.level.get() {
            return false;
        }
        self.level = Level::new(level).unwrap_or(self.own_level);
        true
    }

    /// Sets the level of a thread that resumes from a park.
    pub(crate) fn wake_at(&mut self, level: Level) {
        self.set_own_level(level.get());
    }

    /// Returns whether a thread that should leave the hart may continue for a little longer,
    /// because it is in a critical section for which other threads may spin. Granted once per
    /// critical section; the word `YIELD_REQUESTED` makes the program enter the kernel at the end
    /// of the section.
    pub(crate) fn is_in_grace(&mut self, space: &AddressSpace) -> bool {
        if space.line(self.line, CRITICAL) == 0 {
            self.grace_end = 0;
            return false;
        }
        if self.grace_end == 0 {
            self.grace_end = clock::now() + clock::from_micros(GRACE_MICROS);
            space.set_line(self.line, YIELD_REQUESTED, 1);
        }
        clock::now() < self.grace_end
    }

    /// Returns whether a thread of a held process is in a critical section that it must finish
    /// first. The word `YIELD_REQUESTED` makes the program enter the kernel afterwards.
    pub(crate) fn must_finish_critical_section(&self, space: &AddressSpace) -> bool {
        let is_critical = space.line(self.line, CRITICAL) != 0;
        if is_critical {
            space.set_line(self.line, YIELD_REQUESTED, 1);
        }
        is_critical
    }

    pub(crate) fn end_grace(&mut self, space: &AddressSpace) {
        if core::mem::replace(&mut self.grace_end, 0) != 0 {
            space.set_line(self.line, YIELD_REQUESTED, 0);
        }
    }

    /// Ends the quantum at the request of the thread, even inside a critical section.
    pub(crate) fn yield_hart(&mut self) {
        self.quantum_end = 0;
        self.grace_end = 1;
    }

    /// Returns whether a fault is spurious. This is so if another thread of the process has mapped
    /// the page, but this hart had cached the absence of a translation.
    pub(crate) fn is_spurious_fault(&self, fault: Fault, space: &AddressSpace) -> bool {
        let access = match fault.cause {
            LOAD_PAGE_FAULT => Access::Read,
            STORE_PAGE_FAULT => Access::Write,
            _ => return false,
        };
        let byte = UserSlice::new(fault.value, 1);
        let is_mapped = byte.is_ok_and(|byte| space.check(byte, access).is_ok());
        if is_mapped {
            csr::flush_translations();
        }
        is_mapped
    }

    /// Delivers a pending user interrupt: the thread continues in the handler that its program has
    /// set, and its interrupted state is saved for [`Thread::return_from_interrupt`]. No interrupt
    /// is delivered in the handler, or while the program drains its ring, because the program then
    /// polls for completions itself.
    pub(crate) fn deliver_interrupt(&mut self, space: &AddressSpace) {
        // During the handler the interrupt stays pending until the handler has ended, or another
        // thread takes the interrupt.
        if self.interrupted.is_some() || !self.process.take_interrupt() {
            return;
        }
        // Raise the thread, because it may have to leave its hart during the handler.
        if let Some(level) = self.process.pending_level.take() {
            self.raised = self.raised.min(level);
        }
        let page = space.shared();
        let handler = page.load(HANDLER) as usize;
        if handler == 0 || page.load(DRAINING) != 0 {
            return;
        }
        self.interrupted = Some(Box::new(self.context.enter_handler(handler)));
    }

    /// Returns to the interrupted code. Returns false if the thread was not in a handler.
    pub(crate) fn return_from_interrupt(&mut self) -> bool {
        let interrupted = self.interrupted.take();
        let was_interrupted = interrupted.is_some();
        // By now the thread's bitmap contains the reason of the interrupt.
        self.raised = Level::LEAST_URGENT;
        if let Some(interrupted) = interrupted {
            self.context.leave_handler(&interrupted);
        }
        was_interrupted
    }
}
