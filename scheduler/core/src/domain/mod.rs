//! A domain is a set of vCPUs that share one table of coroutines.
//!
//! [`Domain`] is a handle that can be cloned and sent to any thread. An [`Executor`] is the right
//! to serve one vCPU. When the last handle and the last executor are dropped, every coroutine is
//! cancelled and the memory is freed. Slots to which wakers and join handles still refer are an
//! exception: their memory is freed with the last reference.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::panic::Location;
use core::ptr::{NonNull, null_mut};
use core::task::{RawWakerVTable, Waker};

mod executor;
mod pinned;
mod spawn;

use crate::base::config::{Config, SpawnError, SpawnOptions, TooManyVcpus};
use crate::base::host::{Critical, Host};
use crate::base::id::{CoroutineId, Dead};
use crate::base::kind::State;
use crate::base::level::Level;
use crate::coroutine::loans::NO_LOAN;
use crate::poll::join::{self, JoinHandle};
use crate::poll::waker;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use crate::sync::fence;
use crate::tables::table::id_of;
use crate::vcpu::Vcpu;
use crate::vcpu::shared::Shared;
pub use executor::Executor;

/// A handle to a domain: spawn, wake, change priorities, inspect.
pub struct Domain<H: Host> {
    shared: Arc<Shared<H>>,
}

impl<H: Host> Domain<H> {
    /// Creates a domain without vCPUs.
    #[must_use]
    pub fn new(host: H, config: Config) -> Domain<H> {
        Domain {
            shared: Arc::new(Shared::new(host, config)),
        }
    }

    /// Returns true if `waker` belongs to a coroutine of a domain with this type of host, so that
    /// its clone, wake and drop run no user code. Costs two loads.
    #[inline]
    #[must_use]
    pub fn is_own_waker(waker: &Waker) -> bool {
        waker::slot_of::<H>(waker).is_some()
    }

    /// Returns the vtable of the wakers of all coroutines of domains with this type of host; see
    /// [`is_own_waker`](Self::is_own_waker).
    #[must_use]
    pub fn waker_table() -> &'static RawWakerVTable {
        H::waker_table()
    }

    /// Returns the host that the domain was created with.
    #[must_use]
    pub fn host(&self) -> &H {
        &self.shared.host
    }

    /// Adds a vCPU, or puts a retired one back into service (`alloc_cpu` in the papers on
    /// SharedScheduler). The caller serves it.
    ///
    /// # Errors
    /// [`TooManyVcpus`] if the domain has [`MAX_VCPUS`](crate::MAX_VCPUS) vCPUs.
    pub fn add_vcpu(&self) -> Result<Executor<H>, TooManyVcpus> {
        let shared = &self.shared;
        let vcpu = match shared.vcpus().find(|vcpu| vcpu.revive()) {
            Some(vcpu) => NonNull::from(vcpu),
            None => self.new_vcpu()?,
        };
        shared.active.fetch_add(1, SeqCst);
        fence(SeqCst);
        // Passes on coroutines that arrived at a retired vCPU while no other vCPU was in service.
        for retired in shared.vcpus().filter(|vcpu| vcpu.is_retired_now()) {
            retired.forward();
        }
        Ok(Executor {
            vcpu,
            domain: self.clone(),
            not_sync: PhantomData,
        })
    }

    fn new_vcpu(&self) -> Result<NonNull<Vcpu<H>>, TooManyVcpus> {
        let shared = &self.shared;
        // SAFETY: an `Arc`'s pointer is never null.
        let domain = unsafe { NonNull::new_unchecked(Arc::as_ptr(shared).cast_mut()) };
        for (index, place) in shared.vcpus.iter().enumerate() {
            if !place.load(Acquire).is_null() {
                continue;
            }
            let vcpu = Box::into_raw(Box::new(Vcpu::new(domain, &shared.config, index)));
            if place
                .compare_exchange(null_mut(), vcpu, AcqRel, Acquire)
                .is_ok()
            {
                // Entries are counted in order, so a thread that has filled an entry waits until
                // the entries before it are counted.
                while let Err(count) =
                    shared
                        .count
                        .compare_exchange(index, index + 1, AcqRel, Acquire)
                {
                    if count > index {
                        break;
                    }
                    core::hint::spin_loop();
                }
                // SAFETY: a pointer of a box is never null.
                return Ok(unsafe { NonNull::new_unchecked(vcpu) });
            }
            // SAFETY: the pointer came from `Box::into_raw` above, and the exchange did not publish
            // it.
            drop(unsafe { Box::from_raw(vcpu) });
        }
        Err(TooManyVcpus)
    }

    /// Makes room in the table for `coroutines` coroutines. The table never shrinks.
    ///
    /// # Errors
    /// [`SpawnError::OutOfMemory`]; the table will still grow as memory allows.
    pub fn reserve(&self, coroutines: usize) -> Result<(), SpawnError> {
        if self.shared.table.reserve(coroutines) {
            Ok(())
        } else {
            Err(SpawnError::OutOfMemory)
        }
    }

    /// Spawns a coroutine on the vCPU that the calling thread serves; else on a parked vCPU, if
    /// any; else on the next vCPU in turn. Costs one allocation, and O(1) time.
    ///
    /// # Errors
    /// [`SpawnError`] for lack of memory or of a vCPU, or after [`close`](Self::close); the future
    /// is dropped.
    #[track_caller]
    pub fn spawn<F>(
        &self,
        future: F,
        options: impl Into<SpawnOptions>,
    ) -> Result<JoinHandle<F::Output, H>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_at(future, options, Location::caller())
    }

    /// Spawns like [`spawn`](Self::spawn), with the source position that inspection shows.
    ///
    /// # Errors
    /// Same as [`spawn`](Self::spawn).
    pub fn spawn_at<F>(
        &self,
        future: F,
        options: impl Into<SpawnOptions>,
        location: &'static Location<'static>,
    ) -> Result<JoinHandle<F::Output, H>, SpawnError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.shared.spawn(future, options.into(), None, location)
    }

    /// Wakes a coroutine by its id, so that it is polled once more.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn wake(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.wake(id)
    }

    /// Asks a coroutine to end; see [`JoinHandle::cancel`].
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.cancel(id)
    }

    /// Changes the level of a coroutine in any state. A queued coroutine moves to the tail of its
    /// new level. O(1).
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn reprio(&self, id: CoroutineId, level: Level) -> Result<(), Dead> {
        self.shared.with_coroutine(id, |coroutine| {
            // SAFETY: `with_coroutine` holds a reference.
            unsafe {
                let block = coroutine.as_ref();
                let before = block.base.swap(level.get(), SeqCst);
                self.shared.resettle(coroutine, true);
                // The waiter of the coroutine may now be more urgent than the coroutine; the
                // waiter's poll decides whether to lend.
                if level.get() > before && block.word.has_waiter_by_id_now() {
                    join::wake_waiter_to_lend(&self.shared, block);
                }
            }
        })
    }

    /// Returns the state of a coroutine, which may have changed on return.
    #[must_use]
    pub fn state(&self, id: CoroutineId) -> State {
        self.shared
            // SAFETY: `with_coroutine` holds a reference.
            .with_coroutine(id, |coroutine| unsafe { coroutine.as_ref() }.state())
            .unwrap_or(State::Exited)
    }

    /// Returns the effective level of a coroutine.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn level(&self, id: CoroutineId) -> Result<Level, Dead> {
        self.shared
            // SAFETY: `with_coroutine` holds a reference.
            .with_coroutine(id, |coroutine| unsafe { coroutine.as_ref() }.level())
    }

    /// Returns the id of the coroutine that the calling thread is polling (`get_cid` in the papers
    /// on SharedScheduler).
    #[must_use]
    pub fn current_id(&self) -> Option<CoroutineId> {
        let _critical = Critical::<H>::enter();
        self.shared.here().and_then(Vcpu::current_id)
    }

    /// Returns the effective level of the coroutine that the calling thread is polling.
    #[must_use]
    pub fn current_level(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        // SAFETY: this thread is polling the coroutine, so it is alive.
        self.shared.current().map(|c| unsafe { c.as_ref() }.level())
    }

    /// Records that the current coroutine takes a lock whose waiters lend. Until the coroutine has
    /// released all such locks, waiters may lend it their levels. Called before another thread can
    /// see the coroutine as the holder, and followed by [`Domain::record_unlock`] if the coroutine
    /// does not get the lock. Returns the coroutine's id; `None` outside of a coroutine.
    pub fn record_lock(&self) -> Option<CoroutineId> {
        let _critical = Critical::<H>::enter();
        let current = self.shared.current()?;
        // SAFETY: this thread is polling the coroutine, so it is alive.
        unsafe { current.as_ref() }.loans.add_lock();
        Some(id_of(current))
    }

    /// Records that the calling thread hands a lock over to a coroutine that waits for the lock.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn record_handover(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared.with_coroutine(id, |coroutine| {
            // SAFETY: `with_coroutine` holds a reference.
            unsafe { coroutine.as_ref() }.loans.add_lock()
        })
    }

    /// Records that a lock of the coroutine is released, on any thread. With its last lock the
    /// coroutine loses its loans.
    pub fn record_unlock(&self, id: CoroutineId) {
        let _ = self.shared.with_coroutine(id, |coroutine| {
            // SAFETY: `with_coroutine` holds a reference.
            if unsafe { coroutine.as_ref() }.loans.remove_lock() {
                // SAFETY: `with_coroutine` holds a reference.
                unsafe { self.shared.resettle(coroutine, false) };
            }
        });
    }

    /// Records that the current coroutine waits for a holder outside of the domain, to which the
    /// host lends the coroutine's level. If that level changes while the coroutine is blocked, the
    /// coroutine is polled. Returns the level; `None` outside of a coroutine.
    pub fn record_wait(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        let waiting = self.shared.current()?;
        // SAFETY: this thread is polling the coroutine, so it is alive.
        let waiting = unsafe { waiting.as_ref() };
        waiting.set_lends();
        Some(waiting.level())
    }

    /// Lends the level of the current coroutine, which waits for a lock, to the lock's `holder`.
    pub fn lend_to_holder(&self, holder: CoroutineId) {
        let _critical = Critical::<H>::enter();
        let Some(waiting) = self.shared.current() else {
            return;
        };
        // SAFETY: this thread is polling the coroutine, so it is alive.
        let waiting = unsafe { waiting.as_ref() };
        waiting.set_lends();
        self.lend(holder, waiting.level());
    }

    /// Returns the level of the current coroutine, which is about to queue for a lock whose waiters
    /// lend. If the level changes later, the coroutine is polled. Returns `None` outside of a
    /// coroutine.
    pub fn level_to_lend(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        let current = self.shared.current()?;
        // SAFETY: this thread is polling the coroutine, so it is alive.
        let current = unsafe { current.as_ref() };
        current.set_lends();
        Some(current.level())
    }

    /// Lends `level` to the holder of a lock. Called by a thread that hands the lock over to
    /// `holder` while other coroutines, which have lent their levels to the previous holder, still
    /// wait.
    pub fn lend(&self, holder: CoroutineId, level: Level) {
        let _ = self.shared.with_coroutine(holder, |coroutine| {
            // SAFETY: `with_coroutine` holds a reference.
            if unsafe { coroutine.as_ref() }.loans.lend(level.get()) {
                // SAFETY: `with_coroutine` holds a reference.
                unsafe { self.shared.resettle(coroutine, true) };
            }
        });
    }

    /// Sets the most urgent level that waits for a lock of `holder`, which may be less urgent than
    /// before; `None` if no coroutine waits. If the holder has one lock, its loan becomes this
    /// level. If the holder has several locks, its loan only becomes more urgent until it has
    /// released the last lock.
    pub fn set_loan(&self, holder: CoroutineId, level: Option<Level>) {
        let level = level.map_or(NO_LOAN, Level::get);
        let _ = self.shared.with_coroutine(holder, |coroutine| {
            // SAFETY: `with_coroutine` holds a reference.
            if unsafe { coroutine.as_ref() }.loans.set_loan(level) {
                // SAFETY: `with_coroutine` holds a reference.
                unsafe { self.shared.resettle(coroutine, true) };
            }
        });
    }

    /// Refuses new coroutines from now on. Living coroutines continue.
    pub fn close(&self) {
        self.shared.closed.store(true, SeqCst);
    }

    /// Cancels every living coroutine and returns their number. A host that shuts down closes the
    /// domain and calls this until it returns 0, with its vCPUs still in service. O(slots in use so
    /// far).
    pub fn cancel_all(&self) -> usize {
        let mut living = 0;
        for (index, slot) in self.shared.table.slots() {
            if let Some(generation) = slot.word.live_generation() {
                living += 1;
                let _ = self.cancel(CoroutineId::new(index, generation));
            }
        }
        living
    }

    /// Iterates over the vCPUs, retired ones included.
    pub fn vcpus(&self) -> impl Iterator<Item = &Vcpu<H>> {
        self.shared.vcpus()
    }

    /// Returns the number of vCPUs in service.
    #[must_use]
    pub fn active_vcpus(&self) -> usize {
        self.shared.active.load(Relaxed)
    }

    /// Returns the number of coroutines spawned so far. [`Vcpu::exits`] counts the coroutines that
    /// have exited; if the exits are read first, the difference is never negative.
    #[must_use]
    pub fn spawned(&self) -> u64 {
        let outside = self.shared.spawned_outside.load(Relaxed);
        self.shared
            .vcpus()
            .fold(outside, |all, vcpu| all + vcpu.spawned())
    }

    /// Returns the number of parked vCPUs.
    #[must_use]
    pub fn idle_vcpus(&self) -> usize {
        self.shared.idle.load(Relaxed)
    }

    /// Returns the bitmap of the domain: bit L is set iff level L has a ready coroutine on any vCPU
    /// of the domain.
    #[must_use]
    pub fn bitmap(&self) -> u64 {
        self.shared.vcpus().fold(0, |all, vcpu| all | vcpu.bitmap())
    }
}

impl<H: Host> Clone for Domain<H> {
    fn clone(&self) -> Domain<H> {
        self.shared.handles.fetch_add(1, Relaxed);
        Domain {
            shared: self.shared.clone(),
        }
    }
}

impl<H: Host> Drop for Domain<H> {
    fn drop(&mut self) {
        if self.shared.handles.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        self.shared.shut_down();
        let mut unreferenced = 0;
        for (_, slot) in self.shared.table.slots() {
            // Counted before the mark, because a marked slot may be freed at once.
            let count = Arc::into_raw(self.shared.clone());
            if !slot.word.mark_orphan() {
                // SAFETY: this releases the count that was just added, which no mark holds.
                unsafe { Arc::decrement_strong_count(count) };
                unreferenced += 1;
            }
        }
        // A thread that released the last reference of a slot just before the slot could be marked
        // holds no count, and uses the table until the slot is free.
        let mut spins = 0;
        while self.shared.count_free() < unreferenced {
            self.shared.host.relax(spins);
            spins = spins.saturating_add(1);
        }
    }
}

impl<H: Host> fmt::Debug for Domain<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("vcpus", &self.active_vcpus())
            .field("bitmap", &format_args!("{:#x}", self.bitmap()))
            .finish()
    }
}
