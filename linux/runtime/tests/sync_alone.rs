//! Tests of the synchronization primitives outside of a runtime, where every waiter has the default
//! level: the order of waiters of the same level, dropped waits, and panics of user code.
//!
//! All other behaviour is that of tokio's primitives, and `cargo xtask compat tokio` runs tokio's
//! published tests against these primitives. `scheduler/models/tests/loom_sync.rs` explores all
//! interleavings.

#[path = "support/probe.rs"]
mod probe;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use futures_lite::future::block_on;
use upshift::sync::{Mutex, Semaphore, mpsc};

use probe::Probe;

#[test]
fn waiters_get_the_lock_in_order_and_are_not_overtaken() {
    let mutex = Mutex::new(());
    let (first_probe, second_probe) = (Probe::new(), Probe::new());
    let guard = mutex.try_lock().unwrap();
    let mut first = mutex.lock();
    let mut second = mutex.lock();
    assert!(first_probe.poll(&mut first).is_pending());
    assert!(second_probe.poll(&mut second).is_pending());
    drop(guard);
    assert_eq!((first_probe.wakes(), second_probe.wakes()), (1, 0));
    // The mutex was handed over, although the first waiter has not run yet.
    assert!(mutex.try_lock().is_err());
    assert!(Probe::new().poll(&mut mutex.lock()).is_pending());
    assert!(second_probe.poll(&mut second).is_pending());
    let Poll::Ready(guard) = first_probe.poll(&mut first) else {
        panic!("the mutex was not handed over");
    };
    drop(guard);
    assert_eq!(second_probe.wakes(), 1);
    assert!(second_probe.poll(&mut second).is_ready());
    assert!(mutex.try_lock().is_ok());
}

#[test]
fn a_panic_releases_the_lock_and_poisons_nothing() {
    let mutex = Mutex::new(1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut guard = mutex.try_lock().unwrap();
        *guard = 2;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!(*mutex.try_lock().unwrap(), 2);
}

#[test]
fn a_guard_may_be_dropped_on_another_thread() {
    let mutex = Mutex::new(0);
    let guard = mutex.try_lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(guard));
        *block_on(mutex.lock()) += 1;
    });
    assert_eq!(mutex.into_inner(), 1);
}

#[test]
fn a_waiter_for_many_permits_is_not_overtaken_by_its_equals() {
    let semaphore = Semaphore::new(1);
    let (many, few) = (Probe::new(), Probe::new());
    let mut three = semaphore.acquire_many(3);
    let mut one = semaphore.acquire();
    assert!(many.poll(&mut three).is_pending());
    assert!(
        few.poll(&mut one).is_pending(),
        "a free permit that is promised was taken"
    );
    assert!(semaphore.try_acquire().is_err());
    semaphore.add_permits(1);
    assert_eq!((many.wakes(), few.wakes()), (0, 0));
    semaphore.add_permits(2);
    assert_eq!((many.wakes(), few.wakes()), (1, 1));
    assert!(many.poll(&mut three).is_ready());
    assert!(few.poll(&mut one).is_ready());
}

#[test]
#[should_panic = "needs room for a message"]
fn a_capacity_of_zero_is_refused() {
    drop(mpsc::channel::<u32>(0));
}

#[test]
fn a_huge_capacity_allocates_no_memory_in_advance() {
    let (sender, mut receiver) = mpsc::channel(usize::MAX);
    for n in 0..5000_u32 {
        sender.try_send(n).unwrap();
    }
    assert_eq!(receiver.try_recv(), Ok(0));
}

#[test]
fn a_dropped_receive_loses_no_message() {
    let (sender, mut receiver) = mpsc::channel(1);
    let mut recv = receiver.recv();
    assert!(Probe::new().poll(&mut recv).is_pending());
    sender.try_send(1).unwrap();
    drop(recv);
    assert_eq!(receiver.try_recv(), Ok(1));
}

#[test]
fn every_message_is_dropped_once() {
    let message = Arc::new(());
    let (sender, mut receiver) = mpsc::channel(4);
    for _ in 0..4 {
        sender.try_send(message.clone()).unwrap();
    }
    let mut waiting = sender.send(message.clone());
    assert!(Probe::new().poll(&mut waiting).is_pending());
    drop(receiver.try_recv());
    assert_eq!(Arc::strong_count(&message), 5);
    drop(receiver);
    assert_eq!(
        Arc::strong_count(&message),
        2,
        "the channel still holds messages"
    );
    drop(waiting);
    drop(sender);
    assert_eq!(Arc::strong_count(&message), 1);

    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(message.clone()).unwrap();
    drop(receiver);
    drop(sender);
    assert_eq!(Arc::strong_count(&message), 1);
}

#[test]
fn a_message_may_use_its_channel_when_it_is_dropped() {
    struct Message(mpsc::UnboundedSender<Option<Message>>);
    impl Drop for Message {
        fn drop(&mut self) {
            assert!(self.0.send(None).is_err());
        }
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(Some(Message(sender.clone()))).ok().unwrap();
    drop(receiver);
    assert!(sender.is_closed());
}

#[test]
fn a_send_propagates_the_panic_of_the_receivers_waker_and_keeps_the_message() {
    struct PanickingWaker;
    impl std::task::Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (sender, mut receiver) = mpsc::channel(2);
    let waker = std::task::Waker::from(Arc::new(PanickingWaker));
    let mut cx = std::task::Context::from_waker(&waker);
    for value in [1, 2] {
        assert!(receiver.poll_recv(&mut cx).is_pending());
        let send = || match value {
            1 => sender.try_reserve().unwrap().send(value),
            _ => sender.try_send(value).unwrap(),
        };
        assert!(catch_unwind(AssertUnwindSafe(send)).is_err());
        assert_eq!((receiver.len(), sender.capacity()), (1, 1));
        assert_eq!(receiver.try_recv(), Ok(value));
        assert_eq!(sender.capacity(), 2);
    }
}
