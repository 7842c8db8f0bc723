//! The semaphore: counting, order, closing, cancellation.

#[path = "support/probe.rs"]
mod probe;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;

use futures_lite::future::{block_on, poll_once};
use upshift::sync::{Semaphore, TryAcquireError};

use probe::Probe;

#[test]
fn permits_are_counted() {
    let semaphore = Semaphore::new(3);
    let two = block_on(semaphore.acquire_many(2)).unwrap();
    assert_eq!(semaphore.available_permits(), 1);
    assert_eq!(
        semaphore.try_acquire_many(2).unwrap_err(),
        TryAcquireError::NoPermits
    );
    let one = semaphore.try_acquire().unwrap();
    let none = block_on(semaphore.acquire_many(0)).unwrap();
    drop((one, two, none));
    assert_eq!(semaphore.available_permits(), 3);
    semaphore.try_acquire_many(3).unwrap().forget();
    assert_eq!(semaphore.available_permits(), 0);
    semaphore.add_permits(Semaphore::MAX_PERMITS);
    assert!(std::panic::catch_unwind(|| semaphore.add_permits(1)).is_err());
    assert_eq!(semaphore.available_permits(), Semaphore::MAX_PERMITS);
}

#[test]
fn a_waiter_for_many_is_not_overtaken_by_its_equals() {
    let semaphore = Semaphore::new(1);
    let (many, few) = (Probe::new(), Probe::new());
    let mut three = semaphore.acquire_many(3);
    let mut one = semaphore.acquire();
    assert!(many.poll(&mut three).is_pending());
    assert!(few.poll(&mut one).is_pending(), "one is free, but promised");
    assert!(semaphore.try_acquire().is_err());
    semaphore.add_permits(1);
    assert_eq!((many.wakes(), few.wakes()), (0, 0));
    semaphore.add_permits(2);
    assert_eq!((many.wakes(), few.wakes()), (1, 1));
    assert!(many.poll(&mut three).is_ready());
    assert!(few.poll(&mut one).is_ready());
}

#[test]
fn one_release_wakes_all_whom_it_suffices() {
    let semaphore = Semaphore::new(0);
    let probe = Probe::new();
    let mut waiting: Vec<_> = (0..10).map(|_| semaphore.acquire_many(2)).collect();
    for acquire in &mut waiting {
        assert!(probe.poll(acquire).is_pending());
    }
    semaphore.add_permits(15);
    assert_eq!(probe.wakes(), 7);
    assert_eq!(semaphore.available_permits(), 1);
}

#[test]
fn a_waiter_that_gives_up_lets_those_behind_it_pass() {
    let semaphore = Semaphore::new(1);
    let probe = Probe::new();
    let mut three = semaphore.acquire_many(3);
    let mut one = semaphore.acquire();
    assert!(Probe::new().poll(&mut three).is_pending());
    assert!(probe.poll(&mut one).is_pending());
    drop(three);
    assert_eq!(probe.wakes(), 1);
    assert!(probe.poll(&mut one).is_ready());
}

#[test]
fn permits_of_a_waiter_that_was_served_and_dropped_come_back() {
    let semaphore = Semaphore::new(0);
    let probe = Probe::new();
    let mut served = semaphore.acquire_many(2);
    let mut next = semaphore.acquire();
    assert!(Probe::new().poll(&mut served).is_pending());
    assert!(probe.poll(&mut next).is_pending());
    semaphore.add_permits(2);
    assert_eq!(probe.wakes(), 0);
    drop(served);
    assert_eq!(probe.wakes(), 1);
    drop(next);
    assert_eq!(semaphore.available_permits(), 2);
}

#[test]
fn closing_ends_all_waits_and_leaves_permits_valid() {
    let semaphore = Arc::new(Semaphore::new(1));
    let held = semaphore.clone().try_acquire_owned().unwrap();
    let probe = Probe::new();
    let mut waiting = semaphore.clone().acquire_owned();
    assert!(probe.poll(&mut waiting).is_pending());
    semaphore.close();
    assert_eq!(probe.wakes(), 1);
    assert!(matches!(probe.poll(&mut waiting), Poll::Ready(Err(_))));
    assert!(block_on(semaphore.acquire()).is_err());
    assert_eq!(
        semaphore.try_acquire().unwrap_err(),
        TryAcquireError::Closed
    );
    assert!(semaphore.is_closed());
    drop(held);
    assert_eq!(semaphore.available_permits(), 1);
}

#[test]
fn permits_handed_out_before_closing_are_kept() {
    let semaphore = Semaphore::new(0);
    let probe = Probe::new();
    let mut waiting = semaphore.acquire();
    assert!(probe.poll(&mut waiting).is_pending());
    semaphore.add_permits(1);
    semaphore.close();
    assert!(matches!(probe.poll(&mut waiting), Poll::Ready(Ok(_))));
}

#[test]
fn many_threads_never_exceed_the_permits_and_none_is_lost() {
    const PERMITS: usize = 5;
    let semaphore = Semaphore::new(PERMITS);
    let inside = AtomicUsize::new(0);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (semaphore, inside, start) = (&semaphore, &inside, &start);
            scope.spawn(move || {
                start.wait();
                block_on(async {
                    for round in 0..3000_usize {
                        let wanted = (round + thread) % PERMITS + 1;
                        let mut acquire = semaphore.acquire_many(wanted as u32);
                        let permit = if round % 3 == 0 {
                            // Gives up at once, or after it may have been served.
                            let first = poll_once(&mut acquire).await;
                            if first.is_none() && round % 2 == 0 {
                                std::thread::yield_now();
                            }
                            first
                        } else {
                            Some(acquire.await)
                        };
                        if let Some(permit) = permit {
                            let permit = permit.unwrap();
                            let now = inside.fetch_add(wanted, Ordering::SeqCst) + wanted;
                            assert!(now <= PERMITS);
                            if round % 16 == 0 {
                                std::thread::yield_now();
                            }
                            inside.fetch_sub(wanted, Ordering::SeqCst);
                            drop(permit);
                        }
                    }
                });
            });
        }
    });
    assert_eq!(semaphore.available_permits(), PERMITS);
}

#[test]
fn threads_wait_for_one_and_for_many_permits_until_the_end() {
    let semaphore = Arc::new(Semaphore::new(0));
    let thread = |wait: fn(Arc<Semaphore>) -> Option<usize>| {
        let semaphore = semaphore.clone();
        std::thread::spawn(move || wait(semaphore))
    };
    let waits: [fn(Arc<Semaphore>) -> Option<usize>; 4] = [
        |of| of.blocking_acquire().ok().map(|got| got.num_permits()),
        |of| {
            of.blocking_acquire_many(3)
                .ok()
                .map(|got| got.num_permits())
        },
        |of| {
            of.blocking_acquire_owned()
                .ok()
                .map(|got| got.num_permits())
        },
        |of| {
            of.blocking_acquire_many_owned(3)
                .ok()
                .map(|got| got.num_permits())
        },
    ];
    let waiting = waits.map(thread);
    semaphore.add_permits(3);
    let got = waiting.map(|thread| thread.join().unwrap());
    assert_eq!(got, [Some(1), Some(3), Some(1), Some(3)]);
    assert_eq!(semaphore.available_permits(), 3);
    semaphore.close();
    assert_eq!(waits.map(|wait| wait(semaphore.clone())), [None; 4]);
    // They would stop their vCPU.
    upshift::Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            for wait in waits {
                let semaphore = semaphore.clone();
                assert!(
                    upshift::task::spawn(async move { wait(semaphore) })
                        .await
                        .is_err()
                );
            }
        });
}
