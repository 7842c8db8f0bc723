//! A vCPU is a set of ready queues, from which one worker thread takes the coroutines that it
//! polls.
//!
//! One thread (or hart) at a time *serves* a vCPU. In a loop, this thread calls [`Vcpu::pick`],
//! polls the coroutine that `pick` returns, and passes a coroutine that has yielded to the next
//! `pick`. Each iteration takes the lock of the vCPU once. Other threads put the coroutines that
//! they wake into the *inbox* of the vCPU, which is a lock-free list. They take the lock to steal
//! coroutines or to change a level (`reprio`), and read the published words without the lock.
//!
//! Order: without a floor and chaos ([`Config`]), `pick` returns the oldest coroutine of the most
//! urgent ready level of the vCPU. It returns a more urgent coroutine of another vCPU of the domain
//! instead, if there is one that may move.
//!
//! Cost of a pick: a pick takes the lock, which needs an atomic exchange only if other threads have
//! recently taken it (see `lock`). It reads the clock, though only at every fourth pick while polls
//! are short (see [`Config::coarse_below`](crate::Config::coarse_below)). The rest is a constant
//! number of plain loads and stores and, with more than one vCPU, one load per other vCPU. Nothing
//! is allocated. The host is called for [`Host::now`], and for [`Host::kick`] if work is left for
//! an idle vCPU.
//!
//! # Writers and readers
//!
//! *Owner*: the thread that serves the vCPU. *Holder*: a thread that has the lock of the vCPU.
//! *Others*: other vCPUs, when they pick or look. To *look* ([`Vcpu::look`]) is to search the other
//! vCPUs for long polls. Words are grouped into cache lines by writer. So the words that others
//! read at each pick share no line with the words that the owner writes at each poll, nor with
//! those that wakers write.
//!
//! | word | written by | read by | file |
//! |---|---|---|---|
//! | `published.ready`, `movable` | holder | others, any thread | `locked` |
//! | `published.running` | owner; holder, if the level changes | others, wakers | `current` |
//! | `published.parked` | owner; the thread that ends the wait | wakers, others | `park` |
//! | `published.long` | looks, under the lock; cleared by the owner | others, owner | `search` |
//! | `published.surplus` | looks, owner, holder | others | `search` |
//! | `published.wait` | owner | others | `search` |
//! | `published.service` | executor, `add_vcpu` | any thread | `service` |
//! | `mail.inbox`, `arriving` | wakers; emptied by a holder | owner, others | `arrivals` |
//! | `mail.preempt` | any thread; cleared by the owner's pick | owner | `requests` |
//! | `mail.arrival_notice` | the host; cleared by a waker | wakers | `requests` |
//! | `clock` | holder | others, watchdogs | `locked` |
//! | `quantum_began` | owner | owner, host | `current` |
//! | `looked_at` | owner | owner | `search` |
//! | `current` | owner; holder, if the poll is suspended | others, watchdogs | `current` |
//! | `watched` | watchdogs; cleared by the owner | owner | `watchdog` |
//! | `guarded` | holder | holder | `locked` |
//! | `slot_cache` | owner, in a critical section | owner | `tables/slot_cache.rs` |

use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

mod arrivals;
mod balance;
mod current;
mod floor;
mod home;
mod inspect;
mod locked;
mod park;
pub(crate) mod release;
mod requests;
mod search;
mod service;
pub(crate) mod shared;
mod suspend;
mod trace;
pub(crate) mod wake;
mod watchdog;

use crate::base::config::Config;
use crate::base::host::{Host, ServedVcpu};
use crate::base::id::CoroutineId;
use crate::base::inbox::Inbox;
use crate::base::level::LEVELS;
use crate::base::lock::Lock;
use crate::base::stats::Counters;
use crate::base::token_bucket::TokenBucket;
use crate::coroutine::Slot;
use crate::coroutine::spawn_sites::SpawnSites;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, fence};
use crate::tables::queue::{Lengths, ReadyQueues};
use crate::tables::slot_cache::SlotCache;
use crate::tables::table::id_of;
pub(crate) use locked::Locked;
pub(crate) use search::MAX_LONG_POLL_AFTER;
use search::WaitWord;
use service::Service;
use shared::Shared;
pub use suspend::SetAside;

/// Value of `published.running` while no poll is under way: less urgent than any level.
const NONE_RUNNING: u8 = LEVELS as u8;
/// Flag of `preempt`: a coroutine more urgent than the running one was queued here.
const PREEMPT_WAKE: u32 = 1;
/// Flag of `preempt`: the host, a cancellation or chaos requests that the poll yields.
const PREEMPT_HOST: u32 = 2;
/// Flag of `preempt`: the inbox has received a coroutine, whose level is in `arriving`.
const ARRIVED: u32 = 4;
/// Number of polls between two readings of the clock while polls are short.
const COARSE_POLLS: u32 = 4;
/// Largest number of coroutines that one steal takes.
const STEAL_MAX: usize = 16;

/// Fields that the lock guards. The fields that every pick uses lie close together.
#[repr(C)]
struct Guarded<H: Host> {
    /// Last reading of the clock.
    now: u64,
    /// Levels of the polls since the last reading of the clock.
    batch: [u8; COARSE_POLLS as usize],
    /// Number of the polls since the last reading of the clock.
    polls: u32,
    /// True while polls are short, so that the clock is read only after every fourth poll.
    coarse: bool,
    /// Number of ticks after a reading of the clock at which other vCPUs begin to consider this
    /// vCPU unserved; see `search`.
    unserved_after: u64,
    /// Running mean of the length of a poll, in ticks.
    mean: u64,
    /// True without a floor and chaos: a pick takes the oldest coroutine of the most urgent level.
    strict_fifo: bool,
    floor: Option<floor::FloorBudget>,
    /// State of the random numbers for chaos.
    random: u64,
    queues: ReadyQueues<H>,
    /// Tick at which each level was last served, or received a coroutine by a change of levels.
    served: [u64; LEVELS],
    /// Level at which the current coroutine was picked.
    picked: u8,
    /// For each level, the part of its quantum (in ticks) that the coroutine at the head has
    /// already used, if that coroutine keeps its place.
    used: [u64; LEVELS],
    /// Limits the looks that find no work.
    looks: TokenBucket,
}

pub(crate) enum Next<H: Host> {
    /// A coroutine to poll, which the caller owns from here on.
    Poll(NonNull<Slot<H>>),
    /// A suspended coroutine; see [`Picked::Resume`](crate::Picked::Resume).
    Resume { id: CoroutineId, for_a_turn: bool },
}

impl<H: Host> From<NonNull<Vcpu<H>>> for ServedVcpu {
    fn from(vcpu: NonNull<Vcpu<H>>) -> ServedVcpu {
        ServedVcpu(vcpu.cast())
    }
}

/// Words that the other vCPUs read at each of their picks. Written only when they change.
#[repr(C)]
struct Published {
    /// Bitmap of this vCPU: bit L is set iff level L has a ready coroutine here.
    ready: AtomicU64,
    /// Bitmap of the ready coroutines that may move to another vCPU.
    movable: AtomicU64,
    /// Level of the poll under way, or [`NONE_RUNNING`].
    running: AtomicU8,
    parked: AtomicBool,
    /// Set after another vCPU has found the poll under way to be long.
    long: AtomicBool,
    /// Whether idle vCPUs may take ready work that is not behind a long poll; see `search`.
    surplus: AtomicU8,
    wait: WaitWord,
    service: Service,
}

/// Words that wakers write and the owner reads, on a cache line of their own.
#[repr(C, align(128))]
struct Mail<H: Host> {
    inbox: Inbox<Slot<H>>,
    /// Levels of the coroutines in the inbox; may lag behind the inbox.
    arriving: AtomicU64,
    /// Flags that ask the poll under way to yield, such as [`PREEMPT_WAKE`].
    preempt: AtomicU32,
    /// Set from the request for a call of `Host::notify_arrival` until that call.
    arrival_notice: AtomicBool,
}

/// The state of one vCPU; see [`Executor`](crate::Executor).
#[repr(C, align(128))]
pub struct Vcpu<H: Host> {
    index: usize,
    domain: NonNull<Shared<H>>,
    published: Published,
    mail: Mail<H>,
    lock: Lock,
    clock: AtomicU64,
    /// Tick at which the quantum of the current poll began; see [`Vcpu::quantum_began`].
    quantum_began: AtomicU64,
    looked_at: AtomicU64,
    /// Slot of the coroutine that is being polled. A watchdog may read the slot, which lives as
    /// long as the domain.
    current: AtomicPtr<Slot<H>>,
    watched: AtomicPtr<Slot<H>>,
    lengths: Arc<Lengths>,
    pub(crate) counters: Counters,
    guarded: UnsafeCell<Guarded<H>>,
    pub(crate) slot_cache: SlotCache<H>,
}

// SAFETY: `guarded` is accessed only under `lock`; coroutines behind the pointers are owned
// according to their state words; the slot cache is used by the thread that serves the vCPU;
// futures that are not `Send` are only in pinned coroutines, whose vCPU is served by their own
// thread.
unsafe impl<H: Host> Send for Vcpu<H> {}
// SAFETY: the argument for `Send` covers shared access, too.
unsafe impl<H: Host> Sync for Vcpu<H> {}

impl<H: Host> Vcpu<H> {
    pub(crate) fn new(domain: NonNull<Shared<H>>, config: &Config, index: usize) -> Vcpu<H> {
        let lengths = Lengths::new();
        let seed = config.chaos.unwrap_or(0) ^ ((index as u64 + 1) << 32);
        Vcpu {
            index,
            domain,
            published: Published {
                ready: AtomicU64::new(0),
                movable: AtomicU64::new(0),
                running: AtomicU8::new(NONE_RUNNING),
                parked: AtomicBool::new(false),
                long: AtomicBool::new(false),
                surplus: AtomicU8::new(search::NO_SURPLUS),
                wait: WaitWord::new(),
                service: Service::new(),
            },
            mail: Mail {
                inbox: Inbox::new(),
                arriving: AtomicU64::new(0),
                preempt: AtomicU32::new(0),
                arrival_notice: AtomicBool::new(false),
            },
            lock: Lock::new(),
            clock: AtomicU64::new(0),
            quantum_began: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            current: AtomicPtr::new(null_mut()),
            watched: AtomicPtr::new(null_mut()),
            lengths: lengths.clone(),
            counters: Counters::new(),
            guarded: UnsafeCell::new(Guarded {
                queues: ReadyQueues::new(lengths),
                now: 0,
                batch: [0; COARSE_POLLS as usize],
                polls: 0,
                coarse: false,
                unserved_after: match search::SHARE * config.long_poll_after {
                    0 => u64::MAX,
                    period => period,
                },
                mean: 0,
                strict_fifo: config.floor.is_none() && config.chaos.is_none(),
                floor: config.floor.map(floor::FloorBudget::new),
                random: seed | 1,
                served: [0; LEVELS],
                picked: NONE_RUNNING,
                used: [0; LEVELS],
                looks: search::budget(config.long_poll_after),
            }),
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

    /// Returns the index of the vCPU in its domain.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the bitmap of this vCPU: bit L is set iff level L has a ready coroutine here,
    /// coroutines in the inbox included. A coroutine whose level changes in the inbox shows at both
    /// levels until the next pick.
    #[must_use]
    pub fn bitmap(&self) -> u64 {
        self.published.ready.load(Relaxed) | self.mail.arriving.load(Relaxed)
    }

    /// Returns true while the vCPU is parked.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.published.parked.load(Relaxed)
    }

    /// Returns true if the vCPU is out of service.
    #[must_use]
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.published.service.is_over()
    }

    pub(crate) fn is_retired_now(&self) -> bool {
        self.published.service.is_over_now()
    }

    pub(crate) fn retire_once(&self) -> bool {
        self.published.service.retire()
    }

    pub(crate) fn vacate(&self) {
        self.published.service.vacate();
    }

    pub(crate) fn revive(&self) -> bool {
        self.published.service.revive()
    }

    pub(crate) fn movable_levels(&self) -> u64 {
        self.published.movable.load(Relaxed) | self.mail.arriving.load(Relaxed)
    }

    pub(crate) fn lock(&self) -> Locked<'_, H> {
        let domain = self.shared();
        if domain.here().is_some_and(|here| core::ptr::eq(here, self)) {
            // SAFETY: the host says that the calling thread serves the vCPU.
            return unsafe { self.lock_by_owner() };
        }
        Locked {
            guard: self.lock.lock(&domain.host),
            vcpu: self,
        }
    }

    /// # Safety
    /// The calling thread serves the vCPU and has its executor.
    #[inline]
    pub(crate) unsafe fn lock_by_owner(&self) -> Locked<'_, H> {
        Locked {
            // SAFETY: the calling thread has the executor. Only one thread at a time has it, and
            // moving it to another thread synchronizes the two threads.
            guard: unsafe { self.lock.lock_by_owner(&self.shared().host) },
            vcpu: self,
        }
    }

    /// Puts `back` into its queue, and then takes the next coroutine. Returns `None` if no
    /// coroutine is ready here and none can be taken from another vCPU.
    ///
    /// # Safety
    /// The calling thread serves the vCPU and has its executor. `back` is owned by the caller, was
    /// polled here last, and is in no queue.
    // Always inlined, so that arguments and results stay in registers. A program has only two or
    // three loops that call this. Without the attribute the compiler does not inline it, and an
    // iteration takes longer. The same holds for every function that such a loop calls once per
    // poll.
    #[inline(always)]
    pub(crate) unsafe fn pick(&self, back: Option<NonNull<Slot<H>>>) -> Option<Next<H>> {
        let domain = self.shared();
        // SAFETY: the calling thread serves the vCPU, by contract.
        let mut locked = unsafe { self.lock_by_owner() };
        locked.read_clock();
        // The host and other threads may set their flags at any time.
        let arrived = self.mail.preempt.load(Relaxed) != 0
            && self.mail.preempt.swap(0, SeqCst) & ARRIVED != 0;
        let was_long = self.is_long();
        if was_long {
            self.published.long.store(false, Relaxed);
        }
        if arrived {
            locked.take_inbox();
        } else {
            locked.drain_inbox();
        }
        if let Some(back) = back {
            // `push_back` requests no preemption, because no poll is under way.
            // SAFETY: the contract is the caller's.
            unsafe { locked.push_back(back) };
        }
        let (mut must_offer, mut passes_on) = (false, false);
        if domain.active.load(Relaxed) > 1 {
            locked = self.look_elsewhere(locked);
            // If vCPUs look, a vCPU that parks meanwhile looks at this vCPU again. Otherwise, this
            // pick must offer its surplus.
            must_offer = domain.config.long_poll_after == 0;
            passes_on = must_offer && self.published.wait.begin_pick();
        }
        let Some((coroutine, resumed)) = locked.next() else {
            self.set_running(NONE_RUNNING);
            self.current.store(null_mut(), Relaxed);
            return None;
        };
        // Started under the lock, so that `settle` finds the coroutine either queued or running.
        // SAFETY: the coroutine was just taken out of a queue, so it is owned by us.
        unsafe { self.start(coroutine, resumed) };
        if was_long || must_offer {
            // Either a vCPU that goes to sleep sees that the poll is not long and that work is left
            // here, or the test below sees that vCPU.
            fence(SeqCst);
        }
        // If the pick of another vCPU ended the wait of this vCPU, that pick notified no further
        // vCPU, and may have left more work behind a poll that never ends. So this pick passes the
        // notice on.
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

    /// Reads the host's clock, which may have been set back since the last reading.
    fn host_now(&self) -> u64 {
        // The stored reading is loaded first. Otherwise, a thread that loses the CPU between the
        // two steps might load a stored reading that is later than its own reading.
        let before = self.clock();
        let host = &self.shared().host;
        let now = host.now();
        if now < before {
            host.now_after(before)
        } else {
            now
        }
    }

    /// Reads the clock, and charges the last poll up to this reading. A host calls this when it
    /// turns from polling to another task, such as reaping completions, so that the time of the
    /// task is charged to no coroutine.
    pub fn refresh_clock(&self) {
        let mut locked = self.lock();
        locked.read_clock_now();
    }
}
