//! The table of requests: where every operation lives from its start to its end, whatever becomes of its future.
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
//! * a request that MPI knows is in `requests`, and its buffer in the slot that `owners` names beside it. A slot is freed
//!   after MPI has completed the request, never before; so a buffer outlives its operation, also under `mem::forget`;
//! * a key has a generation: that of a slot which was freed names nothing;
//! * `levels` counts the operations by the level of what waits for them; an orphan keeps its last.
//!
//! Cost: start and end O(1); a look is one `MPI_Testsome` per [`WINDOW`] requests and one `MPI_Improbe` per probe.
//!
//! All of it is behind the lock of `job.rs`, under which alone MPI is called.

use std::any::Any;
use std::ffi::c_int;
use std::task::Waker;

use mpi_sys as sys;
use upshift::Level;

use crate::comm::{Comm, Peers};
use crate::data::Types;
use crate::error::{Error, Result, check};

/// Requests per `MPI_Testsome`: bounds the time under the lock.
pub(crate) const WINDOW: usize = 256;

/// The buffer of an operation, and what else it needs at its end.
pub(crate) type Payload = Box<dyn Any + Send>;

/// An operation's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// What is to be done when nobody waits any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs to its end in the background: sends and collectives.
    Completes,
    /// Is cancelled.
    Receive,
}

/// How an operation ended.
pub(crate) struct Completion {
    pub(crate) outcome: Result<Outcome>,
    pub(crate) payload: Payload,
    /// The request of a persistent operation, inactive now.
    pub(crate) request: Option<sys::MPI_Request>,
}

// SAFETY: MPI's handles are names, which any thread may hold; they are used under the lock only.
unsafe impl Send for Completion {}

/// What MPI says of a receive; of other operations it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    /// Items; `None`: not a whole number of them.
    pub(crate) items: Option<usize>,
    pub(crate) cancelled: bool,
}

impl Outcome {
    const NOTHING: Outcome = Outcome {
        source: 0,
        tag: 0,
        items: Some(0),
        cancelled: false,
    };
}

/// What an operation starts with.
pub(crate) struct Start {
    pub(crate) kind: Kind,
    pub(crate) request: sys::MPI_Request,
    pub(crate) datatype: sys::MPI_Datatype,
    pub(crate) persistent: bool,
    pub(crate) payload: Payload,
    /// How many bytes it moves at least.
    pub(crate) bytes: usize,
    pub(crate) peers: Peers,
}

/// A probe.
pub(crate) struct Pattern {
    /// Held, so that it is not freed before the message is received.
    pub(crate) comm: Comm,
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
}

/// A message that a probe has matched: it must be received.
pub(crate) struct Matched {
    pub(crate) message: sys::MPI_Message,
    pub(crate) status: sys::MPI_Status,
}

// SAFETY: as for `Completion`.
unsafe impl Send for Matched {}

enum Stage {
    Running(Start, usize),
    Probing(Pattern),
    Done(Completion),
}

struct Busy {
    stage: Stage,
    waker: Option<Waker>,
    level: Level,
    orphan: bool,
    cancel: bool,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    busy: Option<Busy>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) types: Types,
    slots: Vec<Slot>,
    free: Vec<u32>,
    requests: Vec<sys::MPI_Request>,
    owners: Vec<u32>,
    probes: Vec<u32>,
    bytes: u64,
    levels: Levels,
    /// What destructors leave for the progress coroutine, since they may run on any thread.
    cancels: Vec<Key>,
    pub(crate) unreceived: Vec<Matched>,
    pub(crate) free_comms: Vec<sys::MPI_Comm>,
    pub(crate) free_requests: Vec<sys::MPI_Request>,
    /// The progress coroutine sleeps.
    pub(crate) sleeper: Option<Waker>,
    /// Something was started or dropped since it looked.
    pub(crate) kicked: bool,
}

// SAFETY: as for `Completion`; the table is behind a lock.
unsafe impl Send for Table {}

/// What a look has found: who is to be woken, and which ranks may go on.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) peers: Vec<Peers>,
    pub(crate) events: usize,
}

impl Table {
    /// Takes over a request that has been started.
    pub(crate) fn insert(&mut self, start: Start, level: Level) -> Key {
        let position = self.requests.len();
        self.bytes += start.bytes as u64;
        self.requests.push(start.request);
        let key = self.slot(Stage::Running(start, position), level);
        self.owners.push(key.index);
        self.kick();
        key
    }

    pub(crate) fn insert_probe(&mut self, pattern: Pattern, level: Level) -> Key {
        let key = self.slot(Stage::Probing(pattern), level);
        self.probes.push(key.index);
        self.kick();
        key
    }

    /// An operation that was complete at its start.
    pub(crate) fn insert_done(&mut self, completion: Completion, level: Level) -> Key {
        let key = self.slot(Stage::Done(completion), level);
        self.levels.remove(level);
        key
    }

    fn slot(&mut self, stage: Stage, level: Level) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations fit in memory")
        });
        let slot = &mut self.slots[index as usize];
        slot.busy = Some(Busy {
            stage,
            waker: None,
            level,
            orphan: false,
            cancel: false,
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

    /// The end of an operation, or notes who waits for it at which level.
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
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        let before = std::mem::replace(&mut busy.level, level);
        self.levels.remove(before);
        self.levels.add(level);
        None
    }

    /// The future is gone. What it leaves is to be dropped without the lock.
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
                // Its communicator must not be dropped under the lock.
                if let Stage::Probing(pattern) = self.release(key.index)?.stage {
                    return Some(Box::new(pattern.comm));
                }
            }
            Stage::Running(start, _) => {
                busy.orphan = true;
                if start.kind == Kind::Receive {
                    self.cancel(key);
                }
            }
        }
        None
    }

    /// Asks that a receive be cancelled, by the next look.
    pub(crate) fn cancel(&mut self, key: Key) {
        if let Some(busy) = self.busy(key)
            && !busy.cancel
        {
            busy.cancel = true;
            self.cancels.push(key);
            self.kick();
        }
    }

    /// Asks that all receives be cancelled. How many requests have not ended.
    pub(crate) fn cancel_receives(&mut self) -> usize {
        for nth in 0..self.owners.len() {
            let index = self.owners[nth];
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

    /// The progress coroutine is to look soon.
    pub(crate) fn kick(&mut self) {
        self.kicked = true;
    }

    /// Everyone who waits; for when the job fails.
    pub(crate) fn wakers(&mut self) -> Vec<Waker> {
        let slots = self.slots.iter_mut();
        let busy = slots.filter_map(|slot| slot.busy.as_mut());
        busy.filter_map(|busy| busy.waker.take())
            .chain(self.sleeper.take())
            .collect()
    }

    /// Is there something that MPI could complete?
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
            && self.probes.is_empty()
            && self.cancels.is_empty()
            && self.unreceived.is_empty()
            && self.free_comms.is_empty()
            && self.free_requests.is_empty()
    }

    /// The bytes that running requests move.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// The level of the most urgent that waits.
    pub(crate) fn most_urgent(&self) -> Option<Level> {
        self.levels.most_urgent()
    }

    /// Does what destructors have left.
    pub(crate) fn sweep(&mut self) {
        for key in std::mem::take(&mut self.cancels) {
            if let Some(Busy {
                stage: Stage::Running(start, _),
                ..
            }) = self.busy(key)
            {
                // SAFETY: the request is active: it is in the table as running. MPI completes it yet.
                unsafe { sys::MPI_Cancel(&mut start.request) };
            }
        }
        for request in std::mem::take(&mut self.free_requests) {
            let mut request = request;
            // SAFETY: persistent and inactive, and nobody else has its name.
            unsafe { sys::MPI_Request_free(&mut request) };
        }
        // Before their communicators are freed, which comes after them in time, too.
        for matched in std::mem::take(&mut self.unreceived) {
            self.swallow(matched);
        }
        for comm in std::mem::take(&mut self.free_comms) {
            let mut comm = comm;
            // SAFETY: a communicator of ours whose last handle is gone; MPI keeps it until its operations have ended.
            unsafe { sys::MPI_Comm_free(&mut comm) };
        }
    }

    /// Receives a message that nobody wants, so that its sender can go on.
    fn swallow(&mut self, mut matched: Matched) {
        // SAFETY: constants of the library; out-parameters; the buffer goes to the table with the request.
        unsafe {
            let datatype = sys::RSMPI_UINT8_T;
            let mut bytes = 0;
            sys::MPI_Get_count(&matched.status, datatype, &mut bytes);
            let mut buffer = vec![0u8; usize::try_from(bytes).unwrap_or(0)];
            let mut request = sys::RSMPI_REQUEST_NULL;
            let begun = sys::MPI_Imrecv(
                buffer.as_mut_ptr().cast(),
                bytes.max(0),
                datatype,
                &mut matched.message,
                &mut request,
            );
            if check(begun).is_ok() {
                let start = Start {
                    kind: Kind::Completes,
                    request,
                    datatype,
                    persistent: false,
                    bytes: buffer.len(),
                    payload: Box::new(buffer),
                    peers: Peers::None,
                };
                let key = self.insert(start, Level::DEFAULT);
                if let Some(busy) = self.busy(key) {
                    busy.orphan = true;
                }
            }
        }
    }

    /// Tests the window that ends before `end`; returns where the next one ends.
    pub(crate) fn test(
        &mut self,
        end: usize,
        found: &mut Found,
        dropped: &mut Vec<Payload>,
    ) -> usize {
        let end = end.min(self.requests.len());
        let begin = end.saturating_sub(WINDOW);
        let length = end - begin;
        if length == 0 {
            return 0;
        }
        let mut indices = [0; WINDOW];
        // SAFETY: plain data of C.
        let mut statuses: [sys::MPI_Status; WINDOW] = unsafe { std::mem::zeroed() };
        let mut completed = 0;
        // SAFETY: `length` active requests, and room for as many indices and statuses.
        let code = unsafe {
            sys::MPI_Testsome(
                length as c_int,
                self.requests[begin..end].as_mut_ptr(),
                &mut completed,
                indices.as_mut_ptr(),
                statuses.as_mut_ptr(),
            )
        };
        let in_status = code == sys::MPI_ERR_IN_STATUS as c_int;
        // `MPI_UNDEFINED` is negative: no request was active, which cannot be.
        let completed = usize::try_from(completed).unwrap_or(0).min(length);
        let pairs = &mut indices[..completed];
        // From the back, because removing swaps the last one in.
        let mut order: Vec<usize> = (0..completed).collect();
        order.sort_unstable_by_key(|nth| std::cmp::Reverse(pairs[*nth]));
        for nth in order {
            let position = begin + pairs[nth] as usize;
            let status = statuses[nth];
            let error = if in_status { status.MPI_ERROR } else { 0 };
            self.complete(position, &status, error, found, dropped);
        }
        begin
    }

    fn complete(
        &mut self,
        position: usize,
        status: &sys::MPI_Status,
        error: c_int,
        found: &mut Found,
        dropped: &mut Vec<Payload>,
    ) {
        found.events += 1;
        let request = self.requests.swap_remove(position);
        let index = self.owners.swap_remove(position);
        if let Some(&moved) = self.owners.get(position)
            && let Some(Busy {
                stage: Stage::Running(_, place),
                ..
            }) = &mut self.slots[moved as usize].busy
        {
            *place = position;
        }
        let slot = &mut self.slots[index as usize];
        let Some(Busy {
            stage: Stage::Running(start, _),
            waker,
            level,
            orphan,
            ..
        }) = slot.busy.take()
        else {
            unreachable!("a request's owner is a running operation");
        };
        self.levels.remove(level);
        self.bytes -= start.bytes as u64;
        found.peers.push(start.peers);
        let kept = start.persistent.then_some(request);
        if orphan {
            self.free_requests.extend(kept);
            dropped.push(start.payload);
            self.release(index);
            return;
        }
        let outcome = check(error).map(|()| match start.kind {
            Kind::Receive => outcome(status, start.datatype),
            Kind::Completes => Outcome::NOTHING,
        });
        found.wakers.extend(waker);
        let slot = &mut self.slots[index as usize];
        slot.busy = Some(Busy {
            stage: Stage::Done(Completion {
                outcome,
                payload: start.payload,
                request: kept,
            }),
            waker: None,
            level,
            orphan: false,
            cancel: false,
        });
    }

    /// Asks MPI for each probe.
    pub(crate) fn probe(&mut self, found: &mut Found) {
        let mut nth = 0;
        while let Some(&index) = self.probes.get(nth) {
            let Some(Busy {
                stage: Stage::Probing(pattern),
                ..
            }) = &self.slots[index as usize].busy
            else {
                unreachable!("what is in `probes` is probing");
            };
            let completion = match improbe(pattern) {
                Ok(None) => {
                    nth += 1;
                    continue;
                }
                done => of_probe(done, pattern.comm.clone()),
            };
            self.probes.swap_remove(nth);
            found.events += 1;
            let busy = self.slots[index as usize].busy.as_mut();
            let busy = busy.expect("it was there above");
            // The communicator that goes is not the last: the completion has it, too.
            busy.stage = Stage::Done(completion);
            found.wakers.extend(busy.waker.take());
            let level = busy.level;
            self.levels.remove(level);
        }
    }
}

/// A message that fits, if there is one.
///
/// The caller is allowed to call MPI.
pub(crate) fn improbe(pattern: &Pattern) -> Result<Option<Matched>> {
    // SAFETY: out-parameters, and a communicator that lives: who probes holds it.
    unsafe {
        let mut flag = 0;
        let mut message = sys::RSMPI_MESSAGE_NULL;
        let mut status: sys::MPI_Status = std::mem::zeroed();
        check(sys::MPI_Improbe(
            pattern.source,
            pattern.tag,
            pattern.comm.handle(),
            &mut flag,
            &mut message,
            &mut status,
        ))?;
        Ok((flag != 0).then_some(Matched { message, status }))
    }
}

/// The end of a probe.
pub(crate) fn of_probe(done: Result<Option<Matched>>, comm: Comm) -> Completion {
    let (outcome, matched) = match done {
        Ok(matched) => (Ok(Outcome::NOTHING), matched),
        Err(error) => (Err(error), None),
    };
    Completion {
        outcome,
        payload: Box::new((comm, matched)),
        request: None,
    }
}

/// Reads a status. The caller is allowed to call MPI.
pub(crate) fn outcome(status: &sys::MPI_Status, datatype: sys::MPI_Datatype) -> Outcome {
    let (mut items, mut cancelled) = (0, 0);
    // SAFETY: a status that MPI has filled, a type that lives, out-parameters.
    unsafe {
        sys::MPI_Get_count(status, datatype, &mut items);
        sys::MPI_Test_cancelled(status, &mut cancelled);
    }
    Outcome {
        source: status.MPI_SOURCE,
        tag: status.MPI_TAG,
        items: usize::try_from(items).ok(),
        cancelled: cancelled != 0,
    }
}

/// The error of an operation whose end was cut off.
pub(crate) fn lost() -> Error {
    Error::Ended
}

/// How many operations wait at each level.
struct Levels {
    counts: [u32; 64],
    bitmap: u64,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels {
            counts: [0; 64],
            bitmap: 0,
        }
    }
}

impl Levels {
    fn add(&mut self, level: Level) {
        self.counts[usize::from(level.get())] += 1;
        self.bitmap |= level.bit();
    }

    fn remove(&mut self, level: Level) {
        let count = &mut self.counts[usize::from(level.get())];
        *count -= 1;
        if *count == 0 {
            self.bitmap &= !level.bit();
        }
    }

    fn most_urgent(&self) -> Option<Level> {
        let bit = u8::try_from(self.bitmap.trailing_zeros()).unwrap_or(64);
        Level::new(bit).ok()
    }
}
