//! Spawns the coroutines of a domain, and ends them with the domain.

use core::future::Future;
use core::panic::Location;
use core::ptr::NonNull;

use crate::base::config::{SpawnError, SpawnOptions};
use crate::base::events::Step;
use crate::base::host::{Critical, Host};
use crate::base::id::{CoroutineId, Dead};
use crate::base::level::{Level, Priority};
use crate::coroutine::state::TransitionToReady;
use crate::coroutine::{Slot, SlotInit, allocate, take_back, vtable_of};
use crate::poll::join::JoinHandle;
use crate::poll::running::exit;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::vcpu::shared::Shared;
use crate::vcpu::{Vcpu, wake};

impl<H: Host> Shared<H> {
    pub(super) fn cancel(&self, id: CoroutineId) -> Result<(), Dead> {
        self.with_coroutine(id, |coroutine| {
            // SAFETY: `with_coroutine` holds a reference.
            unsafe { wake::cancel_slot(coroutine, id.generation()) }
        })
        .and_then(|wake| match wake {
            TransitionToReady::Exited => Err(Dead),
            TransitionToReady::Absorbed | TransitionToReady::Enqueue => Ok(()),
        })
    }

    /// Returns `None` if the current coroutine is in another domain.
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
        let here = self.here().filter(|vcpu| !vcpu.is_retired());
        let home = pinned.or(here).or_else(|| self.choose(|_| true));
        let home = home.ok_or(SpawnError::NoVcpu)?;
        let level = match options.priority {
            Priority::At(level) => level,
            Priority::Inherit => match here.and_then(Vcpu::current) {
                // SAFETY: this thread is polling the coroutine, so it is alive.
                Some(parent) => unsafe { parent.as_ref() }.level(),
                None => Level::DEFAULT,
            },
        };
        let Some(site) = self.spawn_sites.number(vtable_of::<F, H>(), location) else {
            return Err(SpawnError::OutOfMemory);
        };
        let init = SlotInit {
            level,
            kind: options.kind,
            pinned: pinned.is_some(),
            vcpu: NonNull::from(home).cast(),
            site,
        };
        let slot = match here {
            // SAFETY: the calling thread serves the vCPU, and the section is critical.
            Some(here) => unsafe { here.slot_cache.take(&self.table) },
            None => self.table.take(),
        };
        let slot = slot.ok_or(SpawnError::OutOfMemory)?;
        let future = match allocate::<F, H>(future) {
            // SAFETY: the slot was just taken, and the body is made for it.
            Ok(body) if unsafe { Slot::init_block(slot, body, &init) } => None,
            // SAFETY: the body has no other user.
            Ok(body) => Some(unsafe { take_back::<F, H>(body) }),
            Err(future) => Some(future),
        };
        if future.is_some() {
            // SAFETY: the slot has no tenant.
            unsafe { Shared::give_slot_back(NonNull::from(self), slot) };
            drop(critical);
            drop(future);
            return Err(SpawnError::OutOfMemory);
        }
        // SAFETY: slots live as long as the domain; this one is ours.
        unsafe { slot.as_ref() }.word.init(true, options.start);
        match here {
            Some(here) => here.counters.record_spawn(),
            None => drop(self.spawned_outside.fetch_add(1, Relaxed)),
        }
        // SAFETY: the coroutine has this output, and its state word counts the handle.
        let handle = unsafe { JoinHandle::new(slot) };
        home.trace(slot, Step::Spawned);
        if options.start {
            // SAFETY: `init` made the coroutine ours to enqueue; it is queued at home only if the
            // calling thread serves that vCPU.
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

    /// Ends all coroutines of the domain. Only the calling thread may still serve a vCPU.
    pub(super) fn shut_down(&self) {
        self.closed.store(true, SeqCst);
        for rounds in 0.. {
            for vcpu in self.vcpus() {
                while let Some(coroutine) = { vcpu.lock().take_any() } {
                    // SAFETY: the coroutine is out of its queue, so owned by us.
                    unsafe { discard(coroutine) };
                }
            }
            let mut living = false;
            for (index, slot) in self.table.slots() {
                let Some(generation) = slot.word.live_generation() else {
                    continue;
                };
                living = true;
                if slot.word.wake_by_id(generation, true) == TransitionToReady::Enqueue
                    && let Some(slot) = self.table.find(index)
                {
                    // SAFETY: `Enqueue` gives this thread the ownership of the coroutine.
                    unsafe { discard(slot) };
                }
            }
            if !living {
                return;
            }
            // Another round is needed, because a thread that has woken a coroutine may be about to
            // put it into an inbox.
            self.host.relax(rounds);
        }
    }
}

/// Ends a coroutine without another poll.
///
/// # Safety
/// The caller owns the coroutine.
pub(crate) unsafe fn discard<H: Host>(coroutine: NonNull<Slot<H>>) {
    // SAFETY: the caller owns the coroutine, and its vCPU lives as long as the domain.
    unsafe {
        let vcpu = coroutine.as_ref().vcpu();
        let end = coroutine.as_ref().cancel(vcpu.spawn_sites());
        exit(vcpu, coroutine, end, None);
    }
}
