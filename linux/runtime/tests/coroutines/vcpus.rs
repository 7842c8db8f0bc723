//! Tests of the vCPUs and threads on which coroutines and blocking functions run.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upshift::{Priority, yield_now};

use super::{LESS_URGENT, MIDDLE, burn, runtime_with_one_vcpu, runtime_with_two_vcpus};

#[test]
fn a_spawn_local_coroutine_stays_on_its_thread_and_need_not_be_send() {
    runtime_with_two_vcpus().block_on(async {
        let shared = Rc::new(Cell::new(0));
        let thread = std::thread::current().id();
        let mut handles = Vec::new();
        for _ in 0..50 {
            let shared = shared.clone();
            handles.push(upshift::spawn_local(
                async move {
                    for _ in 0..20 {
                        assert_eq!(std::thread::current().id(), thread);
                        shared.set(shared.get() + 1);
                        yield_now().await;
                    }
                },
                Priority::Inherit,
            ));
        }
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(shared.get(), 1000);
    });
}

#[test]
fn work_moves_to_an_idle_vcpu() {
    runtime_with_two_vcpus().block_on(async {
        // This poll lasts until the other coroutine has run, so only the other vCPU can poll that
        // coroutine.
        let has_run = Arc::new(AtomicBool::new(false));
        let setter = has_run.clone();
        let other = upshift::spawn(
            async move { setter.store(true, Ordering::Release) },
            Priority::Inherit,
        );
        let began = Instant::now();
        while !has_run.load(Ordering::Acquire) {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the other vCPU did not steal the coroutine"
            );
            std::thread::yield_now();
        }
        other.await.unwrap();
    });
}

#[test]
fn vcpus_are_added_and_released_while_coroutines_run() {
    runtime_with_one_vcpu().block_on(async {
        let runtime = upshift::Handle::current().unwrap();
        assert!(
            upshift::release_cpu().is_err(),
            "the last vCPU was released"
        );
        for _ in 0..5 {
            upshift::alloc_cpu().unwrap();
            assert_eq!(runtime.vcpus(), 2);
            let handles: Vec<_> = (0..200)
                .map(|n| {
                    upshift::spawn(
                        async move {
                            for _ in 0..10 {
                                yield_now().await;
                            }
                            n
                        },
                        Priority::Inherit,
                    )
                })
                .collect();
            upshift::release_cpu().unwrap();
            let mut sum = 0;
            for handle in handles {
                sum += handle.await.unwrap();
            }
            assert_eq!(sum, 199 * 200 / 2);
            while runtime.vcpus() != 1 {
                yield_now().await;
            }
        }
    });
}

#[test]
fn blocking_functions_run_on_other_threads() {
    runtime_with_one_vcpu().block_on(async {
        let blocking = upshift::spawn_blocking(|| {
            std::thread::sleep(Duration::from_millis(20));
            std::thread::current().id()
        });
        assert_ne!(blocking.await.unwrap(), std::thread::current().id());
        let panicking = upshift::spawn_blocking(|| panic!("in a thread"));
        assert!(panicking.await.unwrap_err().is_panic());
    });
}

#[test]
fn a_blocking_function_does_not_wait_for_another_while_threads_may_be_started() {
    runtime_with_one_vcpu().block_on(async {
        // One thread is idle. A runtime that relied on that thread would start too few threads for
        // the functions below.
        upshift::spawn_blocking(|| ()).await.unwrap();
        let runtime = upshift::Handle::current().unwrap();
        while runtime.metrics().blocking.idle != 1 {
            upshift::time::sleep(Duration::from_millis(1)).await;
        }
        let arrived = Arc::new(AtomicUsize::new(0));
        let meet = || {
            let arrived = arrived.clone();
            upshift::spawn_blocking(move || {
                arrived.fetch_add(1, Ordering::SeqCst);
                let limit = Instant::now() + Duration::from_secs(20);
                while arrived.load(Ordering::SeqCst) < 4 && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(1));
                }
                arrived.load(Ordering::SeqCst)
            })
        };
        for meeting in [meet(), meet(), meet(), meet()] {
            assert_eq!(meeting.await.unwrap(), 4);
        }
    });
}

#[test]
fn wakes_from_other_threads_reach_a_parked_vcpu() {
    let runtime = runtime_with_one_vcpu();
    let handle = runtime.handle();
    let rounds = 200;
    let finished_rounds = Arc::new(AtomicUsize::new(0));
    let round_counter = finished_rounds.clone();
    runtime.block_on(async move {
        let id = upshift::get_cid().unwrap();
        let thread = std::thread::spawn(move || {
            for round in 0..rounds {
                while finished_rounds.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
                handle.wake(id).unwrap();
            }
        });
        for _ in 0..rounds {
            // The future is pending at its first poll, and ready at the second, after the wake.
            let mut waited = false;
            std::future::poll_fn(|_| {
                if std::mem::replace(&mut waited, true) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
            round_counter.fetch_add(1, Ordering::Release);
        }
        thread.join().unwrap();
    });
}

#[test]
fn level_stats_count_polls_and_run_time() {
    let runtime = runtime_with_one_vcpu();
    let handle = runtime.handle();
    runtime.block_on(async {
        upshift::spawn(
            async {
                for _ in 0..10 {
                    burn(Duration::from_micros(200));
                    yield_now().await;
                }
            },
            MIDDLE,
        )
        .await
        .unwrap();
    });
    let stats = handle.level_stats(MIDDLE);
    // Ten polls end with a yield, and one with the end of the coroutine. The ten polls take 2 ms;
    // the bound leaves a margin.
    assert_eq!(stats.polls(), 11);
    assert!(stats.run_time() >= Duration::from_millis(1), "{stats:?}");
    assert_eq!(handle.level_stats(LESS_URGENT).polls(), 0);
}

#[test]
fn timers_of_a_released_vcpu_still_fire() {
    runtime_with_one_vcpu().block_on(async {
        upshift::alloc_cpu().unwrap();
        let sleepers: Vec<_> = (0..100)
            .map(|_| {
                upshift::spawn(
                    async {
                        burn(Duration::from_micros(100));
                        upshift::time::sleep(Duration::from_millis(20)).await;
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        upshift::time::sleep(Duration::from_millis(10)).await;
        upshift::release_cpu().unwrap();
        for sleeper in sleepers {
            sleeper.await.unwrap();
        }
    });
}
