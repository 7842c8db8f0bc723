//! Limits of a process and its descendants: processes, threads, memory, sockets.
//!
//! ```text
//!  the machine ◄── half ── share of A ◄── half ── share of A's spawned process
//!                            ▲    ▲
//!                            A    forks of A, and spawned into its own share
//! ```
//!
//! One rule: **a resource counts in the share of the process that takes it and in every share
//! around that; each share has a limit.** `spawn` makes a share within that of the caller, a power
//! of two smaller; `fork` and `exec` stay in the same one. So the part of the parent's share
//! outside of the program's own is always left to the others. Limits promise nothing: shares next
//! to each other may together exceed the machine.
//!
//! A share is *over* when the process that was spawned with it has ended, for any reason: all
//! processes still in it, orphans too, are killed (`reap.rs`), and a wait for that process lasts
//! until none is left. So a parent can always count, and end, the processes that a program starts.
//!
//! A resource stays counted where it was taken until it is freed, under any owner: a pipe that was
//! passed on, a closed socket that lingers.
//!
//! Taking and giving back cost a step per share around, at most [`DEPTH`]; nothing waits.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use os_abi::Error;

use super::reap;
use super::table::MAX_PROCESSES;
use crate::arch::lock::{IrqLock, Once};
use crate::memory::{self, PAGE, heap};
use crate::waiters::{Awaited, Waiters, until};
use crate::{executor, net, settings};

/// Maximum depth of nested shares: the limit of processes is 0 after as many halvings.
const DEPTH: u32 = MAX_PROCESSES.ilog2() + 1;

/// A resource that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Places in the table of processes.
    Processes,
    /// Threads that have not ended.
    Threads,
    /// KiB: frames of programs, and kernel memory for their calls, files, pipes and sockets.
    Memory,
    /// Sockets, in backlogs and lingering ones included.
    Sockets,
}

const RESOURCES: usize = 4;

/// KiB of a page.
pub(crate) const PAGE_KIB: usize = PAGE >> 10;

/// The processes of a share that have not quite ended.
pub(crate) struct Living {
    count: usize,
    waiters: Waiters,
}

impl Awaited for Living {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

/// See the module.
pub(crate) struct Share {
    within: Option<Arc<Share>>,
    limits: [usize; RESOURCES],
    taken: [AtomicUsize; RESOURCES],
    is_over: AtomicBool,
    living: IrqLock<Living>,
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
    fn new(within: Option<Arc<Share>>, limits: [usize; RESOURCES]) -> Share {
        Share {
            within,
            limits,
            taken: [const { AtomicUsize::new(0) }; RESOURCES],
            is_over: AtomicBool::new(false),
            living: IrqLock::new(Living {
                count: 0,
                waiters: Waiters::new(),
            }),
        }
    }

    /// Returns a share within this one, of a 2ⁿth of its limits; with 0 halvings this one itself.
    pub(super) fn part(self: &Arc<Share>, halvings: u32) -> Arc<Share> {
        match halvings.min(DEPTH) {
            0 => self.clone(),
            halvings => {
                let limits = self.limits.map(|limit| limit >> halvings);
                Arc::new(Share::new(Some(self.clone()), limits))
            }
        }
    }

    /// Returns this share and those around it, from the inside out.
    fn around(&self) -> impl Iterator<Item = &Share> {
        core::iter::successors(Some(self), |share| share.within.as_deref())
    }

    /// Takes an amount of a resource, or nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::TooMany`]: a limit is reached.
    pub(crate) fn take(self: &Arc<Share>, of: Resource, count: usize) -> Result<Taken, Error> {
        let taken = Taken {
            share: self.clone(),
            of,
            count: AtomicUsize::new(0),
        };
        taken.more(count)?;
        Ok(taken)
    }

    fn add(&self, of: Resource, count: usize) -> Result<(), Error> {
        let n = of as usize;
        for share in self.around() {
            let more = |taken: usize| Some(taken + count).filter(|sum| *sum <= share.limits[n]);
            if share.taken[n].fetch_update(Relaxed, Relaxed, more).is_ok() {
                continue;
            }
            for inner in self.around().take_while(|one| !core::ptr::eq(*one, share)) {
                inner.taken[n].fetch_sub(count, Relaxed);
            }
            return Err(match of {
                Resource::Memory => Error::OutOfMemory,
                _ => Error::TooMany,
            });
        }
        Ok(())
    }

    /// Ends all processes in the share, for a caller of this level.
    pub(super) fn end(&self, level: upshift_core::Level) {
        self.is_over.store(true, SeqCst);
        reap::hurry(level);
    }

    /// Returns whether the first process of the share, or of one around it, has ended.
    pub(super) fn is_over(&self) -> bool {
        self.around().any(|share| share.is_over.load(SeqCst))
    }

    /// Counts another process in the share.
    pub(super) fn one_more(&self) {
        for share in self.around() {
            share.living.lock().count += 1;
        }
    }

    /// Counts a process of the share as gone.
    pub(super) fn one_less(&self) {
        for share in self.around() {
            let mut living = share.living.lock();
            living.count -= 1;
            if living.count == 0 {
                let waiters = living.waiters.take();
                drop(living);
                waiters.wake();
            }
        }
    }

    /// Waits until no process is left in the share; the reaper is as urgent as the waiter.
    pub(super) async fn until_empty(&self) {
        until(&self.living, |living| {
            if living.count == 0 {
                return Some(());
            }
            reap::hurry(executor::level());
            None
        })
        .await;
    }
}

/// An amount taken of a resource; dropping it gives the amount back.
pub(crate) struct Taken {
    share: Arc<Share>,
    of: Resource,
    count: AtomicUsize,
}

impl Taken {
    /// Takes more of the same.
    ///
    /// # Errors
    /// Errors of [`Share::take`].
    pub(crate) fn more(&self, count: usize) -> Result<(), Error> {
        self.share.add(self.of, count)?;
        self.count.fetch_add(count, Relaxed);
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let count = *self.count.get_mut();
        for share in self.share.around() {
            share.taken[self.of as usize].fetch_sub(count, Relaxed);
        }
    }
}
