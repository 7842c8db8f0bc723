//! Tests of mutexes that runtimes and threads share. A waiter must lend its level to the holder, to
//! no other coroutine, and only while the holder has the mutex.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use upshift::sync::{Mutex, MutexGuard};
use upshift::{Level, Runtime, current_level, spawn, time};

fn runtime() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

/// Sleeps for 20 ms, so that all other coroutines run.
async fn pause() {
    time::sleep(Duration::from_millis(20)).await;
}

/// Returns the level of a holder of level 40 while a coroutine of level 1 waits for the mutex in
/// this runtime.
async fn level_of_holder(mutex: Arc<Mutex<()>>) -> Level {
    let (locked_sender, locked_receiver) = upshift::sync::oneshot::channel();
    let shared = mutex.clone();
    let holder = spawn(
        async move {
            let guard = shared.lock().await;
            let _ = locked_sender.send(());
            pause().await;
            let level = current_level().unwrap();
            drop(guard);
            level
        },
        Level::at::<40>(),
    );
    locked_receiver.await.unwrap();
    let waiter = spawn(async move { drop(mutex.lock().await) }, Level::at::<1>());
    waiter.await.unwrap();
    holder.await.unwrap()
}

#[test]
fn a_coroutine_with_the_holders_id_in_another_runtime_is_not_raised() {
    let mutex = Arc::new(Mutex::new(()));
    let (held_sender, held_receiver) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let (shared, stopped) = (mutex.clone(), stop.clone());
    let other = std::thread::spawn(move || {
        runtime().block_on(async move {
            let holder = async move {
                let guard = shared.lock().await;
                held_sender.send(()).unwrap();
                while !stopped.load(Ordering::Relaxed) {
                    time::sleep(Duration::from_millis(1)).await;
                }
                drop(guard);
            };
            spawn(holder, Level::at::<40>()).await.unwrap();
        });
    });
    held_receiver.recv().unwrap();
    runtime().block_on(async {
        // One of these coroutines has the same id as the holder.
        let bystanders: Vec<_> = (0..8)
            .map(|_| {
                let stop = stop.clone();
                let bystander = async move {
                    let mut most_urgent = current_level().unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        time::sleep(Duration::from_millis(1)).await;
                        most_urgent = most_urgent.min(current_level().unwrap());
                    }
                    most_urgent
                };
                spawn(bystander, Level::at::<60>())
            })
            .collect();
        let urgent = spawn(async move { drop(mutex.lock().await) }, Level::at::<1>());
        pause().await;
        stop.store(true, Ordering::Relaxed);
        urgent.await.unwrap();
        for bystander in bystanders {
            // A join lends, too.
            while !bystander.is_finished() {
                pause().await;
            }
            assert_eq!(bystander.await.unwrap(), Level::at::<60>());
        }
    });
    other.join().unwrap();
}

#[test]
fn a_mutex_that_outlives_its_runtime_lends_in_the_next() {
    let mutex = Arc::new(Mutex::new(()));
    for _ in 0..3 {
        let mutex = mutex.clone();
        assert_eq!(runtime().block_on(level_of_holder(mutex)), Level::at::<1>());
    }
}

#[test]
fn a_guard_dropped_on_another_thread_ends_the_loan() {
    let mutex: &'static Mutex<()> = Box::leak(Box::new(Mutex::new(())));
    runtime().block_on(async {
        let (guard_sender, guard_receiver) =
            upshift::sync::oneshot::channel::<MutexGuard<'static, ()>>();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let holder = async move {
            let _ = guard_sender.send(mutex.lock().await);
            while !stopped.load(Ordering::Relaxed) {
                pause().await;
            }
            current_level().unwrap()
        };
        let holder = spawn(holder, Level::at::<40>());
        let guard = guard_receiver.await.unwrap();
        let waiter = spawn(async move { drop(mutex.lock().await) }, Level::at::<1>());
        pause().await;
        std::thread::spawn(move || drop(guard)).join().unwrap();
        waiter.await.unwrap();
        stop.store(true, Ordering::Relaxed);
        // A join lends, too.
        while !holder.is_finished() {
            pause().await;
        }
        assert_eq!(holder.await.unwrap(), Level::at::<40>());
    });
}

#[test]
fn a_coroutine_that_holds_hundreds_of_locks_keeps_its_loan_until_the_last() {
    runtime().block_on(async {
        let mutexes: Arc<Vec<Mutex<()>>> = Arc::new((0..400).map(|_| Mutex::new(())).collect());
        let (shared, (locked_sender, locked_receiver)) =
            (mutexes.clone(), upshift::sync::oneshot::channel());
        let holder = async move {
            let mut guards = Vec::new();
            for mutex in shared.iter() {
                guards.push(mutex.lock().await);
            }
            let _ = locked_sender.send(());
            pause().await;
            // Only the mutex with the waiter stays locked.
            guards.drain(1..);
            let level_with_loan = current_level().unwrap();
            drop(guards);
            (level_with_loan, current_level().unwrap())
        };
        let holder = spawn(holder, Level::at::<40>());
        locked_receiver.await.unwrap();
        let waiter = spawn(
            async move { drop(mutexes[0].lock().await) },
            Level::at::<1>(),
        );
        waiter.await.unwrap();
        while !holder.is_finished() {
            pause().await;
        }
        assert_eq!(holder.await.unwrap(), (Level::at::<1>(), Level::at::<40>()));
    });
}
