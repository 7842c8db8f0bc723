//! Places of spawn, interned: where a coroutine was spawned and the calls of its future's type, by a number of 16 bits for its control block.
//!
//! A pair is looked up at each spawn, in a list per bucket of a hash table, and by its number at each poll. Both are loads: a pair is never
//! changed or freed before its domain is, and there is one per call of `spawn` and type of a future that a program has. Of two threads that meet a pair for the first
//! time at once one may take a number for nothing.
//!
//! Bound: 65,535 pairs (65,407 in chunks), 24 bytes each: one list, where memory is there only when it is used, and else chunks that
//! double. They are freed with the domain. A program that makes up more places (each is `'static`, so it leaks them) gets
//! the number of another place with the same type, or, if there is none, no coroutine.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::panic::Location;
use core::ptr::{self, null_mut};

use super::VTable;
use crate::base::host::{Host, is_lazy};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU16, AtomicU32};

/// Pairs in the first chunk, of a page, where memory is there from the beginning: most programs have fewer.
const FEW: u32 = 128;
/// As many as make numbers of 16 bits; a model has few pairs.
const CHUNKS: usize = if cfg!(loom) { 1 } else { 9 };
/// So that a program with a thousand pairs compares four of them.
const BUCKETS: usize = if cfg!(loom) {
    1
} else if cfg!(miri) {
    16
} else {
    256
};

/// A pair.
pub(crate) struct Site<H: Host> {
    pub(crate) vtable: &'static VTable<H>,
    pub(crate) location: &'static Location<'static>,
    /// The number of the next in its bucket; 0: it is the last.
    next: u16,
}

/// All pairs of a domain.
pub(crate) struct SpawnSites<H: Host> {
    chunks: [AtomicPtr<Site<H>>; CHUNKS],
    /// Numbers below this are given. 0 is none.
    used: AtomicU32,
    /// The number of the first in each.
    buckets: [AtomicU16; BUCKETS],
}

impl<H: Host> SpawnSites<H> {
    /// Pairs in the first chunk: all, where memory need not be there before it is used.
    const FIRST: u32 = if is_lazy::<H>() { 1 << 16 } else { FEW };
    /// Numbers end below this.
    const MOST: u32 = if is_lazy::<H>() {
        Self::FIRST
    } else {
        Self::FIRST * ((1 << CHUNKS) - 1)
    };

    pub(crate) fn new() -> SpawnSites<H> {
        const { assert!(Self::MOST <= 1 << 16) }
        SpawnSites {
            chunks: core::array::from_fn(|_| AtomicPtr::new(null_mut())),
            used: AtomicU32::new(1),
            buckets: core::array::from_fn(|_| AtomicU16::new(0)),
        }
    }

    /// The chunk of a number, and which it is there.
    #[inline]
    fn split(number: u32) -> (usize, usize) {
        if Self::MOST == Self::FIRST || number < Self::FIRST {
            return (0, number as usize);
        }
        let shifted = number + Self::FIRST;
        let octave = shifted.ilog2();
        let chunk = octave - Self::FIRST.ilog2();
        (chunk as usize, (shifted - (1 << octave)) as usize)
    }

    /// The pair of a number.
    ///
    /// # Safety
    /// [`SpawnSites::number`] gave it, in a call that happened before this one.
    #[inline]
    pub(crate) unsafe fn get(&self, number: u16) -> &Site<H> {
        let (chunk, within) = Self::split(u32::from(number));
        // SAFETY: so its chunk is there, and it was written; nothing is written or freed after that.
        unsafe {
            let chunk = self.chunks.get_unchecked(chunk).load(Relaxed);
            &*chunk.add(within)
        }
    }

    /// The number of a pair. `None`: there is no memory for it, or no number is left.
    #[inline]
    pub(crate) fn number(
        &self,
        vtable: &'static VTable<H>,
        location: &'static Location<'static>,
    ) -> Option<u16> {
        let bucket = &self.buckets[bucket_of(vtable, location)];
        let first = bucket.load(Acquire);
        if first != 0 {
            // SAFETY: it is in a list, that was read after it was put there.
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

    /// In a list; 0 if it is not there.
    fn find(&self, first: u16, vtable: &VTable<H>, location: &Location<'_>) -> u16 {
        let mut number = first;
        while number != 0 {
            // SAFETY: it is in a list, that was read after it was put there.
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
        let Some(place) = self.take() else {
            return self.of_type(vtable);
        };
        let (number, place) = place;
        let mut first = bucket.load(Acquire);
        loop {
            let found = self.find(first, vtable, location);
            if found != 0 {
                // Another thread was faster. Nothing ever looks at the place of this number.
                return Some(found);
            }
            let site = Site {
                vtable,
                location,
                next: first,
            };
            // SAFETY: taken for this, and in no list yet.
            unsafe { place.write(site) };
            // Release: for those that read it.
            match bucket.compare_exchange(first, number, Release, Acquire) {
                Ok(_) => return Some(number),
                Err(now) => first = now,
            }
        }
    }

    /// A number that is not given yet, and its place. `None`: none is left, or there is no memory.
    fn take(&self) -> Option<(u16, *mut Site<H>)> {
        let mut used = self.used.load(Relaxed);
        loop {
            if used >= Self::MOST {
                return None;
            }
            let (chunk, within) = Self::split(used);
            let base = self.chunk(chunk)?;
            match self.used.compare_exchange(used, used + 1, Relaxed, Relaxed) {
                // SAFETY: within the chunk.
                Ok(_) => return Some((used as u16, unsafe { base.add(within) })),
                Err(now) => used = now,
            }
        }
    }

    fn layout(chunk: usize) -> Layout {
        let sites = (Self::FIRST as usize) << chunk;
        Layout::array::<Site<H>>(sites).unwrap_or_else(|_| unreachable!("less than 2 MiB"))
    }

    /// A chunk, made if it is not there yet. `None`: there is no memory.
    fn chunk(&self, chunk: usize) -> Option<*mut Site<H>> {
        let place = &self.chunks[chunk];
        let there = place.load(Acquire);
        if !there.is_null() {
            return Some(there);
        }
        let layout = Self::layout(chunk);
        // SAFETY: not empty.
        let memory = unsafe { alloc(layout) }.cast::<Site<H>>();
        if memory.is_null() {
            return None;
        }
        // Release: for `get`, whose caller has what the one that found the number has seen.
        match place.compare_exchange(null_mut(), memory, Release, Acquire) {
            Ok(_) => Some(memory),
            Err(there) => {
                // SAFETY: just allocated with this layout, and not published.
                unsafe { dealloc(memory.cast(), layout) };
                Some(there)
            }
        }
    }

    /// Some pair of this type, for a place that cannot be named any more. O(pairs).
    #[cold]
    fn of_type(&self, vtable: &VTable<H>) -> Option<u16> {
        self.buckets.iter().find_map(|bucket| {
            let mut number = bucket.load(Acquire);
            while number != 0 {
                // SAFETY: it is in a list.
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

/// Both are addresses of statics, multiples of 8 that lie close together.
#[inline]
fn bucket_of<H: Host>(vtable: &VTable<H>, location: &Location<'_>) -> usize {
    /// 2⁶⁴ over the golden ratio: multiples of it are spread evenly (Knuth, volume 3, 6.4).
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
                // SAFETY: allocated by `chunk` with this layout; a pair needs no drop.
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

    /// A place of its own, which is kept for good where Miri sees that it is.
    fn place() -> &'static Location<'static> {
        static PLACES: std::sync::Mutex<Vec<&Location<'_>>> = std::sync::Mutex::new(Vec::new());
        let place = Box::leak(Box::new(*Location::caller()));
        PLACES.lock().unwrap().push(place);
        place
    }

    fn pairs_keep_their_numbers<H: Host>() {
        let sites = SpawnSites::<H>::new();
        let types = [vtable_of::<Ready<()>, H>(), vtable_of::<Pending<()>, H>()];
        let places: Vec<_> = (0..if cfg!(miri) { 10 } else { 1_000 })
            .map(|_| place())
            .collect();
        let all = || {
            places
                .iter()
                .flat_map(|&place| types.map(|vtable| (vtable, place)))
        };
        let numbers: Vec<_> = all()
            .map(|(vtable, place)| sites.number(vtable, place).unwrap())
            .collect();
        for ((vtable, place), &number) in all().zip(&numbers) {
            assert_eq!(sites.number(vtable, place), Some(number));
            // SAFETY: of `number`.
            let site = unsafe { sites.get(number) };
            assert!(ptr::eq(site.vtable, vtable) && ptr::eq(site.location, place));
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
        let places = Vec::leak(
            (0..SpawnSites::<H>::MOST)
                .map(|_| *Location::caller())
                .collect(),
        );
        let last = places.iter().map(|place| sites.number(known, place)).last();
        // SAFETY: of `number`.
        let site = unsafe { sites.get(last.unwrap().unwrap()) };
        assert!(ptr::eq(site.vtable, known));
        assert_eq!(sites.used.load(Relaxed), SpawnSites::<H>::MOST);
        assert_eq!(sites.number(vtable_of::<Pending<()>, H>(), place()), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "65,000 places")]
    fn without_a_number_left_the_type_is_kept() {
        without_a_number_left::<Probe>();
        without_a_number_left::<Roomy>();
    }

    #[test]
    fn threads_agree_on_the_numbers() {
        let sites = SpawnSites::<Probe>::new();
        let vtable = vtable_of::<Ready<()>, Probe>();
        let places: Vec<_> = (0..if cfg!(miri) { 20 } else { 2_000 })
            .map(|_| place())
            .collect();
        let all = || -> Vec<_> {
            let number = |&place: &&'static _| sites.number(vtable, place).unwrap();
            places.iter().map(number).collect()
        };
        std::thread::scope(|scope| {
            let threads = [scope.spawn(all), scope.spawn(all)];
            let [one, other] = threads.map(|thread| thread.join().unwrap());
            assert_eq!(one, other);
            assert_eq!(one, all());
        });
    }
}
