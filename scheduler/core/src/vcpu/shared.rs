//! The state that the vCPUs and handles of a domain share, including the table of coroutines and
//! the list of vCPUs.

use alloc::boxed::Box;
use core::ptr::{NonNull, null_mut};

use super::{MAX_LONG_POLL_AFTER, Vcpu, release, wake};
use crate::base::config::{Config, MAX_VCPUS};
use crate::base::host::{Critical, Host};
use crate::base::id::{CoroutineId, Dead};
use crate::coroutine::Slot;
use crate::coroutine::spawn_sites::SpawnSites;
use crate::coroutine::state::TransitionToReady;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, NextLine};
use crate::tables::table::Table;

/// The state of a domain. Words that every pick reads share no cache line with the words that
/// spawns and exits write.
#[repr(C)]
pub(crate) struct Shared<H: Host> {
    pub(crate) host: H,
    pub(crate) config: Config,
    pub(crate) vcpus: [AtomicPtr<Vcpu<H>>; MAX_VCPUS],
    /// Entries of `vcpus` below this index are set.
    pub(crate) count: AtomicUsize,
    /// Number of vCPUs in service.
    pub(crate) active: AtomicUsize,
    /// Number of parked vCPUs.
    pub(crate) idle: AtomicUsize,
    /// Number of parked vCPUs that do not look for long polls; see `search`.
    pub(crate) asleep: AtomicUsize,
    pub(crate) closed: AtomicBool,
    pub(crate) spawn_sites: SpawnSites<H>,

    /// The words from here on are written by threads that serve no vCPU when they spawn, and when
    /// the number of handles changes.
    outside: NextLine,
    /// Counts coroutines spawned from outside, which go to the vCPUs round-robin.
    next: AtomicUsize,
    pub(crate) handles: AtomicUsize,
    pub(crate) spawned_outside: AtomicU64,

    /// Each spawn and exit reads the chunks of the table, and some write its free list.
    slots: NextLine,
    pub(crate) table: Table<H>,
}

impl<H: Host> Shared<H> {
    pub(crate) fn new(host: H, config: Config) -> Shared<H> {
        Shared {
            host,
            config: Config {
                // Limited, because periods are multiples of it.
                long_poll_after: config.long_poll_after.min(MAX_LONG_POLL_AFTER),
                // A poll of the floor is charged its own time, so each poll reads the clock.
                coarse_below: config.floor.map_or(config.coarse_below, |_| 0),
                ..config
            },
            vcpus: core::array::from_fn(|_| AtomicPtr::new(null_mut())),
            count: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            spawn_sites: SpawnSites::new(),
            outside: NextLine,
            next: AtomicUsize::new(0),
            handles: AtomicUsize::new(1),
            spawned_outside: AtomicU64::new(0),
            slots: NextLine,
            table: Table::new(),
        }
    }

    pub(crate) fn vcpus(&self) -> impl Iterator<Item = &Vcpu<H>> {
        let count = self.count.load(Acquire);
        self.vcpus[..count].iter().map(|vcpu| {
            // SAFETY: the pointer was stored before the count, and its vCPU is freed when `self` is
            // dropped.
            unsafe { &*vcpu.load(Acquire) }
        })
    }

    /// Returns the vCPU of this domain that the calling thread serves, if any.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Vcpu<H>> {
        let vcpu = self.host.current()?;
        // SAFETY: the host returned this vCPU, which the calling thread serves by the contract of
        // `Host::current`, so it exists.
        let vcpu = unsafe { vcpu.0.cast::<Vcpu<H>>().as_ref() };
        core::ptr::eq(vcpu.domain().as_ptr(), self).then_some(vcpu)
    }

    /// Returns the vCPU with the most urgent movable work of the wanted levels, and the wanted
    /// levels that are at least as urgent as that work.
    pub(crate) fn find_victim(&self, thief: &Vcpu<H>, wanted: u64) -> Option<(&Vcpu<H>, u64)> {
        let mut best = (64, None);
        for vcpu in self.vcpus() {
            let urgency = (vcpu.movable_levels() & wanted).trailing_zeros();
            if urgency < best.0 && !core::ptr::eq(vcpu, thief) {
                best = (urgency, Some(vcpu));
            }
        }
        let bit = 1u64.checked_shl(best.0)?;
        Some((best.1?, wanted & (bit | (bit - 1))))
    }

    /// Ends the wait of one parked vCPU, if there is one.
    pub(crate) fn notify_idle(&self, from: &Vcpu<H>) {
        let start = from.index() + 1;
        let count = self.count.load(Acquire);
        let (low, high) = (start.min(count), count);
        for vcpu in self
            .vcpus()
            .take(high)
            .skip(low)
            .chain(self.vcpus().take(low))
        {
            if vcpu.is_parked() && vcpu.kick() {
                return;
            }
        }
    }

    /// Returns a vCPU in service other than `excluded`.
    pub(crate) fn any_vcpu(&self, excluded: &Vcpu<H>) -> Option<&Vcpu<H>> {
        self.choose(|vcpu| !core::ptr::eq(vcpu, excluded))
    }

    /// Returns a vCPU in service that `accept` accepts: a parked one if possible, else the next
    /// one, round-robin.
    pub(crate) fn choose(&self, accept: impl Fn(&Vcpu<H>) -> bool) -> Option<&Vcpu<H>> {
        let accept = |vcpu: &&Vcpu<H>| !vcpu.is_retired() && accept(vcpu);
        if self.idle.load(Relaxed) != 0
            && let Some(parked) = self.vcpus().find(|vcpu| vcpu.is_parked() && accept(vcpu))
        {
            return Some(parked);
        }
        let count = self.count.load(Acquire).max(1);
        let start = self.next.fetch_add(1, Relaxed) % count;
        self.vcpus()
            .skip(start)
            .chain(self.vcpus().take(start))
            .find(accept)
    }

    /// Moves a coroutine whose levels have changed to its new place. If `propagate` is true, the
    /// level has changed, and the coroutine is blocked and lends its level, then the coroutine is
    /// polled, so that it passes the change on to the coroutine that it waits for.
    ///
    /// # Safety
    /// The caller holds a reference to the coroutine.
    pub(crate) unsafe fn resettle(&self, coroutine: NonNull<Slot<H>>, propagate: bool) {
        let _critical = Critical::<H>::enter();
        // SAFETY: the caller holds a reference, so the block is alive.
        let block = unsafe { coroutine.as_ref() };
        let before = block.level();
        loop {
            let vcpu = block.vcpu();
            // SAFETY: the contract is the caller's.
            let settled = unsafe { vcpu.lock().settle(coroutine) };
            vcpu.look_again();
            if settled {
                break;
            }
        }
        if propagate && block.level() != before && block.lends() {
            // SAFETY: the caller holds a reference.
            unsafe { wake::wake_slot(coroutine) };
        }
    }

    /// Calls `f` with a living coroutine, to which this function holds a reference meanwhile.
    pub(crate) fn with_coroutine<R>(
        &self,
        id: CoroutineId,
        f: impl FnOnce(NonNull<Slot<H>>) -> R,
    ) -> Result<R, Dead> {
        let pointer = self.table.find(id.index()).ok_or(Dead)?;
        // SAFETY: slots live as long as the table.
        let slot = unsafe { pointer.as_ref() };
        if !slot.word.retain_by_id(id.generation()) {
            return Err(Dead);
        }
        let result = f(pointer);
        // SAFETY: the reference was just taken.
        unsafe { release::release(pointer) };
        Ok(result)
    }

    pub(crate) fn wake(&self, id: CoroutineId) -> Result<(), Dead> {
        let _critical = Critical::<H>::enter();
        self.wake_from(self.here(), id)
    }

    /// Like [`wake`](Self::wake), for a caller that is in a critical section and knows which vCPU
    /// its thread serves.
    #[inline]
    pub(crate) fn wake_from(&self, here: Option<&Vcpu<H>>, id: CoroutineId) -> Result<(), Dead> {
        let slot = self.table.find(id.index()).ok_or(Dead)?;
        // SAFETY: slots live as long as the table.
        match unsafe { slot.as_ref() }
            .word
            .wake_by_id(id.generation(), false)
        {
            TransitionToReady::Exited => Err(Dead),
            TransitionToReady::Absorbed => Ok(()),
            TransitionToReady::Enqueue => {
                // SAFETY: `Enqueue` gives this thread the right to enqueue the coroutine.
                unsafe { Vcpu::admit_from(here, slot) };
                Ok(())
            }
        }
    }

    /// Counts the free slots in the caches and in the table. Called only when no vCPU is served any
    /// more, and no thread takes slots. O(n).
    pub(crate) fn count_free(&self) -> usize {
        // SAFETY: the vCPUs are not served, so only this thread uses their caches.
        let cached = self.vcpus().map(|vcpu| unsafe { vcpu.slot_cache.len() });
        cached.sum::<usize>() + self.table.count_free()
    }
}

impl<H: Host> Drop for Shared<H> {
    fn drop(&mut self) {
        for vcpu in &self.vcpus {
            let vcpu = vcpu.swap(null_mut(), Relaxed);
            if !vcpu.is_null() {
                // SAFETY: the pointer came from `Box::into_raw`, and no reference to the vCPU
                // outlives the domain.
                drop(unsafe { Box::from_raw(vcpu) });
            }
        }
    }
}
