//! Tests of [`Signals`] that an executor other than upshift's polls. A waker that panics, or that
//! polls inside `wake`, must not affect other listeners.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use upshift::signal::{SIGUSR1, SIGUSR2, SIGWINCH, Signals};
use upshift::{Runtime, time};

#[derive(Default)]
struct PanickingWaker {
    was_called: AtomicBool,
}

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        self.was_called.store(true, Ordering::SeqCst);
        panic!("expected: a waker that panics");
    }
}

fn send(number: i32) {
    // SAFETY: `kill` takes no pointer.
    assert_eq!(unsafe { libc::kill(libc::getpid(), number) }, 0);
}

fn assert_signal_arrives(number: i32) {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let mut signals = Signals::new([number]).unwrap();
        send(number);
        let received = time::timeout(Duration::from_secs(20), signals.recv()).await;
        assert_eq!(
            received.expect("the signal did not arrive").unwrap(),
            number
        );
    });
}

#[test]
fn a_waker_that_panics_does_not_stop_signal_delivery() {
    let mut signals = Signals::new([SIGUSR1]).unwrap();
    let mut wait = Box::pin(signals.recv());
    let panicking_waker = Arc::new(PanickingWaker::default());
    let waker = Waker::from(panicking_waker.clone());
    let cx = &mut Context::from_waker(&waker);
    assert!(wait.as_mut().poll(cx).is_pending());
    send(SIGUSR1);
    let limit = Instant::now() + Duration::from_secs(20);
    while !panicking_waker.was_called.load(Ordering::SeqCst) {
        assert!(Instant::now() < limit, "the waker was not called");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_signal_arrives(SIGUSR2);
}

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor that polls its future inside `wake`.
struct PollOnWake(Mutex<BoxedFuture>);

impl Wake for PollOnWake {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut future = self.0.lock().unwrap();
        let _ = future.as_mut().poll(&mut Context::from_waker(&waker));
    }
}

#[test]
fn a_waker_may_poll_the_listener_that_wakes_it() {
    let mut signals = Signals::new([SIGWINCH]).unwrap();
    let (sender, receiver) = mpsc::channel();
    let listener = async move {
        while let Ok(number) = signals.recv().await {
            if sender.send(number).is_err() {
                return;
            }
        }
    };
    Arc::new(PollOnWake(Mutex::new(Box::pin(listener)))).wake();
    for _ in 0..2 {
        send(SIGWINCH);
        let received = receiver.recv_timeout(Duration::from_secs(20));
        assert_eq!(received, Ok(SIGWINCH), "the listener was not woken");
    }
    assert_signal_arrives(libc::SIGURG);
}
