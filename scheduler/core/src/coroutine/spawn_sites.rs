//! Interns *spawn sites*. A spawn site is a pair of the source position of a spawn and the vtable
//! of the type of the future. Each pair gets a 16-bit number, which fits in the control block.
//!
//! Each spawn looks its pair up in a hash table, and each poll finds its pair by the number. Both
//! look-ups only load, because a pair is never changed and is freed with its domain. A program has
//! one pair per call of `spawn` and future type. When two threads add the same pair at the same
//! time, one of them may waste a number.
//!
//! There are at most 65,535 pairs of 24 bytes. Where memory becomes resident only when it is used,
//! they are in one array. Elsewhere they are in chunks of doubling size, which have room for 65,407
//! pairs. Hardly any program has as many, unless it leaks source positions to get new ones. When no
//! number is left, a spawn gets the number of another position with the same type. If there is
//! none, the spawn fails.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::panic::Location;
use core::ptr::{self, null_mut};

use super::VTable;
use crate::base::host::{Host, is_lazy};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU16, AtomicU32};

/// Number of pairs in the first chunk (a page) where memory is resident from the beginning. Most
/// programs have fewer pairs.
const FIRST_CHUNK: u32 = 128;
/// Number of chunks: enough for almost all 16-bit numbers; one in a model, which has few pairs.
const CHUNKS: usize = if cfg!(loom) { 1 } else { 9 };
/// Number of buckets. In a program with a thousand pairs, a bucket has four.
const BUCKETS: usize = if cfg!(loom) {
    1
} else if cfg!(miri) {
    16
} else {
    256
};

pub(crate) struct Site<H: Host> {
    pub(crate) vtable: &'static VTable<H>,
    pub(crate) location: &'static Location<'static>,
    /// Number of the next pair in the bucket; 0 for the last one.
    next: u16,
}

pub(crate) struct SpawnSites<H: Host> {
    chunks: [AtomicPtr<Site<H>>; CHUNKS],
    /// Smallest number that has not been given to a pair. 0 is never given.
    used: AtomicU32,
    /// Heads of the lists; 0 if a list is empty.
    buckets: [AtomicU16; BUCKETS],
}

impl<H: Host> SpawnSites<H> {
    const FIRST: u32 = if is_lazy::<H>() { 1 << 16 } else { FIRST_CHUNK };
    const END: u32 = if is_lazy::<H>() {
        Self::FIRST
    } else {
        Self::FIRST * ((1 << CHUNKS) - 1)
    };

    pub(crate) fn new() -> SpawnSites<H> {
        const { assert!(Self::END <= 1 << 16) }
        SpawnSites {
            chunks: core::array::from_fn(|_| AtomicPtr::new(null_mut())),
            used: AtomicU32::new(1),
            buckets: core::array::from_fn(|_| AtomicU16::new(0)),
        }
    }

    /// Returns the chunk of a number, and the index in that chunk.
    #[inline]
    fn split(number: u32) -> (usize, usize) {
        if Self::END == Self::FIRST || number < Self::FIRST {
            return (0, number as usize);
        }
        let shifted = number + Self::FIRST;
        let octave = shifted.ilog2();
        let chunk = octave - Self::FIRST.ilog2();
        (chunk as usize, (shifted - (1 << octave)) as usize)
    }

    /// # Safety
    /// The number came from a call of [`SpawnSites::number`] that happened before this one.
    #[inline]
    pub(crate) unsafe fn get(&self, number: u16) -> &Site<H> {
        let (chunk, within) = Self::split(u32::from(number));
        // SAFETY: the call that returned the number wrote the chunk and the pair; neither changes
        // later.
        unsafe {
            let chunk = self.chunks.get_unchecked(chunk).load(Relaxed);
            &*chunk.add(within)
        }
    }

    #[inline]
    pub(crate) fn number(
        &self,
        vtable: &'static VTable<H>,
        location: &'static Location<'static>,
    ) -> Option<u16> {
        let bucket = &self.buckets[bucket_of(vtable, location)];
        let first = bucket.load(Acquire);
        if first != 0 {
            // SAFETY: the number is in a list, which was read after the pair was put there.
            let site = unsafe { self.get(first) };
            if ptr::eq(site.vtable, vtable) && ptr::eq(site.location, location) {
                return Some(first);
            }
        }
        self.find_or_add(bucket, vtable, location)
    }

    #[inline(never)]
    fn find_or_add(
        &self,
        bucket: &AtomicU16,
        vtable: &'static VTable<H>,
        location: &'static Location<'static>,
    ) -> Option<u16> {
        match self.find(bucket.load(Acquire), vtable, location) {
            0 => self.add(bucket, vtable, location),
            number => Some(number),
        }
    }

    /// Returns 0 if the list does not contain the pair.
    fn find(&self, first: u16, vtable: &VTable<H>, location: &Location<'_>) -> u16 {
        let mut number = first;
        while number != 0 {
            // SAFETY: the number is in a list, which was read after the pair was put there.
            let site = unsafe { self.get(number) };
            if ptr::eq(site.vtable, vtable) && ptr::eq(site.location, location) {
                break;
            }
            number = site.next;
        }
        number
    }

    #[cold]
    fn add(
        &self,
        bucket: &AtomicU16,
        vtable: &'static VTable<H>,
        location: &'static Location<'static>,
    ) -> Option<u16> {
        let Some((number, place)) = self.take() else {
            return self.any_of_type(vtable);
        };
        let mut first = bucket.load(Acquire);
        loop {
            let existing = self.find(first, vtable, location);
            if existing != 0 {
                // Another thread was faster. The memory of this number stays unused.
                return Some(existing);
            }
            let site = Site {
                vtable,
                location,
                next: first,
            };
            // SAFETY: the memory was taken for this pair, which is in no list yet.
            unsafe { place.write(site) };
            // Release: pairs with the acquire of the threads that read the list.
            match bucket.compare_exchange(first, number, Release, Acquire) {
                Ok(_) => return Some(number),
                Err(now) => first = now,
            }
        }
    }

    fn take(&self) -> Option<(u16, *mut Site<H>)> {
        let mut used = self.used.load(Relaxed);
        loop {
            if used >= Self::END {
                return None;
            }
            let (chunk, within) = Self::split(used);
            let base = self.chunk(chunk)?;
            match self.used.compare_exchange(used, used + 1, Relaxed, Relaxed) {
                // SAFETY: the index is within the chunk.
                Ok(_) => return Some((used as u16, unsafe { base.add(within) })),
                Err(now) => used = now,
            }
        }
    }

    fn layout(chunk: usize) -> Layout {
        let sites = (Self::FIRST as usize) << chunk;
        Layout::array::<Site<H>>(sites).unwrap_or_else(|_| unreachable!("less than 2 MiB"))
    }

    /// Returns the memory of a chunk, which is allocated on its first use. Returns `None` if there
    /// is no memory.
    fn chunk(&self, chunk: usize) -> Option<*mut Site<H>> {
        let place = &self.chunks[chunk];
        let existing = place.load(Acquire);
        if !existing.is_null() {
            return Some(existing);
        }
        let layout = Self::layout(chunk);
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) }.cast::<Site<H>>();
        if memory.is_null() {
            return None;
        }
        // Release and acquire, because other threads that add pairs write to this memory. `get`
        // need not acquire, since its caller synchronizes with the call of `number` that returned
        // the number.
        match place.compare_exchange(null_mut(), memory, Release, Acquire) {
            Ok(_) => Some(memory),
            Err(existing) => {
                // SAFETY: the memory was just allocated with this layout, and is not published.
                unsafe { dealloc(memory.cast(), layout) };
                Some(existing)
            }
        }
    }

    /// Returns the number of any pair with this type. Called when no number is left for a new pair.
    /// O(pairs).
    #[cold]
    fn any_of_type(&self, vtable: &VTable<H>) -> Option<u16> {
        self.buckets.iter().find_map(|bucket| {
            let mut number = bucket.load(Acquire);
            while number != 0 {
                // SAFETY: the number is in a list, which was read after the pair was put there.
                let site = unsafe { self.get(number) };
                if ptr::eq(site.vtable, vtable) {
                    return Some(number);
                }
                number = site.next;
            }
            None
        })
    }
}

/// Hashes the addresses of two statics, which are multiples of 8 and lie close together.
#[inline]
fn bucket_of<H: Host>(vtable: &VTable<H>, location: &Location<'_>) -> usize {
    /// 2⁶⁴ over the golden ratio. Its multiples are spread evenly (Knuth, volume 3, 6.4).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let vtable = ptr::from_ref(vtable).addr() as u64;
    let location = ptr::from_ref(location).addr() as u64;
    let hash = (vtable ^ location).wrapping_mul(SPREAD);
    (hash >> 56) as usize % BUCKETS
}

impl<H: Host> Drop for SpawnSites<H> {
    fn drop(&mut self) {
        for (chunk, base) in self.chunks.iter().enumerate() {
            let base = base.load(Relaxed);
            if !base.is_null() {
                // SAFETY: the memory was allocated by `chunk` with this layout; a pair needs no
                // drop.
                unsafe { dealloc(base.cast(), Self::layout(chunk)) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::coroutine::{Probe, vtable_of};
    use crate::tables::table::tests::Roomy;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::future::{Pending, Ready};

    extern crate std;

    /// Returns a new source position. The list shows Miri that its memory is still reachable.
    fn location() -> &'static Location<'static> {
        static LOCATIONS: std::sync::Mutex<Vec<&Location<'_>>> = std::sync::Mutex::new(Vec::new());
        let location = Box::leak(Box::new(*Location::caller()));
        LOCATIONS.lock().unwrap().push(location);
        location
    }

    fn pairs_keep_their_numbers<H: Host>() {
        let sites = SpawnSites::<H>::new();
        let types = [vtable_of::<Ready<()>, H>(), vtable_of::<Pending<()>, H>()];
        let locations: Vec<_> = (0..if cfg!(miri) { 10 } else { 1_000 })
            .map(|_| location())
            .collect();
        let all = || {
            locations
                .iter()
                .flat_map(|&location| types.map(|vtable| (vtable, location)))
        };
        let numbers: Vec<_> = all()
            .map(|(vtable, location)| sites.number(vtable, location).unwrap())
            .collect();
        for ((vtable, location), &number) in all().zip(&numbers) {
            assert_eq!(sites.number(vtable, location), Some(number));
            // SAFETY: the number came from `number`.
            let site = unsafe { sites.get(number) };
            assert!(ptr::eq(site.vtable, vtable) && ptr::eq(site.location, location));
        }
        assert_eq!(sites.used.load(Relaxed) as usize, numbers.len() + 1);
    }

    #[test]
    fn a_pair_keeps_its_number() {
        pairs_keep_their_numbers::<Probe>();
        pairs_keep_their_numbers::<Roomy>();
    }

    fn without_a_number_left<H: Host>() {
        let sites = SpawnSites::<H>::new();
        let known = vtable_of::<Ready<()>, H>();
        let locations = Vec::leak(
            (0..SpawnSites::<H>::END)
                .map(|_| *Location::caller())
                .collect(),
        );
        let last = locations
            .iter()
            .map(|location| sites.number(known, location))
            .last();
        // SAFETY: the number came from `number`.
        let site = unsafe { sites.get(last.unwrap().unwrap()) };
        assert!(ptr::eq(site.vtable, known));
        assert_eq!(sites.used.load(Relaxed), SpawnSites::<H>::END);
        assert_eq!(
            sites.number(vtable_of::<Pending<()>, H>(), location()),
            None
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "65,000 locations")]
    fn without_a_number_left_a_known_type_gets_another_position() {
        without_a_number_left::<Probe>();
        without_a_number_left::<Roomy>();
    }

    #[test]
    fn threads_agree_on_the_numbers() {
        let sites = SpawnSites::<Probe>::new();
        let vtable = vtable_of::<Ready<()>, Probe>();
        let locations: Vec<_> = (0..if cfg!(miri) { 20 } else { 2_000 })
            .map(|_| location())
            .collect();
        let all = || -> Vec<_> {
            let number = |&location: &&'static _| sites.number(vtable, location).unwrap();
            locations.iter().map(number).collect()
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(all), scope.spawn(all)];
            let [one, other] = threads.map(|thread| thread.join().unwrap());
            assert_eq!(one, other);
            assert_eq!(one, all());
        });
    }
}
