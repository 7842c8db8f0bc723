//! Tests that user code outside of polls is interrupted, too: wakers of other executors, and
//! destructors of values that operations own.

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

/// User code that runs until an urgent coroutine has run three more times.
#[derive(Default)]
struct UserCode {
    urgent_runs: AtomicUsize,
    runs: AtomicUsize,
    /// Set if the urgent coroutine did not run in time.
    timed_out: AtomicBool,
}

impl UserCode {
    fn run(&self) {
        let (from, began) = (self.urgent_runs.load(SeqCst), Instant::now());
        while self.urgent_runs.load(SeqCst) < from + 3 {
            if began.elapsed() > LIMIT / 4 {
                self.timed_out.store(true, SeqCst);
                break;
            }
            std::hint::spin_loop();
        }
        self.runs.fetch_add(1, SeqCst);
    }
}

impl Wake for UserCode {
    fn wake(self: Arc<Self>) {
        self.run();
    }
}

/// A buffer whose destructor runs the user code.
struct Buffer([u8; 8], Arc<UserCode>);

// SAFETY: the bytes stay in place while the kernel uses them. They are inline, and an operation
// does not move while it is in flight.
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

/// Polls a future at level 40 that makes the runtime run the user code once, beside a coroutine of
/// level 0 that runs each millisecond.
fn assert_urgent_coroutine_runs<F>(future: impl FnOnce(Arc<UserCode>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let Some(runtime) = runtime() else { return };
    let user_code = Arc::new(UserCode::default());
    let future = future(user_code.clone());
    let final_state = user_code.clone();
    runtime.block_on(async {
        let urgent = user_code.clone();
        let urgent = upshift::spawn(
            async move {
                while urgent.runs.load(SeqCst) == 0 {
                    time::sleep(Duration::from_millis(1)).await;
                    urgent.urgent_runs.fetch_add(1, SeqCst);
                }
            },
            Level::at::<0>(),
        );
        upshift::spawn(future, Level::at::<40>()).await.unwrap();
        urgent.await.unwrap();
    });
    assert_eq!(final_state.runs.load(SeqCst), 1);
    assert!(
        !final_state.timed_out.load(SeqCst),
        "the urgent coroutine did not run during the user code"
    );
}

/// Polls once, with a waker that runs the user code.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>, user_code: &Arc<UserCode>) {
    let waker = Waker::from(user_code.clone());
    let polled = future.poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
}

async fn wait_until_run(user_code: &UserCode) {
    while user_code.runs.load(SeqCst) == 0 {
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_foreign_waker_that_a_timer_calls_is_interrupted() {
    assert_urgent_coroutine_runs(|user_code| async move {
        let mut sleep = Box::pin(time::sleep(Duration::from_millis(2)));
        poll_once(sleep.as_mut(), &user_code);
        wait_until_run(&user_code).await;
        sleep.await;
    });
}

#[test]
fn a_foreign_waker_that_a_completion_calls_is_interrupted() {
    assert_urgent_coroutine_runs(|user_code| async move {
        let (mut reader, mut writer) = upshift::io::pipe().unwrap();
        let mut byte = [0];
        let mut read = Box::pin(AsyncReadExt::read(&mut reader, &mut byte));
        poll_once(read.as_mut(), &user_code);
        writer.write_all(b"x").await.unwrap();
        wait_until_run(&user_code).await;
        assert_eq!(read.await.unwrap(), 1);
    });
}

#[test]
fn a_destructor_that_a_completion_calls_is_interrupted() {
    assert_urgent_coroutine_runs(|user_code| async move {
        let (reader, _writer) = std::io::pipe().unwrap();
        let cid = upshift::get_cid().unwrap();
        let read = sys::read_async(reader.as_fd(), Buffer([0; 8], user_code.clone()), cid);
        // The operation is submitted before its future is dropped.
        time::sleep(Duration::from_millis(2)).await;
        drop(read);
        wait_until_run(&user_code).await;
    });
}
