//! A ring buffer of the last recorded events of a vCPU, or of all threads that serve no vCPU. Each
//! slot is a seqlock.
//!
//! ```text
//!   record i:   stamp ◄─ 2i+1 ─► four words ─► stamp ◄─ 2i+2        in slot i mod size
//!   reader:     stamp = 2i+2? ─► four words ─► stamp the same? ─► record i, whole; else it is lost
//! ```
//!
//! Readers never stop a writer. The ring of a vCPU has one writer, the thread that serves the vCPU,
//! and a record costs a few stores. The ring of the other threads has many writers. Each of them
//! takes a number, and then the slot for that number. The slot may still be held by a writer that
//! was stopped in the middle of its record for a whole round. The new record is then dropped, and a
//! reader counts it as lost, so that no record mixes the words of two writers. All words are
//! atomic. So even if a vCPU's ring had a second writer by mistake, records would be wrong, but
//! behaviour would not be undefined.

use std::io;
use std::panic::Location;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, fence};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Time of the event, in ticks.
    pub(super) at: u64,
    pub(super) id: u64,
    pub(super) location: Option<&'static Location<'static>>,
    /// Packed kind, level, vCPU, thread and argument; see `pack`.
    pub(super) packed: u64,
}

/// A slot of the ring.
struct Entry {
    /// 2i+1 while record i is written, and 2i+2 afterwards.
    stamp: AtomicU64,
    at: AtomicU64,
    id: AtomicU64,
    /// Null, or a `&'static Location`.
    location: AtomicPtr<Location<'static>>,
    packed: AtomicU64,
}

impl Entry {
    #[inline]
    fn write(&self, record: &Record) {
        // A reader that sees one of the words below also sees the odd stamp.
        fence(Release);
        let location = record.location.map_or(std::ptr::null(), std::ptr::from_ref);
        self.at.store(record.at, Relaxed);
        self.id.store(record.id, Relaxed);
        self.location.store(location.cast_mut(), Relaxed);
        self.packed.store(record.packed, Relaxed);
    }

    fn read(&self, number: u64) -> Option<Record> {
        let final_stamp = 2 * number + 2;
        if self.stamp.load(Acquire) != final_stamp {
            return None;
        }
        let location = self.location.load(Relaxed);
        let record = Record {
            at: self.at.load(Relaxed),
            id: self.id.load(Relaxed),
            // SAFETY: the pointer is null or was made from a `'static` reference, so it may be
            // dereferenced.
            location: unsafe { location.as_ref() },
            packed: self.packed.load(Relaxed),
        };
        fence(Acquire);
        (self.stamp.load(Relaxed) == final_stamp).then_some(record)
    }
}

/// Aligned to avoid false sharing.
#[repr(align(128))]
pub(super) struct Ring {
    /// Records ever started, and thus the number of the next one.
    count: AtomicU64,
    entries: Box<[Entry]>,
}

impl Ring {
    pub(super) fn new(records: usize) -> io::Result<Ring> {
        let size = records.max(2).checked_next_power_of_two();
        let size = size.ok_or(io::ErrorKind::OutOfMemory)?;
        let mut entries = Vec::new();
        entries
            .try_reserve_exact(size)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        entries.resize_with(size, || Entry {
            stamp: AtomicU64::new(0),
            at: AtomicU64::new(0),
            id: AtomicU64::new(0),
            location: AtomicPtr::new(std::ptr::null_mut()),
            packed: AtomicU64::new(0),
        });
        Ok(Ring {
            count: AtomicU64::new(0),
            entries: entries.into_boxed_slice(),
        })
    }

    pub(super) fn size(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    #[inline]
    fn entry(&self, number: u64) -> &Entry {
        &self.entries[number as usize & (self.entries.len() - 1)]
    }

    /// Adds a record. Only for a ring with a single writer, which must be the caller.
    #[inline]
    pub(super) fn push_own(&self, record: &Record) {
        let number = self.count.load(Relaxed);
        let entry = self.entry(number);
        entry.stamp.store(2 * number + 1, Relaxed);
        entry.write(record);
        entry.stamp.store(2 * number + 2, Release);
        self.count.store(number + 1, Release);
    }

    /// Adds a record, from any thread. Costs two atomic read-modify-writes.
    pub(super) fn push_shared(&self, record: &Record) {
        let number = self.count.fetch_add(1, Relaxed);
        let entry = self.entry(number);
        let stamp = entry.stamp.load(Relaxed);
        let is_free = stamp.is_multiple_of(2) && stamp <= 2 * number;
        let is_taken = is_free
            && entry
                .stamp
                .compare_exchange(stamp, 2 * number + 1, Acquire, Relaxed)
                .is_ok();
        if is_taken {
            entry.write(record);
            entry.stamp.store(2 * number + 2, Release);
        }
    }

    /// Returns the complete records from number `first` on, oldest first; the number of records
    /// that were overwritten; and the number of records that were dropped or are still being
    /// written.
    pub(super) fn read(&self, first: u64) -> (Vec<Record>, u64, u64) {
        let end = self.count.load(Acquire);
        let oldest = first.max(end.saturating_sub(self.entries.len() as u64));
        let records: Vec<Record> = (oldest..end)
            .filter_map(|number| self.entry(number).read(number))
            .collect();
        let missing = (end.max(oldest) - oldest) - records.len() as u64;
        (records, oldest - first, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Returns a record whose words all follow from one number, so that a torn record can be
    /// detected.
    fn record(n: u64) -> Record {
        Record {
            at: n,
            id: n.wrapping_mul(3),
            location: n.is_multiple_of(2).then(Location::caller),
            packed: !n,
        }
    }

    fn assert_whole(record: &Record) {
        let n = record.at;
        assert_eq!((record.id, record.packed), (n.wrapping_mul(3), !n));
        assert_eq!(record.location.is_some(), n.is_multiple_of(2));
    }

    #[test]
    fn the_oldest_records_are_overwritten_and_counted() {
        let ring = Ring::new(5).unwrap();
        assert_eq!(ring.size(), 8);
        for n in 0..20 {
            ring.push_own(&record(n));
        }
        let (records, lost, _) = ring.read(0);
        let numbers: Vec<u64> = records.iter().map(|record| record.at).collect();
        assert_eq!(numbers, (12..20).collect::<Vec<_>>());
        assert_eq!(lost, 12);
        let (records, lost, missing) = ring.read(15);
        assert_eq!((records.len(), lost, missing), (5, 0, 0));
        records.iter().for_each(assert_whole);
        assert_eq!(ring.read(20), (Vec::new(), 0, 0));
    }

    #[test]
    fn no_record_is_torn_while_one_thread_writes_and_another_reads() {
        let ring = Ring::new(if cfg!(miri) { 16 } else { 4_096 }).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0;
                // The bound ends the writer if the reader panics.
                while !stop.load(Relaxed) && n < 1 << 32 {
                    ring.push_own(&record(n));
                    n += 1;
                }
            });
            let (mut reads, mut last) = (0, 0);
            while reads < if cfg!(miri) { 5 } else { 100 } {
                let (records, lost, missing) = ring.read(last);
                records.iter().for_each(assert_whole);
                assert!(records.is_sorted_by_key(|record| record.at));
                last += records.len() as u64 + lost + missing;
                reads += u32::from(!records.is_empty());
            }
            stop.store(true, Relaxed);
        });
    }

    #[test]
    fn no_record_is_of_two_writers() {
        let ring = Ring::new(4).unwrap();
        let records_per_writer = if cfg!(miri) { 50 } else { 50_000 };
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let ring = &ring;
                scope.spawn(move || {
                    for n in 0..records_per_writer {
                        ring.push_shared(&record(n * 4 + writer));
                    }
                });
            }
            for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
                ring.read(0).0.iter().for_each(assert_whole);
            }
        });
        let count = ring.count();
        assert_eq!(count, 4 * records_per_writer);
        let (records, lost, missing) = ring.read(0);
        records.iter().for_each(assert_whole);
        assert_eq!(records.len() as u64 + lost + missing, count);
    }

    #[test]
    fn too_many_records_are_an_error() {
        assert!(Ring::new(usize::MAX).is_err());
        assert!(Ring::new(usize::MAX / 2).is_err());
    }
}
