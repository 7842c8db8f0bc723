//! The control block of a coroutine, which fills one cache line and is a slot of the table of the
//! domain.
//!
//! ```text
//!  Slot (in the domain's table, 64 bytes)                    Body (an allocation)
//!  ┌────────────┬───────────────────────┬──────────────┐     ┌──────────────────────────┐
//!  │ state word │ links, vCPU, levels … │ body_ptr ────┼────►│ future, later its output │
//!  └────────────┴───────────────────────┴──────┬───────┘     └──────────────────────────┘
//!                                              └ number ─► Site: vtable, source position
//! ```
//!
//! Slots never move and stay with the table, which does not shrink, so a domain keeps 64 bytes
//! times the largest number of coroutines that it has had at once. The memory of a future is freed
//! with the output. The fields are accessed by:
//!
//! * links, `queued`: the holder of the lock of the vCPU in whose queues the coroutine is; `next`
//!   is also the link of the inbox and of the free list;
//! * `vcpu`: the owner of the coroutine (`OWNED` in the state word), under the lock of the vCPU
//!   that the coroutine leaves;
//! * `level`: written under the lock of `vcpu`, read by any thread;
//! * the future: the owner of the coroutine that has begun a poll;
//! * the output and the waiter: the thread that the transitions of the state word name;
//! * all fields but the state word and `next`: also the thread that has taken the slot and has not
//!   yet initialized a coroutine there.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr::{NonNull, without_provenance_mut};

mod body;
pub(crate) mod join_error;
pub(crate) mod loans;
pub(crate) mod spawn_sites;
pub(crate) mod state;

use crate::base::host::{Host, Panic, ServedVcpu};
use crate::base::inbox::Linked;
use crate::base::kind::{Kind, State};
use crate::base::level::Level;
use crate::coroutine::loans::Loans;
use crate::coroutine::state::StateWord;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64, fence};
use body::BodyPtr;
pub(crate) use body::{Ended, VTable, allocate, take_back, vtable_of};

const KIND: u8 = 0b0011;
const PINNED: u8 = 0b0100;
const LENDS: u8 = 0b1000;
/// Set in traits while the coroutine is suspended and queues before the others of its level.
const FIRST: u8 = 0b1_0000;
const SUSPENDED: u8 = 0b10_0000;
/// Set in traits while the poll under way has polled handles of less urgent coroutines; see
/// [`crate::poll::join`].
const HAS_POLLED_HANDLES: u8 = 0b100_0000;
/// Set in traits during the poll in which the coroutine lends to the coroutines whose handles it
/// polls.
const POLLED_TO_LEND: u8 = 0b1000_0000;

/// Set in the state's byte while the poll under way has woken its own coroutine.
const WOKEN: u8 = 0b1000_0000;
/// Set in the state's byte if the coroutine is to keep its place among its equals when the poll
/// under way yields. With [`State::Ready`]: the coroutine has kept its place.
const KEEPS_PLACE: u8 = 0b0100_0000;

/// Zeroed memory is a control block without a *tenant*, that is, without a coroutine.
#[repr(C, align(64))]
pub(crate) struct Slot<H: Host> {
    pub(crate) word: StateWord,
    /// Link towards the tail of a ready queue, link of an inbox, or index of the next free slot.
    pub(crate) next: AtomicPtr<Slot<H>>,
    /// Link towards the head of a ready queue.
    pub(crate) prev: AtomicPtr<Slot<H>>,
    /// Tick at which the coroutine became ready.
    pub(crate) ready_at: AtomicU64,
    /// Waker or id of the waiter; see [`crate::poll::join`].
    pub(crate) waiter: AtomicPtr<()>,
    /// Address of the vCPU where the coroutine is queued, runs, or ran last; see [`crate::vcpu`].
    pub(crate) vcpu: AtomicPtr<()>,
    body_ptr: BodyPtr,
    /// Level that the coroutine was given by its spawn or by `reprio`.
    pub(crate) base: AtomicU8,
    /// Level lent by the coroutine that awaits the join handle.
    pub(crate) join_boost: AtomicU8,
    /// Number of locks that the coroutine holds, and the level lent by the waiters for them.
    pub(crate) loans: Loans,
    /// Effective level: the most urgent of the level in `base` and the two lent ones.
    level: AtomicU8,
    /// Level in whose list the coroutine is, or `NOT_QUEUED`.
    pub(crate) queued: AtomicU8,
    state: AtomicU8,
    traits: AtomicU8,
    host: PhantomData<fn() -> H>,
}

pub(crate) struct SlotInit {
    pub(crate) level: Level,
    pub(crate) kind: Kind,
    pub(crate) pinned: bool,
    pub(crate) vcpu: NonNull<()>,
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
    /// Value of `join_boost` without a loan: less urgent than any level.
    pub(crate) const NO_BOOST: u8 = u8::MAX;

    /// Initializes the block of a slot for a new tenant, except for the state word. Returns false
    /// if the body's address is too long.
    ///
    /// # Safety
    /// The caller has taken the slot, and no coroutine is in it. The body holds a future of the
    /// type that belongs to the spawn site `init.site`.
    #[inline]
    pub(crate) unsafe fn init_block(
        this: NonNull<Self>,
        body: NonNull<()>,
        init: &SlotInit,
    ) -> bool {
        let Some(body_ptr) = BodyPtr::new(body, init.site) else {
            return false;
        };
        let level = init.level.get();
        let traits = init.kind as u8 | if init.pinned { PINNED } else { 0 };
        let slot = this.as_ptr();
        // The links, the time and the waiter need no initial value, because they are written before
        // they are read.
        // SAFETY: no other thread uses these fields of a slot without a tenant, so plain writes
        // suffice.
        unsafe {
            (&raw mut (*slot).vcpu).write(AtomicPtr::new(init.vcpu.as_ptr()));
            (&raw mut (*slot).body_ptr).write(body_ptr);
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

    pub(crate) fn link_free(&self, next: u32) {
        let next = without_provenance_mut(next as usize);
        self.next.store(next, Relaxed);
    }

    /// Returns the index that `link_free` stored. Meaningless unless the slot is free.
    pub(crate) fn next_free(&self) -> u32 {
        self.next.load(Relaxed).addr() as u32
    }

    /// Needed because loom's atomics are not words, so zeroed memory is not a slot.
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
            body_ptr: BodyPtr::none(),
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

    /// Recomputes the effective level and returns it. Called under the lock of `vcpu`.
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

    pub(crate) fn is_pinned(&self) -> bool {
        self.traits.load(Relaxed) & PINNED != 0
    }

    #[inline]
    pub(crate) fn may_move(&self) -> bool {
        self.traits.load(Relaxed) & (PINNED | SUSPENDED) == 0
    }

    /// Changes only while the coroutine is in no queue.
    #[inline]
    pub(crate) fn is_suspended(&self) -> bool {
        self.traits.load(Relaxed) & SUSPENDED != 0
    }

    /// True if the coroutine queues before all others of its level. Changes only while the
    /// coroutine is in no queue.
    pub(crate) fn goes_first(&self) -> bool {
        self.traits.load(Relaxed) & FIRST != 0
    }

    /// Called by the owner, while the coroutine is in no queue.
    pub(crate) fn suspend(&self, goes_first: bool) {
        let first = if goes_first { FIRST } else { 0 };
        self.traits.fetch_or(SUSPENDED | first, Relaxed);
        self.set_state_of_poll(State::Suspended);
    }

    /// Called by the owner, which took the coroutine from its queue.
    pub(crate) fn resume(&self) {
        self.traits.fetch_and(!(SUSPENDED | FIRST), Relaxed);
        self.set_state_of_poll(State::Running);
    }

    fn set_state_of_poll(&self, state: State) {
        let flags = self.state.load(Relaxed) & (WOKEN | KEEPS_PLACE);
        self.state.store(state as u8 | flags, Relaxed);
    }

    /// Marks that the poll under way has woken its own coroutine. Called by the polling thread.
    #[inline]
    pub(crate) fn wake_itself(&self) {
        self.state.store(State::Running as u8 | WOKEN, Relaxed);
    }

    /// Valid until the next [`Slot::set_state`].
    #[inline]
    pub(crate) fn has_woken_itself(&self) -> bool {
        self.state.load(Relaxed) & WOKEN != 0
    }

    /// If the poll under way has woken its own coroutine, the coroutine keeps its place in the
    /// queue when the poll yields. Called by the thread that polls.
    pub(crate) fn keep_place(&self) {
        if self.has_woken_itself() {
            self.state
                .store(State::Running as u8 | WOKEN | KEEPS_PLACE, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn keeps_place(&self) -> bool {
        self.state.load(Relaxed) & KEEPS_PLACE != 0
    }

    pub(crate) fn set_ready_in_place(&self) {
        self.state.store(State::Ready as u8 | KEEPS_PLACE, Relaxed);
    }

    /// Returns true if the coroutine has lent its level to what it waits for, now or earlier. If
    /// so, the coroutine is polled again after a change of its level, to pass the change on.
    pub(crate) fn lends(&self) -> bool {
        self.traits.load(Relaxed) & LENDS != 0
    }

    #[inline]
    pub(crate) fn has_polled_handles(&self) -> bool {
        self.traits.load(Relaxed) & HAS_POLLED_HANDLES != 0
    }

    pub(crate) fn set_has_polled_handles(&self, value: bool) {
        self.set_trait(HAS_POLLED_HANDLES, value);
    }

    pub(crate) fn is_polled_to_lend(&self) -> bool {
        self.traits.load(Relaxed) & POLLED_TO_LEND != 0
    }

    pub(crate) fn set_polled_to_lend(&self, value: bool) {
        self.set_trait(POLLED_TO_LEND, value);
    }

    fn set_trait(&self, bit: u8, value: bool) {
        if value {
            self.traits.fetch_or(bit, Relaxed);
        } else {
            self.traits.fetch_and(!bit, Relaxed);
        }
    }

    pub(crate) fn set_lends(&self) {
        if !self.lends() {
            // Set before the level is read, so that a later change of the level makes `resettle`
            // wake the coroutine.
            self.traits.fetch_or(LENDS, Relaxed);
            fence(SeqCst);
        }
    }
}

/// Runs user code and drops the payload of its panic. If the destructor of the payload panics, too,
/// the second payload is leaked.
pub(crate) fn catch_panic<H: Host>(code: impl FnOnce()) {
    if let Err(panic) = H::catch(code)
        && let Err(second) = H::catch(|| drop::<Panic>(panic))
    {
        core::mem::forget(second);
    }
}

/// Size in bytes of a control block, which is a slot of the table. The future is a separate
/// allocation.
pub const CONTROL_BLOCK_BYTES: usize = size_of::<Slot<Probe>>();

/// A host that is never run, for the size of a control block and for tests.
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
    fn current(&self) -> Option<ServedVcpu> {
        None
    }
    fn kick(&self, _: usize) {}
}

#[cfg(not(loom))]
const _: () = assert!(CONTROL_BLOCK_BYTES == 64);

/// A waiter that is not a coroutine of the domain; see [`crate::poll::join`].
pub(crate) type BoxedWaker = Box<core::task::Waker>;
