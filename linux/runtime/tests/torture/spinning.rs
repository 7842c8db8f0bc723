//! An allocator whose lock spins, and never sleeps, as the sanitizers' do. A suspended poll that
//! holds the lock makes progress whichever thread spins for it: another poll, the runtime outside
//! of polls, another vCPU, or a thread outside of the runtime.

mod parties;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use parties::{LAZY, MIDDLE, Parties, REST, URGENT, burn, torture};
use upshift::{Runtime, sync, time};

/// The allocator; see the module.
struct Spinning {
    held: AtomicBool,
    count: AtomicU32,
}

#[global_allocator]
static ALLOCATOR: Spinning = Spinning {
    held: AtomicBool::new(false),
    count: AtomicU32::new(0),
};

/// Number of attempts, several seconds of CPU time, after which the lock counts as lost.
const NEVER: u64 = 1 << 30;

impl Spinning {
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.held.swap(true, Acquire) {
            self.spin();
        }
        // Some allocations take long enough to be suspended in.
        if self.count.fetch_add(1, Relaxed).is_multiple_of(64) {
            burn(Duration::from_micros(150));
        }
        let result = f();
        self.held.store(false, Release);
        result
    }

    fn spin(&self) {
        for _ in 0..NEVER {
            if !self.held.swap(true, Acquire) {
                return;
            }
            std::hint::spin_loop();
        }
        // Neither message nor panic may allocate.
        let text = b"a thread spins for the allocator's lock for ever\n";
        // SAFETY: a pointer to this number of bytes.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        std::process::abort();
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Spinning {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: promised by the caller.
        self.with(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        self.with(|| unsafe { System.dealloc(pointer, layout) });
    }
}

/// Parties of all levels that allocate in their polls.
fn allocating(runtime: &Runtime, parties: &mut Parties) {
    for level in [LAZY, LAZY, MIDDLE, URGENT] {
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
    torture(allocating);
}

/// The runtime allocates when it spawns, and when it starts threads and operations. These parties,
/// too, rest for several times as long as they take.
#[test]
fn the_runtime_spins_for_the_allocator() {
    torture(|runtime, parties| {
        allocating(runtime, parties);
        for level in [MIDDLE, URGENT] {
            let handle = runtime.handle();
            parties.party(
                runtime,
                level,
                || (),
                move || {
                    let handle = handle.clone();
                    async move {
                        let began = Instant::now();
                        let (sender, receiver) = sync::oneshot::channel();
                        let sends = async move {
                            time::sleep(Duration::from_micros(50)).await;
                            let _ = sender.send(vec![1; 100]);
                        };
                        let child = handle.spawn(sends, level);
                        let _ = receiver.await;
                        drop(child);
                        time::sleep(REST * began.elapsed()).await;
                    }
                },
            );
        }
    });
}

/// A thread outside of the runtime spins for the lock, and an urgent coroutine waits for that
/// thread, in polls that are all short.
#[test]
fn a_thread_beside_the_runtime_spins_for_the_allocator() {
    torture(|runtime, parties| {
        allocating(runtime, parties);
        parties.outsider(runtime, || {
            black_box(vec![0u8; 500]);
        });
    });
}
