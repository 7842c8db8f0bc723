//! The kernel heap: size classes over blocks of frames.
//!
//! 16 to 2048 bytes come from a free list per power of two, each filled page by
//! page; larger ones are blocks of the frame allocator. O(1) for small sizes.
//! Pages of the classes stay with them, so the heap is as large as it ever was;
//! [`in_use`] counts what is allocated, for tests that look for leaks.
//!
//! When memory is out, `alloc` answers null. Kernel code that serves user
//! programs allocates only amounts that per-process limits bound, and user
//! memory leaves a reserve free (`space.rs`), so an infallible allocation that
//! fails is a bug, and a panic.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use super::{PAGE, PhysAddr, frames};
use crate::arch::lock::IrqLock;

const SMALLEST: usize = 16;
/// 16, 32, …, 2048.
const CLASSES: usize = 8;

struct Heap {
    /// The address of the first free cell of each class, 0 for none; each free
    /// cell starts with the address of the next.
    free: [usize; CLASSES],
    /// Pages that were cut into cells.
    pages: usize,
    in_use: usize,
}

static HEAP: IrqLock<Heap> = IrqLock::new(Heap {
    free: [0; CLASSES],
    pages: 0,
    in_use: 0,
});

struct KernelHeap;

#[global_allocator]
static ALLOCATOR: KernelHeap = KernelHeap;

/// Where a layout is served.
enum Place {
    Class(usize),
    Block(usize),
}

fn place(layout: Layout) -> Place {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    if size <= SMALLEST << (CLASSES - 1) {
        Place::Class((size.next_power_of_two() / SMALLEST).ilog2() as usize)
    } else {
        Place::Block(size.div_ceil(PAGE).next_power_of_two().ilog2() as usize)
    }
}

impl Heap {
    fn take(&mut self, class: usize) -> *mut u8 {
        if self.free[class] == 0 {
            self.fill(class);
        }
        let cell = self.free[class];
        if cell != 0 {
            // SAFETY: a free cell of this class, which starts with its link.
            self.free[class] = unsafe { *(cell as *const usize) };
        }
        cell as *mut u8
    }

    fn fill(&mut self, class: usize) {
        let Some(page) = frames::allocate_block(0) else {
            return;
        };
        self.pages += 1;
        let page = page.direct();
        for cell in (page..page + PAGE).step_by(SMALLEST << class) {
            self.give(class, cell);
        }
    }

    fn give(&mut self, class: usize, cell: usize) {
        // SAFETY: memory of the heap that nobody uses, at least 16 bytes and
        // aligned to them.
        unsafe { *(cell as *mut usize) = self.free[class] };
        self.free[class] = cell;
    }
}

// SAFETY: a cell is in a free list or with one caller, never both; its size and
// alignment are the power of two at or above what the layout asks, as cells of a
// page and blocks of frames are aligned to their size.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = match place(layout) {
            Place::Class(class) => HEAP.lock().take(class),
            Place::Block(order) => match frames::allocate_block(order) {
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
        match place(layout) {
            Place::Class(class) => HEAP.lock().give(class, memory as usize),
            Place::Block(order) => {
                let block = PhysAddr::new((memory as usize).wrapping_sub(super::DIRECT));
                // SAFETY: allocated with this layout, hence with this order.
                unsafe { frames::free_block(block, order) };
            }
        }
    }
}

/// Pages that the size classes keep.
pub(crate) fn pages() -> usize {
    HEAP.lock().pages
}

/// Bytes that are allocated.
pub(crate) fn in_use() -> usize {
    HEAP.lock().in_use
}
