//! A domain: vCPUs that share one table of coroutines.
//!
//! [`Domain`] is a handle that can be cloned and sent anywhere; [`Executor`] is
//! the one per vCPU that the serving thread holds. When the last of both is gone
//! every coroutine is cancelled, and memory is freed but for slots that wakers
//! and join handles still refer to, which go with the last of those.

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
use crate::coroutine::loans::NOTHING;
use crate::poll::join::{self, JoinHandle};
use crate::poll::waker;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use crate::sync::fence;
use crate::tables::table::id_of;
use crate::vcpu::Vcpu;
use crate::vcpu::shared::Shared;
pub use executor::Executor;

/// A handle on a domain: spawn, wake, change priorities, inspect.
pub struct Domain<H: Host> {
    shared: Arc<Shared<H>>,
}

impl<H: Host> Domain<H> {
    /// A domain without vCPUs.
    #[must_use]
    pub fn new(host: H, config: Config) -> Domain<H> {
        Domain {
            shared: Arc::new(Shared::new(host, config)),
        }
    }

    /// Is this the waker of a coroutine of such a domain? Then to clone, wake or drop it
    /// runs no code of users. Two loads.
    #[inline]
    #[must_use]
    pub fn is_own_waker(waker: &Waker) -> bool {
        waker::slot_of::<H>(waker).is_some()
    }

    /// The table that the wakers of all coroutines of such domains have: see [`is_own_waker`](Self::is_own_waker).
    #[must_use]
    pub fn waker_table() -> &'static RawWakerVTable {
        H::waker_table()
    }

    /// The host it was made with.
    #[must_use]
    pub fn host(&self) -> &H {
        &self.shared.host
    }

    /// Adds a vCPU, or puts one back into service that was retired (`alloc_cpu`
    /// of the papers). The caller serves it.
    ///
    /// # Errors
    /// [`TooManyVcpus`].
    pub fn add_vcpu(&self) -> Result<Executor<H>, TooManyVcpus> {
        let shared = &self.shared;
        let vcpu = match shared.vcpus().find(|vcpu| vcpu.revive()) {
            Some(vcpu) => NonNull::from(vcpu),
            None => self.new_vcpu()?,
        };
        shared.active.fetch_add(1, SeqCst);
        fence(SeqCst);
        // What came to a vCPU that left when there was none to inherit it.
        for left in shared.vcpus().filter(|vcpu| vcpu.is_retired_now()) {
            left.forward();
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
                // Places fill from below, so this is the first that may count
                // all of them in.
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
                // SAFETY: just boxed.
                return Ok(unsafe { NonNull::new_unchecked(vcpu) });
            }
            // SAFETY: just boxed, and not published.
            drop(unsafe { Box::from_raw(vcpu) });
        }
        Err(TooManyVcpus)
    }

    /// Makes room in the table for so many coroutines, so that it need not grow
    /// until there are more. The table never shrinks.
    ///
    /// # Errors
    /// [`SpawnError::OutOfMemory`]; it will grow as memory allows.
    pub fn reserve(&self, coroutines: usize) -> Result<(), SpawnError> {
        match self.shared.table.reserve(coroutines) {
            true => Ok(()),
            false => Err(SpawnError::OutOfMemory),
        }
    }

    /// Starts a coroutine: on the vCPU of the calling thread, or on one that is
    /// idle, or in turn. One allocation, O(1).
    ///
    /// # Errors
    /// [`SpawnError`]; the future is dropped.
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

    /// The same, with the place in the source that inspection shows.
    ///
    /// # Errors
    /// [`SpawnError`]; the future is dropped.
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

    /// Wakes a coroutine by its id: it will be polled once more.
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

    /// Gives a coroutine another level, whatever state it is in. One that is
    /// queued moves to the tail of its new level. O(1).
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn reprio(&self, id: CoroutineId, level: Level) -> Result<(), Dead> {
        self.shared.with(id, |coroutine| {
            // SAFETY: `with` holds a reference.
            unsafe {
                let block = coroutine.as_ref();
                let before = block.base.swap(level.get(), SeqCst);
                self.shared.resettle(coroutine, true);
                // Its waiter may be more urgent than the coroutine from now on, and decides in
                // its poll.
                if level.get() > before && block.word.has_waiter_by_id_now() {
                    join::less_urgent(&self.shared, block);
                }
            }
        })
    }

    /// The state a coroutine is in, as far as one can tell from outside.
    #[must_use]
    pub fn state(&self, id: CoroutineId) -> State {
        self.shared
            // SAFETY: `with` holds a reference.
            .with(id, |coroutine| unsafe { coroutine.as_ref() }.state())
            .unwrap_or(State::Exited)
    }

    /// The effective level of a coroutine.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn level(&self, id: CoroutineId) -> Result<Level, Dead> {
        self.shared
            // SAFETY: `with` holds a reference.
            .with(id, |coroutine| unsafe { coroutine.as_ref() }.level())
    }

    /// The coroutine that the calling thread is polling (`get_cid`).
    #[must_use]
    pub fn current_id(&self) -> Option<CoroutineId> {
        let _critical = Critical::<H>::enter();
        self.shared.here().and_then(Vcpu::current_id)
    }

    /// Its effective level.
    #[must_use]
    pub fn current_level(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        // SAFETY: it is being polled by this thread, hence alive.
        self.shared.current().map(|c| unsafe { c.as_ref() }.level())
    }

    /// The current coroutine takes a lock that lends: until it has given back all
    /// such locks it may be lent the levels of what waits for them. To be called
    /// before others can know that it holds the lock, and if it does not get it,
    /// followed by [`Domain::lock_released`]. Returns its id; `None` outside of
    /// a coroutine.
    pub fn lock_taken(&self) -> Option<CoroutineId> {
        let _critical = Critical::<H>::enter();
        let current = self.shared.current()?;
        // SAFETY: it is being polled by this thread, hence alive.
        unsafe { current.as_ref() }.loans.taken();
        Some(id_of(current))
    }

    /// The same, by the thread that gives a lock to a coroutine that waits for it.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn lock_granted(&self, id: CoroutineId) -> Result<(), Dead> {
        self.shared
            // SAFETY: `with` holds a reference.
            .with(id, |coroutine| unsafe { coroutine.as_ref() }.loans.taken())
    }

    /// A lock that was taken by `id` is given back, by whatever thread. With its last
    /// one a coroutine loses what was lent to it.
    pub fn lock_released(&self, id: CoroutineId) {
        let _ = self.shared.with(id, |coroutine| {
            // SAFETY: `with` holds a reference.
            if unsafe { coroutine.as_ref() }.loans.released() {
                // SAFETY: as above.
                unsafe { self.shared.resettle(coroutine, false) };
            }
        });
    }

    /// The current coroutine waits for something outside of the domain that is to have its
    /// level: whenever that changes while it is blocked, it is polled. Returns the level;
    /// `None` outside of a coroutine.
    pub fn waits(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        let waiting = self.shared.current()?;
        // SAFETY: it is being polled by this thread, hence alive.
        let waiting = unsafe { waiting.as_ref() };
        waiting.set_lends();
        Some(waiting.level())
    }

    /// The current coroutine waits for a lock that `holder` holds, and lends it
    /// its level.
    pub fn lend_to_holder(&self, holder: CoroutineId) {
        let _critical = Critical::<H>::enter();
        let Some(waiting) = self.shared.current() else {
            return;
        };
        // SAFETY: it is being polled by this thread, hence alive.
        let waiting = unsafe { waiting.as_ref() };
        waiting.set_lends();
        self.lend(holder, waiting.level());
    }

    /// The level of the current coroutine, which is about to queue for a lock that lends: if it becomes more urgent after this it
    /// is polled. `None` outside of a coroutine.
    pub fn level_to_lend(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        let current = self.shared.current()?;
        // SAFETY: it is being polled by this thread, hence alive.
        let current = unsafe { current.as_ref() };
        current.set_lends();
        Some(current.level())
    }

    /// What waits for a lock that `holder` holds lends it this level. For the one that hands a lock over while others wait:
    /// they have lent to the holder before.
    pub fn lend(&self, holder: CoroutineId, level: Level) {
        let _ = self.shared.with(holder, |coroutine| {
            // SAFETY: `with` holds a reference.
            if unsafe { coroutine.as_ref() }.loans.lend(level.get()) {
                // SAFETY: as above.
                unsafe { self.shared.resettle(coroutine, true) };
            }
        });
    }

    /// The most urgent that waits for a lock of `holder` is of this level now, which may be less urgent than before; `None`: nothing waits. What
    /// is lent to a coroutine that holds one lock is just that. One that holds several keeps what it is lent until it has given back the last.
    pub fn lend_again(&self, holder: CoroutineId, level: Option<Level>) {
        let level = level.map_or(NOTHING, Level::get);
        let _ = self.shared.with(holder, |coroutine| {
            // SAFETY: `with` holds a reference.
            if unsafe { coroutine.as_ref() }.loans.lend_again(level) {
                // SAFETY: as above.
                unsafe { self.shared.resettle(coroutine, true) };
            }
        });
    }

    /// From now on nothing can be spawned; what lives goes on.
    pub fn close(&self) {
        self.shared.closed.store(true, SeqCst);
    }

    /// Cancels every living coroutine and returns how many there were. A host
    /// that shuts down closes the domain and calls this until it answers 0, with
    /// its vCPUs still in service. O(slots in use so far).
    pub fn cancel_all(&self) -> usize {
        let mut living = 0;
        for (index, slot) in self.shared.table.slots() {
            if let Some(generation) = slot.word.tenant() {
                living += 1;
                let _ = self.cancel(CoroutineId::new(index, generation));
            }
        }
        living
    }

    /// The vCPUs, retired ones included.
    pub fn vcpus(&self) -> impl Iterator<Item = &Vcpu<H>> {
        self.shared.vcpus()
    }

    /// How many vCPUs are in service.
    #[must_use]
    pub fn active_vcpus(&self) -> usize {
        self.shared.active.load(Relaxed)
    }

    /// How many coroutines were spawned so far. Those of [`Vcpu::exits`] are gone;
    /// read the exits first, and the difference is never negative.
    #[must_use]
    pub fn spawned(&self) -> u64 {
        let outside = self.shared.spawned_outside.load(Relaxed);
        self.shared
            .vcpus()
            .fold(outside, |all, vcpu| all + vcpu.spawned())
    }

    /// How many of them are parked.
    #[must_use]
    pub fn idle_vcpus(&self) -> usize {
        self.shared.idle.load(Relaxed)
    }

    /// The local bitmap of the domain: bit L set iff level L has a ready
    /// coroutine on any of its vCPUs.
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
            // The count first: a marked slot may be freed at once.
            let count = Arc::into_raw(self.shared.clone());
            if !slot.word.mark_orphan() {
                // SAFETY: the count of a line ago.
                unsafe { Arc::decrement_strong_count(count) };
                unreferenced += 1;
            }
        }
        // A thread that gave the last reference of a slot back just before it could be
        // marked holds no count, and uses the table until the slot is free.
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
