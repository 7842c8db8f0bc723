//! Allocates the control blocks of the coroutines of a domain, in a table of *slots* that never
//! move.
//!
//! The id of a coroutine is the index of its slot and a generation, which counts the coroutines
//! (*tenants*) that the slot has had. Slots live in [pages](Host::TABLE_PAGE) that are allocated as
//! needed and freed with the domain, so any thread may read the state word of a slot at any time,
//! even after the exit of its tenant. The first slot of each page holds the number of the page, so
//! that the index of a slot is found with two loads.
//!
//! Pages are grouped into chunks of 1, 2, 4, … pages. Where memory is *lazy*, that is, becomes
//! resident only when it is used, a chunk is one allocation. Elsewhere a chunk is a list of the
//! addresses of its pages, and each page is allocated separately, when it is first used.
//!
//! Free slots are in a lock-free list, from which one or several slots are taken, or to which they
//! are given back, with one compare-exchange. The head has a tag that changes with each exchange,
//! which prevents the ABA problem. vCPUs cache free slots; see `slot_cache`. A table has at most
//! 2³² slots, or 2²⁴ pages.
//!
//! The table has as many slots as there were coroutines at once, plus the slots in the caches of
//! vCPUs, rounded up to a page. A slot that has had 2³² tenants is not used again, so that an id is
//! never given twice. So the table grows by 64 bytes per 2³² coroutines, and has room for 2⁶⁴
//! coroutines.

use core::alloc::Layout;
use core::ptr::{NonNull, null_mut};

use crate::base::host::{Host, allocate_zeroed, deallocate, is_lazy};
use crate::base::id::CoroutineId;
use crate::coroutine::Slot;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Number of chunks: enough for almost 2²⁴ pages; one in a model, which has one page.
const CHUNKS: usize = if cfg!(loom) { 1 } else { 24 };

type Page<H> = AtomicPtr<Slot<H>>;

pub(crate) struct Table<H: Host> {
    /// Contiguous pages, or a list of [`Page`]s if a chunk is not [whole](Table::WHOLE).
    chunks: [AtomicPtr<Slot<H>>; CHUNKS],
    /// Smallest index that has never been used.
    used: AtomicU64,
    /// Tag in the high half, index of the first free slot in the low half; 0 for none, since slot 0
    /// is a page's header.
    free: AtomicU64,
    /// Number of slots that have no generation left.
    exhausted: AtomicUsize,
}

impl<H: Host> Table<H> {
    const PAGE: usize = H::TABLE_PAGE;
    const LAZY: bool = is_lazy::<H>();
    /// True if a chunk is one allocation, as the only page of a model is, too.
    const WHOLE: bool = Self::LAZY || cfg!(loom);
    /// Number of slots in a page. A model has one page with few slots, since the checker registers
    /// each slot.
    const PER_PAGE: u32 = if cfg!(loom) {
        5
    } else {
        (Self::PAGE / size_of::<Slot<H>>()) as u32
    };

    pub(crate) fn new() -> Table<H> {
        const {
            assert!(size_of::<Slot<H>>() * Self::PER_PAGE as usize <= Self::PAGE);
            assert!(Self::PAGE.is_power_of_two() && Self::PAGE >= 4096);
        }
        Table {
            chunks: core::array::from_fn(|_| AtomicPtr::new(null_mut())),
            used: AtomicU64::new(0),
            free: AtomicU64::new(0),
            exhausted: AtomicUsize::new(0),
        }
    }

    /// Returns the slot if it is in use or has been in use.
    pub(crate) fn slot(&self, index: u32) -> Option<&Slot<H>> {
        // SAFETY: slots live as long as the table.
        self.find(index).map(|slot| unsafe { slot.as_ref() })
    }

    /// Finds a slot like [`slot`](Table::slot), but returns a pointer that [`index`](Table::index)
    /// accepts.
    pub(crate) fn find(&self, index: u32) -> Option<NonNull<Slot<H>>> {
        if index.is_multiple_of(Self::PER_PAGE)
            || u64::from(index) >= self.used.load(Ordering::Acquire)
        {
            return None;
        }
        self.slot_ptr(index)
    }

    /// Returns the chunk of a page, and the index in the chunk.
    #[inline]
    fn split(page: u32) -> (usize, usize) {
        let chunk = (page + 1).ilog2();
        (chunk as usize, (page + 1 - (1 << chunk)) as usize)
    }

    #[inline]
    fn slot_ptr(&self, index: u32) -> Option<NonNull<Slot<H>>> {
        let (page, slot) = (index / Self::PER_PAGE, index % Self::PER_PAGE);
        if Self::WHOLE {
            let (chunk, within) = Self::split(page);
            let base = self.chunks.get(chunk)?.load(Ordering::Acquire);
            let offset = within * Self::PER_PAGE as usize + slot as usize;
            // SAFETY: the slot is within the chunk, which lives as long as the table; all-zero
            // memory is a valid slot.
            return NonNull::new(base).map(|base| unsafe { base.add(offset) });
        }
        // SAFETY: the slot is within the page, which lives as long as the table.
        (self.page(page)).map(|page| unsafe { page.add(slot as usize) })
    }

    fn page(&self, page: u32) -> Option<NonNull<Slot<H>>> {
        let (chunk, within) = Self::split(page);
        let base = self.chunks.get(chunk)?.load(Ordering::Acquire);
        let base = NonNull::new(base)?;
        if Self::WHOLE {
            let slots = within * Self::PER_PAGE as usize;
            // SAFETY: the page is within the chunk, which lives as long as the table.
            return Some(unsafe { base.add(slots) });
        }
        // SAFETY: the chunk is a list of this many pages, which lives as long as the table;
        // all-zero memory is a list of null pointers.
        let page = unsafe { base.cast::<Page<H>>().add(within).as_ref() };
        NonNull::new(page.load(Ordering::Acquire))
    }

    /// Returns the index of a slot of this table. The pointer must come from the table, not from a
    /// reference to the slot, since it is used to reach the page's header.
    pub(crate) fn index(slot: NonNull<Slot<H>>) -> u32 {
        let page = slot
            .as_ptr()
            .map_addr(|address| address & !(Self::PAGE - 1));
        let within = (slot.addr().get() % Self::PAGE) / size_of::<Slot<H>>();
        // SAFETY: chunks are page-aligned, and the first slot of a page is its header, written
        // before any other slot of the page was handed out.
        let number = unsafe { (*page).next_free() };
        number * Self::PER_PAGE + within as u32
    }

    /// Takes a free slot, or one that has never been used. Returns `None` if the table is full, or
    /// memory has run out.
    pub(crate) fn take(&self) -> Option<NonNull<Slot<H>>> {
        let mut one = [None];
        match self.take_some(&mut one) {
            0 => self.take_fresh(),
            _ => one[0],
        }
    }

    /// Takes slots from the free list until `to` is full or the list is empty. Returns the number
    /// of slots taken, of which the first is the former head.
    pub(crate) fn take_some(&self, to: &mut [Option<NonNull<Slot<H>>>]) -> usize {
        let mut head = self.free.load(Ordering::Acquire);
        while head as u32 != 0 {
            let (mut next, mut count) = (head as u32, 0);
            // If another thread takes one of these slots meanwhile, `next` is meaningless, and the
            // exchange fails.
            while count < to.len()
                && next != 0
                && let Some(place) = self.slot_ptr(next)
            {
                to[count] = Some(place);
                count += 1;
                // SAFETY: slots live as long as the table.
                next = unsafe { place.as_ref() }.next_free();
            }
            match self.free.compare_exchange_weak(
                head,
                tagged(head, next),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return count,
                Err(now) => head = now,
            }
        }
        0
    }

    /// Takes a slot that has never been used. Returns `None` if the table is full, or memory has
    /// run out.
    #[cold]
    pub(crate) fn take_fresh(&self) -> Option<NonNull<Slot<H>>> {
        loop {
            let index = self.used.load(Ordering::Acquire);
            let index32 = u32::try_from(index).ok()?;
            let page = index32 / Self::PER_PAGE;
            if self.page(page).is_none() && !self.grow(page) {
                return None;
            }
            let place = self.slot_ptr(index32)?;
            // SAFETY: slots live as long as the table.
            let slot = unsafe { place.as_ref() };
            if index32.is_multiple_of(Self::PER_PAGE) {
                slot.link_free(page);
            }
            if self
                .used
                .compare_exchange(index, index + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
                && !index32.is_multiple_of(Self::PER_PAGE)
            {
                return Some(place);
            }
        }
    }

    /// Allocates the pages for this many slots. Returns false if there is no memory.
    pub(crate) fn reserve(&self, slots: usize) -> bool {
        // The first slot of each page is its header.
        let pages = slots.div_ceil(Self::PER_PAGE as usize - 1);
        let mut pages = (0..).take(pages);
        pages.all(|page| self.page(page).is_some() || self.grow(page))
    }

    /// Returns the layout of a chunk. Lazy memory is not aligned to pages, so its layout has one
    /// page more, within which the first page is aligned.
    fn layout(chunk: usize) -> Option<Layout> {
        let pages = 1usize.checked_shl(chunk as u32)?;
        if !Self::WHOLE {
            return Layout::array::<Page<H>>(pages).ok();
        }
        let bytes = Self::PAGE.checked_mul(pages)?;
        let layout = if Self::LAZY {
            Layout::from_size_align(bytes.checked_add(Self::PAGE)?, align_of::<u64>())
        } else {
            Layout::from_size_align(bytes, Self::PAGE)
        };
        layout.ok()
    }

    /// Layout of a page that is allocated separately.
    const LAYOUT: Layout = match Layout::from_size_align(Self::PAGE, Self::PAGE) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    /// Allocates a page, and its chunk if needed. Returns false if there is no memory, or the table
    /// is full.
    #[cold]
    fn grow(&self, page: u32) -> bool {
        let (chunk, within) = Self::split(page);
        let Some(place) = self.chunks.get(chunk) else {
            return false;
        };
        let mut base = place.load(Ordering::Acquire);
        if base.is_null() {
            // A chunk without a layout is beyond the largest table.
            let Some(layout) = Self::layout(chunk) else {
                return false;
            };
            base = put::<H, _>(place, layout, Self::chunk_of);
        }
        if base.is_null() || Self::WHOLE {
            return !base.is_null();
        }
        // SAFETY: the chunk is a list of this many pages, which lives as long as the table.
        let place = unsafe { &*base.cast::<Page<H>>().add(within) };
        !put::<H, _>(place, Self::LAYOUT, |memory| memory.cast()).is_null()
    }

    fn chunk_of(memory: *mut u8) -> *mut Slot<H> {
        if !Self::WHOLE {
            return memory.cast();
        }
        let base = memory
            .map_addr(|address| address.next_multiple_of(Self::PAGE))
            .cast::<Slot<H>>();
        // loom's atomics are not words, so zeroed memory is not a slot.
        #[cfg(loom)]
        for slot in 0..Self::PER_PAGE as usize {
            // SAFETY: the slot is within the memory just allocated.
            unsafe { base.add(slot).write(Slot::empty()) };
        }
        // SAFETY: `base` points to the header of the first page, which no other thread knows yet.
        unsafe { (*base).waiter.store(memory.cast(), Ordering::Relaxed) };
        base
    }

    /// Gives back a slot whose tenant's future is gone.
    pub(crate) fn give_back(&self, slot: NonNull<Slot<H>>) {
        if self.retire(slot) {
            self.give_some(&[Some(slot)]);
        }
    }

    /// Begins the next generation of a slot whose tenant's future is gone. Returns false if no
    /// generation is left; then the slot is not used again.
    pub(crate) fn retire(&self, slot: NonNull<Slot<H>>) -> bool {
        // SAFETY: the slot is in this table.
        let retired = unsafe { slot.as_ref() }.word.retire();
        if !retired {
            self.exhausted.fetch_add(1, Ordering::Release);
        }
        retired
    }

    /// Puts slots into the free list. The slots are retired. The last of them becomes the head of
    /// the free list. All elements are `Some`, and there is at least one.
    pub(crate) fn give_some(&self, slots: &[Option<NonNull<Slot<H>>>]) {
        let mut slots = slots.iter().flatten();
        let Some(&last) = slots.next() else {
            return;
        };
        let mut first = last;
        for &slot in slots {
            // SAFETY: the slots are in this table, and the caller's until the exchange below.
            unsafe { slot.as_ref() }.link_free(Self::index(first));
            first = slot;
        }
        let index = Self::index(first);
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            // SAFETY: the slot is in this table, and the caller's until the exchange succeeds.
            unsafe { last.as_ref() }.link_free(head as u32);
            match self.free.compare_exchange_weak(
                head,
                tagged(head, index),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Counts the slots in the free list or without a generation left. Exact only if no slot is
    /// taken meanwhile. O(n).
    pub(crate) fn count_free(&self) -> usize {
        let mut index = self.free.load(Ordering::Acquire) as u32;
        let mut count = self.exhausted.load(Ordering::Acquire);
        while let Some(slot) = self.slot(index) {
            count += 1;
            index = slot.next_free();
        }
        count
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, &Slot<H>)> {
        let used = self.used.load(Ordering::Acquire) as u32;
        (0..used).filter_map(|index| Some((index, self.slot(index)?)))
    }
}

/// Allocates zeroed memory and stores it at `place`, unless another thread has stored there
/// meanwhile. Returns the pointer at `place`; null if there is no memory.
fn put<H: Host, T>(
    place: &AtomicPtr<T>,
    layout: Layout,
    make: impl FnOnce(*mut u8) -> *mut T,
) -> *mut T {
    // SAFETY: no layout of a table is empty.
    let memory = unsafe { allocate_zeroed::<H>(layout) };
    if memory.is_null() {
        return null_mut();
    }
    let pointer = make(memory);
    match place.compare_exchange(null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => pointer,
        Err(existing) => {
            // SAFETY: the memory was just allocated with this layout, and is not published.
            unsafe { deallocate::<H>(memory, layout) };
            existing
        }
    }
}

fn tagged(head: u64, index: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(index)
}

impl<H: Host> Drop for Table<H> {
    fn drop(&mut self) {
        for (chunk, base) in self.chunks.iter().enumerate() {
            let base = base.load(Ordering::Relaxed);
            if base.is_null() {
                continue;
            }
            let Some(layout) = Self::layout(chunk) else {
                continue;
            };
            if Self::WHOLE {
                // SAFETY: `grow` allocated the chunk with this layout; the address of its memory is
                // in the first page's header.
                unsafe {
                    let memory = (*base).waiter.load(Ordering::Relaxed);
                    deallocate::<H>(memory.cast(), layout);
                }
                continue;
            }
            for within in 0..1 << chunk {
                // SAFETY: the chunk is a list of this many pages.
                let page = unsafe { &*base.cast::<Page<H>>().add(within) }.load(Ordering::Relaxed);
                if !page.is_null() {
                    // SAFETY: `grow` allocated the page with this layout.
                    unsafe { deallocate::<H>(page.cast(), Self::LAYOUT) };
                }
            }
            // SAFETY: `grow` allocated the list with this layout.
            unsafe { deallocate::<H>(base.cast(), layout) };
        }
    }
}

/// Returns the id of a coroutine, whose control block must be alive.
pub(crate) fn id_of<H: Host>(coroutine: NonNull<Slot<H>>) -> CoroutineId {
    // SAFETY: the caller passes a pointer to a living control block.
    let block = unsafe { coroutine.as_ref() };
    CoroutineId::new(Table::index(coroutine), block.word.generation())
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use crate::coroutine::Probe;
    use alloc::vec::Vec;
    use core::task::RawWakerVTable;

    #[test]
    fn a_slot_out_of_generations_is_not_used_again() {
        let table = Table::<Probe>::new();
        let first = table.take().unwrap();
        // SAFETY: slots live as long as the table.
        unsafe { first.as_ref() }.word.set_generation(u32::MAX - 1);
        table.give_back(first);
        assert_eq!(table.take(), Some(first));
        // SAFETY: as above.
        assert_eq!(unsafe { first.as_ref() }.word.init(false, true), u32::MAX);
        table.give_back(first);
        assert_eq!(table.count_free(), 1);
        let second = table.take().unwrap();
        assert_ne!(second, first);
        // SAFETY: as above.
        assert_eq!(unsafe { first.as_ref() }.word.live_generation(), None);
    }

    /// A host with pages of 8192 bytes, so that memory is lazy.
    pub(crate) struct Roomy;

    // SAFETY: no thread serves a vCPU of this host.
    unsafe impl Host for Roomy {
        const TABLE_PAGE: usize = 8192;

        fn waker_table() -> &'static RawWakerVTable {
            crate::waker_table!(Roomy)
        }

        fn now(&self) -> u64 {
            0
        }
        fn current(&self) -> Option<crate::ServedVcpu> {
            None
        }
        fn kick(&self, _: usize) {}
    }

    fn indices_lead_to_slots_and_back<H: Host>() {
        let table = Table::<H>::new();
        let slots: Vec<_> = (0..if cfg!(miri) { 150 } else { 5_000 })
            .map(|_| table.take().unwrap())
            .collect();
        for &slot in &slots {
            assert!(slot.addr().get().is_multiple_of(64));
            assert_eq!(table.find(Table::index(slot)), Some(slot));
        }
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), slots.len());
        slots.iter().for_each(|&slot| table.give_back(slot));
        assert_eq!(table.count_free(), slots.len());
    }

    #[test]
    fn a_table_of_small_pages_allocates_only_pages_that_it_uses() {
        let table = Table::<Probe>::new();
        let pages = |table: &Table<Probe>| {
            (0..64)
                .take_while(|&page| table.page(page).is_some())
                .count()
        };
        assert_eq!(pages(&table), 0);
        let per_page = Table::<Probe>::PER_PAGE as usize - 1;
        assert!(table.reserve(2 * per_page + 1));
        assert_eq!(pages(&table), 3);
        let slots: Vec<_> = (0..3 * per_page).map(|_| table.take().unwrap()).collect();
        assert_eq!(pages(&table), 3);
        let last = table.take().unwrap();
        assert_eq!(pages(&table), 4);
        table.give_back(last);
        slots.iter().for_each(|&slot| table.give_back(slot));
        assert!(table.reserve(1));
        assert_eq!(pages(&table), 4);
    }

    #[test]
    fn indices_lead_to_slots_and_back_on_pages_of_any_size() {
        indices_lead_to_slots_and_back::<Probe>();
        indices_lead_to_slots_and_back::<Roomy>();
    }
}
