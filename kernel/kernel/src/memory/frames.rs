//! Allocates frames, that is, physical pages, with a buddy allocator.
//!
//! A block of order `n` is 2ⁿ frames, aligned to its size. Free blocks are in one doubly linked
//! list per order, the links in the blocks themselves; one byte per frame holds the order of a free
//! block that starts there, if any. Allocating and freeing are O(orders): at most ten splits or
//! merges.
//!
//! A [`Frame`] owns a zeroed frame. The heap allocates blocks.

use core::ops::Range;

use super::{OutOfMemory, PAGE, PhysAddr};
use crate::arch::lock::IrqLock;

/// Number of orders: a block has at most 2¹⁰ frames, 4 MiB.
const ORDERS: usize = 11;
/// Value in `state` if no free block starts at the frame.
const NONE: u8 = u8::MAX;
/// Null link. Physical address 0 belongs to a device, so no block starts there.
const NIL: usize = 0;

/// Links of a free block, at its start.
#[repr(C)]
struct Links {
    next: usize,
    prev: usize,
}

struct Buddy {
    /// Address of the frame whose state is `state[0]`.
    base: usize,
    state: &'static mut [u8],
    /// First free block of each order.
    lists: [usize; ORDERS],
    /// Number of free frames.
    free: usize,
}

static BUDDY: IrqLock<Buddy> = IrqLock::new(Buddy {
    base: 0,
    state: &mut [],
    lists: [NIL; ORDERS],
    free: 0,
});

impl Buddy {
    fn links(&mut self, block: usize) -> &mut Links {
        // SAFETY: called only for blocks that are in a list or about to be in one. Such a block is
        // page-aligned free memory in the direct map that only the allocator uses; the borrow of
        // `self` excludes a second reference.
        unsafe { &mut *(PhysAddr::new(block).direct() as *mut Links) }
    }

    fn index(&self, block: usize) -> usize {
        (block - self.base) / PAGE
    }

    fn link(&mut self, block: usize, order: usize) {
        let next = self.lists[order];
        *self.links(block) = Links { next, prev: NIL };
        if next != NIL {
            self.links(next).prev = block;
        }
        self.lists[order] = block;
        let index = self.index(block);
        self.state[index] = order as u8;
        self.free += 1 << order;
    }

    fn unlink(&mut self, block: usize, order: usize) {
        let Links { next, prev } = *self.links(block);
        match prev {
            NIL => self.lists[order] = next,
            prev => self.links(prev).next = next,
        }
        if next != NIL {
            self.links(next).prev = prev;
        }
        let index = self.index(block);
        self.state[index] = NONE;
        self.free -= 1 << order;
    }

    fn allocate(&mut self, order: usize) -> Option<usize> {
        let from = (order..ORDERS).find(|&order| self.lists[order] != NIL)?;
        let block = self.lists[from];
        self.unlink(block, from);
        for order in (order..from).rev() {
            self.link(block + (PAGE << order), order);
        }
        Some(block)
    }

    fn free(&mut self, mut block: usize, mut order: usize) {
        while order + 1 < ORDERS {
            // The alignment of a block refers to its address, not to its distance from the base.
            let buddy = block ^ (PAGE << order);
            let is_free =
                buddy >= self.base && self.state.get(self.index(buddy)) == Some(&(order as u8));
            if !is_free {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.link(block, order);
    }
}

/// Sets up the bookkeeping, and adds the unused part of `first` to the allocator. `ram` is the
/// whole memory of the machine, `first` is the part of it that is already mapped, and `used` are
/// the ranges in use.
///
/// # Panics
/// If `first` has no space for the bookkeeping.
pub(super) fn init(ram: Range<usize>, first: Range<usize>, used: &mut [Range<usize>]) {
    let frames = (ram.end - ram.start) / PAGE;
    let room = gaps(first.clone(), used)
        .find(|gap| gap.end - gap.start >= frames)
        .expect("no space for one byte per frame");
    let state = PhysAddr::new(room.start).direct() as *mut u8;
    // SAFETY: the range is free and mapped, and is never allocated, because it is excluded below.
    let state = unsafe {
        state.write_bytes(NONE, frames);
        core::slice::from_raw_parts_mut(state, frames)
    };
    {
        let mut buddy = BUDDY.lock();
        buddy.base = ram.start;
        buddy.state = state;
    }
    let bookkeeping = room.start..room.start + frames;
    for gap in gaps(first, used) {
        release(gap.start.max(if gap == room { bookkeeping.end } else { 0 })..gap.end);
    }
}

/// Adds the unused part of more memory to the allocator.
pub(super) fn add(memory: Range<usize>, used: &mut [Range<usize>]) {
    for gap in gaps(memory, used) {
        release(gap);
    }
}

fn gaps(
    memory: Range<usize>,
    used: &mut [Range<usize>],
) -> impl Iterator<Item = Range<usize>> + '_ {
    used.sort_unstable_by_key(|range| range.start);
    let end = memory.end;
    let mut at = memory.start;
    used.iter()
        .cloned()
        .chain(core::iter::once(end..end))
        .filter_map(move |range| {
            let gap = at..range.start.min(end);
            at = at.max(range.end);
            (gap.start < gap.end).then_some(gap)
        })
}

fn release(memory: Range<usize>) {
    let start = memory.start.next_multiple_of(PAGE);
    let end = memory.end / PAGE * PAGE;
    let mut buddy = BUDDY.lock();
    for frame in (start..end).step_by(PAGE) {
        buddy.free(frame, 0);
    }
}

/// Allocates a block of 2ᵒʳᵈᵉʳ frames with arbitrary contents; `None` if there is none.
pub(super) fn allocate_block(order: usize) -> Option<PhysAddr> {
    if order >= ORDERS {
        return None;
    }
    BUDDY.lock().allocate(order).map(PhysAddr::new)
}

/// Frees a block.
///
/// # Safety
/// The block came from [`allocate_block`] with this order, and is no longer in use.
pub(super) unsafe fn free_block(block: PhysAddr, order: usize) {
    BUDDY.lock().free(block.get(), order);
}

pub(crate) fn free_frames() -> usize {
    BUDDY.lock().free
}

/// Ownership of a frame.
#[derive(Debug)]
pub(crate) struct Frame(PhysAddr);

impl Frame {
    pub(crate) fn zeroed() -> Result<Frame, OutOfMemory> {
        let block = allocate_block(0).ok_or(OutOfMemory)?;
        // SAFETY: the block was allocated just now, so nothing else uses it, and it is in the
        // direct map.
        unsafe { (block.direct() as *mut u8).write_bytes(0, PAGE) };
        Ok(Frame(block))
    }

    /// Allocates a frame that begins with `bytes`; its other bytes are zero.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    ///
    /// # Panics
    /// If there are more bytes than a page.
    pub(crate) fn with(bytes: &[u8]) -> Result<Frame, OutOfMemory> {
        let mut frame = Frame::zeroed()?;
        frame.fill(0, bytes);
        Ok(frame)
    }

    pub(crate) fn address(&self) -> PhysAddr {
        self.0
    }

    /// Writes bytes at an offset.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub(super) fn fill(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= PAGE && bytes.len() <= PAGE - offset);
        let start = (self.0.direct() + offset) as *mut u8;
        // SAFETY: the bytes are within the frame, which this value owns.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Releases the ownership, which [`Frame::from_address`] restores.
    pub(super) fn into_address(self) -> PhysAddr {
        core::mem::ManuallyDrop::new(self).0
    }

    /// Restores the ownership.
    ///
    /// # Safety
    /// `address` came from [`Frame::into_address`], and was not passed to this function before.
    pub(super) unsafe fn from_address(address: PhysAddr) -> Frame {
        Frame(address)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the value owns this block of order 0, and is dropped.
        unsafe { free_block(self.0, 0) };
    }
}
