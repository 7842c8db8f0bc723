//! Memory for the table of a runtime's coroutines: mapped, so that it is zeroed, is there only when it is used, and goes when the runtime goes.
//!
//! The allocator does the same with large blocks until the first of them is freed. From then on it gives out what it keeps, and zeroes it: a program that made one
//! runtime after the other would have two megabytes for each, and write them.
//!
//! Small ones are mapped as stacks are, so that no huge page is made for a few coroutines (Linux 6.7 and later, where these are made unasked).
//!
//! Cost: a system call.

use std::alloc::Layout;
use std::ptr::null_mut;

/// A huge page, and with it the first megabyte of a table, which has another to be aligned in.
const SMALL: usize = 2 << 20;

/// Zeroed memory of this layout, whose alignment is that of a page or less; null if there is none.
pub(crate) fn map(layout: Layout) -> *mut u8 {
    debug_assert!(layout.size() != 0 && layout.align() <= 4096);
    let as_stack = if layout.size() <= SMALL {
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
    match address == libc::MAP_FAILED {
        true => null_mut(),
        false => address.cast(),
    }
}

/// # Safety
/// It came from [`map`] with this layout, and is not used any more.
pub(crate) unsafe fn unmap(memory: *mut u8, layout: Layout) {
    // SAFETY: the caller's.
    let result = unsafe { libc::munmap(memory.cast(), layout.size()) };
    debug_assert_eq!(result, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_zeroed_however_often() {
        let layout = Layout::from_size_align(2 << 20, 8).unwrap();
        for _ in 0..3 {
            let memory = map(layout);
            assert!(!memory.is_null() && memory.addr().is_multiple_of(4096));
            // SAFETY: within the mapping, which nothing else knows.
            unsafe {
                assert_eq!(memory.add(layout.size() - 1).read(), 0);
                memory.add(layout.size() - 1).write(1);
                unmap(memory, layout);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_null() {
        let layout = Layout::from_size_align(1 << 62, 8).unwrap();
        assert!(map(layout).is_null());
    }
}
