//! Tests with an allocator that uses a spinlock, as the sanitizers' allocators do. A suspended poll
//! that holds the lock must make progress, no matter which thread spins for the lock: another poll,
//! the runtime outside of polls, another vCPU, or a thread outside of the runtime.

mod parties;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use parties::{BACKGROUND, MIDDLE, PAUSE_RATIO, Parties, URGENT, burn, torture};
use upshift::{Runtime, sync, time};

/// The system's allocator, under a lock that spins.
struct SpinningAllocator {
    is_held: AtomicBool,
    count: AtomicU32,
}

#[global_allocator]
static ALLOCATOR: SpinningAllocator = SpinningAllocator {
    is_held: AtomicBool::new(false),
    count: AtomicU32::new(0),
};

/// Number of attempts to take the lock, over several seconds of CPU time, after which a thread
/// counts as hung.
const MAX_ATTEMPTS: u64 = 1 << 30;

impl SpinningAllocator {
    fn with_lock<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.is_held.swap(true, Acquire) {
            self.spin_for_lock();
        }
        // Some allocations take so long that the poll is suspended within them.
        if self.count.fetch_add(1, Relaxed).is_multiple_of(64) {
            burn(Duration::from_micros(150));
        }
        let result = f();
        self.is_held.store(false, Release);
        result
    }

    fn spin_for_lock(&self) {
        for _ in 0..MAX_ATTEMPTS {
            if !self.is_held.swap(true, Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        // The report must not allocate, so it cannot be a panic.
        let text = b"a thread spins for the allocator's lock for ever\n";
        // SAFETY: the pointer and the length are those of `text`.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        std::process::abort();
    }
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for SpinningAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the same contract.
        self.with_lock(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the same contract.
        self.with_lock(|| unsafe { System.dealloc(pointer, layout) });
    }
}

/// Adds parties of all levels that allocate in their polls.
fn add_allocating_parties(runtime: &Runtime, parties: &mut Parties) {
    for level in [BACKGROUND, BACKGROUND, MIDDLE, URGENT] {
        let mut count = 0;
        parties.resting_party(runtime, level, move || {
            for _ in 0..50 {
                count += 1;
                black_box(vec![0u8; 100 + count % 9_000]);
            }
        });
    }
}

#[test]
fn polls_that_spin_for_the_allocator() {
    torture(add_allocating_parties);
}

/// The runtime allocates when it spawns coroutines, and when it starts threads and operations.
/// These parties also pause for several times the duration of a step.
#[test]
fn a_runtime_that_allocates_spins_for_the_allocator() {
    torture(|runtime, parties| {
        add_allocating_parties(runtime, parties);
        for level in [MIDDLE, URGENT] {
            let handle = runtime.handle();
            parties.party(
                runtime,
                level,
                || (),
                move || {
                    let handle = handle.clone();
                    async move {
                        let start = Instant::now();
                        let (sender, receiver) = sync::oneshot::channel();
                        let sender_task = async move {
                            time::sleep(Duration::from_micros(50)).await;
                            let _ = sender.send(vec![1; 100]);
                        };
                        let child = handle.spawn(sender_task, level);
                        let _ = receiver.await;
                        drop(child);
                        time::sleep(PAUSE_RATIO * start.elapsed()).await;
                    }
                },
            );
        }
    });
}

/// The thread outside of the runtime spins for the lock. An urgent coroutine waits for the thread,
/// in polls that are all short.
#[test]
fn a_thread_outside_of_the_runtime_spins_for_the_allocator() {
    torture(|runtime, parties| {
        add_allocating_parties(runtime, parties);
        parties.outsider(runtime, || {
            black_box(vec![0u8; 500]);
        });
    });
}
