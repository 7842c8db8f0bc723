//! Limits the writes to the page cache that the kernel makes at a time, while a more urgent
//! operation is in flight. Only the thread that owns the ring may use this module.
//!
//! A write to the page cache is a copy, made by a kernel thread that competes with the ring's
//! thread for its CPU. The kernel knows no levels, so if many large writes are queued, it may copy
//! all of them before the ring's thread notices an urgent completion. Hence the rule:
//!
//! **While an operation more urgent than the copies is in flight, the kernel has at most
//! [`MAX_COPY_BYTES`] of copies, or [`max_copies`] copies of any size.** The other copies are
//! *held* here, by level. A copy overtakes held copies of less urgent levels. A copy that is at
//! least as urgent as every operation in flight is not held.
//!
//! ```text
//!  start ── fits, or nothing is more urgent ─► InFlight (counted) ── completion ─► Done
//!    │                                            ▲                  │ its bytes are free
//!    └────────────────► Held ─────────────────────┴──────────────────┘
//! ```
//!
//! * **Counting.** [`copied_bytes`](crate::Operation::copied_bytes) gives the bytes of a copy.
//!   Operations that are not copies start at once, at no cost.
//! * **Progress.** A copy in the kernel may itself wait for a held copy (a file system served by
//!   this process, a full disk). If no copy ends for [`HOLD_TIMEOUT`], the copies in the kernel are
//!   no longer counted. The ring notices this within twice that time.
//! * **Readiness.** The readiness driver makes such calls on threads, by level, and holds no copies
//!   here.
//!
//! Cost: a few loads per copy; while copies are held, one timeout in the kernel per
//! [`HOLD_TIMEOUT`].

use crate::backend::Backend;
use crate::backlog::Backlog;
use crate::driver::Driver;
use crate::slot::{CANCELLED, COPY, HOLD_TIMER, Slot, SlotState};
use io_uring::{opcode, types::Timespec};
use std::cell::Cell;
use std::time::Duration;

/// Maximum number of bytes of copies in the kernel while a more urgent operation is in flight.
/// Copying them takes about 18 µs.
const MAX_COPY_BYTES: u64 = 256 << 10;

/// Returns the number of copies that may be in the kernel regardless of their size. This is one if
/// the ring's thread is bound to one CPU, because the kernel's copying thread is then bound to it,
/// too. Otherwise it is two, so that a kernel thread on another CPU has a copy to make until the
/// ring's thread hands over the next one.
fn max_copies() -> u32 {
    // SAFETY: a CPU set consists of plain bits, for which zeroes are valid; the calls access only
    // `cpus`.
    let is_on_one_cpu = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus) == 0
            && libc::CPU_COUNT(&cpus) == 1
    };
    if is_on_one_cpu { 1 } else { 2 }
}

/// Time without the end of a copy after which the held copies are released.
const HOLD_TIMEOUT: Duration = Duration::from_millis(10);

pub(crate) struct CopyLimit {
    held: Backlog,
    max_copies: u32,
    /// Bytes of the copies in the kernel. Too low for a moment when a copy ends that is no longer
    /// counted.
    bytes: Cell<u64>,
    copies: Cell<u32>,
    /// Set when a copy has ended since the timeout was armed.
    has_progress: Cell<bool>,
    is_armed: Cell<bool>,
    timeout: Timespec,
}

impl CopyLimit {
    pub(crate) fn new() -> Self {
        Self {
            held: Backlog::new(),
            max_copies: max_copies(),
            bytes: Cell::new(0),
            copies: Cell::new(0),
            has_progress: Cell::new(false),
            is_armed: Cell::new(false),
            timeout: Timespec::from(HOLD_TIMEOUT),
        }
    }

    pub(crate) fn pop<'a>(&self) -> Option<&'a Slot> {
        self.held.pop()
    }
}

impl Driver {
    /// Decides whether a copy of `bytes` bytes, stored in `slot`, starts now or is held. Returns
    /// true if the copy may start; it is then counted.
    #[inline(never)]
    pub(crate) fn admit_copy(&self, slot: &Slot, bytes: u32) -> bool {
        if !matches!(self.backend, Backend::Kernel(_)) {
            return true;
        }
        let copy_limit = &self.copy_limit;
        let level = slot.level.get();
        slot.bytes.set(bytes);
        // A copy does not overtake held copies of its own level.
        let is_first = copy_limit.held.occupied() & (u64::MAX >> (63 - level)) == 0;
        if (is_first && self.fits(slot)) || !self.arm_hold_timeout() {
            self.count_copy(slot);
            return true;
        }
        slot.state.set(SlotState::Held);
        copy_limit.held.push(slot);
        false
    }

    fn fits(&self, slot: &Slot) -> bool {
        let copy_limit = &self.copy_limit;
        let total_bytes = copy_limit.bytes.get() + u64::from(slot.bytes.get());
        let more_urgent = (1 << slot.level.get()) - 1;
        copy_limit.copies.get() < copy_limit.max_copies
            || total_bytes <= MAX_COPY_BYTES
            || self.in_flight.bitmap() & more_urgent == 0
    }

    fn count_copy(&self, slot: &Slot) {
        slot.mark(COPY);
        let CopyLimit { bytes, copies, .. } = &self.copy_limit;
        bytes.set(bytes.get() + u64::from(slot.bytes.get()));
        copies.set(copies.get() + 1);
    }

    /// Removes a counted copy that has ended. The caller then calls
    /// [`start_held`](Self::start_held).
    pub(crate) fn uncount_copy(&self, slot: &Slot) {
        slot.unmark(COPY);
        let copy_limit = &self.copy_limit;
        let CopyLimit { bytes, copies, .. } = copy_limit;
        bytes.set(bytes.get().saturating_sub(slot.bytes.get().into()));
        copies.set(copies.get().saturating_sub(1));
        copy_limit.has_progress.set(true);
    }

    /// Starts held copies while they fit. Runs user code.
    pub(crate) fn start_held(&self) {
        while let Some(slot) = self.copy_limit.held.first()
            && !self.closing.get()
        {
            if !slot.has_mark(CANCELLED) && !self.fits(slot) {
                return;
            }
            self.copy_limit.held.pop();
            if slot.has_mark(CANCELLED) {
                self.handle_completion(slot, -libc::ECANCELED, 0);
            } else {
                self.count_copy(slot);
                self.push_or_postpone(slot);
            }
        }
    }

    /// Arms the timeout of held copies. Returns false if the submission queue is full.
    fn arm_hold_timeout(&self) -> bool {
        let copy_limit = &self.copy_limit;
        if !copy_limit.is_armed.get() && !self.backend.is_full() {
            copy_limit.has_progress.set(false);
            let entry = opcode::Timeout::new(&raw const copy_limit.timeout)
                .build()
                .user_data(HOLD_TIMER);
            // SAFETY: the kernel reads the time when it takes the entry; the time lies in the
            // ring's shared memory, so it is still valid then.
            let pushed = unsafe { self.backend.push(&entry, 0) };
            copy_limit.is_armed.set(pushed);
        }
        copy_limit.is_armed.get()
    }

    /// Handles the end of the timeout. If no copy has ended meanwhile, releases the held copies.
    pub(crate) fn handle_hold_timeout(&self) {
        let copy_limit = &self.copy_limit;
        copy_limit.is_armed.set(false);
        let mut is_stuck = !copy_limit.has_progress.get();
        while !copy_limit.held.is_empty() {
            if !is_stuck && self.arm_hold_timeout() {
                return;
            }
            copy_limit.bytes.set(0);
            copy_limit.copies.set(0);
            self.start_held();
            is_stuck = false;
        }
    }
}
