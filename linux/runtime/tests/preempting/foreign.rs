//! Wakers of other executors, and destructors of values that operations own, are interrupted like
//! any poll.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::{Level, sys, time};
use upshift_ring::IoBufMut;

use super::{LIMIT, runtime};

/// User code that runs until something urgent has run three more times.
#[derive(Default)]
struct Waits {
    urgent: AtomicUsize,
    runs: AtomicUsize,
    in_vain: AtomicBool,
}

impl Waits {
    fn run(&self) {
        let (from, began) = (self.urgent.load(SeqCst), Instant::now());
        while self.urgent.load(SeqCst) < from + 3 {
            if began.elapsed() > LIMIT / 4 {
                self.in_vain.store(true, SeqCst);
                break;
            }
            std::hint::spin_loop();
        }
        self.runs.fetch_add(1, SeqCst);
    }
}

impl Wake for Waits {
    fn wake(self: Arc<Self>) {
        self.run();
    }
}

/// A buffer whose destructor is such user code.
struct Buffer([u8; 8], Arc<Waits>);

// SAFETY: inline bytes; operations do not move while in flight.
unsafe impl IoBufMut for Buffer {
    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
    fn io_capacity(&self) -> usize {
        self.0.len()
    }
    unsafe fn set_filled(&mut self, _count: usize) {}
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.1.run();
    }
}

/// Polls `leaves`, which makes the runtime run such code once, at level 40 beside a coroutine of
/// level 0 that runs each millisecond.
fn others_run_meanwhile<F>(leaves: impl FnOnce(Arc<Waits>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let Some(runtime) = runtime() else { return };
    let waits = Arc::new(Waits::default());
    let leaves = leaves(waits.clone());
    let seen = waits.clone();
    runtime.block_on(async {
        let urgent = waits.clone();
        let urgent = upshift::spawn(
            async move {
                while urgent.runs.load(SeqCst) == 0 {
                    time::sleep(Duration::from_millis(1)).await;
                    urgent.urgent.fetch_add(1, SeqCst);
                }
            },
            Level::at::<0>(),
        );
        upshift::spawn(leaves, Level::at::<40>()).await.unwrap();
        urgent.await.unwrap();
    });
    assert_eq!(seen.runs.load(SeqCst), 1);
    assert!(!seen.in_vain.load(SeqCst), "the vCPU stood still meanwhile");
}

/// Polls once, with a user's waker.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>, waits: &Arc<Waits>) {
    let waker = Waker::from(waits.clone());
    let polled = future.poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
}

async fn has_run(waits: &Waits) {
    while waits.runs.load(SeqCst) == 0 {
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_waker_of_users_that_a_timer_calls() {
    others_run_meanwhile(|waits| async move {
        let mut sleep = Box::pin(time::sleep(Duration::from_millis(2)));
        poll_once(sleep.as_mut(), &waits);
        has_run(&waits).await;
        sleep.await;
    });
}

#[test]
fn a_waker_of_users_that_a_completion_calls() {
    others_run_meanwhile(|waits| async move {
        let (mut reader, mut writer) = upshift::io::pipe().unwrap();
        let mut byte = [0];
        let mut read = Box::pin(AsyncReadExt::read(&mut reader, &mut byte));
        poll_once(read.as_mut(), &waits);
        writer.write_all(b"x").await.unwrap();
        has_run(&waits).await;
        assert_eq!(read.await.unwrap(), 1);
    });
}

#[test]
fn a_destructor_of_users_that_a_completion_calls() {
    others_run_meanwhile(|waits| async move {
        let (reader, _writer) = std::io::pipe().unwrap();
        let cid = upshift::get_cid().unwrap();
        let read = sys::read_async(reader.as_fd(), Buffer([0; 8], waits.clone()), cid);
        // The operation reaches the kernel, and then no future waits for it any more.
        time::sleep(Duration::from_millis(2)).await;
        drop(read);
        has_run(&waits).await;
    });
}
