//! Mutexes shared by runtimes and threads: levels are lent to the holder only, and only while it
//! holds the mutex.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use upshift::sync::{Mutex, MutexGuard};
use upshift::{Level, Runtime, current_level, spawn, time};

fn runtime() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

/// Lets everything else run for a while.
async fn a_while() {
    time::sleep(Duration::from_millis(20)).await;
}

/// Returns the level that a waiter of level 1 lends to a holder of level 40 on this runtime.
async fn lent(mutex: Arc<Mutex<()>>) -> Level {
    let (tell, told) = upshift::sync::oneshot::channel();
    let theirs = mutex.clone();
    let holder = spawn(
        async move {
            let guard = theirs.lock().await;
            let _ = tell.send(());
            a_while().await;
            let level = current_level().unwrap();
            drop(guard);
            level
        },
        Level::at::<40>(),
    );
    told.await.unwrap();
    let waiter = spawn(async move { drop(mutex.lock().await) }, Level::at::<1>());
    waiter.await.unwrap();
    holder.await.unwrap()
}

#[test]
fn a_stranger_of_the_same_id_in_another_runtime_is_not_raised() {
    let mutex = Arc::new(Mutex::new(()));
    let (held, is_held) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    let (theirs, until) = (mutex.clone(), over.clone());
    let other = std::thread::spawn(move || {
        runtime().block_on(async move {
            let holder = async move {
                let guard = theirs.lock().await;
                held.send(()).unwrap();
                while !until.load(Ordering::Relaxed) {
                    time::sleep(Duration::from_millis(1)).await;
                }
                drop(guard);
            };
            spawn(holder, Level::at::<40>()).await.unwrap();
        });
    });
    is_held.recv().unwrap();
    runtime().block_on(async {
        // One of them has the holder's slot and generation.
        let bystanders: Vec<_> = (0..8)
            .map(|_| {
                let over = over.clone();
                let bystander = async move {
                    let mut most_urgent = current_level().unwrap();
                    while !over.load(Ordering::Relaxed) {
                        time::sleep(Duration::from_millis(1)).await;
                        most_urgent = most_urgent.min(current_level().unwrap());
                    }
                    most_urgent
                };
                spawn(bystander, Level::at::<60>())
            })
            .collect();
        let urgent = spawn(async move { drop(mutex.lock().await) }, Level::at::<1>());
        a_while().await;
        over.store(true, Ordering::Relaxed);
        urgent.await.unwrap();
        for bystander in bystanders {
            // Awaiting lends too.
            while !bystander.is_finished() {
                a_while().await;
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
        assert_eq!(runtime().block_on(lent(mutex)), Level::at::<1>());
    }
}

#[test]
fn a_guard_dropped_on_a_thread_of_its_own_ends_the_loan() {
    let mutex: &'static Mutex<()> = Box::leak(Box::new(Mutex::new(())));
    runtime().block_on(async {
        let (give, take) = upshift::sync::oneshot::channel::<MutexGuard<'static, ()>>();
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let holder = async move {
            let _ = give.send(mutex.lock().await);
            while !until.load(Ordering::Relaxed) {
                a_while().await;
            }
            current_level().unwrap()
        };
        let holder = spawn(holder, Level::at::<40>());
        let guard = take.await.unwrap();
        let waiter = spawn(async move { drop(mutex.lock().await) }, Level::at::<1>());
        a_while().await;
        std::thread::spawn(move || drop(guard)).join().unwrap();
        waiter.await.unwrap();
        over.store(true, Ordering::Relaxed);
        // Awaiting lends too.
        while !holder.is_finished() {
            a_while().await;
        }
        assert_eq!(holder.await.unwrap(), Level::at::<40>());
    });
}

#[test]
fn a_coroutine_that_holds_hundreds_of_locks_keeps_its_loan_until_the_last() {
    runtime().block_on(async {
        let many: Arc<Vec<Mutex<()>>> = Arc::new((0..400).map(|_| Mutex::new(())).collect());
        let (theirs, (tell, told)) = (many.clone(), upshift::sync::oneshot::channel());
        let holder = async move {
            let mut guards = Vec::new();
            for mutex in theirs.iter() {
                guards.push(mutex.lock().await);
            }
            let _ = tell.send(());
            a_while().await;
            // All but the last, which is waited for.
            guards.drain(1..);
            let before = current_level().unwrap();
            drop(guards);
            (before, current_level().unwrap())
        };
        let holder = spawn(holder, Level::at::<40>());
        told.await.unwrap();
        let waiter = spawn(async move { drop(many[0].lock().await) }, Level::at::<1>());
        waiter.await.unwrap();
        while !holder.is_finished() {
            a_while().await;
        }
        assert_eq!(holder.await.unwrap(), (Level::at::<1>(), Level::at::<40>()));
    });
}
