//! One value, once: every order of send, receive, close and drop.

#[path = "support/probe.rs"]
mod probe;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_lite::future::block_on;
use upshift::sync::oneshot::{self, TryRecvError};

use probe::Probe;

#[test]
fn the_value_arrives_before_and_after_the_receiver_waits() {
    let (sender, receiver) = oneshot::channel();
    sender.send(1).unwrap();
    assert_eq!(block_on(receiver), Ok(1));

    let probe = Probe::new();
    let (sender, mut receiver) = oneshot::channel();
    assert!(probe.poll(&mut receiver).is_pending());
    sender.send(2).unwrap();
    assert_eq!(probe.wakes(), 1);
    assert_eq!(probe.poll(&mut receiver), Poll::Ready(Ok(2)));
    assert_eq!(Arc::strong_count(&probe), 1, "no waker is left behind");
}

#[test]
fn a_sender_that_goes_is_an_error() {
    let probe = Probe::new();
    let (sender, mut receiver) = oneshot::channel::<u32>();
    assert!(probe.poll(&mut receiver).is_pending());
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    drop(sender);
    assert_eq!(probe.wakes(), 1);
    assert!(matches!(probe.poll(&mut receiver), Poll::Ready(Err(_))));
    assert!(receiver.is_terminated());
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
}

#[test]
fn a_receiver_that_goes_gives_the_value_back_and_ends_closed() {
    let probe = Probe::new();
    let (mut sender, receiver) = oneshot::channel();
    assert!(!sender.is_closed());
    {
        let mut closed = pin!(sender.closed());
        assert!(probe.poll(&mut closed).is_pending());
        drop(receiver);
        assert_eq!(probe.wakes(), 1);
        assert!(probe.poll(&mut closed).is_ready());
    }
    assert!(sender.is_closed());
    assert_eq!(sender.send("back"), Err("back"));
}

#[test]
fn a_closed_receiver_still_takes_what_is_inside() {
    let (sender, mut receiver) = oneshot::channel();
    sender.send(1).unwrap();
    receiver.close();
    assert_eq!(receiver.try_recv(), Ok(1));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Closed));
    assert!(receiver.is_terminated() && receiver.is_empty());

    let (sender, mut receiver) = oneshot::channel();
    receiver.close();
    assert_eq!(sender.send(1), Err(1));
    assert!(block_on(receiver).is_err());
}

#[test]
fn a_value_that_is_not_taken_is_dropped_once() {
    let value = Arc::new(());
    let (sender, receiver) = oneshot::channel();
    sender.send(value.clone()).unwrap();
    drop(receiver);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn threads_hand_over_many() {
    for n in 0..2000 {
        let (sender, receiver) = oneshot::channel();
        let thread = (n % 100 == 0).then(|| std::thread::spawn(move || receiver.blocking_recv()));
        sender.send(n).ok();
        if let Some(thread) = thread {
            assert_eq!(thread.join().unwrap(), Ok(n));
        }
    }
    // Both ends race.
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..5000).map(|_| oneshot::channel()).unzip();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (n, sender) in senders.into_iter().enumerate() {
                if n % 7 == 0 {
                    drop(sender);
                } else {
                    sender.send(n).unwrap();
                }
            }
        });
        for (n, receiver) in receivers.into_iter().enumerate() {
            assert_eq!(block_on(receiver).is_ok(), n % 7 != 0);
        }
    });
}
