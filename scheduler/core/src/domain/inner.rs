//! What the handles of a domain share: the table of coroutines, the vCPUs, and what is done with both.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use core::panic::Location;
use core::ptr::{NonNull, null_mut};

use crate::base::config::{Config, MAX_VCPUS, SpawnError, SpawnOptions};
use crate::base::host::{Critical, Host};
use crate::base::id::{CoroutineId, Dead};
use crate::base::level::{Level, Priority};
use crate::coroutine::spawn_sites::Sites;
use crate::coroutine::state::Wake;
use crate::coroutine::{Birth, Slot, allocate, take_back, vtable_of};
use crate::poll::join::JoinHandle;
use crate::poll::running::exit;
use crate::poll::waker;
use crate::sync::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, NextLine};
use crate::tables::table::Table;
use crate::vcpu::trace::Step;
use crate::vcpu::{MOST_LOOK_AFTER, Vcpu};

/// What the handles share. What every pick reads shares no cache line with what spawns and exits write.
#[repr(C)]
pub(crate) struct Inner<H: Host> {
    pub(crate) host: H,
    pub(crate) config: Config,
    pub(super) vcpus: [AtomicPtr<Vcpu<H>>; MAX_VCPUS],
    /// vCPUs below this index exist.
    pub(super) count: AtomicUsize,
    /// How many of them are not retired.
    pub(crate) active: AtomicUsize,
    /// How many of them are parked.
    pub(crate) idle: AtomicUsize,
    /// How many of these do not look around.
    pub(crate) asleep: AtomicUsize,
    pub(super) closed: AtomicBool,
    pub(crate) sites: Sites<H>,

    /// Of spawns from outside, and of handles that come and go.
    outside: NextLine,
    /// Where the next coroutine from outside goes.
    next: AtomicUsize,
    /// Domains and executors.
    pub(super) handles: AtomicUsize,
    /// Coroutines that were spawned by threads that serve no vCPU.
    pub(super) spawned_outside: AtomicU64,

    /// Its chunks are read by each spawn and exit, its free list is written by some of them.
    slots: NextLine,
    pub(crate) table: Table<H>,
}

impl<H: Host> Inner<H> {
    /// Without vCPUs, for one handle.
    pub(super) fn new(host: H, config: Config) -> Inner<H> {
        Inner {
            host,
            config: Config {
                // Periods are multiples of it.
                look_after: config.look_after.min(MOST_LOOK_AFTER),
                ..config
            },
            vcpus: core::array::from_fn(|_| AtomicPtr::new(null_mut())),
            count: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            sites: Sites::new(),
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
            // SAFETY: set before the count, kept until `self` is dropped.
            unsafe { &*vcpu.load(Acquire) }
        })
    }

    /// The vCPU of this domain that the calling thread serves.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Vcpu<H>> {
        let vcpu = self.host.current()?;
        // SAFETY: the host says the thread serves it, so it exists.
        let vcpu = unsafe { &*vcpu.as_ptr() };
        core::ptr::eq(vcpu.domain().as_ptr(), self).then_some(vcpu)
    }

    /// The vCPU that has the most urgent work of the wanted levels to give, and those of them that are as urgent as it.
    pub(crate) fn victim(&self, thief: &Vcpu<H>, wanted: u64) -> Option<(&Vcpu<H>, u64)> {
        let mut best = (64, None);
        for vcpu in self.vcpus() {
            let urgency = (vcpu.may_give() & wanted).trailing_zeros();
            if urgency < best.0 && !core::ptr::eq(vcpu, thief) {
                best = (urgency, Some(vcpu));
            }
        }
        let least = 1u64.checked_shl(best.0)?;
        Some((best.1?, wanted & (least | (least - 1))))
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

    /// Some vCPU in service, another than `not` if it can be: parked ones first.
    pub(crate) fn any_vcpu(&self, not: &Vcpu<H>) -> Option<&Vcpu<H>> {
        self.choose(|vcpu| !core::ptr::eq(vcpu, not))
    }

    fn choose(&self, accept: impl Fn(&Vcpu<H>) -> bool) -> Option<&Vcpu<H>> {
        let accept = |vcpu: &&Vcpu<H>| !vcpu.retired.load(Relaxed) && accept(vcpu);
        if self.idle.load(Relaxed) != 0
            && let Some(parked) = self.vcpus().find(|vcpu| vcpu.is_parked() && accept(vcpu))
        {
            return Some(parked);
        }
        let count = self.count.load(Acquire).max(1);
        let turn = self.next.fetch_add(1, Relaxed) % count;
        self.vcpus()
            .skip(turn)
            .chain(self.vcpus().take(turn))
            .find(accept)
    }

    /// Gives a coroutine whose levels have changed its place. With `propagate`, a
    /// blocked one whose level has changed and that lends it is polled, so
    /// that what it waits for learns of it.
    ///
    /// # Safety
    /// The caller holds a reference to the coroutine.
    pub(crate) unsafe fn resettle(&self, coroutine: NonNull<Slot<H>>, propagate: bool) {
        let _critical = Critical::<H>::enter();
        // SAFETY: referenced, hence alive.
        let block = unsafe { coroutine.as_ref() };
        let before = block.level();
        loop {
            let vcpu = block.vcpu();
            // SAFETY: passed on.
            let settled = unsafe { vcpu.locked().settle(coroutine) };
            vcpu.look_again();
            if settled {
                break;
            }
        }
        if propagate && block.level() != before && block.lends() {
            // SAFETY: as above.
            unsafe { waker::wake_slot(coroutine) };
        }
    }

    /// Runs `f` with the control block of a living coroutine.
    pub(crate) fn with<R>(
        &self,
        id: CoroutineId,
        f: impl FnOnce(NonNull<Slot<H>>) -> R,
    ) -> Result<R, Dead> {
        let place = self.table.find(id.index()).ok_or(Dead)?;
        // SAFETY: slots live as long as the table.
        let slot = unsafe { place.as_ref() };
        if !slot.word.retain_by_id(id.generation()) {
            return Err(Dead);
        }
        let result = f(place);
        // SAFETY: the reference just taken.
        unsafe { waker::release(place) };
        Ok(result)
    }

    pub(super) fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.with(id, |coroutine| {
            // SAFETY: `with` holds a reference.
            unsafe { waker::cancel_slot(coroutine, id.generation()) }
        })
        .and_then(|wake| match wake {
            Wake::Exited => Err(Dead),
            Wake::Absorbed | Wake::Enqueue => Ok(()),
        })
    }

    pub(crate) fn wake(&self, id: CoroutineId) -> Result<(), Dead> {
        let _critical = Critical::<H>::enter();
        self.wake_from(self.here(), id)
    }

    /// The same in a critical section, by a caller that knows which vCPU of the domain its thread serves.
    #[inline]
    pub(crate) fn wake_from(&self, here: Option<&Vcpu<H>>, id: CoroutineId) -> Result<(), Dead> {
        let slot = self.table.find(id.index()).ok_or(Dead)?;
        // SAFETY: slots live as long as the table.
        match unsafe { slot.as_ref() }
            .word
            .wake_by_id(id.generation(), false)
        {
            Wake::Exited => Err(Dead),
            Wake::Absorbed => Ok(()),
            Wake::Enqueue => {
                // SAFETY: `Enqueue` makes the coroutine ours.
                unsafe { Vcpu::admit_from(here, slot) };
                Ok(())
            }
        }
    }

    /// The current coroutine of the calling thread, if it is in this domain.
    pub(super) fn current(&self) -> Option<NonNull<Slot<H>>> {
        self.here().and_then(Vcpu::current)
    }

    pub(super) fn spawn<F>(
        &self,
        future: F,
        options: SpawnOptions,
        pinned: Option<&Vcpu<H>>,
        location: &'static Location<'static>,
    ) -> Result<JoinHandle<F::Output, H>, SpawnError>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        if self.closed.load(Relaxed) {
            return Err(SpawnError::Closed);
        }
        let critical = Critical::<H>::enter();
        let here = self.here().filter(|vcpu| !vcpu.retired.load(Relaxed));
        let home = pinned.or(here).or_else(|| self.choose(|_| true));
        let home = home.ok_or(SpawnError::NoVcpu)?;
        let level = match options.priority {
            Priority::At(level) => level,
            Priority::Inherit => match here.and_then(Vcpu::current) {
                // SAFETY: it is being polled by this thread, hence alive.
                Some(parent) => unsafe { parent.as_ref() }.level(),
                None => Level::DEFAULT,
            },
        };
        let Some(site) = self.sites.number(vtable_of::<F, H>(), location) else {
            return Err(SpawnError::OutOfMemory);
        };
        let birth = Birth {
            level,
            kind: options.kind,
            pinned: pinned.is_some(),
            vcpu: NonNull::from(home),
            site,
        };
        let slot = match here {
            // SAFETY: the calling thread serves it, and the section is critical.
            Some(here) => unsafe { here.kept.take(&self.table) },
            None => self.table.take(),
        };
        let slot = slot.ok_or(SpawnError::OutOfMemory)?;
        let future = match allocate::<F, H>(future) {
            // SAFETY: the slot was taken a line ago, and the body is made for it.
            Ok(body) => match unsafe { Slot::furnish(slot, body, &birth) } {
                true => None,
                // SAFETY: nothing knows of it.
                false => Some(unsafe { take_back::<F, H>(body) }),
            },
            Err(future) => Some(future),
        };
        if future.is_some() {
            // SAFETY: the slot has no tenant.
            unsafe { Inner::give_slot_back(NonNull::from(self), slot) };
            drop(critical);
            drop(future);
            return Err(SpawnError::OutOfMemory);
        }
        // SAFETY: slots live as long as the domain; this one is ours.
        unsafe { slot.as_ref() }.word.init(true, options.start);
        match here {
            Some(here) => here.counters.spawned(),
            None => drop(self.spawned_outside.fetch_add(1, Relaxed)),
        }
        // SAFETY: the coroutine has this output, and the word counts the handle.
        let handle = unsafe { JoinHandle::new(slot) };
        home.trace(slot, Step::Spawned);
        if options.start {
            // SAFETY: `init` made the coroutine ours to enqueue, and its home is where it is queued if the calling thread serves that.
            unsafe {
                match here {
                    Some(here) if core::ptr::eq(here, home) => here.admit_here(slot),
                    _ => Vcpu::admit_from(here, slot),
                }
            }
        }
        drop(critical);
        Ok(handle)
    }

    /// Cancels everything. No vCPU is served any more, except by the calling
    /// thread.
    pub(super) fn shut_down(&self) {
        self.closed.store(true, SeqCst);
        for rounds in 0.. {
            for vcpu in self.vcpus() {
                while let Some(coroutine) = { vcpu.locked().take_any() } {
                    // SAFETY: out of its queue, so owned by us.
                    unsafe { discard(coroutine) };
                }
            }
            let mut living = false;
            for (index, slot) in self.table.slots() {
                let Some(generation) = slot.word.tenant() else {
                    continue;
                };
                living = true;
                if slot.word.wake_by_id(generation, true) == Wake::Enqueue
                    && let Some(slot) = self.table.find(index)
                {
                    // SAFETY: `Enqueue` makes the coroutine ours.
                    unsafe { discard(slot) };
                }
            }
            if !living {
                return;
            }
            // A thread that has woken one is about to put it into an inbox.
            self.host.relax(rounds);
        }
    }

    /// Gives back a slot whose tenant's future is gone: to the vCPU of the calling thread, or to the table. The last handle on the
    /// domain may wait for just this slot, so the domain may be freed while this function returns: no argument is a reference to it.
    ///
    /// # Safety
    /// The domain is there until the slot is back, and the slot is one of its table's whose tenant's future is gone.
    #[inline]
    pub(crate) unsafe fn give_slot_back(this: NonNull<Inner<H>>, slot: NonNull<Slot<H>>) {
        let _critical = Critical::<H>::enter();
        // SAFETY: it is there until the slot is back. All of a table is atomics, and so may go while a call on it returns.
        let (here, table) = unsafe { ((*this.as_ptr()).here(), &(*this.as_ptr()).table) };
        match here {
            // SAFETY: the calling thread serves it, and the section is critical.
            Some(here) => unsafe { here.kept.give(table, slot) },
            None => table.give_back(slot),
        }
    }

    /// How many slots are free. No vCPU is served any more, and no slot is taken. O(n).
    pub(super) fn count_free(&self) -> usize {
        // SAFETY: unserved, so nothing but this thread uses what they keep.
        let kept = self.vcpus().map(|vcpu| unsafe { vcpu.kept.len() });
        kept.sum::<usize>() + self.table.count_free()
    }

    /// The mark of an orphaned slot held a count.
    ///
    /// # Safety
    /// The caller freed a slot that was marked.
    pub(crate) unsafe fn release_orphan(this: NonNull<Inner<H>>) {
        // SAFETY: `this` came from an `Arc`, and the mark counted it.
        unsafe { Arc::decrement_strong_count(this.as_ptr()) };
    }
}

/// Ends a coroutine without another poll.
///
/// # Safety
/// The caller owns it.
pub(crate) unsafe fn discard<H: Host>(coroutine: NonNull<Slot<H>>) {
    // SAFETY: owned; its vCPU lives as long as the domain.
    unsafe {
        let vcpu = &*coroutine.as_ref().vcpu.load(Relaxed);
        let end = coroutine.as_ref().cancel(vcpu.inner());
        exit(vcpu, coroutine, end, None);
    }
}

impl<H: Host> Drop for Inner<H> {
    fn drop(&mut self) {
        for vcpu in &self.vcpus {
            let vcpu = vcpu.swap(null_mut(), Relaxed);
            if !vcpu.is_null() {
                // SAFETY: made by `Box::into_raw`, and no reference is left.
                drop(unsafe { Box::from_raw(vcpu) });
            }
        }
    }
}
