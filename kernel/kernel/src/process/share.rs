//! Limits of a process and its descendants: processes, threads, memory, sockets. A *share* is
//! comparable to a control group of Linux.
//!
//! ```text
//!  the machine ◄── half ── share of A ◄── half ── share of A's spawned process
//!                            ▲    ▲
//!                            A    forks of A, and processes spawned into its own share
//! ```
//!
//! One rule: **a resource is charged to the share of the process that takes it and to every
//! enclosing share; each share has a limit.** `spawn` creates a share within that of the caller,
//! smaller by a power of two; `fork` and `exec` stay in the same share. So the rest of the parent's
//! share always remains for others. Limits are not guarantees, because neighbouring shares may
//! together exceed the resources of the machine.
//!
//! A share has *ended* when the process that was spawned with it has ended, for any reason. All
//! processes that are still in the share, including orphans, are then killed (`reap.rs`), and a
//! wait for the process that was spawned with it lasts until none is left. So a parent can always
//! limit, and end, the processes that a program starts.
//!
//! A resource stays charged to its share until it is freed, even if the resource has another owner
//! by then, such as a pipe that was passed on, or none, such as a closed socket that lingers.
//!
//! A charge and its release cost a step per enclosing share, at most [`DEPTH`]; neither waits.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use os_abi::Error;

use super::reap;
use super::table::MAX_PROCESSES;
use crate::arch::lock::{IrqLock, Once};
use crate::memory::{self, PAGE, heap};
use crate::waiters::{Awaited, Waiters, wait_until};
use crate::{executor, net, settings};

/// Maximum depth of nested shares. After this number of halvings the limit of processes is 0.
const DEPTH: u32 = MAX_PROCESSES.ilog2() + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Processes,
    Threads,
    /// Memory in KiB: frames of programs, and kernel memory for their calls, files, pipes and
    /// sockets.
    Memory,
    /// Sockets, including sockets in backlogs and lingering sockets.
    Sockets,
}

const RESOURCES: usize = 4;

/// Size of a page in KiB.
pub(crate) const PAGE_KIB: usize = PAGE >> 10;

/// Processes of a share that have not ended, or whose calls have not ended.
pub(crate) struct LiveProcesses {
    count: usize,
    waiters: Waiters,
}

impl Awaited for LiveProcesses {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

/// Limits of a group of processes, and their use. See the module.
pub(crate) struct Share {
    parent: Option<Arc<Share>>,
    limits: [usize; RESOURCES],
    used: [AtomicUsize; RESOURCES],
    has_ended: AtomicBool,
    living: IrqLock<LiveProcesses>,
}

static MACHINE: Once<Arc<Share>> = Once::new();

/// Makes the memory that the kernel can spare available to programs.
pub(super) fn init() {
    let pages = heap::free_pages().saturating_sub(memory::KERNEL_RESERVE);
    MACHINE.set(Arc::new(Share::new(
        None,
        [
            MAX_PROCESSES,
            settings::threads(),
            pages * PAGE_KIB,
            net::SOCKETS,
        ],
    )));
}

/// Returns the share of the first program.
pub(crate) fn machine() -> Arc<Share> {
    MACHINE.get().clone()
}

impl Share {
    fn new(parent: Option<Arc<Share>>, limits: [usize; RESOURCES]) -> Share {
        Share {
            parent,
            limits,
            used: [const { AtomicUsize::new(0) }; RESOURCES],
            has_ended: AtomicBool::new(false),
            living: IrqLock::new(LiveProcesses {
                count: 0,
                waiters: Waiters::new(),
            }),
        }
    }

    /// Returns a share within this one, with a 2ⁿth of its limits; with 0 halvings this share.
    pub(super) fn child(self: &Arc<Share>, halvings: u32) -> Arc<Share> {
        match halvings.min(DEPTH) {
            0 => self.clone(),
            halvings => {
                let limits = self.limits.map(|limit| limit >> halvings);
                Arc::new(Share::new(Some(self.clone()), limits))
            }
        }
    }

    /// Returns this share and the shares that contain it, from the inside out.
    fn self_and_ancestors(&self) -> impl Iterator<Item = &Share> {
        core::iter::successors(Some(self), |share| share.parent.as_deref())
    }

    /// Charges an amount of a resource to the share and its ancestors, or to none of them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::TooMany`] if a limit is reached.
    pub(crate) fn charge(
        self: &Arc<Share>,
        resource: Resource,
        count: usize,
    ) -> Result<Charge, Error> {
        let charge = Charge {
            share: self.clone(),
            resource,
            count: AtomicUsize::new(0),
        };
        charge.grow(count)?;
        Ok(charge)
    }

    fn add(&self, resource: Resource, count: usize) -> Result<(), Error> {
        let n = resource as usize;
        for share in self.self_and_ancestors() {
            let increase = |used: usize| Some(used + count).filter(|sum| *sum <= share.limits[n]);
            if share.used[n]
                .fetch_update(Relaxed, Relaxed, increase)
                .is_ok()
            {
                continue;
            }
            for inner in self
                .self_and_ancestors()
                .take_while(|inner| !core::ptr::eq(*inner, share))
            {
                inner.used[n].fetch_sub(count, Relaxed);
            }
            return Err(match resource {
                Resource::Memory => Error::OutOfMemory,
                _ => Error::TooMany,
            });
        }
        Ok(())
    }

    /// Ends the share, and so all processes in it. `level` is the level of the caller.
    pub(super) fn end(&self, level: upshift_core::Level) {
        self.has_ended.store(true, SeqCst);
        reap::request(level);
    }

    /// Returns whether the share or an enclosing share has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.self_and_ancestors()
            .any(|share| share.has_ended.load(SeqCst))
    }

    pub(super) fn add_process(&self) {
        for share in self.self_and_ancestors() {
            share.living.lock().count += 1;
        }
    }

    pub(super) fn remove_process(&self) {
        for share in self.self_and_ancestors() {
            let mut living = share.living.lock();
            living.count -= 1;
            if living.count == 0 {
                let waiters = living.waiters.take();
                drop(living);
                waiters.wake();
            }
        }
    }

    /// Waits until the share has no processes; the reaper is as urgent as the waiter.
    pub(super) async fn wait_until_empty(&self) {
        wait_until(&self.living, |living| {
            if living.count == 0 {
                return Some(());
            }
            reap::request(executor::level());
            None
        })
        .await;
    }
}

/// An amount of a resource charged to a share; dropping it uncharges the amount.
pub(crate) struct Charge {
    share: Arc<Share>,
    resource: Resource,
    count: AtomicUsize,
}

impl Charge {
    /// Charges more of the same resource.
    ///
    /// # Errors
    /// Errors of [`Share::charge`].
    pub(crate) fn grow(&self, count: usize) -> Result<(), Error> {
        self.share.add(self.resource, count)?;
        self.count.fetch_add(count, Relaxed);
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let count = *self.count.get_mut();
        for share in self.share.self_and_ancestors() {
            share.used[self.resource as usize].fetch_sub(count, Relaxed);
        }
    }
}
