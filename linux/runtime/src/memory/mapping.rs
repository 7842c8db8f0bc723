//! Memory for a runtime's table of coroutines: a mapping is zeroed, takes physical memory only
//! where it is used, and is returned when the runtime ends.
//!
//! The allocator does the same with large blocks until the first of them is freed. From then on it
//! reuses blocks and zeroes them: a program that creates one runtime after the other would write
//! two megabytes for each.
//!
//! Small tables are mapped like stacks, because Linux 6.7 and later would otherwise allocate a huge
//! page for a few coroutines.
//!
//! Cost: a system call.

use std::alloc::Layout;
use std::ptr::null_mut;

/// Largest mapping that is made like a stack, in bytes: a huge page, which is the first megabyte of
/// a table and another megabyte for its alignment.
const MAX_STACK_LIKE: usize = 2 << 20;

/// Returns zeroed memory of this layout, whose alignment is at most that of a page; null if there
/// is none.
pub(crate) fn map(layout: Layout) -> *mut u8 {
    debug_assert!(layout.size() != 0 && layout.align() <= 4096);
    let as_stack = if layout.size() <= MAX_STACK_LIKE {
        libc::MAP_STACK
    } else {
        0
    };
    // SAFETY: a fresh anonymous mapping, whose address the kernel chooses.
    let address = unsafe {
        libc::mmap(
            null_mut(),
            layout.size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | as_stack,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        null_mut()
    } else {
        address.cast()
    }
}

/// Returns memory to the kernel.
///
/// # Safety
/// The memory came from [`map`] with this layout, and is not used any more.
pub(crate) unsafe fn unmap(memory: *mut u8, layout: Layout) {
    // SAFETY: the caller guarantees that the mapping is whole and unused.
    let result = unsafe { libc::munmap(memory.cast(), layout.size()) };
    debug_assert_eq!(result, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_zeroed_however_often() {
        let layout = Layout::from_size_align(2 << 20, 8).unwrap();
        for _ in 0..3 {
            let memory = map(layout);
            assert!(!memory.is_null() && memory.addr().is_multiple_of(4096));
            // SAFETY: the byte is within the mapping, which nothing else uses.
            unsafe {
                assert_eq!(memory.add(layout.size() - 1).read(), 0);
                memory.add(layout.size() - 1).write(1);
                unmap(memory, layout);
            }
        }
    }

    #[test]
    fn a_layout_that_does_not_fit_is_null() {
        let layout = Layout::from_size_align(1 << 62, 8).unwrap();
        assert!(map(layout).is_null());
    }
}
