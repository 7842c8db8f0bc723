//! Model checks of the synchronization primitives. The checker runs all interleavings of two or
//! three threads. In some models a thread gives up waiting.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p upshift-runtime-models --test loom_sync`

#![cfg(loom)]

/// Stands for the functions of the runtime that the primitives call, with the results that they
/// return outside of a coroutine.
mod context {
    use upshift_core::{CoroutineId, Level};

    #[allow(dead_code, reason = "only one variant is used")]
    pub(crate) enum LockOwner {
        Named(CoroutineId),
        Elsewhere(u64),
        Unnamed,
    }
    pub(crate) fn record_lock(_: u64) -> LockOwner {
        LockOwner::Unnamed
    }
    pub(crate) fn current_global_id() -> Option<(u64, CoroutineId)> {
        None
    }
    pub(crate) fn current_in(_: u64) -> Option<CoroutineId> {
        None
    }
    pub(crate) fn is_alive(_: u64) -> bool {
        false
    }
    pub(crate) fn record_handover(_: u64, _: CoroutineId) -> bool {
        false
    }
    pub(crate) fn record_unlock(_: u64, _: CoroutineId) {}
    pub(crate) fn lend_to_holder(_: u64, _: CoroutineId) {}
    pub(crate) fn level_to_lend() -> Option<Level> {
        None
    }
    pub(crate) fn lend(_: u64, _: CoroutineId, _: Level) {}
    pub(crate) fn set_loan(_: u64, _: CoroutineId, _: Option<Level>) {}
    pub(crate) fn level_of(_: u64, _: CoroutineId) -> Option<Level> {
        None
    }
}

mod host {
    use upshift_core::{CoroutineId, Level};

    pub(crate) fn current_id() -> Option<CoroutineId> {
        None
    }
    pub(crate) fn current_level() -> Option<Level> {
        None
    }
    pub(crate) fn is_own_waker(_: &std::task::Waker) -> bool {
        false
    }
}

mod user_code {
    pub(crate) mod catch_panic {
        pub(crate) fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
            Some(code())
        }
    }
}

mod coroutine {
    pub(crate) mod coop {
        use std::task::{Context, Poll};

        pub(crate) fn poll_proceed(_: &mut Context<'_>) -> Poll<()> {
            Poll::Ready(())
        }
    }
}

/// The checker's lock in place of the runtime's spin lock, so that the checker does not explore
/// spinning.
mod lock {
    pub(crate) use loom::sync::MutexGuard as Guard;

    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Lock<T> {
            Lock(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.0.lock().expect("no holder panics")
        }
    }
}

#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the models use a part of it"
)]
#[path = "../../../linux/runtime/src/sync/mod.rs"]
mod sync;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use sync::{
    Barrier, CancellationToken, Mutex, Notify, OnceCell, RwLock, Semaphore, SetOnce, broadcast,
    mpsc, oneshot, watch,
};

/// Lets a future enter the queue of its primitive.
fn enqueue<F: Future>(future: Pin<&mut F>) {
    assert!(
        future
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
}

/// Drops the future `first`, which waits for the resource that `held` occupies, while another
/// thread drops `held`. The thread that runs `next` must get access to the resource.
fn drop_while_granted(
    held: impl Sized,
    first: impl Future + Send + 'static,
    next: impl FnOnce() + Send + 'static,
) {
    let mut first = Box::pin(first);
    enqueue(first.as_mut());
    let next = thread::spawn(next);
    let dropper = thread::spawn(move || drop(first));
    drop(held);
    dropper.join().unwrap();
    next.join().unwrap();
}

/// Adds one; `loom` fails if another thread has access.
fn add_one(cell: &UnsafeCell<u32>) {
    cell.with_mut(|value| {
        // SAFETY: the checker fails if another thread has access.
        unsafe { *value += 1 }
    });
}

/// One thread at a time holds the mutex and sees the writes of the previous holder, and no waiter
/// waits for ever. Covers transitions 1 to 4 of `sync/mutex.rs`.
#[test]
fn a_mutex_has_one_holder_at_a_time_and_each_waiter_gets_it() {
    loom::model(|| {
        let mutex = Arc::new(Mutex::new(UnsafeCell::new(0)));
        let other = mutex.clone();
        let thread = thread::spawn(move || add_one(&*block_on(other.lock())));
        add_one(&*block_on(mutex.lock()));
        thread.join().unwrap();
        let value = mutex.try_lock().expect("it was released");
        // SAFETY: as in `add_one`.
        value.with(|value| assert_eq!(unsafe { *value }, 2));
    });
}

/// The first waiter gives up before, while or after the mutex is handed over to it. In each case
/// the second waiter gets the mutex.
#[test]
fn a_mutex_handed_to_a_dropped_waiter_goes_to_the_next() {
    loom::model(|| {
        let mutex = Arc::new(Mutex::new(UnsafeCell::new(0)));
        let guard = mutex.try_lock().unwrap();
        let other = mutex.clone();
        let thread = thread::spawn(move || {
            let second = {
                let mut first = pin!(other.lock());
                // If the mutex is free already, `first` holds it until it is dropped.
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

/// Like the last test, with a waiter that is queued before the race, and with three threads.
#[test]
fn a_waiter_dropped_while_the_mutex_is_handed_over_leaves_it_to_the_next() {
    loom::model(|| {
        let mutex = Arc::new(Mutex::new(()));
        let shared: &'static Mutex<()> = leak(&mutex);
        let guard = shared.try_lock().unwrap();
        drop_while_granted(guard, shared.lock(), || drop(block_on(shared.lock())));
        assert!(mutex.try_lock().is_ok());
        unleak(&mutex);
    });
}

/// Permits that were handed over to a dropped waiter go to the next waiter; no permit is lost or
/// added.
#[test]
fn permits_of_a_dropped_waiter_go_to_the_next() {
    loom::model(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let shared: &'static Semaphore = leak(&semaphore);
        let permit = shared.try_acquire().unwrap();
        drop_while_granted(permit, shared.acquire(), || {
            drop(block_on(shared.acquire()).unwrap());
        });
        assert_eq!(semaphore.available_permits(), 1);
        unleak(&semaphore);
    });
}

/// If `notify_one` chooses a waiter that is being dropped, the other waiter is woken, or the permit
/// is stored for it.
#[test]
fn a_notification_of_a_dropped_waiter_goes_to_the_next() {
    loom::model(|| {
        let notify = Arc::new(Notify::new());
        let shared: &'static Notify = leak(&notify);
        let mut first = Box::pin(shared.notified());
        enqueue(first.as_mut());
        let next = thread::spawn(move || block_on(shared.notified()));
        let dropper = thread::spawn(move || drop(first));
        shared.notify_one();
        dropper.join().unwrap();
        next.join().unwrap();
        unleak(&notify);
    });
}

/// A broadcast reaches every waiter created earlier, polled or not, and stores nothing.
#[test]
fn a_broadcast_reaches_all_earlier_waiters() {
    loom::model(|| {
        let notify = Arc::new(Notify::new());
        let shared: &'static Notify = leak(&notify);
        let notified = shared.notified();
        let waiter = thread::spawn(move || block_on(notified));
        shared.notify_waiters();
        waiter.join().unwrap();
        let later = pin!(shared.notified());
        enqueue(later);
        unleak(&notify);
    });
}

/// A value is received only if `send` succeeds. It is given back if the receiver is gone.
#[test]
fn a_value_is_received_only_if_its_send_succeeds() {
    loom::model(|| {
        let (sender, mut receiver) = oneshot::channel();
        let thread = thread::spawn(move || sender.send(7).is_ok());
        let received = receiver.try_recv().is_ok_and(|value| value == 7);
        drop(receiver);
        let sent = thread.join().unwrap();
        // The value may be sent after `try_recv` and before the drop of the receiver, and is then
        // dropped with the receiver.
        assert!(sent || !received);
    });
    loom::model(|| {
        let (sender, receiver) = oneshot::channel();
        let thread = thread::spawn(move || sender.send(7).unwrap());
        assert_eq!(block_on(receiver), Ok(7));
        thread.join().unwrap();
    });
}

/// Room that was handed over to a dropped sender goes to the next sender, and the receiver sees the
/// end.
#[test]
fn room_of_a_dropped_sender_goes_to_the_next() {
    loom::model(|| {
        let (sender, mut receiver) = mpsc::channel(1);
        sender.try_send(1).unwrap();
        let shared = Arc::new(sender);
        let next = shared.clone();
        let leaked: &'static mpsc::Sender<u32> = leak(&shared);
        let mut first = Box::pin(leaked.send(2));
        enqueue(first.as_mut());
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

/// The receiver of a closed channel waits for the values for which room is still reserved. Senders
/// that wait for room get an error.
#[test]
fn the_end_of_a_closed_channel_comes_after_its_permits() {
    loom::model(|| {
        let (sender, mut receiver) = mpsc::channel(1);
        let permit = block_on(sender.clone().reserve_owned()).unwrap();
        let permit_user = thread::spawn(move || drop(permit.send(7)));
        let waiter = thread::spawn(move || block_on(sender.send(8)).is_ok());
        receiver.close();
        let mut received = Vec::new();
        while let Some(value) = block_on(receiver.recv()) {
            received.push(value);
        }
        permit_user.join().unwrap();
        let sent = waiter.join().unwrap();
        assert_eq!(received[0], 7);
        assert_eq!(received.len(), 1 + usize::from(sent));
    });
}

/// A writer has exclusive access, and no waiter waits for ever.
#[test]
fn a_writer_has_exclusive_access_and_each_waiter_gets_access() {
    loom::model(|| {
        let lock = Arc::new(RwLock::new(UnsafeCell::new(0)));
        let other = lock.clone();
        let writer = thread::spawn(move || add_one(&block_on(other.write())));
        {
            let value = block_on(lock.read());
            // SAFETY: the checker fails if another thread writes meanwhile; readers only read.
            value.with(|value| assert!(unsafe { *value } < 2));
        }
        writer.join().unwrap();
        assert!(lock.try_write().is_ok());
    });
}

/// A writer that is dropped while it is granted access leaves the lock to the next waiter.
#[test]
fn a_writer_dropped_while_it_gets_access_leaves_the_lock_to_the_next() {
    loom::model(|| {
        let lock = Arc::new(RwLock::new(()));
        let shared: &'static RwLock<()> = leak(&lock);
        let reader = shared.try_read().unwrap();
        drop_while_granted(reader, shared.write(), || drop(block_on(shared.read())));
        assert!(lock.try_write().is_ok());
        unleak(&lock);
    });
}

/// The last value and the end are not missed between a receiver's check and its wait.
#[test]
fn a_watcher_sees_the_last_value_and_the_end() {
    loom::model(|| {
        let (sender, mut receiver) = watch::channel(0);
        let thread = thread::spawn(move || sender.send(1).is_ok());
        let mut last = 0;
        while block_on(receiver.changed()).is_ok() {
            last = *receiver.borrow();
        }
        assert!(thread.join().unwrap());
        assert_eq!(last, 1);
    });
}

/// Each receiver gets the message and sees the end.
#[test]
fn every_receiver_gets_a_message_and_the_end() {
    loom::model(|| {
        let (sender, mut first) = broadcast::channel(1);
        let mut second = sender.subscribe();
        let thread = thread::spawn(move || {
            assert_eq!(block_on(second.recv()), Ok(7));
            assert!(block_on(second.recv()).is_err());
        });
        assert_eq!(sender.send(7).ok(), Some(2));
        drop(sender);
        assert_eq!(block_on(first.recv()), Ok(7));
        assert!(block_on(first.recv()).is_err());
        thread.join().unwrap();
    });
}

#[test]
fn a_barrier_lets_both_pass_and_one_leads() {
    loom::model(|| {
        let barrier = Arc::new(Barrier::new(2));
        let other = barrier.clone();
        let thread = thread::spawn(move || block_on(other.wait()).is_leader());
        let is_leader = block_on(barrier.wait()).is_leader();
        assert_ne!(thread.join().unwrap(), is_leader);
    });
}

/// Only one thread initializes the value, and a thread that sees the cell initialized sees the
/// complete value.
#[test]
fn a_value_is_initialized_once_and_seen_complete() {
    loom::model(|| {
        let cell = Arc::new(OnceCell::new());
        let other = cell.clone();
        let thread = thread::spawn(move || *block_on(other.get_or_init(|| async { 1 })));
        let early_value = cell.get().copied();
        let value = *block_on(cell.get_or_init(|| async { 2 }));
        assert_eq!(thread.join().unwrap(), value);
        assert!(early_value.is_none_or(|early| early == value));
    });
}

#[test]
fn a_cell_that_is_set_is_not_missed() {
    loom::model(|| {
        let cell = Arc::new(SetOnce::new());
        let other = cell.clone();
        let thread = thread::spawn(move || other.set(1).unwrap());
        assert_eq!(*block_on(cell.wait()), 1);
        thread.join().unwrap();
    });
}

/// A child that is created while its parent is being cancelled is cancelled, too.
#[test]
fn a_child_of_a_cancelled_token_is_cancelled() {
    loom::model(|| {
        let token = CancellationToken::new();
        let parent = token.clone();
        let thread = thread::spawn(move || block_on(parent.child_token().cancelled()));
        token.cancel();
        thread.join().unwrap();
    });
}

/// Returns a reference for futures that another thread drops. [`unleak`] releases its count.
fn leak<T>(shared: &Arc<T>) -> &'static T {
    let pointer = Arc::into_raw(shared.clone());
    // SAFETY: the leaked count keeps the value until `unleak`.
    unsafe { &*pointer }
}

fn unleak<T>(shared: &Arc<T>) {
    // SAFETY: the count is the one that `leak` left, once per model.
    drop(unsafe { Arc::from_raw(Arc::as_ptr(shared)) });
}
