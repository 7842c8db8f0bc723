//! Keeps the table of requests, which contains every operation from its start to its end, whether
//! its future is alive or not.
//!
//! ```text
//!            start                 Testsome, Improbe             poll
//!   (free) ─────────► Busy ────────────────────────────► Done ─────────► (free)
//!                      │ the future is dropped             │ the future is dropped
//!                      ▼                                    └─────────► (free)
//!                    orphan (receive: cancelled) ──Testsome──► (free)
//! ```
//!
//! Invariants:
//!
//! * A request that MPI knows is in `requests`, and its buffer is in the slot that `owners` names
//!   at the same index. A slot is freed only after MPI has completed the request, so a buffer
//!   outlives its operation, even under `mem::forget`.
//! * A key contains a generation, so that the key of a freed slot refers to no operation.
//! * `levels` counts the operations by the level of their waiters; an orphan keeps its last level.
//!
//! The start and the end of an operation cost O(1). A *look*, in which the progress coroutine asks
//! MPI for completions (`progress.rs`), costs one `MPI_Testsome` per [`WINDOW`](look::WINDOW)
//! requests and one `MPI_Improbe` per probe.
//!
//! The lock of `job.rs` protects the whole table, and MPI is called only under this lock.

mod levels;
mod look;
mod parts;

use std::task::Waker;

use mpi_sys as sys;
use upshift::Level;

use self::levels::Levels;
pub(crate) use self::look::LookResults;
pub(crate) use self::parts::{
    Completion, Kind, Matched, Outcome, Pattern, Payload, Start, improbe, lost, outcome,
    probe_completion,
};
use crate::data::Types;

/// The identity of an operation: slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// The stage of an operation.
enum Stage {
    /// The request is running; carries its index in `requests`.
    Running(Start, usize),
    Probing(Pattern),
    Done(Completion),
}

/// An operation in a slot.
struct Busy {
    stage: Stage,
    waker: Option<Waker>,
    level: Level,
    is_orphan: bool,
    is_cancel_requested: bool,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    busy: Option<Busy>,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) types: Types,
    slots: Vec<Slot>,
    free: Vec<u32>,
    requests: Vec<sys::MPI_Request>,
    owners: Vec<u32>,
    probes: Vec<u32>,
    /// Number of bytes of the running requests.
    bytes: u64,
    /// Number of bytes of all requests that have begun.
    begun: u64,
    levels: Levels,
    /// Work that destructors leave for the progress coroutine, since they may run on any thread.
    cancels: Vec<Key>,
    pub(crate) unreceived: Vec<Matched>,
    pub(crate) free_comms: Vec<sys::MPI_Comm>,
    pub(crate) free_requests: Vec<sys::MPI_Request>,
    /// The waker of the progress coroutine while it sleeps.
    pub(crate) sleeper: Option<Waker>,
    /// Set when an operation was started or dropped since the last look.
    pub(crate) look_requested: bool,
}

// SAFETY: any thread may keep the MPI handles, as in `Completion`, and they are passed to MPI only
// under the lock around the table.
unsafe impl Send for Table {}

impl Table {
    pub(crate) fn insert(&mut self, start: Start, level: Level) -> Key {
        let position = self.requests.len();
        self.bytes += start.bytes as u64;
        self.begun += start.bytes as u64;
        self.requests.push(start.request);
        let key = self.occupy_slot(Stage::Running(start, position), level);
        self.owners.push(key.index);
        self.request_look();
        key
    }

    pub(crate) fn insert_probe(&mut self, pattern: Pattern, level: Level) -> Key {
        let key = self.occupy_slot(Stage::Probing(pattern), level);
        self.probes.push(key.index);
        self.request_look();
        key
    }

    /// Inserts an operation that was complete when it started.
    pub(crate) fn insert_done(&mut self, completion: Completion, level: Level) -> Key {
        let key = self.occupy_slot(Stage::Done(completion), level);
        self.levels.remove(level);
        key
    }

    fn occupy_slot(&mut self, stage: Stage, level: Level) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations fit in memory")
        });
        let slot = &mut self.slots[index as usize];
        slot.busy = Some(Busy {
            stage,
            waker: None,
            level,
            is_orphan: false,
            is_cancel_requested: false,
        });
        self.levels.add(level);
        Key {
            index,
            generation: slot.generation,
        }
    }

    fn busy(&mut self, key: Key) -> Option<&mut Busy> {
        let slot = self.slots.get_mut(key.index as usize)?;
        (slot.generation == key.generation)
            .then_some(slot.busy.as_mut())
            .flatten()
    }

    fn release(&mut self, index: u32) -> Option<Busy> {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        slot.busy.take()
    }

    /// Takes the completion of an operation. If the operation is still running, records the waiter
    /// and its level.
    pub(crate) fn take(&mut self, key: Key, waker: &Waker, level: Level) -> Option<Completion> {
        let busy = self.busy(key)?;
        if matches!(busy.stage, Stage::Done(_)) {
            let Some(Stage::Done(completion)) = self.release(key.index).map(|busy| busy.stage)
            else {
                return None;
            };
            return Some(completion);
        }
        match &mut busy.waker {
            Some(old_waker) => old_waker.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        let old_level = std::mem::replace(&mut busy.level, level);
        self.levels.remove(old_level);
        self.levels.add(level);
        None
    }

    /// Abandons an operation whose future was dropped. The caller must drop the returned payload
    /// without the lock.
    #[must_use]
    pub(crate) fn abandon(&mut self, key: Key) -> Option<Payload> {
        let busy = self.busy(key)?;
        busy.waker = None;
        match &busy.stage {
            Stage::Done(_) => match self.release(key.index)?.stage {
                Stage::Done(completion) => {
                    self.free_requests.extend(completion.request);
                    return Some(completion.payload);
                }
                _ => return None,
            },
            Stage::Probing(_) => {
                let level = busy.level;
                self.levels.remove(level);
                self.probes.retain(|probe| *probe != key.index);
                // The communicator must not be dropped under the lock.
                if let Stage::Probing(pattern) = self.release(key.index)?.stage {
                    return Some(Box::new(pattern.comm));
                }
            }
            Stage::Running(start, _) => {
                busy.is_orphan = true;
                if start.kind == Kind::Receive {
                    self.cancel(key);
                }
            }
        }
        None
    }

    /// Lets the next look cancel a receive.
    pub(crate) fn cancel(&mut self, key: Key) {
        if let Some(busy) = self.busy(key)
            && !busy.is_cancel_requested
        {
            busy.is_cancel_requested = true;
            self.cancels.push(key);
            self.request_look();
        }
    }

    /// Lets the next look cancel all receives. Returns the number of requests that have not ended.
    pub(crate) fn cancel_receives(&mut self) -> usize {
        for position in 0..self.owners.len() {
            let index = self.owners[position];
            let slot = &self.slots[index as usize];
            if let Some(Busy {
                stage: Stage::Running(start, _),
                ..
            }) = &slot.busy
                && start.kind == Kind::Receive
            {
                self.cancel(Key {
                    index,
                    generation: slot.generation,
                });
            }
        }
        self.requests.len()
    }

    pub(crate) fn request_look(&mut self) {
        self.look_requested = true;
    }

    pub(crate) fn wakers(&mut self) -> Vec<Waker> {
        let slots = self.slots.iter_mut();
        let busy = slots.filter_map(|slot| slot.busy.as_mut());
        busy.filter_map(|busy| busy.waker.take())
            .chain(self.sleeper.take())
            .collect()
    }

    /// Returns whether MPI has nothing to complete.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
            && self.probes.is_empty()
            && self.cancels.is_empty()
            && self.unreceived.is_empty()
            && self.free_comms.is_empty()
            && self.free_requests.is_empty()
    }

    /// Returns the number of bytes of running requests, and of all requests that have begun.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes, self.begun)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn most_urgent(&self) -> Option<Level> {
        self.levels.most_urgent()
    }
}
