//! Models of the sync primitives: all interleavings of two or three threads, of which one gives up waiting.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p upshift-runtime-models --test loom_sync`

#![cfg(loom)]

/// What the primitives ask of the runtime, as it answers outside of a coroutine.
mod context {
    use upshift_core::{CoroutineId, Level};

    pub(crate) fn current_id() -> Option<CoroutineId> {
        None
    }
    pub(crate) fn current_level() -> Option<Level> {
        None
    }
    #[allow(dead_code, reason = "there is one answer here")]
    pub(crate) enum Taker {
        Named(CoroutineId),
        Elsewhere(u64),
        Nobody,
    }
    pub(crate) fn lock_taken(_: u64) -> Taker {
        Taker::Nobody
    }
    pub(crate) fn current_in(_: u64) -> Option<CoroutineId> {
        None
    }
    pub(crate) fn is_alive(_: u64) -> bool {
        false
    }
    pub(crate) fn lock_granted(_: u64, _: CoroutineId) -> bool {
        false
    }
    pub(crate) fn lock_released(_: u64, _: CoroutineId) {}
    pub(crate) fn lend_to_holder(_: u64, _: CoroutineId) {}
    pub(crate) fn level_to_lend() -> Option<Level> {
        None
    }
    pub(crate) fn lend(_: u64, _: CoroutineId, _: Level) {}
    pub(crate) fn is_own_waker(_: &std::task::Waker) -> bool {
        false
    }
}

mod coop {
    use std::task::{Context, Poll};

    pub(crate) fn poll_proceed(_: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// The checker's lock in place of the one that spins: its waiting is not what is to be explored.
mod lock {
    pub(crate) use loom::sync::MutexGuard as Guard;

    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.0.lock().expect("nobody panics with it")
        }
    }
}

#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the models use a part of it"
)]
#[path = "../../runtime/src/sync/mod.rs"]
mod sync;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use sync::{Mutex, Notify, Semaphore, mpsc, oneshot};

/// Has a future enter the queue of its primitive.
fn waits<F: Future>(future: Pin<&mut F>) {
    assert!(
        future
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
}

/// One more; `loom` fails if somebody else has access.
fn add_one(cell: &UnsafeCell<u32>) {
    cell.with_mut(|value| {
        // SAFETY: the checker sees to it that nobody else has access.
        unsafe { *value += 1 }
    });
}

/// Transitions 1 to 4 of the mutex: one holder at a time who sees what the last one wrote, and nobody waits for ever.
#[test]
fn a_mutex_has_one_holder_at_a_time_and_each_gets_it() {
    loom::model(|| {
        let mutex = Arc::new(Mutex::new(UnsafeCell::new(0)));
        let other = mutex.clone();
        let thread = thread::spawn(move || add_one(&*block_on(other.lock())));
        add_one(&*block_on(mutex.lock()));
        thread.join().unwrap();
        let value = mutex.try_lock().expect("nobody has it any more");
        // SAFETY: as in `add_one`.
        value.with(|value| assert_eq!(unsafe { *value }, 2));
    });
}

/// The first in the queue gives up while the mutex is handed to it, or before, or after: the second gets it.
#[test]
fn a_mutex_handed_to_a_dropped_waiter_goes_to_the_next() {
    loom::model(|| {
        let mutex = Arc::new(Mutex::new(UnsafeCell::new(0)));
        let guard = mutex.try_lock().unwrap();
        let other = mutex.clone();
        let thread = thread::spawn(move || {
            let second = {
                let mut first = pin!(other.lock());
                // It may be free already, then this is the first to have it.
                let _ = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                other.lock()
            };
            add_one(&*block_on(second));
        });
        add_one(&*guard);
        drop(guard);
        thread.join().unwrap();
        assert!(mutex.try_lock().is_ok());
    });
}

/// The same with the waiters in their places before the race begins, and three threads.
#[test]
fn a_waiter_dropped_while_the_mutex_is_handed_over_leaves_it_to_the_next() {
    loom::model(|| {
        let mutex = Arc::new(Mutex::new(()));
        let shared: &'static Mutex<()> = leak(&mutex);
        let guard = shared.try_lock().unwrap();
        let mut first = Box::pin(shared.lock());
        waits(first.as_mut());
        let next = thread::spawn(move || drop(block_on(shared.lock())));
        let dropper = thread::spawn(move || drop(first));
        drop(guard);
        dropper.join().unwrap();
        next.join().unwrap();
        assert!(mutex.try_lock().is_ok());
        unleak(&mutex);
    });
}

/// Permits that a dropped waiter had been handed go to the next, and none is lost or made.
#[test]
fn permits_of_a_dropped_waiter_go_to_the_next() {
    loom::model(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let shared: &'static Semaphore = leak(&semaphore);
        let permit = shared.try_acquire(1).unwrap();
        let mut first = Box::pin(shared.acquire(1));
        waits(first.as_mut());
        let next = thread::spawn(move || drop(block_on(shared.acquire(1)).unwrap()));
        let dropper = thread::spawn(move || drop(first));
        drop(permit);
        dropper.join().unwrap();
        next.join().unwrap();
        assert_eq!(semaphore.available_permits(), 1);
        unleak(&semaphore);
    });
}

/// `notify_one` chooses a waiter that is being dropped: the other one is woken, or the permit stored for it.
#[test]
fn a_notification_of_a_dropped_waiter_goes_to_the_next() {
    loom::model(|| {
        let notify = Arc::new(Notify::new());
        let shared: &'static Notify = leak(&notify);
        let mut first = Box::pin(shared.notified());
        waits(first.as_mut());
        let next = thread::spawn(move || block_on(shared.notified()));
        let dropper = thread::spawn(move || drop(first));
        shared.notify_one();
        dropper.join().unwrap();
        next.join().unwrap();
        unleak(&notify);
    });
}

/// A broadcast reaches whoever asked before it, polled or not, and stores nothing.
#[test]
fn a_broadcast_reaches_those_who_asked_before_it() {
    loom::model(|| {
        let notify = Arc::new(Notify::new());
        let shared: &'static Notify = leak(&notify);
        let asked = shared.notified();
        let waiter = thread::spawn(move || block_on(asked));
        shared.notify_waiters();
        waiter.join().unwrap();
        let late = pin!(shared.notified());
        waits(late);
        unleak(&notify);
    });
}

/// What is sent is received or given back.
#[test]
fn a_value_sent_once_is_received_or_given_back() {
    loom::model(|| {
        let (sender, mut receiver) = oneshot::channel();
        let thread = thread::spawn(move || sender.send(7).is_ok());
        let received = receiver.try_recv().is_ok_and(|value| value == 7);
        drop(receiver);
        let sent = thread.join().unwrap();
        // Sent after the last look and before the receiver went: dropped with it.
        assert!(sent || !received);
    });
    loom::model(|| {
        let (sender, receiver) = oneshot::channel();
        let thread = thread::spawn(move || sender.send(7).unwrap());
        assert_eq!(block_on(receiver), Ok(7));
        thread.join().unwrap();
    });
}

/// Room that a dropped sender had been handed goes to the next, and the receiver sees the end.
#[test]
fn room_of_a_dropped_sender_goes_to_the_next() {
    loom::model(|| {
        let (sender, mut receiver) = mpsc::channel(1);
        sender.try_send(1).unwrap();
        let shared = Arc::new(sender);
        let next = shared.clone();
        let leaked: &'static mpsc::Sender<u32> = leak(&shared);
        let mut first = Box::pin(leaked.send(2));
        waits(first.as_mut());
        let next = thread::spawn(move || block_on(next.send(3)).unwrap());
        let dropper = thread::spawn(move || drop(first));
        assert_eq!(block_on(receiver.recv()), Some(1));
        dropper.join().unwrap();
        next.join().unwrap();
        assert_eq!(block_on(receiver.recv()), Some(3));
        unleak(&shared);
        drop(shared);
        assert_eq!(block_on(receiver.recv()), None);
    });
}

/// A reference for futures that another thread drops; [`unleak`] when they are gone.
fn leak<T>(shared: &Arc<T>) -> &'static T {
    let pointer = Arc::into_raw(shared.clone());
    // SAFETY: the count keeps it until `unleak`.
    unsafe { &*pointer }
}

fn unleak<T>(shared: &Arc<T>) {
    // SAFETY: the count that `leak` left, once per model.
    drop(unsafe { Arc::from_raw(Arc::as_ptr(shared)) });
}
