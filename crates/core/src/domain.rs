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

mod executor;

use crate::config::{Config, MAX_VCPUS, SpawnError, SpawnOptions, TooManyVcpus};
use crate::coroutine::{Birth, Header, State, allocate};
use crate::host::{Critical, Host};
use crate::id::{CoroutineId, Dead};
use crate::join::JoinHandle;
use crate::level::{Level, Priority};
use crate::running::exit;
use crate::state::Wake;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
use crate::table::Table;
use crate::vcpu::Vcpu;
use crate::waker;
pub use executor::Executor;

/// What the handles share.
pub(crate) struct Inner<H: Host> {
    pub(crate) host: H,
    pub(crate) config: Config,
    pub(crate) table: Table<H>,
    vcpus: [AtomicPtr<Vcpu<H>>; MAX_VCPUS],
    /// vCPUs below this index exist.
    count: AtomicUsize,
    /// How many of them are not retired.
    pub(crate) active: AtomicUsize,
    /// How many of them are parked.
    pub(crate) idle: AtomicUsize,
    /// Where the next coroutine from outside goes.
    next: AtomicUsize,
    /// Domains and executors.
    handles: AtomicUsize,
    /// Coroutines that were spawned by threads that serve no vCPU.
    spawned_outside: AtomicU64,
    closed: AtomicBool,
}

impl<H: Host> Inner<H> {
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

    /// The vCPU that has the most urgent work of the wanted levels to give.
    pub(crate) fn victim(&self, thief: &Vcpu<H>, wanted: u64) -> Option<&Vcpu<H>> {
        let mut best = (64, None);
        for vcpu in self.vcpus() {
            let urgency = (vcpu.may_give() & wanted).trailing_zeros();
            if urgency < best.0 && !core::ptr::eq(vcpu, thief) {
                best = (urgency, Some(vcpu));
            }
        }
        best.1
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
    /// blocked one that became more urgent and lends its level is polled, so
    /// that what it waits for learns of it.
    ///
    /// # Safety
    /// The caller holds a reference to the coroutine.
    pub(crate) unsafe fn resettle(&self, coroutine: NonNull<Header<H>>, propagate: bool) {
        let _critical = Critical::<H>::enter();
        // SAFETY: referenced, hence alive.
        let header = unsafe { coroutine.as_ref() };
        let before = header.level();
        loop {
            let vcpu = header.vcpu();
            // SAFETY: passed on.
            let settled = unsafe { vcpu.locked().settle(coroutine) };
            vcpu.look_again();
            if settled {
                break;
            }
        }
        if propagate && header.level() < before && header.lends() {
            // SAFETY: as above.
            unsafe { waker::wake_slot(header.slot_ptr()) };
        }
    }

    /// Runs `f` with the control block of a living coroutine.
    fn with<R>(&self, id: CoroutineId, f: impl FnOnce(NonNull<Header<H>>) -> R) -> Result<R, Dead> {
        let place = self.table.find(id.index()).ok_or(Dead)?;
        // SAFETY: slots live as long as the table.
        let slot = unsafe { place.as_ref() };
        if !slot.word.retain_by_id(id.generation()) {
            return Err(Dead);
        }
        let result = f(slot.header());
        // SAFETY: the reference just taken.
        unsafe { waker::release(place) };
        Ok(result)
    }

    fn wake(&self, id: CoroutineId, cancel: bool) -> Result<(), Dead> {
        let slot = self.table.slot(id.index()).ok_or(Dead)?;
        let _critical = Critical::<H>::enter();
        match slot.word.wake_by_id(id.generation(), cancel) {
            Wake::Exited => Err(Dead),
            Wake::Absorbed => Ok(()),
            Wake::Enqueue => {
                // SAFETY: `Enqueue` makes the coroutine ours.
                unsafe { Vcpu::admit(slot.header()) };
                Ok(())
            }
        }
    }

    /// The current coroutine of the calling thread, if it is in this domain.
    fn current(&self) -> Option<NonNull<Header<H>>> {
        self.here().and_then(Vcpu::current)
    }

    fn spawn<F>(
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
        let _critical = Critical::<H>::enter();
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
        let birth = Birth {
            level,
            kind: options.kind,
            pinned: pinned.is_some(),
            vcpu: NonNull::from(home),
            location,
        };
        let slot = self.table.take().ok_or(SpawnError::OutOfMemory)?;
        let header = match allocate(future, slot, &birth) {
            Ok(header) => header,
            Err(future) => {
                self.table.give_back(slot);
                drop(future);
                return Err(SpawnError::OutOfMemory);
            }
        };
        // SAFETY: slots live as long as the domain; this one is ours.
        let shared = unsafe { slot.as_ref() };
        shared.set_header(header);
        let generation = shared.word.init(true, options.start);
        let id = CoroutineId::new(Table::index(slot), generation);
        match here {
            Some(here) => here.counters.spawned(),
            None => drop(self.spawned_outside.fetch_add(1, Relaxed)),
        }
        // SAFETY: the coroutine has this output, and the word counts the handle.
        let handle = unsafe { JoinHandle::new(slot, id) };
        home.trace(header, State::Created);
        if options.start {
            // SAFETY: `init` made the coroutine ours to enqueue.
            unsafe { Vcpu::admit(header) };
        }
        Ok(handle)
    }

    /// Cancels everything. No vCPU is served any more, except by the calling
    /// thread.
    fn shut_down(&self) {
        self.closed.store(true, SeqCst);
        for rounds in 0.. {
            for vcpu in self.vcpus() {
                while let Some(coroutine) = { vcpu.locked().take_any() } {
                    // SAFETY: out of its queue, so owned by us.
                    unsafe { discard(coroutine) };
                }
            }
            let mut living = false;
            for (_, slot) in self.table.slots() {
                let Some(generation) = slot.word.tenant() else {
                    continue;
                };
                living = true;
                if slot.word.wake_by_id(generation, true) == Wake::Enqueue {
                    // SAFETY: `Enqueue` makes the coroutine ours.
                    unsafe { discard(slot.header()) };
                }
            }
            if !living {
                return;
            }
            // Somebody who has woken one is about to put it into an inbox.
            self.host.relax(rounds);
        }
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
unsafe fn discard<H: Host>(coroutine: NonNull<Header<H>>) {
    // SAFETY: owned; its vCPU lives as long as the domain.
    unsafe {
        let end = Header::cancel(coroutine);
        let vcpu = coroutine.as_ref().vcpu.load(Relaxed);
        exit(&*vcpu, coroutine, end);
    }
}

impl<H: Host> Drop for Inner<H> {
    fn drop(&mut self) {
        for vcpu in &self.vcpus {
            let vcpu = vcpu.swap(null_mut(), Relaxed);
            if !vcpu.is_null() {
                // SAFETY: made by `Box::into_raw`, and nobody is left.
                drop(unsafe { Box::from_raw(vcpu) });
            }
        }
    }
}

/// A handle on a domain: spawn, wake, change priorities, inspect.
pub struct Domain<H: Host> {
    inner: Arc<Inner<H>>,
}

impl<H: Host> Domain<H> {
    /// A domain without vCPUs.
    #[must_use]
    pub fn new(host: H, config: Config) -> Domain<H> {
        Domain {
            inner: Arc::new(Inner {
                host,
                config,
                table: Table::new(),
                vcpus: core::array::from_fn(|_| AtomicPtr::new(null_mut())),
                count: AtomicUsize::new(0),
                active: AtomicUsize::new(0),
                idle: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
                handles: AtomicUsize::new(1),
                spawned_outside: AtomicU64::new(0),
                closed: AtomicBool::new(false),
            }),
        }
    }

    /// The host it was made with.
    #[must_use]
    pub fn host(&self) -> &H {
        &self.inner.host
    }

    /// Adds a vCPU, or puts one back into service that was retired (`alloc_cpu`
    /// of the papers). The caller serves it.
    ///
    /// # Errors
    /// [`TooManyVcpus`].
    pub fn add_vcpu(&self) -> Result<Executor<H>, TooManyVcpus> {
        let inner = &self.inner;
        let revived = inner.vcpus().find(|vcpu| {
            vcpu.vacant
                .compare_exchange(true, false, SeqCst, Relaxed)
                .is_ok()
        });
        let vcpu = match revived {
            Some(vcpu) => {
                vcpu.retired.store(false, SeqCst);
                NonNull::from(vcpu)
            }
            None => self.new_vcpu()?,
        };
        inner.active.fetch_add(1, SeqCst);
        fence(SeqCst);
        // What came to a vCPU that left when nobody was there to inherit it.
        for left in inner.vcpus().filter(|vcpu| vcpu.retired.load(SeqCst)) {
            left.forward();
        }
        Ok(Executor {
            vcpu,
            domain: self.clone(),
            not_sync: PhantomData,
        })
    }

    fn new_vcpu(&self) -> Result<NonNull<Vcpu<H>>, TooManyVcpus> {
        let inner = &self.inner;
        // SAFETY: an `Arc`'s pointer is never null.
        let domain = unsafe { NonNull::new_unchecked(Arc::as_ptr(inner).cast_mut()) };
        for (index, place) in inner.vcpus.iter().enumerate() {
            if !place.load(Acquire).is_null() {
                continue;
            }
            let seed = inner.config.chaos.unwrap_or(0) ^ ((index as u64 + 1) << 32);
            let vcpu = Box::into_raw(Box::new(Vcpu::new(domain, index, seed)));
            if place
                .compare_exchange(null_mut(), vcpu, AcqRel, Acquire)
                .is_ok()
            {
                // Places fill from below, so this is the first that may count
                // all of them in.
                while let Err(count) =
                    inner
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
            // SAFETY: just boxed, and nobody has seen it.
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
        match self.inner.table.reserve(coroutines) {
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
        self.inner.spawn(future, options.into(), None, location)
    }

    /// Wakes a coroutine by its id: it will be polled once more.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn wake(&self, id: CoroutineId) -> Result<(), Dead> {
        self.inner.wake(id, false)
    }

    /// Asks a coroutine to end; see [`JoinHandle::cancel`].
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.inner.wake(id, true)
    }

    /// Gives a coroutine another level, whatever state it is in. One that is
    /// queued moves to the tail of its new level. O(1).
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn reprio(&self, id: CoroutineId, level: Level) -> Result<(), Dead> {
        self.inner.with(id, |coroutine| {
            // SAFETY: `with` holds a reference.
            unsafe {
                coroutine.as_ref().base.store(level.get(), Relaxed);
                self.inner.resettle(coroutine, true);
            }
        })
    }

    /// The state a coroutine is in, as far as one can tell from outside.
    #[must_use]
    pub fn state(&self, id: CoroutineId) -> State {
        self.inner
            // SAFETY: `with` holds a reference.
            .with(id, |coroutine| unsafe { coroutine.as_ref() }.state())
            .unwrap_or(State::Exited)
    }

    /// The effective level of a coroutine.
    ///
    /// # Errors
    /// [`Dead`] if there is no such coroutine (any more).
    pub fn level(&self, id: CoroutineId) -> Result<Level, Dead> {
        self.inner
            // SAFETY: `with` holds a reference.
            .with(id, |coroutine| unsafe { coroutine.as_ref() }.level())
    }

    /// The coroutine that the calling thread is polling (`get_cid`).
    #[must_use]
    pub fn current_id(&self) -> Option<CoroutineId> {
        let _critical = Critical::<H>::enter();
        self.inner.here().and_then(Vcpu::current_id)
    }

    /// Its effective level.
    #[must_use]
    pub fn current_level(&self) -> Option<Level> {
        let _critical = Critical::<H>::enter();
        // SAFETY: it is being polled by this thread, hence alive.
        self.inner.current().map(|c| unsafe { c.as_ref() }.level())
    }

    /// The current coroutine has taken a lock that lends: until it has given back
    /// all such locks it may be lent the levels of those who wait for them.
    pub fn lock_taken(&self) {
        let _critical = Critical::<H>::enter();
        if let Some(current) = self.inner.current() {
            // SAFETY: it is being polled by this thread, hence alive.
            let locks = unsafe { &current.as_ref().locks };
            // Guards may be dropped elsewhere at the same time.
            let _ = locks.fetch_update(Relaxed, Relaxed, |locks| locks.checked_add(1));
        }
    }

    /// A lock that was taken by `id` is given back. With its last one a coroutine
    /// loses what was lent to it.
    pub fn lock_released(&self, id: CoroutineId) {
        let _ = self.inner.with(id, |coroutine| {
            // SAFETY: `with` holds a reference.
            let header = unsafe { coroutine.as_ref() };
            let before = header
                .locks
                .fetch_update(Relaxed, Relaxed, |locks| locks.checked_sub(1));
            if before.is_ok_and(|before| before == 1)
                && header.lock_boost.load(Relaxed) != Header::<H>::NO_BOOST
            {
                header.lock_boost.store(Header::<H>::NO_BOOST, Relaxed);
                // SAFETY: as above.
                unsafe { self.inner.resettle(coroutine, false) };
            }
        });
    }

    /// The current coroutine waits for a lock that `holder` holds, and lends it
    /// its level.
    pub fn lend_to_holder(&self, holder: CoroutineId) {
        let _critical = Critical::<H>::enter();
        let Some(waiting) = self.inner.current() else {
            return;
        };
        // SAFETY: it is being polled by this thread, hence alive.
        let waiting = unsafe { waiting.as_ref() };
        waiting.set_lends();
        let level = waiting.level().get();
        let _ = self.inner.with(holder, |coroutine| {
            // SAFETY: `with` holds a reference.
            let header = unsafe { coroutine.as_ref() };
            if header.lock_boost.fetch_min(level, Relaxed) > level {
                // SAFETY: as above.
                unsafe { self.inner.resettle(coroutine, true) };
            }
        });
    }

    /// From now on nothing can be spawned; what lives goes on.
    pub fn close(&self) {
        self.inner.closed.store(true, SeqCst);
    }

    /// Cancels every living coroutine and returns how many there were. A host
    /// that shuts down closes the domain and calls this until it answers 0, with
    /// its vCPUs still in service. O(slots in use so far).
    pub fn cancel_all(&self) -> usize {
        let mut living = 0;
        for (_, slot) in self.inner.table.slots() {
            if let Some(generation) = slot.word.tenant() {
                living += 1;
                let _critical = Critical::<H>::enter();
                if slot.word.wake_by_id(generation, true) == Wake::Enqueue {
                    // SAFETY: `Enqueue` makes the coroutine ours.
                    unsafe { Vcpu::admit(slot.header()) };
                }
            }
        }
        living
    }

    /// The vCPUs, retired ones included.
    pub fn vcpus(&self) -> impl Iterator<Item = &Vcpu<H>> {
        self.inner.vcpus()
    }

    /// How many vCPUs are in service.
    #[must_use]
    pub fn active_vcpus(&self) -> usize {
        self.inner.active.load(Relaxed)
    }

    /// How many coroutines were spawned so far. Those of [`Vcpu::exits`] are gone;
    /// read the exits first, and the difference is never negative.
    #[must_use]
    pub fn spawned(&self) -> u64 {
        let outside = self.inner.spawned_outside.load(Relaxed);
        self.inner
            .vcpus()
            .fold(outside, |all, vcpu| all + vcpu.spawned())
    }

    /// How many of them are parked.
    #[must_use]
    pub fn idle_vcpus(&self) -> usize {
        self.inner.idle.load(Relaxed)
    }

    /// The local bitmap of the domain: bit L set iff level L has a ready
    /// coroutine on any of its vCPUs.
    #[must_use]
    pub fn bitmap(&self) -> u64 {
        self.inner.vcpus().fold(0, |all, vcpu| all | vcpu.bitmap())
    }
}

impl<H: Host> Clone for Domain<H> {
    fn clone(&self) -> Domain<H> {
        self.inner.handles.fetch_add(1, Relaxed);
        Domain {
            inner: self.inner.clone(),
        }
    }
}

impl<H: Host> Drop for Domain<H> {
    fn drop(&mut self) {
        if self.inner.handles.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        self.inner.shut_down();
        let mut unreferenced = 0;
        for (_, slot) in self.inner.table.slots() {
            // The count first: a marked slot may be freed at once.
            let count = Arc::into_raw(self.inner.clone());
            if !slot.word.mark_orphan() {
                // SAFETY: the count of a line ago.
                unsafe { Arc::decrement_strong_count(count) };
                unreferenced += 1;
            }
        }
        // Whoever gave the last reference of a slot back just before it could be
        // marked holds no count, and uses the table until the slot is free.
        let mut spins = 0;
        while self.inner.table.count_free() < unreferenced {
            self.inner.host.relax(spins);
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
