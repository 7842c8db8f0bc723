//! Tests that a thousand runtimes, each dropped in the middle of its work, leave no descriptor,
//! thread or memory behind. This file has one test, because the counts are those of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::pending;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use upshift::io::AsyncReadExt;
use upshift::net::UnixStream;
use upshift::{Builder, Driver, Level, Preemption, Priority, Runtime};

/// The system's allocator, with a count of the bytes in use.
struct CountingAllocator;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller fulfils the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller fulfils the same contract.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[derive(Clone, Copy, Debug)]
struct Resources {
    descriptors: usize,
    threads: usize,
    bytes: isize,
    pages: usize,
}

impl Resources {
    fn now() -> Resources {
        let count = |path| std::fs::read_dir(path).unwrap().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        Resources {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            bytes: BYTES.load(Relaxed),
            pages: pages.split(' ').next().unwrap().parse().unwrap(),
        }
    }
}

/// Drops a runtime while it has operations, coroutines, timers and waiters of each kind.
fn drop_busy_runtime(builder: &Builder) {
    let runtime = builder.clone().build().unwrap();
    let handle = runtime.handle();
    let remaining = runtime.block_on(async {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let reader_task = async move { reader.read_exact(&mut [0; 10]).await.map(drop) };
        upshift::spawn(reader_task, Level::at::<3>()).detach();
        upshift::spawn_local(pending::<()>(), Level::at::<4>()).detach();
        let nap = || upshift::time::sleep(Duration::from_secs(1000));
        let sleeper = upshift::spawn(nap(), Level::at::<40>());
        let joiner = upshift::spawn(async { sleeper.await.is_ok() }, Priority::Inherit);
        let (sender, receiver) = upshift::sync::mpsc::channel::<Vec<u8>>(1);
        let sender_task = async move { while sender.send(vec![0; 100]).await.is_ok() {} };
        upshift::spawn(sender_task, Level::at::<20>()).detach();
        let mutex = std::sync::Arc::new(upshift::sync::Mutex::new(writer));
        let guard = mutex.clone().lock_owned().await;
        upshift::spawn(async move { drop(mutex.lock().await) }, Level::at::<2>()).detach();
        let file = upshift::fs::File::open("/proc/self/exe").await.unwrap();
        let (read, _) = file.read_at(vec![0; 1 << 12], 0).await;
        read.unwrap();
        upshift::spawn_blocking(|| ()).await.unwrap();
        upshift::time::sleep(Duration::from_micros(10)).await;
        (joiner, receiver, guard)
    });
    drop(runtime);
    let (joiner, ..) = &remaining;
    assert!(joiner.is_finished());
    drop((remaining, handle));
}

#[test]
fn a_thousand_runtimes_leave_nothing_behind() {
    let builder = |vcpus| Runtime::builder().vcpus(vcpus);
    let kinds = [
        builder(1),
        builder(2),
        builder(1).driver(Driver::Readiness),
        builder(1).preemption(Preemption::Preferred),
    ];
    let rounds = |n| (0..n).for_each(|_| kinds.iter().for_each(drop_busy_runtime));
    rounds(20);
    let settled_resources = || {
        let began = Instant::now();
        let mut last = Resources::now();
        // The kernel lists a thread for a moment after its end.
        while last.threads > 2 && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
            last = Resources::now();
        }
        last
    };
    let before = settled_resources();
    rounds(250);
    let after = settled_resources();
    assert_eq!(after.descriptors, before.descriptors);
    assert!(
        after.threads <= 2,
        "more threads than this one and that of the test harness: {after:?}"
    );
    // The bound is less than a control block for each runtime.
    let growth_bytes = after.bytes - before.bytes;
    assert!(
        growth_bytes < 64 << 10,
        "before: {before:?}, after: {after:?}"
    );
    // The bound is half of the memory of the rings. The C library maps 64 MiB at a time for the
    // heap of a thread.
    let growth_pages = after.pages as isize - before.pages as isize;
    assert!(
        growth_pages < 300_000,
        "before: {before:?}, after: {after:?}"
    );
}
