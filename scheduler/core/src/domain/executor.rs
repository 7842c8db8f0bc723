//! An executor is the right to serve a vCPU, that is, to pick and poll its coroutines.

use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::ops::Deref;
use core::panic::Location;
use core::ptr::NonNull;

use super::Domain;
use super::spawn::discard;
use crate::base::config::{SpawnError, SpawnOptions};
use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::coroutine::state::TransitionToReady;
use crate::poll::join::JoinHandle;
use crate::poll::running::{Picked, Running, Yielded};
use crate::sync::Ordering::SeqCst;
use crate::sync::fence;
use crate::vcpu::{Next, Vcpu};

/// The right to serve one vCPU. It may be sent to the thread that will serve the vCPU, and is used
/// by one thread at a time. Dropping it retires the vCPU.
pub struct Executor<H: Host> {
    pub(super) vcpu: NonNull<Vcpu<H>>,
    pub(super) domain: Domain<H>,
    pub(super) not_sync: PhantomData<core::cell::Cell<()>>,
}

// SAFETY: a move of the executor moves the right to serve the vCPU. If a future that is not `Send`
// is pinned to the vCPU, the executor stays on its thread, as `spawn_pinned` requires.
unsafe impl<H: Host> Send for Executor<H> {}

impl<H: Host> Deref for Executor<H> {
    type Target = Vcpu<H>;
    fn deref(&self) -> &Vcpu<H> {
        // SAFETY: vCPUs live as long as the domain, of which we hold a handle.
        unsafe { self.vcpu.as_ref() }
    }
}

impl<H: Host> Executor<H> {
    /// Returns the domain of the vCPU.
    #[must_use]
    pub fn domain(&self) -> &Domain<H> {
        &self.domain
    }

    /// Returns the address of the vCPU. On the thread that serves the vCPU, [`Host::current`]
    /// returns a `ServedVcpu` that is made from this address.
    #[must_use]
    pub fn vcpu(&self) -> NonNull<Vcpu<H>> {
        self.vcpu
    }

    /// Puts `back`, the coroutine that has yielded, into its queue, and then takes the next
    /// coroutine. Returns `None` if no coroutine is ready here and none can be taken from another
    /// vCPU.
    #[inline(always)]
    pub fn pick(&self, back: Option<Yielded<'_, H>>) -> Option<Picked<'_, H>> {
        // A coroutine that yielded on another vCPU returns there when `back` is dropped.
        let back = back.filter(|back| back.is_of(self));
        // SAFETY: the calling thread has the executor, which is not `Sync`; `Yielded` owns a
        // coroutine that is in no queue.
        match unsafe { Vcpu::pick(self, back.map(Yielded::into_owned)) }? {
            Next::Poll(coroutine) => Some(Picked::Poll(Running::new(self, coroutine))),
            Next::Resume { id, for_a_turn } => Some(Picked::Resume { id, for_a_turn }),
        }
    }

    /// Takes a coroutine that is suspended here, even if more urgent ones are ready. Returns `None`
    /// if the coroutine is not suspended here. This is for hosts that bound the time for which a
    /// suspended poll is kept off the CPU, because the poll may hold a resource that others need.
    pub fn pick_suspended(&self, id: CoroutineId) -> Option<Picked<'_, H>> {
        // SAFETY: the calling thread has the executor, which is not `Sync`.
        let is_picked = unsafe { Vcpu::pick_suspended(self, id) };
        let for_a_turn = true;
        is_picked.then_some(Picked::Resume { id, for_a_turn })
    }

    /// Spawns a coroutine that never leaves this vCPU.
    ///
    /// # Errors
    /// [`SpawnError`] if memory is exhausted or the vCPU is retired. The future is then dropped.
    ///
    /// # Safety
    /// If the future or its output is not `Send`, the calling thread must serve the vCPU, no other
    /// thread may ever serve the vCPU or drop the executor, and the handle may be used on the
    /// calling thread only.
    #[track_caller]
    pub unsafe fn spawn_pinned<F>(
        &self,
        future: F,
        options: impl Into<SpawnOptions>,
    ) -> Result<JoinHandle<F::Output, H>, SpawnError>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        // SAFETY: the contract is the caller's.
        unsafe { self.spawn_pinned_at(future, options, Location::caller()) }
    }

    /// Spawns like [`spawn_pinned`](Self::spawn_pinned), with the source position that inspection
    /// shows.
    ///
    /// # Errors
    /// Same as [`spawn_pinned`](Self::spawn_pinned).
    ///
    /// # Safety
    /// Same as [`spawn_pinned`](Self::spawn_pinned).
    pub unsafe fn spawn_pinned_at<F>(
        &self,
        future: F,
        options: impl Into<SpawnOptions>,
        location: &'static Location<'static>,
    ) -> Result<JoinHandle<F::Output, H>, SpawnError>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        if self.is_retired() {
            return Err(SpawnError::Closed);
        }
        let pinned = Some(&**self);
        let options = options.into();
        self.domain.shared.spawn(future, options, pinned, location)
    }

    /// Takes the vCPU out of service: cancels the coroutines pinned to it, and moves all others to
    /// other vCPUs. Takes time in proportion to the number of coroutines of the domain.
    ///
    /// Must be called (or the executor dropped) on the thread that serves the vCPU, while
    /// [`Host::current`] still returns the vCPU there.
    pub fn retire(&self) {
        if !self.retire_once() {
            return;
        }
        fence(SeqCst);
        self.unpark();
        // This vCPU may have been the one that watched the others, and it will not pick again.
        self.leave_watch();
        self.refresh_clock();
        self.domain.shared.active.fetch_sub(1, SeqCst);
        let mut rounds = 0;
        while self.cancel_pinned() {
            // Another round is needed, because a thread that has woken a coroutine may be about to
            // put it into the inbox.
            self.domain.shared.host.relax(rounds);
            rounds = rounds.saturating_add(1);
        }
        self.forward();
    }

    /// Cancels each coroutine that is pinned to this vCPU. Returns true if it has found any.
    fn cancel_pinned(&self) -> bool {
        let mut has_found = false;
        for (id, slot) in self.pinned() {
            has_found = true;
            // SAFETY: slots live as long as the domain.
            match unsafe { slot.as_ref() }
                .word
                .wake_by_id(id.generation(), true)
            {
                // SAFETY: `Enqueue` means that this thread now owns the coroutine. The thread
                // serves the coroutine's vCPU.
                TransitionToReady::Enqueue => unsafe { discard(slot) },
                TransitionToReady::Absorbed | TransitionToReady::Exited => {}
            }
        }
        while let Some(coroutine) = { self.lock().take_pinned() } {
            has_found = true;
            let _ = Running::new(self, coroutine).poll();
        }
        has_found
    }
}

impl<H: Host> Drop for Executor<H> {
    fn drop(&mut self) {
        self.retire();
        // This is the last step, because another executor of the vCPU must not exist at the same
        // time as this one.
        self.vacate();
    }
}

impl<H: Host> fmt::Debug for Executor<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Executor").field(&self.index()).finish()
    }
}
