//! The mutex: exclusion, order, hand-over, cancellation. Outside a runtime, where
//! every waiter has the default level.

#[path = "support/probe.rs"]
mod probe;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;

use futures_lite::future::{block_on, poll_once};
use upshift::sync::Mutex;

use probe::Probe;

#[test]
fn a_free_mutex_is_taken_at_once_and_freed_by_the_guard() {
    let mutex = Mutex::new(1);
    let mut guard = block_on(mutex.lock());
    *guard += 1;
    assert!(mutex.try_lock().is_err());
    assert_eq!(format!("{mutex:?}"), "Mutex { data: <locked> }");
    drop(guard);
    assert_eq!(*mutex.try_lock().unwrap(), 2);
    assert_eq!(format!("{mutex:?}"), "Mutex { data: 2 }");
    assert_eq!(mutex.into_inner(), 2);
}

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
    // Handed over, although the first has not run yet.
    assert!(mutex.try_lock().is_err());
    assert!(Probe::new().poll(&mut mutex.lock()).is_pending());
    assert!(second_probe.poll(&mut second).is_pending());
    let Poll::Ready(guard) = first_probe.poll(&mut first) else {
        panic!("it was handed over");
    };
    drop(guard);
    assert_eq!(second_probe.wakes(), 1);
    assert!(second_probe.poll(&mut second).is_ready());
    assert!(mutex.try_lock().is_ok());
}

#[test]
fn a_waiter_that_is_dropped_leaves_no_trace() {
    let mutex = Mutex::new(());
    let probe = Probe::new();
    let guard = mutex.try_lock().unwrap();
    let mut gone = mutex.lock();
    let mut next = mutex.lock();
    assert!(Probe::new().poll(&mut gone).is_pending());
    assert!(probe.poll(&mut next).is_pending());
    drop(gone);
    drop(guard);
    assert_eq!(probe.wakes(), 1);
    assert!(probe.poll(&mut next).is_ready());
    assert!(mutex.try_lock().is_ok());
}

#[test]
fn a_waiter_that_was_handed_the_lock_and_is_dropped_passes_it_on() {
    let mutex = Mutex::new(());
    let probe = Probe::new();
    let guard = mutex.try_lock().unwrap();
    let mut chosen = mutex.lock();
    let mut next = mutex.lock();
    assert!(Probe::new().poll(&mut chosen).is_pending());
    assert!(probe.poll(&mut next).is_pending());
    drop(guard);
    assert_eq!(probe.wakes(), 0);
    drop(chosen);
    assert_eq!(probe.wakes(), 1);
    drop(next);
    assert!(mutex.try_lock().is_ok(), "the last one frees it");
}

#[test]
fn a_future_that_was_never_polled_takes_part_in_nothing() {
    let mutex = Mutex::new(());
    let guard = mutex.try_lock().unwrap();
    let unpolled = mutex.lock();
    drop(guard);
    assert!(mutex.try_lock().is_ok());
    drop(unpolled);
}

#[test]
fn the_last_waker_is_the_one_that_is_woken() {
    let mutex = Mutex::new(());
    let (old, new) = (Probe::new(), Probe::new());
    let guard = mutex.try_lock().unwrap();
    let mut waiting = mutex.lock();
    assert!(old.poll(&mut waiting).is_pending());
    assert!(new.poll(&mut waiting).is_pending());
    drop(guard);
    assert_eq!((old.wakes(), new.wakes()), (0, 1));
    assert!(new.poll(&mut waiting).is_ready());
    assert_eq!(Arc::strong_count(&old), 1, "no waker is left behind");
}

#[test]
fn a_panic_gives_the_lock_back_and_poisons_nothing() {
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
fn it_may_hold_what_has_no_size() {
    let mutex: Box<Mutex<[u8]>> = Box::new(Mutex::new([1, 2, 3]));
    block_on(mutex.lock())[1] = 7;
    assert_eq!(*mutex.try_lock().unwrap(), [1, 7, 3]);
}

#[test]
fn many_threads_exclude_each_other_and_lose_no_wake() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 3000;
    let mutex = Mutex::new(0);
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mutex, inside) = (&mutex, &inside);
            scope.spawn(move || {
                block_on(async {
                    for round in 0..ROUNDS {
                        let mut guard = mutex.lock().await;
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        *guard += 1;
                        if (round + thread) % 64 == 0 {
                            std::thread::yield_now();
                        }
                        inside.store(false, Ordering::SeqCst);
                    }
                });
            });
        }
    });
    assert_eq!(mutex.into_inner(), THREADS * ROUNDS);
}

#[test]
fn many_threads_that_give_up_at_any_moment_lose_no_lock() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 5000;
    let mutex = Mutex::new(0_usize);
    let taken = AtomicUsize::new(0);
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mutex, taken, start) = (&mutex, &taken, &start);
            scope.spawn(move || {
                start.wait();
                block_on(async {
                    for round in 0..ROUNDS {
                        let mut lock = mutex.lock();
                        let mut guard = poll_once(&mut lock).await;
                        for _ in 0..(round * 7 + thread) % 3 {
                            if guard.is_none() {
                                std::thread::yield_now();
                                guard = poll_once(&mut lock).await;
                            }
                        }
                        if let Some(mut guard) = guard {
                            *guard += 1;
                            if round % 16 == 0 {
                                std::thread::yield_now();
                            }
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                        // Here `lock` may be waiting, or have been handed the lock.
                    }
                });
            });
        }
    });
    assert_eq!(
        *mutex.try_lock().expect("free in the end"),
        taken.into_inner()
    );
}

#[test]
fn its_parts_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    fn moves<T: Send>() {}
    crosses::<Mutex<u32>>();
    crosses::<upshift::sync::MutexGuard<'static, u32>>();
    moves::<upshift::sync::Locking<'static, u32>>();
    // `Cell` is `Send` but not `Sync`: so is its guard.
    crosses::<Mutex<std::cell::Cell<u32>>>();
    moves::<upshift::sync::MutexGuard<'static, std::cell::Cell<u32>>>();
}
