//! The records of all elevated threads, in memory that is shared with the guardian, the process
//! that restores the threads if their owner dies. The *owner* is the process that made the
//! [`Elevator`](crate::Elevator).
//!
//! Each thread has one slot:
//!
//! ```text
//!         1 write the fields, publish             2 first pin: write the CPUs, publish
//!   Free ────────────────────────────▶ Recorded ────────────────────────────▶ Recorded + CPUs
//!     ▲                                    │                                       │
//!     └────────────────────────────────────┴───────────────────────────────────────┘
//!                                3 restored: free, generation + 1
//! ```
//!
//! Invariants:
//! * At whichever instruction the owner dies, the guardian sees either all of a record or nothing.
//!   For this, the fields of a slot change only before the store that publishes them (1, 2), under
//!   the owner's lock, when no reader may read them.
//! * A thread is touched only after its record is published, and a record is freed only after the
//!   thread was restored. The owner may die in between, because restoring is idempotent.
//! * The generation counts the uses of a slot. A guard does nothing if the slot has a later
//!   generation than the guard.
//!
//! If a thread could not be restored when its guard was dropped, its record stays, as an *orphan*.
//! The end of the set tries again, and the next guard of the same thread takes the record over.
//!
//! Only the owner writes slots. The guardian reads them once the owner is dead. If the owner misses
//! its heartbeat, the guardian reads only the atomic words of the slots.
//!
//! A table is a fixed number of slots of 256 bytes in one anonymous shared mapping. Slots that were
//! never used take no memory. Recording scans the slots that were ever used for a free one.

use std::cell::UnsafeCell;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::sys::{CpuSet, SchedAttr, Tid};

// The flags in a slot's state, and the unit of the generation, which occupies the bits above them.
const RECORDED: u64 = 1;
const OWN: u64 = 2;
const CPUS: u64 = 4;
const ORPHAN: u64 = 8;
const FLAGS: u64 = 0xff;
const GENERATION_UNIT: u64 = 0x100;

const NO_CPU: i32 = -1;
const NO_NICE: i32 = i32::MAX;

/// All data needed to restore a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) tid: Tid,
    pub(crate) birth: u64,
    pub(crate) is_own: bool,
    /// The main thread of another process, and its birth. If the recorded thread calls `exec`, it
    /// becomes this thread.
    pub(crate) leader: Option<(Tid, u64)>,
    pub(crate) former: SchedAttr,
    /// The last two nice values, because the owner may die between recording a value and setting
    /// it.
    pub(crate) nices: [Option<i32>; 2],
    /// The former CPUs and the last two pins, if the thread was ever pinned.
    pub(crate) pin: Option<Pin>,
}

/// The CPUs on which the thread could run before it was pinned, and the last two pins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    pub(crate) former: CpuSet,
    /// The present pin and its predecessor, because the owner may die between recording a pin and
    /// making it.
    pub(crate) cpus: [Option<usize>; 2],
}

#[repr(C, align(64))]
struct Slot {
    state: AtomicU64,
    birth: AtomicU64,
    tid: AtomicI32,
    pinned: AtomicI32,
    pinned_before: AtomicI32,
    nice: AtomicI32,
    nice_before: AtomicI32,
    /// Tid of the main thread of another process, or 0 if there is none.
    leader: AtomicI32,
    leader_birth: AtomicU64,
    former: UnsafeCell<SchedAttr>,
    cpus: UnsafeCell<CpuSet>,
}

impl Slot {
    fn is_recorded(&self) -> bool {
        self.state.load(Acquire) & RECORDED != 0
    }

    /// Returns whether a thread of another process is recorded.
    fn is_foreign(&self) -> bool {
        self.state.load(Acquire) & (RECORDED | OWN) == RECORDED
    }
}

/// The state that owner and guardian share besides the slots.
#[repr(C, align(64))]
pub(crate) struct Header {
    /// 1 if the owner has told the guardian to end.
    pub(crate) closing: AtomicU32,
    /// 1 if the guardian checks the heartbeat, or has been woken to do so. 0 if it sleeps until it
    /// is woken.
    pub(crate) armed: AtomicU32,
    /// Number of signs of life of the owner.
    pub(crate) beats: AtomicU64,
    /// Number of slots that have ever been used; they are the first slots of the table.
    used_slots: AtomicU32,
    /// Number of times that the guardian has demoted all threads because there was no sign of life.
    pub(crate) demotions: AtomicU64,
    /// Policy of the owner's main thread before any elevation, restored after an `exec`.
    leader_policy: UnsafeCell<SchedAttr>,
}

/// The shared mapping: header and slots.
#[derive(Debug)]
pub(crate) struct Table {
    header: NonNull<Header>,
    capacity: usize,
}

// SAFETY: the mapping is shared memory that lives as long as the table. Threads cannot race on it,
// because its words are atomic and its cells follow the publishing protocol above.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Maps room for `capacity` threads. `leader_policy` is the policy of the owner's main thread.
    pub(crate) fn new(capacity: usize, leader_policy: SchedAttr) -> io::Result<Table> {
        // SAFETY: the kernel chooses the address of the new mapping, so no other memory is
        // affected.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Table::bytes(capacity),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let header: NonNull<Header> =
            NonNull::new(address.cast()).ok_or(io::Error::from_raw_os_error(libc::ENOMEM))?;
        let table = Table { header, capacity };
        // SAFETY: the header is valid, because zeroes are a valid header, and no other process or
        // thread uses the mapping yet.
        unsafe { *header.as_ref().leader_policy.get() = leader_policy };
        Ok(table)
    }

    fn bytes(capacity: usize) -> usize {
        size_of::<Header>() + capacity * size_of::<Slot>()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: `new` mapped and initialised the header, which lives as long as `self`.
        unsafe { self.header.as_ref() }
    }

    /// Returns the first policy of the owner's main thread.
    pub(crate) fn leader_policy(&self) -> SchedAttr {
        // SAFETY: no thread writes to the cell any more, because it was written once, before the
        // table was shared.
        unsafe { *self.header().leader_policy.get() }
    }

    fn used(&self) -> &[Slot] {
        &self.slots()[..self.header().used_slots.load(Acquire) as usize]
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: `capacity` slots follow the header, aligned because the header's size is a
        // multiple of their alignment. They are valid, because zeroed memory is a valid slot.
        unsafe {
            std::slice::from_raw_parts(self.header.as_ptr().add(1).cast::<Slot>(), self.capacity)
        }
    }

    /// Records a thread (step 1). Returns index and generation, or `None` if every slot is taken.
    /// The caller holds the owner's lock.
    pub(crate) fn record(&self, record: &Record) -> Option<(usize, u64)> {
        let free = self.used().iter().position(|slot| !slot.is_recorded());
        let index = match free {
            Some(index) => index,
            None => {
                let used_slots = self.header().used_slots.load(Relaxed);
                if used_slots as usize >= self.capacity {
                    return None;
                }
                // Stored before the record is published, so that a reader of the record sees it.
                self.header().used_slots.store(used_slots + 1, Release);
                used_slots as usize
            }
        };
        let slot = &self.slots()[index];
        slot.tid.store(record.tid, Relaxed);
        slot.birth.store(record.birth, Relaxed);
        slot.pinned.store(NO_CPU, Relaxed);
        slot.pinned_before.store(NO_CPU, Relaxed);
        slot.nice.store(NO_NICE, Relaxed);
        slot.nice_before.store(NO_NICE, Relaxed);
        let (leader, leader_birth) = record.leader.unwrap_or_default();
        slot.leader.store(leader, Relaxed);
        slot.leader_birth.store(leader_birth, Relaxed);
        // SAFETY: the slot is free, so no reader reads the cell; the caller's lock keeps other
        // writers out.
        unsafe { *slot.former.get() = record.former };
        let generation = slot.state.load(Relaxed) & !FLAGS;
        let own = if record.is_own { OWN } else { 0 };
        slot.state.store(generation | RECORDED | own, Release);
        Some((index, generation))
    }

    /// Records that the thread at `index` is about to be pinned to `cpu` (step 2, and for every
    /// later pin). `former` is called only the first time. The caller holds the owner's lock.
    pub(crate) fn record_pin(
        &self,
        index: usize,
        cpu: usize,
        former: impl FnOnce() -> io::Result<CpuSet>,
    ) -> io::Result<()> {
        let slot = &self.slots()[index];
        let state = slot.state.load(Relaxed);
        if state & CPUS == 0 {
            let former = former()?;
            // SAFETY: without CPUS no reader reads the cell; the caller's lock keeps other writers
            // out.
            unsafe { *slot.cpus.get() = former };
        }
        slot.pinned_before.store(slot.pinned.load(Relaxed), Release);
        slot.pinned.store(cpu as i32, Release);
        slot.state.store(state | CPUS, Release);
        Ok(())
    }

    /// Reverts [`Table::record_pin`] after a pin that was refused. The thread has not moved, so
    /// both `former_pins` must stay recorded. The caller holds the owner's lock.
    pub(crate) fn revert_pin(&self, index: usize, former_pins: [Option<usize>; 2]) {
        let slot = &self.slots()[index];
        let word = |cpu: Option<usize>| cpu.map_or(NO_CPU, |cpu| cpu as i32);
        slot.pinned.store(word(former_pins[0]), Release);
        slot.pinned_before.store(word(former_pins[1]), Release);
    }

    /// Records that the thread at `index` is about to get this nice value. Called only by its
    /// guard.
    pub(crate) fn record_nice(&self, index: usize, nice: i32) {
        let slot = &self.slots()[index];
        let before = slot.nice.load(Relaxed);
        if before != nice {
            slot.nice_before.store(before, Release);
            slot.nice.store(nice, Release);
        }
    }

    /// Frees a record (step 3). The caller holds the owner's lock and has restored the thread.
    pub(crate) fn free(&self, index: usize) {
        let slot = &self.slots()[index];
        let generation = slot.state.load(Relaxed) & !FLAGS;
        slot.state
            .store(generation.wrapping_add(GENERATION_UNIT), Release);
    }

    /// Sets whether the record at `index` is an orphan. The caller holds the owner's lock.
    pub(crate) fn set_orphan(&self, index: usize, orphan: bool) {
        let slot = &self.slots()[index];
        let state = slot.state.load(Relaxed) & !ORPHAN;
        let flag = if orphan { ORPHAN } else { 0 };
        slot.state.store(state | flag, Release);
    }

    /// Returns the generation of the record at `index` if it is an orphan. The caller holds the
    /// owner's lock.
    pub(crate) fn orphan(&self, index: usize) -> Option<u64> {
        let state = self.slots()[index].state.load(Relaxed);
        (state & ORPHAN != 0).then_some(state & !FLAGS)
    }

    /// Returns whether slot `index` still has this `generation`, so that no later record has taken
    /// it. One load.
    pub(crate) fn is_current(&self, index: usize, generation: u64) -> bool {
        let state = self.slots()[index].state.load(Acquire);
        state & RECORDED != 0 && state & !FLAGS == generation
    }

    /// Returns a copy of the record at `index`. The caller holds the owner's lock, or the owner is
    /// dead.
    pub(crate) fn get(&self, index: usize) -> Option<Record> {
        let slot = self.slots().get(index)?;
        let state = slot.state.load(Acquire);
        if state & RECORDED == 0 {
            return None;
        }
        let cpu = |word: &AtomicI32| usize::try_from(word.load(Acquire)).ok();
        let nice = |word: &AtomicI32| Some(word.load(Acquire)).filter(|&nice| nice != NO_NICE);
        Some(Record {
            tid: slot.tid.load(Relaxed),
            birth: slot.birth.load(Relaxed),
            is_own: state & OWN != 0,
            leader: match slot.leader.load(Relaxed) {
                0 => None,
                leader => Some((leader, slot.leader_birth.load(Relaxed))),
            },
            // SAFETY: the state that was read above has published the cell. No thread writes to the
            // cell before the slot is freed, which the caller excludes.
            former: unsafe { *slot.former.get() },
            nices: [nice(&slot.nice), nice(&slot.nice_before)],
            pin: (state & CPUS != 0).then(|| Pin {
                // SAFETY: as above; the flag CPUS has published this cell.
                former: unsafe { *slot.cpus.get() },
                cpus: [cpu(&slot.pinned), cpu(&slot.pinned_before)],
            }),
        })
    }

    /// Returns the index of the thread's record. One load for each slot ever used. The requirement
    /// of [`Table::get`] applies.
    pub(crate) fn find(&self, tid: Tid, birth: u64) -> Option<usize> {
        let matches = |slot: &Slot| {
            slot.tid.load(Relaxed) == tid && slot.is_recorded() && slot.birth.load(Relaxed) == birth
        };
        self.used().iter().position(matches)
    }

    /// Returns whether a thread of another process is recorded. Any process may call this at any
    /// time.
    pub(crate) fn has_foreign(&self) -> bool {
        self.used().iter().any(Slot::is_foreign)
    }

    /// Returns tid and birth of every recorded thread of another process. Any process may call this
    /// at any time, because only atomic words are read. If the owner reuses a slot meanwhile, the
    /// tid and the birth from this slot may belong to different threads.
    pub(crate) fn foreign_threads(&self) -> impl Iterator<Item = (Tid, u64)> + '_ {
        let foreign = self.used().iter().filter(|slot| slot.is_foreign());
        foreign.map(|slot| (slot.tid.load(Relaxed), slot.birth.load(Relaxed)))
    }

    /// Returns index and copy of every record. The requirement of [`Table::get`] applies.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, Record)> + '_ {
        (0..self.used().len()).filter_map(|index| Some((index, self.get(index)?)))
    }
}

/// Reads the header and the slots of a copied table, for tests.
pub(crate) fn heartbeat_state(table: &[u8]) -> crate::testing::HeartbeatState {
    let word = |at: usize| {
        let bytes = table.get(at..at + 8).and_then(|word| word.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    let slots = (size_of::<Header>()..table.len()).step_by(size_of::<Slot>());
    let states = slots.map(|slot| word(slot + std::mem::offset_of!(Slot, state)));
    crate::testing::HeartbeatState {
        armed: word(std::mem::offset_of!(Header, armed)) as u32 == 1,
        beats: word(std::mem::offset_of!(Header, beats)),
        demotions: word(std::mem::offset_of!(Header, demotions)),
        foreign: states
            .filter(|state| state & (RECORDED | OWN) == RECORDED)
            .count(),
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and nothing borrows from it any more.
        unsafe { libc::munmap(self.header.as_ptr().cast(), Table::bytes(self.capacity)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tid: Tid) -> Record {
        Record {
            tid,
            birth: 7,
            is_own: true,
            leader: None,
            former: SchedAttr::normal(),
            nices: [None; 2],
            pin: None,
        }
    }

    #[test]
    fn a_slot_is_as_large_as_documented() {
        assert_eq!(size_of::<Slot>(), 256);
        assert_eq!(size_of::<Header>() % align_of::<Slot>(), 0);
    }

    #[test]
    fn a_full_table_records_nothing() {
        let table = Table::new(2, SchedAttr::normal()).unwrap();
        assert!(table.record(&record(1)).is_some());
        let (index, generation) = table.record(&record(2)).unwrap();
        assert!(table.record(&record(3)).is_none());
        assert!(table.is_current(index, generation));
        table.free(index);
        assert!(!table.is_current(index, generation));
        let (reused_index, new_generation) = table.record(&record(3)).unwrap();
        assert_eq!(reused_index, index);
        assert_ne!(new_generation, generation);
        assert!(!table.is_current(index, generation));
        assert_eq!(table.records().count(), 2);
    }

    #[test]
    fn foreign_threads_are_the_recorded_threads_of_other_processes() {
        let table = Table::new(3, SchedAttr::normal()).unwrap();
        let foreign = |tid| Record {
            is_own: false,
            ..record(tid)
        };
        table.record(&record(1)).unwrap();
        let (index, _) = table.record(&foreign(2)).unwrap();
        table.record(&foreign(3)).unwrap();
        table.free(index);
        assert!(table.has_foreign());
        assert_eq!(table.foreign_threads().collect::<Vec<_>>(), [(3, 7)]);
    }

    #[test]
    fn the_last_two_nice_values_are_remembered() {
        let table = Table::new(1, SchedAttr::normal()).unwrap();
        let (index, _) = table.record(&record(1)).unwrap();
        for nice in [3, 3, 0, 0, 9] {
            table.record_nice(index, nice);
        }
        assert_eq!(table.get(index).unwrap().nices, [Some(9), Some(0)]);
        table.free(index);
        let (index, _) = table.record(&record(1)).unwrap();
        assert_eq!(table.get(index).unwrap().nices, [None; 2]);
    }

    #[test]
    fn a_pin_keeps_the_first_cpus_and_the_last_two_pins() {
        let table = Table::new(1, SchedAttr::normal()).unwrap();
        let (index, _) = table.record(&record(1)).unwrap();
        assert!(table.get(index).unwrap().pin.is_none());
        let result = table.record_pin(index, 1, || Err(io::Error::from_raw_os_error(libc::ESRCH)));
        assert!(result.is_err() && table.get(index).unwrap().pin.is_none());
        let former = CpuSet::only(5).unwrap();
        table.record_pin(index, 1, || Ok(former)).unwrap();
        table
            .record_pin(index, 2, || panic!("read only once"))
            .unwrap();
        let pin = table.get(index).unwrap().pin.unwrap();
        assert_eq!(pin.former, former);
        assert_eq!(pin.cpus, [Some(2), Some(1)]);
        let recorded = pin.cpus;
        table
            .record_pin(index, 3, || panic!("read only once"))
            .unwrap();
        table.revert_pin(index, recorded);
        assert_eq!(table.get(index).unwrap().pin.unwrap().cpus, recorded);
    }
}
