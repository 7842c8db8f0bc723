//! Starts, cancels and completes the operations of a ring. All code here runs on the thread that
//! owns the ring.
//!
//! Other parts of [`Driver`] are in `iteration.rs`, which hands entries to the kernel and fetches
//! completions, and in `stream.rs`, which handles the completions of streams.
//!
//! Wakers and destructors of operations are user code (`deferred.rs`) and may call back into the
//! ring. So state is in cells, no borrow lives across user code, and every function finishes its
//! own bookkeeping before it runs user code.

use crate::backend::Backend;
use crate::backlog::Backlog;
use crate::config::{Config, Stats};
use crate::copy_limit::CopyLimit;
use crate::counters::{Counters, count};
use crate::deferred::DeferredCalls;
use crate::mailbox::Mailbox;
use crate::operation::{Operation, Stored};
use crate::pools::Pools;
use crate::slab::Slab;
use crate::slot::{CANCEL, CANCELLED, COPY, HOLD_TIMER, KICK, Kind, ORPHAN, Slot, SlotState};
use crate::watch::InFlight;
use io_uring::squeue::Flags;
use io_uring::{cqueue, opcode};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

/// Cancellations that found the submission queue full. Their number is in a cell of its own,
/// because every call of [`Driver::is_due`] reads it.
#[derive(Default)]
pub(crate) struct Cancels {
    user_data: RefCell<Vec<u64>>,
    len: Cell<usize>,
}

impl Cancels {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    pub(crate) fn push(&self, user_data: u64) {
        self.user_data.borrow_mut().push(user_data);
        self.len.set(self.len.get() + 1);
    }

    pub(crate) fn pop(&self) -> Option<u64> {
        let user_data = self.user_data.borrow_mut().pop()?;
        self.len.set(self.len.get() - 1);
        Some(user_data)
    }

    fn clear(&self) {
        self.user_data.borrow_mut().clear();
        self.len.set(0);
    }
}

/// The level whose pool is made together with the ring: the default level of a runtime.
const FIRST_POOL_LEVEL: u8 = 32;

pub(crate) struct Driver {
    pub(crate) backend: Backend,
    pub(crate) slab: Slab,
    pub(crate) pools: Pools,
    pub(crate) mail: Arc<Mailbox>,
    /// Streams that wait until a buffer is returned.
    pub(crate) starved: Backlog,
    /// Operations and streams that wait for room in the submission queue.
    pub(crate) backlog: Backlog,
    pub(crate) copy_limit: CopyLimit,
    pub(crate) cancels: Cancels,
    /// Operations and armed streams: held, in the backlog, in the queue or in the kernel.
    pub(crate) in_flight: InFlight,
    /// Number of operations and streams without a handle that have not ended.
    pub(crate) orphans: Cell<usize>,
    /// Number of handles alive, including the ring itself. Valid until the mailbox closes.
    pub(crate) handles: Cell<usize>,
    /// Set when the ring has begun to shut down.
    pub(crate) closing: Cell<bool>,
    pub(crate) deferred: DeferredCalls,
    /// Set while the poll of the mailbox's eventfd is armed.
    pub(crate) watching: Cell<bool>,
    pub(crate) fetch_limit: usize,
    pub(crate) recv_window: u32,
    pub(crate) accept_window: u32,
    pub(crate) counters: Counters,
}

impl Driver {
    pub(crate) fn new(config: &Config, mail: Arc<Mailbox>) -> io::Result<Self> {
        let backend = Backend::new(config)?;
        let pools = Pools::new(config.buffers, config.buffer_size);
        // One pool is made now, so that `Ring::new` fails if the kernel or a limit forbids pools.
        if config.buffers != 0
            && let Err(error) = pools.provide(FIRST_POOL_LEVEL, &backend)
        {
            // SAFETY: nothing is in flight, and this is the last use of `backend`.
            unsafe { backend.close() };
            return Err(error);
        }
        Ok(Self {
            backend,
            slab: Slab::new(config.max_operations),
            pools,
            mail,
            starved: Backlog::new(),
            backlog: Backlog::new(),
            copy_limit: CopyLimit::new(),
            cancels: Cancels::default(),
            in_flight: InFlight::new(),
            orphans: Cell::new(0),
            handles: Cell::new(1),
            closing: Cell::new(false),
            deferred: DeferredCalls::new(),
            watching: Cell::new(false),
            fetch_limit: config.fetch_limit(),
            recv_window: u32::from(config.recv_window.min(config.buffers / 2).max(1)),
            accept_window: u32::from(config.accept_window),
            counters: Counters::default(),
        })
    }

    /// Takes a slot, stores the operation in it and queues the entry. If the operation cannot be
    /// started, returns the operation with an errno.
    #[inline]
    pub(crate) fn start<T: Operation>(&self, op: T, level: u8) -> Result<&Slot, (T, i32)> {
        if self.closing.get() {
            return Err((op, libc::ECANCELED));
        }
        let Some(slot) = self.slab.take() else {
            count(&self.counters.refused);
            return Err((op, libc::EBUSY));
        };
        let copies = op.copied_bytes();
        // SAFETY: a slot fresh from the slab has a free payload.
        unsafe { Stored::put(slot.payload(), op) };
        slot.table.set(Stored::<T>::TABLE);
        slot.kind.set(Kind::Once);
        slot.level.set(level);
        self.handles.set(self.handles.get() + 1);
        self.in_flight.begin(level);
        if copies != 0 && !self.admit_copy(slot, copies) {
            return Ok(slot);
        }
        if self.backlog.is_empty() && !self.backend.is_full() {
            // SAFETY: the payload holds the `T` that was just stored.
            let entry = unsafe { (*Stored::<T>::value_ptr(slot.payload())).entry() };
            self.push(slot, entry);
        } else {
            self.postpone(slot);
        }
        Ok(slot)
    }

    pub(crate) fn launch(&self, slot: &Slot) {
        self.in_flight.begin(slot.level.get());
        self.push_or_postpone(slot);
    }

    #[inline]
    pub(crate) fn push_or_postpone(&self, slot: &Slot) {
        if self.backlog.is_empty() && !self.backend.is_full() {
            self.push_slot(slot);
        } else {
            self.postpone(slot);
        }
    }

    #[cold]
    fn postpone(&self, slot: &Slot) {
        slot.state.set(SlotState::Backlog);
        self.backlog.push(slot);
        let max = &self.counters.backlog_max;
        max.set(max.get().max(self.backlog.len() as u64));
    }

    pub(crate) fn push_slot(&self, slot: &Slot) {
        // SAFETY: a slot that is launched holds an operation of the type of its table.
        let entry = unsafe { (slot.table.get().entry)(slot.payload()) };
        self.push(slot, entry);
    }

    /// Writes the entry into the queue, which must have room.
    #[inline]
    fn push(&self, slot: &Slot, mut entry: io_uring::squeue::Entry) {
        entry.set_user_data(slot.user_data());
        slot.state.set(SlotState::InFlight);
        // SAFETY: by the contract of `Operation` the entry's pointers are valid while the
        // operation lies in its slot, which is until its terminal completion.
        let pushed = unsafe { self.backend.push(&entry, slot.level.get()) };
        debug_assert!(pushed, "callers check for room");
    }

    /// Requests the cancellation of a slot's operation; its terminal completion still comes.
    pub(crate) fn cancel(&self, slot: &Slot) {
        if slot.has_mark(CANCELLED) {
            return;
        }
        match slot.state.get() {
            SlotState::Backlog | SlotState::Held => slot.mark(CANCELLED),
            SlotState::InFlight => {
                slot.mark(CANCELLED);
                if !self.push_cancel(slot.user_data()) {
                    self.cancels.push(slot.user_data());
                }
            }
            SlotState::Free | SlotState::Starved | SlotState::Idle | SlotState::Done => {}
        }
    }

    /// Queues the cancellation of the entry with this `user_data`. Returns false if there is no
    /// room.
    pub(crate) fn push_cancel(&self, user_data: u64) -> bool {
        let mut entry = opcode::AsyncCancel::new(user_data)
            .build()
            .user_data(CANCEL);
        if self.backend.skips_success() {
            entry = entry.flags(Flags::SKIP_SUCCESS);
        }
        // SAFETY: the entry has no pointers, so no memory must stay valid.
        unsafe { self.backend.push(&entry, 0) }
    }

    pub(crate) fn abandon(&self, slot: &Slot) {
        if slot.state.get() == SlotState::Done {
            self.dispose(slot);
        } else {
            self.orphan(slot);
        }
    }

    /// Cancels the operation of a slot whose handle is gone; its last completion frees the slot.
    pub(crate) fn orphan(&self, slot: &Slot) {
        slot.mark(ORPHAN);
        self.orphans.set(self.orphans.get() + 1);
        self.cancel(slot);
    }

    #[inline]
    pub(crate) fn dispatch(&self, user_data: u64, result: i32, flags: u32) {
        match self.slab.get(user_data as u32) {
            Some(slot)
                if slot.generation.get() == (user_data >> 32) as u32
                    && slot.state.get() == SlotState::InFlight =>
            {
                self.handle_completion(slot, result, flags);
            }
            _ => self.handle_unmatched(user_data, flags),
        }
    }

    #[cold]
    fn handle_unmatched(&self, user_data: u64, flags: u32) {
        match user_data {
            CANCEL => {}
            HOLD_TIMER => self.handle_hold_timeout(),
            KICK => {
                count(&self.counters.kicks);
                if !cqueue::more(flags) {
                    self.watching.set(false);
                }
            }
            _ => {
                count(&self.counters.stale);
                // A stream keeps its slot until its last completion, so a late
                // completion brings no buffer.
                debug_assert!(cqueue::buffer_select(flags).is_none());
            }
        }
    }

    /// Handles a completion of a slot in flight, or ends an operation that never left the backlog.
    #[inline]
    pub(crate) fn handle_completion(&self, slot: &Slot, result: i32, flags: u32) {
        if slot.kind.get() != Kind::Once {
            return self.handle_stream_completion(slot, result, flags);
        }
        slot.result.set(result);
        slot.flags.set(flags);
        slot.state.set(SlotState::Done);
        self.in_flight.end(slot.level.get());
        if slot.has_mark(ORPHAN | COPY) {
            self.handle_marked_completion(slot);
        } else if let Some(waker) = slot.deliver(slot) {
            self.wake(slot.level.get(), waker);
        }
    }

    #[cold]
    fn handle_marked_completion(&self, slot: &Slot) {
        let was_copy = slot.has_mark(COPY);
        if was_copy {
            self.uncount_copy(slot);
        }
        if slot.has_mark(ORPHAN) {
            self.dispose(slot);
        } else if let Some(waker) = slot.deliver(slot) {
            self.wake(slot.level.get(), waker);
        }
        if was_copy {
            self.start_held();
        }
    }

    /// Refuses new operations and ends those that have not reached the kernel. Returns true on
    /// the first call.
    pub(crate) fn begin_shutdown(&self) -> bool {
        if self.closing.replace(true) {
            return false;
        }
        self.cancels.clear();
        self.end_starved();
        while let Some(slot) = self.backlog.pop().or_else(|| self.copy_limit.pop()) {
            self.handle_completion(slot, -libc::ECANCELED, 0);
        }
        true
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.count() == 0 && !self.watching.get()
    }

    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            enters: self.backend.enters(),
            submitted: self.backend.submitted(),
            completed: counters.completed.get(),
            stale: counters.stale.get(),
            backlog_max: counters.backlog_max.get(),
            enobufs: counters.enobufs.get(),
            unpooled: counters.unpooled.get(),
            stalled: counters.stalled.get(),
            overflows: counters.overflows.get(),
            kicks: counters.kicks.get(),
            messages: counters.messages.get(),
            refused: counters.refused.get(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::remote::Kick;

    /// The first completion carries an earlier generation of a slot that is occupied again, and the
    /// second an index that no slot has. The driver must count both as stale, and leave the new
    /// occupant alone.
    #[test]
    fn a_completion_of_another_generation_is_counted_and_ignored() {
        let kick = Arc::new(Kick::new().unwrap());
        let driver = Driver::new(&Config::default(), Arc::new(Mailbox::new(kick))).unwrap();
        let first = driver
            .start(crate::op::Nop::new(), 0)
            .map_err(drop)
            .unwrap();
        let stale_user_data = first.user_data();
        driver.submit().unwrap();
        driver.reap();
        driver.dispose(first);
        let poll =
            crate::op::PollAdd::new(crate::Fd::new(std::fs::File::open("/dev/null").unwrap()), 0);
        let second = driver.start(poll, 0).map_err(drop).unwrap();
        assert_eq!(second.user_data() as u32, stale_user_data as u32);
        for user_data in [stale_user_data, u64::from(u32::MAX >> 1)] {
            let entry = opcode::Nop::new().build().user_data(user_data);
            // SAFETY: the entry has no pointers, so no memory must stay valid.
            assert!(unsafe { driver.backend.push(&entry, 0) });
        }
        driver.submit().unwrap();
        driver.reap();
        assert_eq!(driver.stats().stale, 2);
        assert_ne!(second.generation.get(), (stale_user_data >> 32) as u32);
        driver.begin_shutdown();
        let mut round = 0;
        while !driver.is_idle() {
            driver.drain(round).unwrap();
            round += 1;
        }
        driver.dispose(second);
        // SAFETY: this is the last use of the backend, and nothing is in flight.
        unsafe { driver.backend.close() };
    }
}
