//! The control block of a coroutine, in one allocation with its future.
//!
//! ```text
//!  Slot (in the domain's table)        Cell (one allocation)
//!  ┌────────────────────────┐  header  ┌──────────────────────────────────┐
//!  │ state word │ header ───┼─────────►│ Header: links, vtable, levels, … │
//!  └────────────────────────┘◄─────────┤ future, later its output         │
//!                               slot   └──────────────────────────────────┘
//! ```
//!
//! A [`Header`] is 72 bytes (8 of them for where it was spawned), a slot 16. What touches which field:
//!
//! * links, `queued`: the holder of the lock of the vCPU in whose queues it is;
//!   `next` also the inbox it is in;
//! * `vcpu`: the owner of the coroutine (`OWNED` in the state word), under the
//!   lock of the vCPU it leaves;
//! * `level`: under the lock of `vcpu`; any thread may read it;
//! * the future: the owner of the coroutine that has begun a poll;
//! * the output and the waiter: as the state word says.

use alloc::boxed::Box;
use core::panic::Location;
use core::ptr::NonNull;

mod cell;

use crate::host::{Host, Panic};
use crate::inbox::Linked;
use crate::join::JoinError;
use crate::level::Level;
use crate::loans::Loans;
use crate::sync::Ordering::{Relaxed, Release, SeqCst};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64, fence};
use crate::table::Slot;
use crate::vcpu::Vcpu;
use cell::VTable;
pub(crate) use cell::{Birth, Ended, allocate};

/// What a coroutine is for. It decides what happens after a poll that returned
/// `Pending`, and shows in inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Kind {
    /// Ordinary work: blocked until it is woken.
    #[default]
    Task = 0,
    /// The completion side of an I/O operation or a system call: scheduled like
    /// a task, accounted as I/O.
    Completion = 1,
    /// Never done: ready again after every poll, like the coroutine whose poll
    /// is "run the most urgent user process until it traps" (SharedScheduler,
    /// "switching coroutine").
    Switching = 2,
}

/// The six states of a coroutine, for inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// It exists and has not been started.
    Created = 0,
    /// It waits for a vCPU.
    Ready = 1,
    /// It is being polled.
    Running = 2,
    /// It waits for a wake.
    Blocked = 3,
    /// It was interrupted in the middle of a poll and keeps its stack.
    Suspended = 4,
    /// It is done; its id is dead or about to be.
    Exited = 5,
}

impl State {
    /// The state of a number: the reverse of `as u8`. What is none is
    /// [`State::Exited`].
    #[must_use]
    pub fn from_number(n: u8) -> State {
        match n {
            0 => State::Created,
            1 => State::Ready,
            2 => State::Running,
            3 => State::Blocked,
            4 => State::Suspended,
            _ => State::Exited,
        }
    }
}

const KIND: u8 = 0b0011;
const PINNED: u8 = 0b0100;
const LENDS: u8 = 0b1000;
const FIRST: u8 = 0b1_0000;
const SUSPENDED: u8 = 0b10_0000;

/// In the byte of the state: the poll under way has woken its own coroutine.
const WOKEN: u8 = 0b1000_0000;
/// In the same byte: and keeps its place among its equals. With [`State::Ready`]: it has kept it.
const KEEPS_PLACE: u8 = 0b0100_0000;

/// The type-erased part of a control block.
#[repr(C)]
pub(crate) struct Header<H: Host> {
    /// Towards the tail of a ready queue, or the next in an inbox.
    pub(crate) next: AtomicPtr<Header<H>>,
    /// Towards the head of a ready queue.
    pub(crate) prev: AtomicPtr<Header<H>>,
    vtable: &'static VTable<H>,
    slot: NonNull<Slot<H>>,
    /// Where it is queued, runs, or ran last.
    pub(crate) vcpu: AtomicPtr<Vcpu<H>>,
    /// See [`crate::join`].
    pub(crate) waiter: AtomicPtr<()>,
    /// When it became ready, in the host's ticks.
    pub(crate) ready_at: AtomicU64,
    /// The level it was given.
    pub(crate) base: AtomicU8,
    /// The level lent by what awaits its join handle.
    pub(crate) join_boost: AtomicU8,
    /// Its locks, and the level lent by what waits for them.
    pub(crate) loans: Loans,
    /// The effective level: the most urgent of the three.
    level: AtomicU8,
    /// The level in whose list it is, or `NOT_QUEUED`.
    pub(crate) queued: AtomicU8,
    state: AtomicU8,
    traits: AtomicU8,
    /// Where it was spawned. Last: nothing that is hot.
    pub(crate) location: &'static Location<'static>,
}

// SAFETY: `link` is `next`, which a queued coroutine uses for nothing else.
unsafe impl<H: Host> Linked for Header<H> {
    fn link(&self) -> &AtomicPtr<Header<H>> {
        &self.next
    }
}

impl<H: Host> Header<H> {
    pub(crate) const NOT_QUEUED: u8 = u8::MAX;
    /// No level lent: less urgent than any.
    pub(crate) const NO_BOOST: u8 = u8::MAX;

    /// Its slot, as the table gave it.
    pub(crate) fn slot_ptr(&self) -> NonNull<Slot<H>> {
        self.slot
    }

    pub(crate) fn slot(&self) -> &Slot<H> {
        // SAFETY: slots outlive every coroutine that lives in them.
        unsafe { self.slot.as_ref() }
    }

    pub(crate) fn vcpu(&self) -> &Vcpu<H> {
        // SAFETY: vCPUs live as long as their domain, and so longer than any
        // coroutine; the pointer is never null.
        unsafe { &*self.vcpu.load(Relaxed) }
    }

    /// By the owner of the coroutine, which is in no queue.
    pub(crate) fn moves_to(&self, vcpu: &Vcpu<H>) {
        // Release, for `settle`: with the lock of the new vCPU it must not see it still queued on the old one.
        self.vcpu
            .store(core::ptr::from_ref(vcpu).cast_mut(), Release);
    }

    pub(crate) fn level(&self) -> Level {
        Level::from_stored(self.level.load(Relaxed))
    }

    /// Recomputes and returns the effective level. Under the lock of `vcpu`.
    pub(crate) fn update_level(&self) -> Level {
        let level = self
            .base
            .load(Relaxed)
            .min(self.join_boost.load(Relaxed))
            .min(self.loans.level());
        self.level.store(level, Relaxed);
        Level::from_stored(level)
    }

    pub(crate) fn state(&self) -> State {
        State::from_number(self.state.load(Relaxed) & !(WOKEN | KEEPS_PLACE))
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.traits.load(Relaxed) & KIND {
            0 => Kind::Task,
            1 => Kind::Completion,
            _ => Kind::Switching,
        }
    }

    /// Must it stay on its vCPU?
    pub(crate) fn is_pinned(&self) -> bool {
        self.traits.load(Relaxed) & PINNED != 0
    }

    /// May another vCPU take it? Neither pinned nor suspended.
    #[inline]
    pub(crate) fn may_move(&self) -> bool {
        self.traits.load(Relaxed) & (PINNED | SUSPENDED) == 0
    }

    /// Has it been stopped in the middle of its poll? Changes while it is in no queue.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        self.traits.load(Relaxed) & SUSPENDED != 0
    }

    /// Does it go before all others of its level? Changes while it is in no queue.
    pub(crate) fn goes_first(&self) -> bool {
        self.traits.load(Relaxed) & FIRST != 0
    }

    /// It has been stopped in the middle of its poll. By its owner, while it is in no queue.
    pub(crate) fn suspend(&self, goes_first: bool) {
        let place = if goes_first { FIRST } else { 0 };
        self.traits.fetch_or(SUSPENDED | place, Relaxed);
        self.set_state_of_poll(State::Suspended);
    }

    /// Its poll goes on. By its owner, which took it out of its queue.
    pub(crate) fn resume(&self) {
        self.traits.fetch_and(!(SUSPENDED | FIRST), Relaxed);
        self.set_state_of_poll(State::Running);
    }

    /// In the middle of a poll, which may have woken itself.
    fn set_state_of_poll(&self, state: State) {
        let flags = self.state.load(Relaxed) & (WOKEN | KEEPS_PLACE);
        self.state.store(state as u8 | flags, Relaxed);
    }

    /// The poll under way wakes its own coroutine. By the thread that polls.
    #[inline]
    pub(crate) fn wake_itself(&self) {
        self.state.store(State::Running as u8 | WOKEN, Relaxed);
    }

    /// Has the poll that has just ended woken its own coroutine? Until the next [`Header::set_state`].
    #[inline]
    pub(crate) fn has_woken_itself(&self) -> bool {
        self.state.load(Relaxed) & WOKEN != 0
    }

    /// The poll under way, which has woken its own coroutine, gives way and keeps its place. By the thread that polls.
    pub(crate) fn keep_place(&self) {
        if self.has_woken_itself() {
            self.state
                .store(State::Running as u8 | WOKEN | KEEPS_PLACE, Relaxed);
        }
    }

    /// Does the poll that has just ended keep its place?
    #[inline]
    pub(crate) fn keeps_place(&self) -> bool {
        self.state.load(Relaxed) & KEEPS_PLACE != 0
    }

    /// It is ready again, at the place it had.
    pub(crate) fn set_ready_in_place(&self) {
        self.state.store(State::Ready as u8 | KEEPS_PLACE, Relaxed);
    }

    /// Does it lend its level to what it waits for?
    pub(crate) fn lends(&self) -> bool {
        self.traits.load(Relaxed) & LENDS != 0
    }

    pub(crate) fn set_lends(&self) {
        if !self.lends() {
            // Before its level is read: a change of the level after that polls it, by `resettle`.
            self.traits.fetch_or(LENDS, Relaxed);
            fence(SeqCst);
        }
    }
}

/// Runs code of users whose panic has no place to go.
pub(crate) fn quietly<H: Host>(f: impl FnOnce()) {
    if let Err(panic) = H::catch(f) {
        // The payload's own destructor is code of users too.
        let _ = H::catch(|| drop::<Panic>(panic));
    }
}

/// Bytes of a control block without its future and of its slot in the table.
pub const CONTROL_BLOCK_BYTES: usize = size_of::<Header<Probe>>() + size_of::<Slot<Probe>>();

/// A host that is never run, to have a concrete type to measure.
pub(crate) struct Probe;

// SAFETY: no thread serves a vCPU of this host.
unsafe impl Host for Probe {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        crate::waker_table!(Probe)
    }

    fn now(&self) -> u64 {
        0
    }
    fn current(&self) -> Option<NonNull<Vcpu<Probe>>> {
        None
    }
    fn pend(&self, _: usize) {}
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<*const ()>() != 8 || CONTROL_BLOCK_BYTES == 88);

/// What a coroutine without a result keeps for it: a word, and which of the two it is.
const _: () = assert!(size_of::<Result<(), JoinError>>() == 2 * size_of::<*const ()>());

/// A box for a waker that is not ours; see [`crate::join`].
pub(crate) type BoxedWaker = Box<core::task::Waker>;
