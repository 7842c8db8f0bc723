//! The scheduler's allocator, which calls functions of the program.

use core::alloc::{GlobalAlloc, Layout};
use core::mem::transmute;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static ALLOCATE: AtomicU64 = AtomicU64::new(0);
static RELEASE: AtomicU64 = AtomicU64::new(0);

/// Sets the program's functions. Returns false if either is null.
pub(crate) fn set(allocate: u64, release: u64) -> bool {
    ALLOCATE.store(allocate, Relaxed);
    RELEASE.store(release, Relaxed);
    allocate != 0 && release != 0
}

struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

// SAFETY: `upshift_init` requires that the program's functions fulfil the contract of an allocator;
// no memory is allocated before they are set.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocate = ALLOCATE.load(Relaxed);
        // SAFETY: `set` has stored the address of a function of this type.
        let allocate = unsafe { transmute::<u64, extern "C" fn(u64, u64) -> u64>(allocate) };
        allocate(layout.size() as u64, layout.align() as u64) as *mut u8
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let release = RELEASE.load(Relaxed);
        // SAFETY: as above.
        let release = unsafe { transmute::<u64, extern "C" fn(u64, u64, u64)>(release) };
        release(memory as u64, layout.size() as u64, layout.align() as u64);
    }
}
