//! Channels: order, bounds, closing, cancellation, drops, threads.

#[path = "support/probe.rs"]
mod probe;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_lite::future::{block_on, poll_once};
use upshift::sync::mpsc::{self, SendError, TryRecvError, TrySendError};

use probe::Probe;

#[test]
fn messages_arrive_in_order_and_then_the_end() {
    let (sender, mut receiver) = mpsc::channel(8);
    let second = sender.clone();
    block_on(async {
        sender.send(1).await.unwrap();
        second.send(2).await.unwrap();
        drop(sender);
        assert_eq!(receiver.len(), 2);
        assert_eq!(receiver.recv().await, Some(1));
        assert_eq!(receiver.recv().await, Some(2));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        drop(second);
        assert_eq!(receiver.recv().await, None);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn a_full_channel_says_so_and_makes_senders_wait() {
    let probe = Probe::new();
    let (sender, mut receiver) = mpsc::channel(2);
    assert_eq!(sender.max_capacity(), 2);
    sender.try_send(1).unwrap();
    sender.try_send(2).unwrap();
    assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
    let mut sending = sender.send(3);
    assert!(probe.poll(&mut sending).is_pending());
    assert_eq!(receiver.try_recv(), Ok(1));
    assert_eq!(probe.wakes(), 1);
    // The room is kept for the sender it was given to.
    assert_eq!(sender.try_send(4), Err(TrySendError::Full(4)));
    assert_eq!(receiver.len(), 1, "it has not run yet");
    assert_eq!(probe.poll(&mut sending), Poll::Ready(Ok(())));
    assert_eq!(receiver.try_recv(), Ok(2));
    assert_eq!(receiver.try_recv(), Ok(3));
}

#[test]
#[should_panic = "needs room for a message"]
fn a_capacity_of_zero_is_refused() {
    drop(mpsc::channel::<u32>(0));
}

#[test]
fn a_huge_capacity_allocates_nothing_huge() {
    let (sender, mut receiver) = mpsc::channel(usize::MAX);
    for n in 0..5000_u32 {
        sender.try_send(n).unwrap();
    }
    assert_eq!(receiver.try_recv(), Ok(0));
}

#[test]
fn a_waiting_receiver_is_woken_by_a_message_and_by_the_end() {
    let probe = Probe::new();
    let (sender, mut receiver) = mpsc::channel(2);
    assert!(probe.poll(&mut receiver.recv()).is_pending());
    sender.try_send(1).unwrap();
    sender.try_send(2).unwrap();
    assert_eq!(probe.wakes(), 1, "one wake for both");
    assert_eq!(probe.poll(&mut receiver.recv()), Poll::Ready(Some(1)));
    assert_eq!(probe.poll(&mut receiver.recv()), Poll::Ready(Some(2)));
    assert!(probe.poll(&mut receiver.recv()).is_pending());
    drop(sender);
    assert_eq!(probe.wakes(), 2);
    assert_eq!(probe.poll(&mut receiver.recv()), Poll::Ready(None));
}

#[test]
fn senders_get_their_value_back_when_the_receiver_goes() {
    let probe = Probe::new();
    let (sender, receiver) = mpsc::channel(1);
    sender.try_send("inside").unwrap();
    let (mut first, mut second) = (sender.send("first"), sender.send("second"));
    assert!(probe.poll(&mut first).is_pending());
    assert!(probe.poll(&mut second).is_pending());
    drop(receiver);
    assert_eq!(probe.wakes(), 2);
    assert_eq!(probe.poll(&mut first), Poll::Ready(Err(SendError("first"))));
    drop(second);
    assert!(sender.is_closed());
    assert_eq!(sender.try_send("late"), Err(TrySendError::Closed("late")));
    assert_eq!(block_on(sender.send("late")), Err(SendError("late")));
    assert_eq!(sender.blocking_send("late"), Err(SendError("late")));
}

#[test]
fn a_closed_channel_is_emptied_first() {
    let probe = Probe::new();
    let (sender, mut receiver) = mpsc::channel(1);
    sender.try_send(1).unwrap();
    let mut waiting = sender.send(2);
    assert!(probe.poll(&mut waiting).is_pending());
    receiver.close();
    assert_eq!(probe.poll(&mut waiting), Poll::Ready(Err(SendError(2))));
    assert_eq!(block_on(receiver.recv()), Some(1));
    assert_eq!(block_on(receiver.recv()), None);
}

#[test]
fn a_sender_that_gives_up_sends_nothing_and_passes_its_room_on() {
    let probe = Probe::new();
    let (sender, mut receiver) = mpsc::channel(1);
    sender.try_send(1).unwrap();
    let (mut chosen, mut next) = (sender.send(2), sender.send(3));
    assert!(Probe::new().poll(&mut chosen).is_pending());
    assert!(probe.poll(&mut next).is_pending());
    assert_eq!(receiver.try_recv(), Ok(1));
    assert_eq!(probe.wakes(), 0);
    drop(chosen);
    assert_eq!(probe.wakes(), 1);
    assert!(probe.poll(&mut next).is_ready());
    assert_eq!(receiver.try_recv(), Ok(3));
    // And one that was not chosen leaves no trace either.
    sender.try_send(4).unwrap();
    let mut gone = sender.send(5);
    assert!(probe.poll(&mut gone).is_pending());
    drop(gone);
    assert_eq!(receiver.try_recv(), Ok(4));
    sender.try_send(6).unwrap();
    assert_eq!(receiver.try_recv(), Ok(6));
}

#[test]
fn a_receive_that_is_given_up_loses_no_message() {
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
    assert_eq!(Arc::strong_count(&message), 2, "the waiting sender's");
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
fn an_unbounded_channel_never_makes_its_senders_wait() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for n in 0..100_000 {
        sender.send(n).unwrap();
    }
    for n in 0..100_000 {
        assert_eq!(receiver.try_recv(), Ok(n));
    }
    let probe = Probe::new();
    assert!(probe.poll(&mut receiver.recv()).is_pending());
    let second = sender.clone();
    drop(sender);
    assert_eq!(probe.wakes(), 0);
    drop(second);
    assert_eq!(probe.wakes(), 1);
    assert_eq!(block_on(receiver.recv()), None);
}

#[test]
fn many_threads_send_through_a_narrow_channel() {
    const THREADS: usize = 4;
    const EACH: usize = 5000;
    let (sender, mut receiver) = mpsc::channel(3);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let sender = sender.clone();
            scope.spawn(move || {
                for n in 0..EACH {
                    if n % 2 == 0 {
                        sender.blocking_send((thread, n)).unwrap();
                    } else {
                        block_on(sender.send((thread, n))).unwrap();
                    }
                }
            });
        }
        drop(sender);
        let mut next = [0; THREADS];
        while let Some((thread, n)) = receiver.blocking_recv() {
            assert_eq!(n, next[thread], "in order for each sender");
            next[thread] += 1;
        }
        assert_eq!(next, [EACH; THREADS]);
    });
}

#[test]
fn senders_that_give_up_lose_no_room() {
    const THREADS: usize = 4;
    let (sender, mut receiver) = mpsc::channel(2);
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sender, sent) = (sender.clone(), &sent);
            scope.spawn(move || {
                block_on(async {
                    for n in 0..4000 {
                        let mut sending = sender.send(n);
                        let mut outcome = poll_once(&mut sending).await;
                        if outcome.is_none() && (n + thread) % 2 == 0 {
                            std::thread::yield_now();
                            outcome = poll_once(&mut sending).await;
                        }
                        if outcome.is_some_and(|outcome| outcome.is_ok()) {
                            sent.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            });
        }
        drop(sender);
        let mut received = 0;
        while receiver.blocking_recv().is_some() {
            received += 1;
        }
        assert_eq!(received, sent.load(Ordering::SeqCst));
    });
    assert!(sent.into_inner() > 0);
}

#[test]
fn two_threads_play_ping_pong() {
    let (ping, mut pinged) = mpsc::channel(1);
    let (pong, mut ponged) = mpsc::channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Some(n) = pinged.blocking_recv() {
                pong.blocking_send(n + 1).unwrap();
            }
        });
        for n in 0..2000 {
            ping.blocking_send(n).unwrap();
            assert_eq!(ponged.blocking_recv(), Some(n + 1));
        }
        drop(ping);
        assert_eq!(ponged.blocking_recv(), None);
    });
}

#[test]
fn a_send_passes_on_the_panic_of_the_receivers_waker_and_keeps_the_message() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (sender, mut receiver) = mpsc::channel(2);
    let waker = std::task::Waker::from(std::sync::Arc::new(Panics));
    let mut cx = std::task::Context::from_waker(&waker);
    for value in [1, 2] {
        assert!(receiver.poll_recv(&mut cx).is_pending());
        let send = || match value {
            1 => sender.try_reserve().unwrap().send(value),
            _ => sender.try_send(value).unwrap(),
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(send)).is_err());
        assert_eq!((receiver.len(), sender.capacity()), (1, 1));
        assert_eq!(receiver.try_recv(), Ok(value));
        assert_eq!(sender.capacity(), 2);
    }
}
