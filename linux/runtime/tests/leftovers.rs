//! A thousand runtimes, each dropped in the middle of its work, leave nothing behind: no
//! descriptor, no thread, no memory. One test, because the counts are those of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::pending;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use upshift::io::AsyncReadExt;
use upshift::net::UnixStream;
use upshift::{Builder, Driver, Level, Preemption, Priority, Runtime};

/// The system's, and how many bytes of it are in use.
struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: as of the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: passed on.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The resources of the process.
#[derive(Clone, Copy, Debug)]
struct Has {
    descriptors: usize,
    threads: usize,
    bytes: isize,
    /// Mapped.
    pages: usize,
}

impl Has {
    fn now() -> Has {
        let count = |path| std::fs::read_dir(path).unwrap().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        Has {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            bytes: BYTES.load(Relaxed),
            pages: pages.split(' ').next().unwrap().parse().unwrap(),
        }
    }
}

/// Something of each kind is under way when the runtime goes.
fn round(builder: &Builder) {
    let runtime = builder.clone().build().unwrap();
    let handle = runtime.handle();
    let left = runtime.block_on(async {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let reads = async move { reader.read_exact(&mut [0; 10]).await.map(drop) };
        upshift::spawn(reads, Level::at::<3>()).detach();
        upshift::spawn_local(pending::<()>(), Level::at::<4>()).detach();
        let naps = || upshift::time::sleep(Duration::from_secs(1000));
        let sleeps = upshift::spawn(naps(), Level::at::<40>());
        let joins = upshift::spawn(async { sleeps.await.is_ok() }, Priority::Inherit);
        let (sender, receiver) = upshift::sync::mpsc::channel::<Vec<u8>>(1);
        let sends = async move { while sender.send(vec![0; 100]).await.is_ok() {} };
        upshift::spawn(sends, Level::at::<20>()).detach();
        let mutex = std::sync::Arc::new(upshift::sync::Mutex::new(writer));
        let held = mutex.clone().lock_owned().await;
        upshift::spawn(async move { drop(mutex.lock().await) }, Level::at::<2>()).detach();
        let file = upshift::fs::File::open("/proc/self/exe").await.unwrap();
        let (read, _) = file.read_at(vec![0; 1 << 12], 0).await;
        read.unwrap();
        upshift::spawn_blocking(|| ()).await.unwrap();
        upshift::time::sleep(Duration::from_micros(10)).await;
        (joins, receiver, held)
    });
    drop(runtime);
    let (joins, ..) = &left;
    assert!(joins.is_finished());
    drop((left, handle));
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
    let rounds = |n| (0..n).for_each(|_| kinds.iter().for_each(round));
    rounds(20);
    let settled = || {
        let began = Instant::now();
        let mut last = Has::now();
        // Threads that have ended are listed for a moment.
        while last.threads > 2 && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
            last = Has::now();
        }
        last
    };
    let before = settled();
    rounds(250);
    let after = settled();
    assert_eq!(after.descriptors, before.descriptors);
    assert!(
        after.threads <= 2,
        "this one and that of the tests: {after:?}"
    );
    // Less than a control block for each.
    let grown = after.bytes - before.bytes;
    assert!(grown < 64 << 10, "{before:?}, {after:?}");
    // Half as much as the rings have; the C library's heaps for threads take 64 MiB at a time.
    let mapped = after.pages as isize - before.pages as isize;
    assert!(mapped < 300_000, "{before:?}, {after:?}");
}
