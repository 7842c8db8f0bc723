//! Copies of less urgent levels wait in user space. Owner only.
//!
//! A write to the page cache is a copy, made by a thread of the kernel that wants the CPU of the ring's thread. The kernel knows no levels: with
//! eight writes of 1 MiB queued it may copy all of them, 0.6 ms, before the ring's thread hears of something urgent. So:
//!
//! **While something more urgent is in flight on the ring, copies of at most [`BOUND`] bytes, or [`few`] of any size, are in the kernel**: one
//! where the thread that made the ring is bound to one CPU, as the kernel's thread then is, too; else two. The others wait here, by level; one of a more urgent level overtakes, and what is not less urgent than everything in flight is not held.
//!
//! ```text
//!  start ── fits, or nothing is more urgent ─► Flying (counted) ── completion ─► Done
//!    │                                            ▲                  │ its bytes are free
//!    └────────────────► Held ─────────────────────┴──────────────────┘
//! ```
//!
//! * **What is counted** says the operation ([`Operation::copies`](crate::Operation::copies)); all others are started as ever, and pay nothing.
//! * **Nothing waits for ever.** A copy in the kernel may itself wait for something that is held (a file system served by this process, a full disk).
//!   If none ends for [`PATIENCE`], those that are there are counted no longer; this is noticed within twice that time.
//! * The readiness driver makes such calls on threads, by level: nothing is held there.
//!
//! Cost: for a copy a few loads; while something is held a timeout in the kernel each [`PATIENCE`].

use crate::backend::Backend;
use crate::backlog::Backlog;
use crate::driver::Driver;
use crate::slot::{CANCELLED, COPY, HELD, Place, Slot};
use io_uring::{opcode, types::Timespec};
use std::cell::Cell;
use std::time::Duration;

/// Bytes of less urgent copies in the kernel: some 18 µs of the CPU.
const BOUND: u64 = 256 << 10;

/// Copies that may be there whatever their size: one that is made, and, where the kernel's thread may have a CPU of its own, one for it to find when that
/// ends. Otherwise it would sleep until the ring's thread has handed over the next, and make a quarter to two fifths less.
fn few() -> u32 {
    // SAFETY: plain bits, for which zeros are valid; the calls write to them, and read them, only.
    let is_on_one_cpu = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus) == 0
            && libc::CPU_COUNT(&cpus) == 1
    };
    if is_on_one_cpu { 1 } else { 2 }
}

/// How long something is held if no copy ends.
const PATIENCE: Duration = Duration::from_millis(10);

/// What is held, and why.
pub(crate) struct Admission {
    held: Backlog,
    few: u32,
    /// Of the copies that have been started and have not ended. Too few for a moment after one ends that was counted no longer.
    bytes: Cell<u64>,
    /// How many there are.
    copies: Cell<u32>,
    /// One has ended since the timeout was armed.
    moves: Cell<bool>,
    is_armed: Cell<bool>,
    patience: Timespec,
}

impl Admission {
    pub(crate) fn new() -> Self {
        Self {
            held: Backlog::new(),
            few: few(),
            bytes: Cell::new(0),
            copies: Cell::new(0),
            moves: Cell::new(false),
            is_armed: Cell::new(false),
            patience: Timespec::from(PATIENCE),
        }
    }

    /// Takes what is held, at the end of the ring.
    pub(crate) fn pop<'a>(&self) -> Option<&'a Slot> {
        self.held.pop()
    }
}

impl Driver {
    /// A copy of so many bytes has been stored in its slot. True: it may be started, and is counted.
    #[inline(never)]
    pub(crate) fn admit(&self, slot: &Slot, bytes: u32) -> bool {
        if !matches!(self.backend, Backend::Kernel(_)) {
            return true;
        }
        let admission = &self.admission;
        let level = slot.level.get();
        slot.bytes.set(bytes);
        // Equals do not overtake.
        let is_first = admission.held.occupied() & (u64::MAX >> (63 - level)) == 0;
        if (is_first && self.fits(slot)) || !self.arm_patience() {
            self.count_copy(slot);
            return true;
        }
        slot.place.set(Place::Held);
        admission.held.push(slot);
        false
    }

    /// May this copy be in the kernel besides those that are?
    fn fits(&self, slot: &Slot) -> bool {
        let admission = &self.admission;
        let after = admission.bytes.get() + u64::from(slot.bytes.get());
        let more_urgent = (1 << slot.level.get()) - 1;
        admission.copies.get() < admission.few
            || after <= BOUND
            || self.flying.bitmap() & more_urgent == 0
    }

    fn count_copy(&self, slot: &Slot) {
        slot.mark(COPY);
        let Admission { bytes, copies, .. } = &self.admission;
        bytes.set(bytes.get() + u64::from(slot.bytes.get()));
        copies.set(copies.get() + 1);
    }

    /// A counted copy has ended: [`start_held`](Self::start_held) is due.
    pub(crate) fn uncount_copy(&self, slot: &Slot) {
        slot.unmark(COPY);
        let admission = &self.admission;
        let Admission { bytes, copies, .. } = admission;
        bytes.set(bytes.get().saturating_sub(slot.bytes.get().into()));
        copies.set(copies.get().saturating_sub(1));
        admission.moves.set(true);
    }

    /// Starts what is held, as far as it fits. Runs foreign code.
    pub(crate) fn start_held(&self) {
        while let Some(slot) = self.admission.held.first()
            && !self.closing.get()
        {
            if !slot.has_mark(CANCELLED) && !self.fits(slot) {
                return;
            }
            self.admission.held.pop();
            if slot.has_mark(CANCELLED) {
                self.finished(slot, -libc::ECANCELED, 0);
            } else {
                self.count_copy(slot);
                self.push_or_postpone(slot);
            }
        }
    }

    /// Has the kernel tell when patience is at an end. False: the submission queue is full.
    fn arm_patience(&self) -> bool {
        let admission = &self.admission;
        if !admission.is_armed.get() && !self.backend.is_full() {
            admission.moves.set(false);
            let entry = opcode::Timeout::new(&raw const admission.patience)
                .build()
                .user_data(HELD);
            // SAFETY: the time lies in the ring's shared memory, and the kernel reads it when it takes the entry.
            let pushed = unsafe { self.backend.push(&entry, 0) };
            admission.is_armed.set(pushed);
        }
        admission.is_armed.get()
    }

    /// It is.
    pub(crate) fn patience_is_over(&self) {
        let admission = &self.admission;
        admission.is_armed.set(false);
        let mut is_stuck = !admission.moves.get();
        while !admission.held.is_empty() {
            if !is_stuck && self.arm_patience() {
                return;
            }
            admission.bytes.set(0);
            admission.copies.set(0);
            self.start_held();
            is_stuck = false;
        }
    }
}
