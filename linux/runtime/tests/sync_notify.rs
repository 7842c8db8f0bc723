//! Notifications: one permit, broadcasts, cancellation.

#[path = "support/probe.rs"]
mod probe;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_lite::future::{block_on, poll_once};
use upshift::sync::Notify;

use probe::Probe;

#[test]
fn at_most_one_permit_is_stored() {
    let notify = Notify::new();
    let probe = Probe::new();
    notify.notify_one();
    notify.notify_one();
    assert!(probe.poll(&mut notify.notified()).is_ready());
    assert!(probe.poll(&mut notify.notified()).is_pending());
}

#[test]
fn waiters_are_woken_one_by_one_in_order() {
    let notify = Notify::new();
    let (first_probe, second_probe) = (Probe::new(), Probe::new());
    let (mut first, mut second) = (notify.notified(), notify.notified());
    // The order of the polls counts, not that of the calls.
    assert!(second_probe.poll(&mut second).is_pending());
    assert!(first_probe.poll(&mut first).is_pending());
    notify.notify_one();
    assert_eq!((first_probe.wakes(), second_probe.wakes()), (0, 1));
    notify.notify_one();
    assert_eq!((first_probe.wakes(), second_probe.wakes()), (1, 1));
    assert!(first_probe.poll(&mut first).is_ready());
    assert!(second_probe.poll(&mut second).is_ready());
    assert!(second_probe.poll(&mut second).is_ready(), "it stays ready");
    assert!(first_probe.poll(&mut notify.notified()).is_pending());
}

#[test]
fn a_broadcast_reaches_all_made_before_it_and_stores_nothing() {
    let notify = Notify::new();
    let probe = Probe::new();
    let (mut polled, mut unpolled) = (notify.notified(), notify.notified());
    assert!(probe.poll(&mut polled).is_pending());
    notify.notify_waiters();
    assert_eq!(probe.wakes(), 1);
    assert!(probe.poll(&mut polled).is_ready());
    assert!(probe.poll(&mut unpolled).is_ready());
    assert!(probe.poll(&mut notify.notified()).is_pending());
}

#[test]
fn a_broadcast_leaves_the_permit() {
    let notify = Notify::new();
    let probe = Probe::new();
    let mut before = notify.notified();
    notify.notify_one();
    notify.notify_waiters();
    assert!(probe.poll(&mut before).is_ready());
    assert!(probe.poll(&mut notify.notified()).is_ready());
    assert!(probe.poll(&mut notify.notified()).is_pending());
}

#[test]
fn a_notified_waiter_that_is_dropped_passes_it_on() {
    let notify = Notify::new();
    let probe = Probe::new();
    let (mut chosen, mut next) = (notify.notified(), notify.notified());
    assert!(Probe::new().poll(&mut chosen).is_pending());
    assert!(probe.poll(&mut next).is_pending());
    notify.notify_one();
    drop(chosen);
    assert_eq!(probe.wakes(), 1);
    drop(next);
    assert!(probe.poll(&mut notify.notified()).is_ready(), "stored");
}

#[test]
fn a_waiter_of_a_broadcast_that_is_dropped_passes_nothing_on() {
    let notify = Notify::new();
    let probe = Probe::new();
    let mut waiting = notify.notified();
    assert!(probe.poll(&mut waiting).is_pending());
    notify.notify_waiters();
    drop(waiting);
    assert!(probe.poll(&mut notify.notified()).is_pending());
}

#[test]
fn one_and_then_all_still_counts_as_one() {
    let notify = Notify::new();
    let probe = Probe::new();
    let mut chosen = notify.notified();
    assert!(probe.poll(&mut chosen).is_pending());
    notify.notify_one();
    notify.notify_waiters();
    drop(chosen);
    assert!(probe.poll(&mut notify.notified()).is_ready());
}

#[test]
fn dropped_and_never_polled_waiters_do_not_count() {
    let notify = Notify::new();
    let probe = Probe::new();
    let _unpolled = notify.notified();
    let mut gone = notify.notified();
    assert!(probe.poll(&mut gone).is_pending());
    drop(gone);
    notify.notify_one();
    assert_eq!(probe.wakes(), 0);
    assert!(probe.poll(&mut notify.notified()).is_ready());
}

#[test]
fn an_enabled_waiter_is_in_the_queue_before_it_is_polled() {
    let notify = Notify::new();
    let probe = Probe::new();
    let mut enabled = std::pin::pin!(notify.notified());
    assert!(!enabled.as_mut().enable());
    notify.notify_one();
    assert!(probe.poll(&mut notify.notified()).is_pending());
    assert!(probe.poll(&mut *enabled).is_ready());
}

#[test]
fn every_notification_reaches_one_of_many_threads_that_give_up() {
    const ROUNDS: usize = 3000;
    let notify = Notify::new();
    let received = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let (notify, received, over) = (&notify, &received, &over);
            scope.spawn(move || {
                block_on(async {
                    let mut tries = thread;
                    while !over.load(Ordering::SeqCst) {
                        tries += 1;
                        let mut notified = notify.notified();
                        if !tries.is_multiple_of(3) {
                            // May be chosen between the polls, and before the drop.
                            if poll_once(&mut notified).await.is_none() {
                                std::thread::yield_now();
                                continue;
                            }
                        } else {
                            notified.await;
                        }
                        received.fetch_add(1, Ordering::SeqCst);
                    }
                });
            });
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        for round in 0..ROUNDS {
            notify.notify_one();
            while received.load(Ordering::SeqCst) <= round && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
        let reached = received.load(Ordering::SeqCst);
        over.store(true, Ordering::SeqCst);
        for _ in 0..100 {
            notify.notify_waiters();
            notify.notify_one();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(reached, ROUNDS);
    });
}
