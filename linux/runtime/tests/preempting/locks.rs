//! Tests that a suspended poll which holds a lock makes progress while other polls wait for the
//! lock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use upshift::{Level, time};

use crate::{build, builder, burn, runtime, spin_until};

/// Runs a coroutine of level 40 that computes under a lock, and a coroutine of level 5 that then
/// takes the lock. `with_lock` runs its argument under the lock.
fn run_priority_inversion(with_lock: impl Fn(&dyn Fn()) + Send + Sync + 'static) {
    let Some(runtime) = runtime() else { return };
    let with_lock = Arc::new(with_lock);
    runtime.block_on(async {
        for _ in 0..5 {
            let is_taken = Arc::new(AtomicBool::new(false));
            let (setter, low) = (is_taken.clone(), with_lock.clone());
            let holder = upshift::spawn(
                async move {
                    low(&|| {
                        setter.store(true, Ordering::Relaxed);
                        burn(Duration::from_millis(5));
                    });
                },
                Level::at::<40>(),
            );
            crate::wait_until_set(&is_taken).await;
            let high = with_lock.clone();
            let urgent = upshift::spawn(async move { high(&|| ()) }, Level::at::<5>());
            urgent.await.unwrap();
            holder.await.unwrap();
        }
    });
}

#[test]
fn the_holder_of_a_std_mutex_makes_progress() {
    let mutex = Mutex::new(());
    run_priority_inversion(move |f| {
        let _guard = mutex.lock().unwrap();
        f();
    });
}

#[test]
fn the_holder_of_a_parking_lot_mutex_makes_progress() {
    let mutex = parking_lot::Mutex::new(());
    run_priority_inversion(move |f| {
        let _guard = mutex.lock();
        f();
    });
}

#[test]
fn a_holder_behind_an_endless_loop_makes_progress() {
    let Some(runtime) = runtime() else { return };
    let mutex = Arc::new(Mutex::new(()));
    let stop = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let (lock, is_taken) = (mutex.clone(), Arc::new(AtomicBool::new(false)));
        let setter = is_taken.clone();
        let holder = upshift::spawn(
            async move {
                let _guard = lock.lock().unwrap();
                setter.store(true, Ordering::Relaxed);
                burn(Duration::from_millis(3));
            },
            Level::at::<40>(),
        );
        crate::wait_until_set(&is_taken).await;
        // This poll is suspended after the holder, and precedes the holder among suspended polls.
        let is_set = stop.clone();
        let endless = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
        time::sleep(Duration::from_millis(2)).await;
        let lock = mutex.clone();
        let urgent = upshift::spawn(async move { drop(lock.lock().unwrap()) }, Level::at::<5>());
        urgent.await.unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(
            endless.await.unwrap(),
            "the holder had to wait for the loop"
        );
        holder.await.unwrap();
    });
}

/// Each poll of the urgent coroutine is short, so the runtime cannot observe that the coroutine
/// depends on the holder. The holder must make progress nevertheless.
#[test]
fn the_holder_of_a_lock_that_an_urgent_coroutine_tries_repeatedly_makes_progress() {
    let Some(runtime) = runtime() else { return };
    let mutex = Arc::new(Mutex::new(()));
    runtime.block_on(async {
        for _ in 0..5 {
            let (lock, is_taken) = (mutex.clone(), Arc::new(AtomicBool::new(false)));
            let setter = is_taken.clone();
            let hold = async move {
                let _guard = lock.lock().unwrap();
                setter.store(true, Ordering::Relaxed);
                burn(Duration::from_millis(2));
            };
            let holder = upshift::spawn(hold, Level::at::<40>());
            crate::wait_until_set(&is_taken).await;
            let lock = mutex.clone();
            let tries = async move {
                let began = Instant::now();
                while lock.try_lock().is_err() {
                    assert!(began.elapsed() < crate::LIMIT, "the holder is stuck");
                    upshift::yield_now().await;
                }
            };
            upshift::spawn(tries, Level::at::<5>()).await.unwrap();
            holder.await.unwrap();
        }
    });
}

#[test]
fn polls_that_are_interrupted_in_the_allocator_make_progress() {
    let Some(runtime) = runtime() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let allocating_tasks: Vec<_> = (0..3usize)
            .map(|n| {
                let stop = stop.clone();
                let allocate = async move {
                    let mut blocks: Vec<Vec<u8>> = Vec::new();
                    let began = std::time::Instant::now();
                    while !stop.load(Ordering::Relaxed) && began.elapsed() < crate::LIMIT {
                        blocks.push(vec![n as u8; 1 + blocks.len() * 37 % 9000]);
                        if blocks.len() > 200 {
                            blocks.drain(..100 + n);
                        }
                    }
                    blocks.len()
                };
                upshift::spawn(allocate, Level::at::<40>())
            })
            .collect();
        for round in 0..150usize {
            time::sleep(Duration::from_millis(1)).await;
            let urgent = async move { vec![7u8; 100 + round * 100].len() };
            let length = upshift::spawn(urgent, Level::at::<5>()).await.unwrap();
            assert_eq!(length, 100 + round * 100);
        }
        stop.store(true, Ordering::Relaxed);
        for handle in allocating_tasks {
            assert!(handle.await.unwrap() > 0);
        }
    });
}

#[test]
fn an_upshift_mutex_lends_its_waiters_level_to_a_suspended_holder() {
    let Some(runtime) = runtime() else { return };
    let mutex = Arc::new(upshift::sync::Mutex::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let (lock, is_taken) = (mutex.clone(), Arc::new(AtomicBool::new(false)));
        let setter = is_taken.clone();
        let holder = upshift::spawn(
            async move {
                let mut guard = lock.lock().await;
                setter.store(true, Ordering::Relaxed);
                burn(Duration::from_millis(3));
                *guard += 1;
            },
            Level::at::<40>(),
        );
        crate::wait_until_set(&is_taken).await;
        let is_set = stop.clone();
        let middle = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<36>());
        let lock = mutex.clone();
        let urgent = upshift::spawn(async move { *lock.lock().await }, Level::at::<5>());
        assert_eq!(
            urgent.await.unwrap(),
            1,
            "the holder did not continue before level 36"
        );
        stop.store(true, Ordering::Relaxed);
        assert!(middle.await.unwrap());
        holder.await.unwrap();
    });
}

/// Runs more polls that wait for one lock than there are threads for suspended polls.
fn contend_for_lock(vcpus: usize) {
    let Some(runtime) = build(builder().vcpus(vcpus).max_suspended(4)) else {
        return;
    };
    runtime.block_on(async {
        let lock = Arc::new(Mutex::new(0));
        let tasks: Vec<_> = (0..16_u8)
            .map(|number| {
                let lock = lock.clone();
                let lock_repeatedly = async move {
                    for _ in 0..5 {
                        {
                            let mut held = lock.lock().unwrap();
                            burn(Duration::from_millis(1 + u64::from(number) % 3));
                            *held += 1;
                        }
                        upshift::yield_now().await;
                    }
                };
                upshift::spawn(lock_repeatedly, Level::new(number).unwrap())
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*lock.lock().unwrap(), 16 * 5);
    });
}

#[test]
fn many_polls_share_a_lock_with_few_threads() {
    contend_for_lock(1);
    contend_for_lock(2);
}

/// While every thread holds an unfinished poll, no new poll begins, so the polls end one after the
/// other. If they all took turns instead, all would end at about the same time.
#[test]
fn with_a_poll_on_every_thread_polls_end_one_after_the_other() {
    const POLLS: usize = 12;
    const MILLIS_PER_POLL: usize = 40;
    let Some(runtime) = build(builder().max_suspended(3)) else {
        return;
    };
    runtime.block_on(async {
        // The CPU time of all polls, in ms. Elapsed time would include that of other programs.
        let burned = Arc::new(AtomicUsize::new(0));
        let long = |burned: Arc<AtomicUsize>| async move {
            for _ in 0..MILLIS_PER_POLL {
                crate::cpu::burn(Duration::from_millis(1));
                burned.fetch_add(1, Ordering::Relaxed);
            }
            burned.load(Ordering::Relaxed)
        };
        let polls: Vec<_> = (0..POLLS)
            .map(|_| upshift::spawn(long(burned.clone()), Level::at::<20>()))
            .collect();
        let mut ends = Vec::new();
        for poll in polls {
            ends.push(poll.await.unwrap());
        }
        ends.sort_unstable();
        println!("ends in ms: {ends:?}");
        // The first poll must end within the first half of the CPU time of all polls.
        assert!(
            ends[0] * 2 < POLLS * MILLIS_PER_POLL,
            "ends in ms: {ends:?}"
        );
    });
}
