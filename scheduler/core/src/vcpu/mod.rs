//! A vCPU: the right to run on one CPU, and the loop body that uses it.
//!
//! One thread (or hart) at a time *serves* a vCPU: it calls [`Vcpu::pick`], polls
//! what it gets, and hands a coroutine that wants to go on back to the next
//! `pick`. So a turn takes the lock once. Other threads reach a vCPU by its
//! inbox (wakes), by its lock (`reprio`, thieves), and by loads of its published
//! words.
//!
//! Order: `pick` returns the oldest coroutine of the most urgent level that has
//! one, here or, if more urgent and free to move, on another vCPU of the domain.
//!
//! Cost of a turn: no atomic step, or one exchange where other threads have taken the lock lately (see `lock`), a clock reading (or a quarter of one,
//! see [`Config::coarse_below`](crate::Config)), a constant number of plain loads and stores, and with more
//! than one vCPU one load per other vCPU. No allocation, no upcall but
//! [`Host::now`].
//!
//! What is polled: `current`. What asks it to give way: `ask`. What becomes ready: `arrivals`. Parking: `park`. What idle vCPUs look for: `search`. What a watchdog sees: `watch`. Work that moves: `balance`. What happens under the lock: `locked`. Counters: `inspect`.

use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

mod arrivals;
mod ask;
mod balance;
mod current;
mod home;
mod inspect;
mod locked;
mod park;
pub(crate) mod release;
mod search;
pub(crate) mod shared;
mod suspend;
mod trace;
pub(crate) mod wake;
mod watch;

use crate::base::config::Config;
use crate::base::host::{Host, Served};
use crate::base::id::CoroutineId;
use crate::base::inbox::Inbox;
use crate::base::level::LEVELS;
use crate::base::lock::Lock;
use crate::base::stats::Counters;
use crate::coroutine::Slot;
use crate::coroutine::spawn_sites::SpawnSites;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, NextLine, fence};
use crate::tables::queue::{Lengths, ReadyQueues};
use crate::tables::slot_cache::SlotCache;
use crate::tables::table::id_of;
pub(crate) use locked::Locked;
pub(crate) use search::MOST_LOOK_AFTER;
use shared::Shared;
pub use suspend::Aside;

/// `running`: no coroutine.
const NOBODY: u8 = LEVELS as u8;
/// `preempt`: something more urgent than what runs was queued here.
const PREEMPT_WAKE: u32 = 1;
/// `preempt`: the host asked.
const PREEMPT_HOST: u32 = 2;
/// `preempt`: something has come into the inbox; how urgent it is `arriving` says.
const ARRIVED: u32 = 4;
/// Polls between two readings of the clock while polls are short.
const COARSE_POLLS: u32 = 4;
/// The most that a thief takes at once.
const STEAL_MAX: usize = 16;

/// What the lock guards. What every turn uses lies close together.
#[repr(C)]
struct Guarded<H: Host> {
    /// The last reading of the clock.
    now: u64,
    /// The levels polled since.
    batch: [u8; COARSE_POLLS as usize],
    polls: u32,
    /// Polls are short: the clock is read at every fourth.
    coarse: bool,
    /// So long after a reading the others take this vCPU for unserved: see `search`.
    unserved_after: u64,
    /// A running mean of the ticks of a poll.
    mean: u64,
    /// Neither aging nor chaos: the most urgent level, and its oldest.
    plain: bool,
    /// Aging: turns so far.
    turns: u64,
    /// Aging: the level after which the next turn of the others goes on.
    cursor: u8,
    random: u64,
    queues: ReadyQueues<H>,
    /// When a level was served last, or got something by a change of levels.
    served: [u64; LEVELS],
    /// The level at which the current poll was picked.
    picked: u8,
    /// What the one that keeps its place at the head of a level had used of its turn.
    used: [u64; LEVELS],
}

/// What [`Vcpu::pick`] found.
pub(crate) enum Next<H: Host> {
    /// A coroutine to poll, which the caller owns from here on.
    Poll(NonNull<Slot<H>>),
    /// A suspended coroutine; see [`Picked::Resume`](crate::Picked::Resume).
    Resume { id: CoroutineId, for_a_turn: bool },
}

impl<H: Host> From<NonNull<Vcpu<H>>> for Served {
    fn from(vcpu: NonNull<Vcpu<H>>) -> Served {
        Served(vcpu.cast())
    }
}

/// The state of one vCPU. See the module.
///
/// Cache lines are grouped by their writers: what the other vCPUs read at each of their picks shares none with
/// what the owner writes at each poll, nor with what wakers write.
#[repr(C, align(128))]
pub struct Vcpu<H: Host> {
    // Read by the others at each pick; written when it changes.
    /// The local bitmap: bit L set iff level L has a ready coroutine here.
    ready: AtomicU64,
    /// The same for those that may move to another vCPU.
    movable: AtomicU64,
    running: AtomicU8,
    parked: AtomicBool,
    /// Parked, and does not look around.
    asleep: AtomicBool,
    /// A wait has ended since the last pick.
    has_waited: AtomicBool,
    /// The poll under way has been found to be long.
    long: AtomicBool,
    /// What is ready here is more than one vCPU should do: see `search`.
    surplus: AtomicU8,
    pub(crate) retired: AtomicBool,
    /// Retired, and its executor is gone: it may be put back into service.
    pub(crate) vacant: AtomicBool,
    index: usize,
    domain: NonNull<Shared<H>>,

    // Written by wakers, and looked at by the owner.
    wakers: NextLine,
    inbox: Inbox<Slot<H>>,
    /// Levels of coroutines in the inbox; may lag behind it.
    arriving: AtomicU64,
    preempt: AtomicU32,
    /// The host wants to hear of what becomes ready during a poll.
    attended: AtomicBool,

    // Written by the owner at each poll.
    owner: NextLine,
    lock: Lock,
    /// The last reading of the clock.
    clock: AtomicU64,
    /// When the turn of what is polled began, had it not given way since.
    turn_began: AtomicU64,
    /// The tick up to which the budget of looks is spent.
    overdrawn: AtomicU64,
    /// It waits until that is paid off, and for nothing else.
    saving: AtomicBool,
    /// The tick of the last look.
    looked_at: AtomicU64,
    /// The slot of the coroutine that is being polled: slots never go away, so a
    /// watchdog may look at it.
    current: AtomicPtr<Slot<H>>,
    /// The slot of a poll that is to say how long it took.
    watched: AtomicPtr<Slot<H>>,
    lengths: Arc<Lengths>,
    pub(crate) counters: Counters,
    guarded: UnsafeCell<Guarded<H>>,

    // Of the thread that serves it, at spawns and exits.
    pub(crate) slot_cache: SlotCache<H>,
}

// SAFETY: `guarded` is touched only under `lock`; coroutines behind the pointers
// are owned as their state words say; `kept` is used by the thread that serves the vCPU; futures that are not `Send` are only in
// coroutines that are pinned, whose vCPU is served by their own thread.
unsafe impl<H: Host> Send for Vcpu<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for Vcpu<H> {}

impl<H: Host> Vcpu<H> {
    pub(crate) fn new(domain: NonNull<Shared<H>>, config: &Config, index: usize) -> Vcpu<H> {
        let lengths = Lengths::new();
        let seed = config.chaos.unwrap_or(0) ^ ((index as u64 + 1) << 32);
        Vcpu {
            ready: AtomicU64::new(0),
            movable: AtomicU64::new(0),
            running: AtomicU8::new(NOBODY),
            parked: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
            long: AtomicBool::new(false),
            surplus: AtomicU8::new(search::NO_SURPLUS),
            retired: AtomicBool::new(false),
            vacant: AtomicBool::new(false),
            index,
            domain,
            wakers: NextLine,
            inbox: Inbox::new(),
            arriving: AtomicU64::new(0),
            preempt: AtomicU32::new(0),
            attended: AtomicBool::new(false),
            owner: NextLine,
            lock: Lock::new(),
            clock: AtomicU64::new(0),
            turn_began: AtomicU64::new(0),
            overdrawn: AtomicU64::new(0),
            saving: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
            current: AtomicPtr::new(null_mut()),
            watched: AtomicPtr::new(null_mut()),
            guarded: UnsafeCell::new(Guarded {
                queues: ReadyQueues::new(lengths.clone()),
                now: 0,
                batch: [0; COARSE_POLLS as usize],
                polls: 0,
                coarse: false,
                unserved_after: match search::SHARE * config.look_after {
                    0 => u64::MAX,
                    period => period,
                },
                mean: 0,
                plain: config.aging.is_none() && config.chaos.is_none(),
                turns: 0,
                cursor: 0,
                random: seed | 1,
                served: [0; LEVELS],
                picked: NOBODY,
                used: [0; LEVELS],
            }),
            lengths,
            counters: Counters::new(),
            slot_cache: SlotCache::new(),
        }
    }

    pub(crate) fn domain(&self) -> NonNull<Shared<H>> {
        self.domain
    }

    pub(crate) fn shared(&self) -> &Shared<H> {
        // SAFETY: a domain outlives its vCPUs.
        unsafe { self.domain.as_ref() }
    }

    #[inline]
    pub(crate) fn spawn_sites(&self) -> &SpawnSites<H> {
        &self.shared().spawn_sites
    }

    /// The number of the vCPU in its domain.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The local bitmap: bit L set iff level L has a ready coroutine here,
    /// counting those that are still in the inbox. One whose level changes there
    /// shows at both until the next pick.
    #[must_use]
    pub fn bitmap(&self) -> u64 {
        self.ready.load(Relaxed) | self.arriving.load(Relaxed)
    }

    /// Does it wait for something to do?
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.parked.load(Relaxed)
    }

    /// Is it out of service?
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    pub(crate) fn may_give(&self) -> u64 {
        self.movable.load(Relaxed) | self.arriving.load(Relaxed)
    }

    /// Takes the lock, on any thread.
    pub(crate) fn locked(&self) -> Locked<'_, H> {
        let domain = self.shared();
        if domain.here().is_some_and(|here| core::ptr::eq(here, self)) {
            // SAFETY: the host says that the calling thread serves the vCPU.
            return unsafe { self.locked_by_owner() };
        }
        Locked {
            guard: self.lock.lock(&domain.host),
            vcpu: self,
        }
    }

    /// # Safety
    /// The calling thread serves the vCPU: it has the executor.
    #[inline]
    pub(crate) unsafe fn locked_by_owner(&self) -> Locked<'_, H> {
        Locked {
            // SAFETY: passed on. One thread at a time has the executor, and hands it on with what it has written.
            guard: unsafe { self.lock.lock_by_owner(&self.shared().host) },
            vcpu: self,
        }
    }

    /// Takes the next coroutine, after putting `back` into its queue. `None`:
    /// nothing is ready here or to be had elsewhere.
    ///
    /// # Safety
    /// The calling thread serves the vCPU: it has the executor. `back` is owned by the caller, was
    /// polled here last, and is in no queue.
    // As all that a loop calls once per poll: a program has two loops or three, and in line what is passed and returned stays in registers. Left to
    // the compiler, which finds it too long, a turn takes a tenth longer.
    #[inline(always)]
    pub(crate) unsafe fn pick(&self, back: Option<NonNull<Slot<H>>>) -> Option<Next<H>> {
        let domain = self.shared();
        // SAFETY: passed on.
        let mut locked = unsafe { self.locked_by_owner() };
        locked.read_clock();
        // The host and others may set their flags at any time.
        let arrived =
            self.preempt.load(Relaxed) != 0 && self.preempt.swap(0, SeqCst) & ARRIVED != 0;
        let was_long = self.is_long();
        if was_long {
            self.long.store(false, Relaxed);
        }
        match arrived {
            true => locked.take_inbox(),
            false => locked.drain_inbox(),
        }
        if let Some(back) = back {
            // Nothing is being polled that it might preempt.
            // SAFETY: passed on.
            unsafe { locked.push_back(back) };
        }
        let (mut must_offer, mut passes_on) = (false, false);
        if domain.active.load(Relaxed) > 1 {
            locked = self.look_elsewhere(locked);
            // With vCPUs that look around, one that parks meanwhile looks at this one again.
            must_offer = domain.config.look_after == 0;
            if must_offer && self.has_waited.load(Relaxed) {
                self.has_waited.store(false, Relaxed);
                passes_on = true;
            }
        }
        let Some((coroutine, resumed)) = locked.next() else {
            self.set_running(NOBODY);
            self.current.store(null_mut(), Relaxed);
            return None;
        };
        // Under the lock, so that `settle` finds it queued or running.
        // SAFETY: it came out of a queue, so it is owned by us.
        unsafe { self.start(coroutine, resumed) };
        if was_long || must_offer {
            // A vCPU that goes to sleep sees a poll that is not long, and what is left here, or is seen here.
            fence(SeqCst);
        }
        // Its wait was ended by a pick that tells one vCPU, and may have left more, behind a poll that takes for ever.
        let notify = domain.idle.load(Relaxed) != 0
            && (locked.offers_surplus()
                || self.is_unwatched()
                || passes_on && self.may_help(locked.now()));
        drop(locked);
        if notify {
            domain.notify_idle(self);
        }
        if let Some(for_a_turn) = resumed {
            let id = id_of(coroutine);
            return Some(Next::Resume { id, for_a_turn });
        }
        Some(Next::Poll(coroutine))
    }

    /// Reads the host's clock, which may have been set back since the vCPU's last reading.
    fn host_now(&self) -> u64 {
        // The earlier reading first: else a thread that loses the CPU between the two takes a later
        // reading for it.
        let before = self.clock();
        let host = &self.shared().host;
        let now = host.now();
        if now < before {
            host.now_after(before)
        } else {
            now
        }
    }

    /// Closes the account of the last poll and reads the clock afresh. A host
    /// calls it when it turns from polling to something else (reaping its
    /// completions, say), so that this time is charged to no coroutine.
    pub fn refresh_clock(&self) {
        let mut locked = self.locked();
        locked.read_clock_now();
    }
}
