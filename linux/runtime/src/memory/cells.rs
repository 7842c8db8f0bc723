//! Memory for the futures of coroutines, kept by the thread that frees it for what that thread spawns next.
//!
//! A coroutine that was taken by another vCPU ends there, and the allocator gives its memory back to where it came from: under a lock that the
//! thread which spawns wants, too. Here it stays with the thread that frees it. What one thread frees and another one
//! allocates goes between them by the batch, through a *depot*.
//!
//! Blocks are of the sizes that an allocator has anyway, so nothing is lost by rounding. A thread keeps up to two batches of a size, the
//! depot a number of bytes; what is above goes to the allocator, with which all that is larger or stricter in its alignment is.
//! What a thread keeps it frees at its end.
//!
//! A sanitizer sees a use after the end only of what goes back to the allocator: so with `--cfg sanitized` nothing is kept.
//!
//! A poll that is suspended in the middle of a call leaves its own thread's blocks alone, for nothing else runs on that thread; the depot is
//! only tried.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sizes differ by this.
const STEP: usize = 16;
/// What an allocator adds to each block: blocks of a multiple of [`STEP`] less this fill its own.
const OVERHEAD: usize = 8;
/// Blocks of up to `SIZES * STEP - OVERHEAD` bytes are kept.
const SIZES: usize = 64;
/// Blocks of a batch.
const BATCH: usize = 64;
/// What the depot holds at most, of all sizes.
const DEPOT_BYTES: usize = 2 << 20;

/// A free block.
struct Block {
    next: *mut Block,
    /// The next batch, in the first block of a batch in the depot.
    batch: *mut Block,
}

const _: () = assert!(size_of::<Block>() <= 2 * STEP - OVERHEAD);

/// The class of a layout; `None`: it goes to the allocator.
#[inline]
const fn class_of(layout: Layout) -> Option<usize> {
    let class = (layout.size() + OVERHEAD).div_ceil(STEP);
    let class = if class < 2 { 2 } else { class };
    if layout.align() <= STEP && class < SIZES && !cfg!(sanitized) {
        Some(class)
    } else {
        None
    }
}

#[inline]
const fn layout_of(class: usize) -> Layout {
    match Layout::from_size_align(class * STEP - OVERHEAD, STEP) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    }
}

/// Free blocks of one size. A cell for each word: copied as a whole they would be loaded by pairs, and a load of two words that have just been
/// stored one by one waits until both stores are in the cache.
struct Kept {
    /// Up to a batch.
    first: Cell<*mut Block>,
    len: Cell<usize>,
    /// A batch, or none.
    full: Cell<*mut Block>,
}

impl Kept {
    const fn new() -> Kept {
        Kept {
            first: Cell::new(null_mut()),
            len: Cell::new(0),
            full: Cell::new(null_mut()),
        }
    }
}

/// What a thread keeps.
struct Own([Kept; SIZES]);

thread_local! {
    static OWN: Own = const { Own([const { Kept::new() }; SIZES]) };
}

impl Drop for Own {
    fn drop(&mut self) {
        for (class, kept) in self.0.iter().enumerate() {
            kept.len.set(0);
            for chain in [&kept.first, &kept.full] {
                // SAFETY: free blocks of this class, that were ours.
                unsafe { free_all(chain.replace(null_mut()), class) };
            }
        }
    }
}

/// Batches that threads have left for others.
struct Depot {
    batches: [Mutex<Batches>; SIZES],
    bytes: AtomicUsize,
}

struct Batches(*mut Block);

// SAFETY: the blocks of the depot are no thread's own.
unsafe impl Send for Batches {}

static DEPOT: Depot = Depot {
    batches: [const { Mutex::new(Batches(null_mut())) }; SIZES],
    bytes: AtomicUsize::new(0),
};

impl Depot {
    /// A batch, or null.
    fn take(&self, class: usize) -> *mut Block {
        // Held by a poll that has been suspended, perhaps.
        let Ok(mut batches) = self.batches[class].try_lock() else {
            return null_mut();
        };
        let batch = batches.0;
        if !batch.is_null() {
            // SAFETY: a block in the depot, whose lock is held.
            batches.0 = unsafe { (*batch).batch };
            self.bytes
                .fetch_sub(BATCH * class * STEP, Ordering::Relaxed);
        }
        batch
    }

    /// # Safety
    /// `batch` is a whole batch of free blocks of this class, and the caller's.
    unsafe fn leave(&self, batch: *mut Block, class: usize) {
        let size = BATCH * class * STEP;
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size <= DEPOT_BYTES
            && let Ok(mut batches) = self.batches[class].try_lock()
        {
            // SAFETY: the caller's.
            unsafe { (*batch).batch = batches.0 };
            batches.0 = batch;
            return;
        }
        self.bytes.fetch_sub(size, Ordering::Relaxed);
        // SAFETY: passed on.
        unsafe { free_all(batch, class) };
    }
}

/// # Safety
/// A chain of free blocks of this class, and the caller's.
#[cold]
unsafe fn free_all(mut first: *mut Block, class: usize) {
    while !first.is_null() {
        // SAFETY: the caller's, and read before it is freed.
        unsafe {
            let next = (*first).next;
            dealloc(first.cast(), layout_of(class));
            first = next;
        }
    }
}

/// Memory of this layout; null if there is none.
///
/// # Safety
/// The layout is not empty.
#[inline]
pub(crate) unsafe fn allocate(layout: Layout) -> *mut u8 {
    let Some(class) = class_of(layout) else {
        // SAFETY: passed on.
        return unsafe { alloc(layout) };
    };
    let own = OWN.try_with(|own| {
        let kept = &own.0[class];
        let mut block = kept.first.get();
        if block.is_null() {
            block = refill(kept, class);
            if block.is_null() {
                return block.cast::<u8>();
            }
        }
        // SAFETY: a free block of this thread.
        kept.first.set(unsafe { (*block).next });
        kept.len.set(kept.len.get() - 1);
        block.cast::<u8>()
    });
    match own {
        Ok(block) if !block.is_null() => block,
        // SAFETY: not empty.
        _ => unsafe { alloc(layout_of(class)) },
    }
}

/// None of the first batch is left: another one takes its place. Returns its first block, or null.
#[inline(never)]
fn refill(kept: &Kept, class: usize) -> *mut Block {
    let mut batch = kept.full.replace(null_mut());
    if batch.is_null() {
        batch = DEPOT.take(class);
    }
    if !batch.is_null() {
        kept.first.set(batch);
        kept.len.set(BATCH);
    }
    batch
}

/// Gives memory back.
///
/// # Safety
/// It came from [`allocate`] with this layout, on whatever thread, and is not used any more.
#[inline]
pub(crate) unsafe fn free(memory: *mut u8, layout: Layout) {
    let Some(class) = class_of(layout) else {
        // SAFETY: passed on.
        return unsafe { dealloc(memory, layout) };
    };
    let block = memory.cast::<Block>();
    let kept = OWN.try_with(|own| {
        let kept = &own.0[class];
        if kept.len.get() == BATCH {
            store(kept, class);
        }
        // SAFETY: the caller's, large enough and aligned. (`batch` is written when it becomes one.)
        unsafe { (&raw mut (*block).next).write(kept.first.get()) };
        kept.first.set(block);
        kept.len.set(kept.len.get() + 1);
    });
    if kept.is_err() {
        // At the end of a thread.
        // SAFETY: passed on.
        unsafe { dealloc(memory, layout_of(class)) };
    }
}

/// The first batch is whole.
#[inline(never)]
fn store(kept: &Kept, class: usize) {
    let full = kept.full.replace(kept.first.replace(null_mut()));
    kept.len.set(0);
    if !full.is_null() {
        // SAFETY: a whole batch of this thread.
        unsafe { DEPOT.leave(full, class) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LAYOUT: Layout = Layout::new::<[u64; 11]>();

    fn some(count: usize) -> Vec<usize> {
        // SAFETY: not empty.
        (0..count)
            .map(|_| unsafe { allocate(LAYOUT) } as usize)
            .collect()
    }

    fn give_back(blocks: Vec<usize>) {
        for block in blocks {
            // SAFETY: of `some`.
            unsafe { free(block as *mut u8, LAYOUT) };
        }
    }

    #[test]
    #[cfg_attr(sanitized, ignore = "nothing is kept")]
    fn a_thread_gets_back_what_it_has_freed() {
        let mut first = some(3 * BATCH / 2);
        assert!(first.iter().all(|block| block % STEP == 0));
        give_back(first.clone());
        let mut again = some(first.len());
        first.sort_unstable();
        again.sort_unstable();
        assert_eq!(first, again);
        first.dedup();
        assert_eq!(first.len(), again.len(), "no block twice");
        give_back(again);
    }

    /// What is alive is written all over; nothing else may have it.
    #[test]
    fn blocks_travel_between_threads() {
        let (there, here) = mpsc::channel::<Vec<usize>>();
        let frees = thread::spawn(move || {
            for blocks in here {
                for &block in &blocks {
                    // SAFETY: of `some`, and filled below.
                    let words = unsafe { &*(block as *const [usize; 11]) };
                    assert!(words.iter().all(|&word| word == block));
                }
                give_back(blocks);
            }
        });
        for round in 0..200 {
            let blocks = some(1 + round * 7 % 500);
            for &block in &blocks {
                // SAFETY: of `some`.
                unsafe { (block as *mut [usize; 11]).write([block; 11]) };
            }
            there.send(blocks).unwrap();
        }
        drop(there);
        frees.join().unwrap();
        assert!(DEPOT.bytes.load(Ordering::Relaxed) <= DEPOT_BYTES);
    }

    #[test]
    fn the_large_and_the_aligned_go_to_the_allocator() {
        assert_eq!(class_of(Layout::new::<[u8; 4096]>()), None);
        let aligned = Layout::from_size_align(64, 64).unwrap();
        assert_eq!(class_of(aligned), None);
        assert_eq!(
            class_of(Layout::new::<u8>()),
            (!cfg!(sanitized)).then_some(2)
        );
        for size in 1..1000 {
            let layout = Layout::from_size_align(size, 16).unwrap();
            if let Some(class) = class_of(layout) {
                assert!(layout_of(class).size() >= size);
            }
        }
        // SAFETY: not empty; freed with its layout.
        unsafe {
            let memory = allocate(aligned);
            assert!(memory.addr().is_multiple_of(64));
            free(memory, aligned);
        }
    }
}
