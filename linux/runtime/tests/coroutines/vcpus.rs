//! The vCPU or thread that does the work.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upshift::{Priority, yield_now};

use super::{LESS_URGENT, MIDDLE, burn, one, two};

#[test]
fn spawn_local_stays_on_its_thread_and_need_not_be_send() {
    two().block_on(async {
        let shared = Rc::new(Cell::new(0));
        let here = std::thread::current().id();
        let mut handles = Vec::new();
        for _ in 0..50 {
            let shared = shared.clone();
            handles.push(upshift::spawn_local(
                async move {
                    for _ in 0..20 {
                        assert_eq!(std::thread::current().id(), here);
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
    two().block_on(async {
        // This poll lasts until the other coroutine has run, so only the other vCPU can run it.
        let has_run = Arc::new(AtomicBool::new(false));
        let runs = has_run.clone();
        let other = upshift::spawn(
            async move { runs.store(true, Ordering::Release) },
            Priority::Inherit,
        );
        let began = Instant::now();
        while !has_run.load(Ordering::Acquire) {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing moved");
            std::thread::yield_now();
        }
        other.await.unwrap();
    });
}

#[test]
fn vcpus_come_and_go() {
    one().block_on(async {
        let handle = upshift::Handle::current().unwrap();
        assert!(upshift::release_cpu().is_err(), "the last vCPU stays");
        for _ in 0..5 {
            upshift::alloc_cpu().unwrap();
            assert_eq!(handle.vcpus(), 2);
            let work: Vec<_> = (0..200)
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
            for work in work {
                sum += work.await.unwrap();
            }
            assert_eq!(sum, 199 * 200 / 2);
            while handle.vcpus() != 1 {
                yield_now().await;
            }
        }
    });
}

#[test]
fn blocking_functions_run_beside_the_coroutines() {
    one().block_on(async {
        let blocking = upshift::spawn_blocking(|| {
            std::thread::sleep(Duration::from_millis(20));
            std::thread::current().id()
        });
        assert_ne!(blocking.await.unwrap(), std::thread::current().id());
        let broken = upshift::spawn_blocking(|| panic!("in a thread"));
        assert!(broken.await.unwrap_err().is_panic());
    });
}

#[test]
fn a_blocking_function_does_not_wait_for_another_while_threads_may_be_started() {
    one().block_on(async {
        // Leaves a thread idle, on which all of the following functions might count.
        upshift::spawn_blocking(|| ()).await.unwrap();
        let runtime = upshift::Handle::current().unwrap();
        while runtime.metrics().blocking.idle != 1 {
            upshift::time::sleep(Duration::from_millis(1)).await;
        }
        let here = Arc::new(AtomicUsize::new(0));
        let meet = || {
            let here = here.clone();
            upshift::spawn_blocking(move || {
                here.fetch_add(1, Ordering::SeqCst);
                let limit = Instant::now() + Duration::from_secs(20);
                while here.load(Ordering::SeqCst) < 4 && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(1));
                }
                here.load(Ordering::SeqCst)
            })
        };
        for meeting in [meet(), meet(), meet(), meet()] {
            assert_eq!(meeting.await.unwrap(), 4);
        }
    });
}

#[test]
fn wakes_from_other_threads_reach_a_parked_vcpu() {
    let runtime = one();
    let handle = runtime.handle();
    let rounds = 200;
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    runtime.block_on(async move {
        let me = upshift::get_cid().unwrap();
        let thread = std::thread::spawn(move || {
            for round in 0..rounds {
                while seen.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
                handle.wake(me).unwrap();
            }
        });
        for _ in 0..rounds {
            // Pending once, until a wake.
            let mut waited = false;
            std::future::poll_fn(|_| {
                if std::mem::replace(&mut waited, true) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
            count.fetch_add(1, Ordering::Release);
        }
        thread.join().unwrap();
    });
}

#[test]
fn the_counters_count() {
    let runtime = one();
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
    assert_eq!(stats.polls(), 11);
    assert!(stats.run_time() >= Duration::from_millis(1), "{stats:?}");
    assert_eq!(handle.level_stats(LESS_URGENT).polls(), 0);
}

#[test]
fn timers_of_a_released_vcpu_still_fire() {
    one().block_on(async {
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
