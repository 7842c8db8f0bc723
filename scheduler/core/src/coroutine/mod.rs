//! The control block of a coroutine: a slot of the domain's table, one cache line.
//!
//! ```text
//!  Slot (in the domain's table, 64 bytes)                    Body (an allocation)
//!  ┌────────────┬───────────────────────┬──────────────┐     ┌──────────────────────────┐
//!  │ state word │ links, vCPU, levels … │ place ───────┼────►│ future, later its output │
//!  └────────────┴───────────────────────┴──────┬───────┘     └──────────────────────────┘
//!                                              └ number ─► Site: vtable, where it was spawned
//! ```
//!
//! Slots never move and stay with the table, which does not shrink: a domain keeps 64 bytes for each coroutine of the time when it had
//! the most. The future's memory is given back with it. What touches which field:
//!
//! * links, `queued`: the holder of the lock of the vCPU in whose queues it is;
//!   `next` also the inbox it is in, and the free list;
//! * `vcpu`: the owner of the coroutine (`OWNED` in the state word), under the
//!   lock of the vCPU it leaves;
//! * `level`: under the lock of `vcpu`; any thread may read it;
//! * the future: the owner of the coroutine that has begun a poll;
//! * the output and the waiter: as the state word says;
//! * all but the state word and `next`: the thread that has taken a slot and not yet made it the home of a coroutine.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr::{NonNull, without_provenance_mut};

mod body;
pub(crate) mod join_error;
pub(crate) mod loans;
pub(crate) mod spawn_sites;
pub(crate) mod state;

use crate::base::host::{Host, Panic, Served};
use crate::base::inbox::Linked;
use crate::base::kind::{Kind, State};
use crate::base::level::Level;
use crate::coroutine::loans::Loans;
use crate::coroutine::state::StateWord;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64, fence};
use body::Place;
pub(crate) use body::{Ended, VTable, allocate, take_back, vtable_of};

const KIND: u8 = 0b0011;
const PINNED: u8 = 0b0100;
const LENDS: u8 = 0b1000;
const FIRST: u8 = 0b1_0000;
const SUSPENDED: u8 = 0b10_0000;
/// The poll under way has asked handles of less urgent coroutines: see [`crate::poll::join`].
const HAS_ASKED: u8 = 0b100_0000;
/// The poll under way is the one in which the coroutine lends to those whose handles it asks.
const POLLED_TO_LEND: u8 = 0b1000_0000;

/// In the byte of the state: the poll under way has woken its own coroutine.
const WOKEN: u8 = 0b1000_0000;
/// In the same byte: and keeps its place among its equals. With [`State::Ready`]: it has kept it.
const KEEPS_PLACE: u8 = 0b0100_0000;

/// A control block. Zeroed memory is one without a tenant.
#[repr(C, align(64))]
pub(crate) struct Slot<H: Host> {
    pub(crate) word: StateWord,
    /// Towards the tail of a ready queue, the next in an inbox, or the index of the next free one.
    pub(crate) next: AtomicPtr<Slot<H>>,
    /// Towards the head of a ready queue.
    pub(crate) prev: AtomicPtr<Slot<H>>,
    /// When it became ready, in the host's ticks.
    pub(crate) ready_at: AtomicU64,
    /// See [`crate::poll::join`].
    pub(crate) waiter: AtomicPtr<()>,
    /// Address of the vCPU where it is queued, runs, or ran last: see [`crate::vcpu`].
    pub(crate) vcpu: AtomicPtr<()>,
    place: Place,
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
    host: PhantomData<fn() -> H>,
}

/// How a new coroutine starts.
pub(crate) struct Birth {
    pub(crate) level: Level,
    pub(crate) kind: Kind,
    pub(crate) pinned: bool,
    /// Address of its vCPU.
    pub(crate) vcpu: NonNull<()>,
    /// The number of its type and of where it is spawned.
    pub(crate) site: u16,
}

// SAFETY: `link` is `next`, which a queued coroutine uses for nothing else.
unsafe impl<H: Host> Linked for Slot<H> {
    fn link(&self) -> &AtomicPtr<Slot<H>> {
        &self.next
    }
}

impl<H: Host> Slot<H> {
    pub(crate) const NOT_QUEUED: u8 = u8::MAX;
    /// No level lent: less urgent than any.
    pub(crate) const NO_BOOST: u8 = u8::MAX;

    /// The block of a slot that is to have a tenant, but for the state word. False: the body's address is too long.
    ///
    /// # Safety
    /// The caller has taken the slot, and no coroutine is in it. The body is of a future whose site it is.
    #[inline]
    pub(crate) unsafe fn furnish(this: NonNull<Self>, body: NonNull<()>, birth: &Birth) -> bool {
        let Some(place) = Place::new(body, birth.site) else {
            return false;
        };
        let level = birth.level.get();
        let traits = birth.kind as u8 | if birth.pinned { PINNED } else { 0 };
        let slot = this.as_ptr();
        // What is written later than this before it is read, the links, the time and the waiter, is left as it is.
        // SAFETY: no other thread uses these fields of a slot without a tenant, so they need no atomic steps.
        unsafe {
            (&raw mut (*slot).vcpu).write(AtomicPtr::new(birth.vcpu.as_ptr()));
            (&raw mut (*slot).place).write(place);
            (&raw mut (*slot).base).write(AtomicU8::new(level));
            (&raw mut (*slot).join_boost).write(AtomicU8::new(Self::NO_BOOST));
            (&raw mut (*slot).loans).write(Loans::new());
            (&raw mut (*slot).level).write(AtomicU8::new(level));
            (&raw mut (*slot).queued).write(AtomicU8::new(Self::NOT_QUEUED));
            (&raw mut (*slot).state).write(AtomicU8::new(State::Created as u8));
            (&raw mut (*slot).traits).write(AtomicU8::new(traits));
        }
        true
    }

    /// A free slot: the next free one is at this index.
    pub(crate) fn link_free(&self, next: u32) {
        let next = without_provenance_mut(next as usize);
        self.next.store(next, Relaxed);
    }

    /// The same as `link_free` has left it, of a slot that is free; of another one nonsense.
    pub(crate) fn next_free(&self) -> u32 {
        self.next.load(Relaxed).addr() as u32
    }

    /// The checker's atomics are not words: zeroed they are none.
    #[cfg(loom)]
    pub(crate) fn empty() -> Slot<H> {
        use core::ptr::null_mut;
        Slot {
            word: StateWord::free(),
            next: AtomicPtr::new(null_mut()),
            prev: AtomicPtr::new(null_mut()),
            ready_at: AtomicU64::new(0),
            waiter: AtomicPtr::new(null_mut()),
            vcpu: AtomicPtr::new(null_mut()),
            place: Place::none(),
            base: AtomicU8::new(0),
            join_boost: AtomicU8::new(0),
            loans: Loans::new(),
            level: AtomicU8::new(0),
            queued: AtomicU8::new(0),
            state: AtomicU8::new(0),
            traits: AtomicU8::new(0),
            host: PhantomData,
        }
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

    /// Has the poll that has just ended woken its own coroutine? Until the next [`Slot::set_state`].
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

    /// Has the poll under way asked handles of less urgent coroutines?
    #[inline]
    pub(crate) fn has_asked(&self) -> bool {
        self.traits.load(Relaxed) & HAS_ASKED != 0
    }

    pub(crate) fn set_has_asked(&self, has: bool) {
        self.set_trait(HAS_ASKED, has);
    }

    /// Does it lend its level to those whose handles it asks in the poll under way?
    pub(crate) fn is_polled_to_lend(&self) -> bool {
        self.traits.load(Relaxed) & POLLED_TO_LEND != 0
    }

    pub(crate) fn set_polled_to_lend(&self, is: bool) {
        self.set_trait(POLLED_TO_LEND, is);
    }

    fn set_trait(&self, bit: u8, set: bool) {
        if set {
            self.traits.fetch_or(bit, Relaxed);
        } else {
            self.traits.fetch_and(!bit, Relaxed);
        }
    }

    pub(crate) fn set_lends(&self) {
        if !self.lends() {
            // Before its level is read: a change of the level after that polls it, by `resettle`.
            self.traits.fetch_or(LENDS, Relaxed);
            fence(SeqCst);
        }
    }
}

/// Runs code of users whose panic has no place to go. The destructor of its payload is code of
/// users, too: if that panics, the second payload is leaked.
pub(crate) fn catch_panic<H: Host>(code: impl FnOnce()) {
    if let Err(panic) = H::catch(code)
        && let Err(second) = H::catch(|| drop::<Panic>(panic))
    {
        core::mem::forget(second);
    }
}

/// Bytes of a control block: a slot of the table. Its future is an allocation of its own.
pub const CONTROL_BLOCK_BYTES: usize = size_of::<Slot<Probe>>();

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
    fn current(&self) -> Option<Served> {
        None
    }
    fn pend(&self, _: usize) {}
}

#[cfg(not(loom))]
const _: () = assert!(CONTROL_BLOCK_BYTES == 64);

/// A box for a waker that is not ours; see [`crate::poll::join`].
pub(crate) type BoxedWaker = Box<core::task::Waker>;
