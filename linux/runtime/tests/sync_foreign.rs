//! Wakers that are not of the runtime run code of users: never while a primitive's lock is held. Here to clone one uses the
//! very primitive, which would wait for itself.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use upshift::sync::{Mutex, Notify, Semaphore, mpsc as channel, oneshot};

type Code = Arc<dyn Fn() + Send + Sync>;

/// A waker that runs `code` when it is cloned or dropped.
fn waker(code: Code) -> Waker {
    // SAFETY: the table below keeps the contract for a boxed `Code`.
    unsafe { Waker::from_raw(raw(code)) }
}

fn raw(code: Code) -> RawWaker {
    RawWaker::new(Box::into_raw(Box::new(code)).cast_const().cast(), &TABLE)
}

static TABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: the data of such a waker is a boxed `Code`.
        let code = unsafe { &*data.cast::<Code>() };
        code();
        raw(code.clone())
    },
    discard,
    |_| {},
    discard,
);

unsafe fn discard(data: *const ()) {
    // SAFETY: as above, and the waker is consumed.
    let code = unsafe { Box::from_raw(data.cast_mut().cast::<Code>()) };
    code();
}

/// Polls twice, each time with a waker of its own, which uses what is waited for.
fn wait(future: impl Future, code: impl Fn() + Send + Sync + 'static) {
    let code: Code = Arc::new(code);
    let mut future = pin!(future);
    for _ in 0..2 {
        let waker = waker(code.clone());
        assert!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
}

/// Fails, instead of waiting for ever.
fn ends(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    is_done
        .recv_timeout(Duration::from_secs(10))
        .expect("it waits for itself");
}

#[test]
fn a_waker_may_use_the_semaphore_it_waits_for() {
    ends(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let own = semaphore.clone();
        wait(semaphore.acquire(), move || own.add_permits(0));
    });
}

#[test]
fn a_waker_may_use_the_notify_it_waits_for() {
    ends(|| {
        let (notify, other) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let own = notify.clone();
        wait(notify.notified(), move || {
            other.notify_one();
            let _ = Box::pin(own.notified()).as_mut().enable();
        });
    });
}

#[test]
fn a_waker_may_use_the_channel_it_waits_for() {
    ends(|| {
        let (sender, mut receiver) = channel::channel::<u32>(1);
        let own = sender.clone();
        wait(receiver.recv(), move || drop(own.clone()));
        sender.try_send(1).unwrap();
        let own = sender.clone();
        wait(sender.send(2), move || drop(own.clone()));
    });
}

#[test]
fn a_waker_may_use_the_oneshot_it_waits_for() {
    ends(|| {
        let (sender, mut receiver) = oneshot::channel::<u32>();
        let own = Arc::new(sender);
        wait(&mut receiver, move || {
            let _ = own.is_closed();
        });
    });
}

#[test]
fn a_waker_may_use_the_mutex_it_waits_for() {
    ends(|| {
        let mutex = Arc::new(Mutex::new(()));
        let guard = mutex.try_lock().unwrap();
        let own = mutex.clone();
        wait(mutex.lock(), move || {
            let mut other = Box::pin(own.lock());
            let noop = &mut Context::from_waker(Waker::noop());
            assert!(other.as_mut().poll(noop).is_pending());
        });
        drop(guard);
    });
}
