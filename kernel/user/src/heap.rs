//! The heap of a program: size classes over pages from the kernel.
//!
//! Each power of two from 16 bytes up has a free list; freed cells stay in their class. A lock
//! guards the lists.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use os_abi::layout::PAGE;

use crate::lock::SpinLock;
use crate::sys;

/// Number of size classes: 16 bytes to 16 MiB.
const CLASSES: usize = 21;
const MIN_CELL: usize = 16;

/// The first free cell of each class; a free cell starts with a pointer to the next.
struct Lists([*mut u8; CLASSES]);

// SAFETY: the pointers lead to free cells, which no thread uses, so any thread may take them over.
unsafe impl Send for Lists {}

struct Heap(SpinLock<Lists>);

#[global_allocator]
static HEAP: Heap = Heap(SpinLock::new(Lists([null_mut(); CLASSES])));

static PAGES: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of pages that the heap has mapped.
pub fn heap_pages() -> usize {
    PAGES.load(Relaxed)
}

fn class(layout: Layout) -> usize {
    let size = layout.size().max(layout.align()).max(MIN_CELL);
    (size.next_power_of_two() / MIN_CELL).ilog2() as usize
}

/// Allocates a cell, for the vDSO.
pub(crate) extern "C" fn allocate(size: u64, align: u64) -> u64 {
    match Layout::from_size_align(size as usize, align as usize) {
        // SAFETY: the scheduler requests no empty layouts.
        Ok(layout) => unsafe { HEAP.alloc(layout) as u64 },
        Err(_) => 0,
    }
}

/// Frees a cell of `allocate`, for the vDSO.
pub(crate) extern "C" fn release(cell: u64, size: u64, align: u64) {
    if let Ok(layout) = Layout::from_size_align(size as usize, align as usize) {
        // SAFETY: the scheduler returns a cell that it got from `allocate`, with the same layout.
        unsafe { HEAP.dealloc(cell as *mut u8, layout) };
    }
}

/// Maps memory and divides it into cells; returns the first cell, to which the others are linked.
fn fill(class: usize) -> *mut u8 {
    let size = MIN_CELL << class;
    let pages = size.div_ceil(PAGE);
    let Ok(start) = sys::map(pages) else {
        return null_mut();
    };
    PAGES.fetch_add(pages, Relaxed);
    let mut first = null_mut();
    for cell in (0..pages * PAGE / size).rev() {
        let cell = (start as usize + cell * size) as *mut u8;
        // SAFETY: the memory was mapped just now and is used by no other thread; a cell has at
        // least 16 bytes.
        unsafe { cell.cast::<*mut u8>().write(first) };
        first = cell;
    }
    first
}

// SAFETY: a cell is either in a list or owned by a caller. Cells of up to a page are aligned to
// their size, larger cells to a page, and `alloc` refuses larger alignments.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class(layout);
        if class >= CLASSES || layout.align() > PAGE {
            return null_mut();
        }
        let mut lists = self.0.lock();
        let list = &mut lists.0[class];
        if list.is_null() {
            *list = fill(class);
        }
        let cell = *list;
        if !cell.is_null() {
            // SAFETY: a free cell starts with its link, and the lock is held.
            *list = unsafe { cell.cast::<*mut u8>().read() };
        }
        cell
    }

    unsafe fn dealloc(&self, cell: *mut u8, layout: Layout) {
        let mut lists = self.0.lock();
        let list = &mut lists.0[class(layout)];
        // SAFETY: the caller no longer uses the cell, which has at least 16 bytes.
        unsafe { cell.cast::<*mut u8>().write(*list) };
        *list = cell;
    }
}
