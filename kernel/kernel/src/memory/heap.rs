//! The kernel heap: an allocator with size classes, on top of the allocator of frames.
//!
//! Allocations of 16 to 1024 bytes come from slabs, that is, pages of cells of one size; larger
//! allocations are blocks of the frame allocator. Each page begins with a header and lists its free
//! cells; each class has a list of the pages with free cells. A page without used cells returns to
//! the frame allocator unless it is the only page of its class with free cells, so memory that the
//! kernel has allocated for programs becomes available to programs again. Each operation is O(1),
//! except for the creation of a page's cells.
//!
//! [`in_use`] counts allocated bytes, for tests that look for leaks.
//!
//! If there is no memory, `alloc` returns null. Kernel code that serves user programs allocates
//! only amounts that limits per process bound, and user memory leaves a reserve free (`space.rs`),
//! so the failure of an infallible allocation is a bug, and a panic.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use super::{PAGE, PhysAddr, frames};
use crate::arch::lock::IrqLock;

/// Size of the smallest cell in bytes.
const MIN_CELL: usize = 16;
/// Number of cell sizes: 16, 32, …, 1024.
const CLASSES: usize = 7;
/// Null link.
const NONE: usize = 0;

/// The start of a page of cells.
#[repr(C)]
struct Header {
    /// First free cell; a free cell starts with the address of the next.
    free: usize,
    /// Number of used cells.
    used: usize,
    /// Neighbours among the pages of the class with free cells.
    next: usize,
    prev: usize,
}

struct Heap {
    /// The first page with free cells of each class.
    partial: [usize; CLASSES],
    /// Number of pages that are divided into cells.
    pages: usize,
    /// Number of allocated bytes.
    in_use: usize,
}

static HEAP: IrqLock<Heap> = IrqLock::new(Heap {
    partial: [NONE; CLASSES],
    pages: 0,
    in_use: 0,
});

struct KernelHeap;

#[global_allocator]
static ALLOCATOR: KernelHeap = KernelHeap;

enum Source {
    Class(usize),
    Block(usize),
}

fn source(layout: Layout) -> Source {
    let size = layout.size().max(layout.align()).max(MIN_CELL);
    if size <= MIN_CELL << (CLASSES - 1) {
        Source::Class((size.next_power_of_two() / MIN_CELL).ilog2() as usize)
    } else {
        Source::Block(size.div_ceil(PAGE).next_power_of_two().ilog2() as usize)
    }
}

impl Heap {
    fn header(&mut self, page: usize) -> &mut Header {
        // SAFETY: called only for pages of cells, which start with a header that only this heap
        // accesses; the borrow of `self` excludes a second reference.
        unsafe { &mut *(page as *mut Header) }
    }

    fn take(&mut self, class: usize) -> *mut u8 {
        if self.partial[class] == NONE && !self.fill(class) {
            return null_mut();
        }
        let page = self.partial[class];
        let header = self.header(page);
        let cell = header.free;
        header.used += 1;
        // SAFETY: the cell is free, so it starts with its link.
        header.free = unsafe { *(cell as *const usize) };
        if header.free == NONE {
            self.unlink(class, page);
        }
        cell as *mut u8
    }

    /// Allocates a page of cells. Returns false if there is no memory.
    fn fill(&mut self, class: usize) -> bool {
        let Some(page) = frames::allocate_block(0) else {
            return false;
        };
        self.pages += 1;
        let page = page.direct();
        let size = MIN_CELL << class;
        let first = page + size_of::<Header>().next_multiple_of(size);
        let mut free = NONE;
        for cell in (first..page + PAGE).step_by(size).rev() {
            // SAFETY: the cell is within the page, after the header, and only the heap uses the
            // page.
            unsafe { *(cell as *mut usize) = free };
            free = cell;
        }
        *self.header(page) = Header {
            free,
            used: 0,
            next: NONE,
            prev: NONE,
        };
        self.link(class, page);
        true
    }

    fn put(&mut self, class: usize, cell: usize) {
        let page = cell / PAGE * PAGE;
        let header = self.header(page);
        let was_full = header.free == NONE;
        // SAFETY: the cell is in the page and no longer in use; it has at least 16 bytes and is
        // aligned to 16.
        unsafe { *(cell as *mut usize) = header.free };
        header.free = cell;
        header.used -= 1;
        let is_empty = header.used == 0;
        if was_full {
            self.link(class, page);
        }
        if is_empty {
            self.release(class, page);
        }
    }

    /// Frees a page without used cells, unless it is the only page of its class with free cells,
    /// which would soon be allocated again.
    fn release(&mut self, class: usize, page: usize) {
        let Header { next, prev, .. } = *self.header(page);
        if next == NONE && prev == NONE {
            return;
        }
        self.unlink(class, page);
        self.pages -= 1;
        let frame = PhysAddr::new(page.wrapping_sub(super::DIRECT));
        // SAFETY: `fill` has allocated the page with order 0; none of its cells is in use, and it
        // is in no list.
        unsafe { frames::free_block(frame, 0) };
    }

    fn link(&mut self, class: usize, page: usize) {
        let next = core::mem::replace(&mut self.partial[class], page);
        if next != NONE {
            self.header(next).prev = page;
        }
        let header = self.header(page);
        (header.next, header.prev) = (next, NONE);
    }

    fn unlink(&mut self, class: usize, page: usize) {
        let header = self.header(page);
        let (next, prev) = (header.next, header.prev);
        (header.next, header.prev) = (NONE, NONE);
        match prev {
            NONE => self.partial[class] = next,
            prev => self.header(prev).next = next,
        }
        if next != NONE {
            self.header(next).prev = prev;
        }
    }
}

// SAFETY: a cell or a block of frames is either free or with one caller. Its size is a power of
// two, at least the size and the alignment of the layout. It is aligned to its size; for cells this
// holds because the header of a page occupies whole cells.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = match source(layout) {
            Source::Class(class) => HEAP.lock().take(class),
            Source::Block(order) => match frames::allocate_block(order) {
                Some(block) => block.direct() as *mut u8,
                None => null_mut(),
            },
        };
        if !memory.is_null() {
            HEAP.lock().in_use += layout.size();
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HEAP.lock().in_use -= layout.size();
        match source(layout) {
            Source::Class(class) => HEAP.lock().put(class, memory as usize),
            Source::Block(order) => {
                let block = PhysAddr::new((memory as usize).wrapping_sub(super::DIRECT));
                // SAFETY: the block was allocated with this layout, hence with this order.
                unsafe { frames::free_block(block, order) };
            }
        }
    }
}

/// Returns the number of frames that are free or in the size classes, and so are not used by
/// programs and calls.
pub(crate) fn free_pages() -> usize {
    // Both numbers are read under the lock under which pages move between them.
    let heap = HEAP.lock();
    heap.pages + frames::free_frames()
}

pub(crate) fn in_use() -> usize {
    HEAP.lock().in_use
}
