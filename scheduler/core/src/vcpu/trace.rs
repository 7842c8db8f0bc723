//! [`Change`]: what a host that traces is told of a coroutine.
//!
//! ```text
//!  Spawned ─► Ready ─► Polled ─┬► Yielded (ready again) ─► Polled …
//!              ▲               ├► Blocked ─► Ready …
//!              │               ├► Suspended ─► Resumed …
//!              └─ Stolen       └► Exited
//! ```
//!
//! Each step is told once, by the thread that makes it, before another thread can act on it. A coroutine that is
//! cancelled before its first poll goes from `Spawned` or `Ready` to `Exited`.
//!
//! Cost: while the host does not trace, what [`Host::is_tracing`](crate::Host::is_tracing) costs, and a branch.

use core::panic::Location;
use core::ptr::NonNull;

use crate::base::host::Host;
use crate::base::id::CoroutineId;
use crate::base::level::Level;
use crate::coroutine::{Slot, State};
use crate::vcpu::{Vcpu, id_of};

/// What has become of a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was created.
    Spawned,
    /// It was started or woken: it waits for a vCPU.
    Ready,
    /// A poll begins.
    Polled,
    /// A suspended poll goes on.
    Resumed,
    /// Its poll is over, and it is ready again.
    Yielded,
    /// Its poll is over, and it waits for a wake.
    Blocked,
    /// It was interrupted in the middle of its poll, and waits for a vCPU.
    Suspended,
    /// It stays ready, on another vCPU.
    Stolen {
        /// The vCPU that it was on.
        from: usize,
    },
    /// It is done.
    Exited,
}

impl Step {
    /// The state that is entered by it; `None`: it stays in that in which it is.
    #[must_use]
    pub fn entered(self) -> Option<State> {
        Some(match self {
            Step::Spawned => State::Created,
            Step::Ready | Step::Yielded => State::Ready,
            Step::Polled | Step::Resumed => State::Running,
            Step::Blocked => State::Blocked,
            Step::Suspended => State::Suspended,
            Step::Exited => State::Exited,
            Step::Stolen { .. } => return None,
        })
    }
}

/// A step of a coroutine; see the module `trace` of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The coroutine.
    pub id: CoroutineId,
    /// Its effective level.
    pub level: Level,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
    /// What has become of it.
    pub step: Step,
    /// The vCPU that it is on.
    pub vcpu: usize,
    /// The vCPU of its domain that the calling thread serves.
    pub by: Option<usize>,
}

impl<H: Host> Vcpu<H> {
    /// Tells a host that traces of a step of a coroutine, which is on this vCPU and which the caller owns.
    #[inline]
    pub(crate) fn trace(&self, coroutine: NonNull<Slot<H>>, step: Step) {
        if self.inner().host.is_tracing() {
            self.tell(coroutine, step);
        }
    }

    #[cold]
    fn tell(&self, coroutine: NonNull<Slot<H>>, step: Step) {
        let domain = self.inner();
        // SAFETY: owned, hence alive.
        let block = unsafe { coroutine.as_ref() };
        domain.host.changed(&Change {
            id: id_of(coroutine),
            level: block.level(),
            location: block.location(),
            step,
            vcpu: self.index(),
            by: domain.here().map(Vcpu::index),
        });
    }
}
