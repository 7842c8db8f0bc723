//! Operations on a suspended coroutine, and on its runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use upshift::{JoinHandle, Level, State, time};

use crate::{Alone, burn, runtime, spin_until};

/// Starts a coroutine of level 40 that spins until the flag is set, and is suspended.
async fn suspended(runtime: &Alone, flag: &Arc<AtomicBool>) -> JoinHandle<bool> {
    let seen = flag.clone();
    let long = upshift::spawn(async move { spin_until(&seen) }, Level::at::<40>());
    until_suspended(runtime, &long).await;
    long
}

/// Gives a spinning coroutine the time to be suspended, from the main coroutine, which is more
/// urgent.
async fn until_suspended<T>(runtime: &Alone, long: &JoinHandle<T>) {
    let began = Instant::now();
    loop {
        time::sleep(Duration::from_millis(1)).await;
        match runtime.handle().state(long.id()) {
            State::Suspended => return,
            other => assert!(
                began.elapsed() < crate::LIMIT / 2,
                "the coroutine is not suspended: {other:?}"
            ),
        }
    }
}

#[test]
fn a_suspended_coroutine_shows_as_such() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let long = suspended(&runtime, &flag).await;
        assert_eq!(runtime.handle().preemption_stats().suspended, 1);
        flag.store(true, Ordering::Relaxed);
        assert!(long.await.unwrap());
        assert_eq!(runtime.handle().preemption_stats().suspended, 0);
    });
}

#[test]
fn a_suspension_and_its_end_are_recorded() {
    use upshift::trace::{EventKind, Step};
    let Some(runtime) = runtime() else { return };
    let trace = runtime.handle().trace();
    trace.start(1 << 14).unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    let id = runtime.block_on(async {
        let long = suspended(&runtime, &flag).await;
        let id = long.id();
        flag.store(true, Ordering::Relaxed);
        assert!(long.await.unwrap());
        id
    });
    trace.stop();
    let timeline = trace.snapshot();
    let of_it = timeline.events.iter().filter_map(|event| match event.kind {
        EventKind::Coroutine(step, coroutine) if coroutine.id == id => Some((step, coroutine.by)),
        _ => None,
    });
    let of_it: Vec<_> = of_it.collect();
    let suspensions = of_it.iter().filter(|(step, _)| *step == Step::Suspended);
    assert!(suspensions.count() > 0, "{of_it:?}");
    for pair in of_it.windows(2) {
        if pair[0].0 == Step::Suspended {
            // Suspended by the watcher's thread, and resumed by a thread that serves.
            assert_eq!(pair[0].1, None);
            assert_eq!(pair[1], (Step::Resumed, Some(0)), "{of_it:?}");
        }
    }
    assert_eq!(of_it.last().map(|last| last.0), Some(Step::Exited));
}

#[test]
fn reprio_of_a_suspended_coroutine_decides_when_it_goes_on() {
    let Some(runtime) = runtime() else { return };
    let (flag, between) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    runtime.block_on(async {
        let long = suspended(&runtime, &flag).await;
        // A coroutine of level 36 that would keep the CPU from level 40.
        let (ran, stop) = (between.clone(), flag.clone());
        let busy = upshift::spawn(
            async move {
                ran.store(true, Ordering::Relaxed);
                spin_until(&stop)
            },
            Level::at::<36>(),
        );
        crate::reached(&between).await;
        // More urgent than that coroutine: it is resumed, and ends the other one by the flag.
        let setter = flag.clone();
        upshift::reprio(long.id(), Level::at::<34>()).unwrap();
        upshift::spawn(
            async move { setter.store(true, Ordering::Relaxed) },
            Level::at::<34>(),
        )
        .await
        .unwrap();
        assert!(long.await.unwrap());
        assert!(busy.await.unwrap());
    });
}

#[test]
fn cancel_of_a_suspended_coroutine_takes_effect_after_its_poll() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    let (seen, reached) = (flag.clone(), Arc::new(AtomicBool::new(false)));
    let after = reached.clone();
    runtime.block_on(async {
        let long = upshift::spawn(
            async move {
                assert!(spin_until(&seen));
                after.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            },
            Level::at::<40>(),
        );
        until_suspended(&runtime, &long).await;
        long.cancel();
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(runtime.handle().state(long.id()), State::Suspended);
        flag.store(true, Ordering::Relaxed);
        assert!(long.await.unwrap_err().is_cancelled());
    });
    assert!(reached.load(Ordering::Relaxed), "its poll was finished");
}

#[test]
fn a_panic_in_a_resumed_poll_ends_the_coroutine_only() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let seen = flag.clone();
        let long = upshift::spawn(
            async move {
                assert!(spin_until(&seen));
                panic!("after it was resumed");
            },
            Level::at::<40>(),
        );
        until_suspended(&runtime, &long).await;
        flag.store(true, Ordering::Relaxed);
        let error = long.await.unwrap_err();
        assert!(error.is_panic());
        // The vCPU on which it happened goes on serving.
        for _ in 0..20 {
            upshift::spawn(
                async { burn(Duration::from_micros(500)) },
                Level::at::<40>(),
            )
            .await
            .unwrap();
        }
    });
}

#[test]
fn requests_of_a_suspended_poll_to_the_runtime_wait_for_its_turn() {
    let Some(runtime) = runtime() else { return };
    let (stop, spawned) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    runtime.block_on(async {
        let (seen, count) = (stop.clone(), spawned.clone());
        // Spawns, wakes and asks for its id as fast as it can, and is interrupted every
        // millisecond.
        let busy = upshift::spawn(
            async move {
                let me = upshift::get_cid();
                let began = Instant::now();
                while !seen.load(Ordering::Relaxed) && began.elapsed() < crate::LIMIT {
                    let count = count.clone();
                    let one = async move {
                        count.fetch_add(1, Ordering::Relaxed);
                    };
                    upshift::spawn(one, Level::at::<41>()).detach();
                    assert_eq!(upshift::get_cid(), me);
                    // The coroutine's own level, or the one that `join` below lends.
                    let level = upshift::current_level();
                    assert!(
                        [Level::at::<40>(), Level::DEFAULT]
                            .map(Some)
                            .contains(&level)
                    );
                    if spawned_enough(began) {
                        upshift::yield_now().await;
                    }
                }
            },
            Level::at::<40>(),
        );
        for _ in 0..200 {
            time::sleep(Duration::from_millis(1)).await;
        }
        stop.store(true, Ordering::Relaxed);
        busy.await.unwrap();
        // The children are less urgent than everything else here.
        let began = Instant::now();
        while spawned.load(Ordering::Relaxed) == 0 {
            assert!(began.elapsed() < crate::LIMIT);
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Limits the number of living coroutines.
fn spawned_enough(began: Instant) -> bool {
    began.elapsed().as_micros().is_multiple_of(64)
}

/// Returns whether a poll of some milliseconds is interrupted by an equal.
fn is_interrupted(runtime: &Alone, guarded: bool) -> bool {
    let ran = Arc::new(AtomicBool::new(false));
    let (set, seen) = (ran.clone(), ran.clone());
    runtime.block_on(async move {
        let long = upshift::spawn(
            async move {
                let work = || {
                    upshift::spawn(
                        async move { set.store(true, Ordering::Relaxed) },
                        Level::at::<20>(),
                    )
                    .detach();
                    burn(Duration::from_millis(5));
                    seen.load(Ordering::Relaxed)
                };
                if guarded {
                    upshift::no_suspend(work)
                } else {
                    work()
                }
            },
            Level::at::<20>(),
        );
        long.await.unwrap()
    })
}

#[test]
fn a_poll_is_not_suspended_while_it_forbids_it() {
    let Some(runtime) = runtime() else { return };
    assert!((0..20).any(|_| is_interrupted(&runtime, false)));
    for _ in 0..20 {
        assert!(!is_interrupted(&runtime, true));
    }
}

#[test]
fn a_runtime_shuts_down_with_polls_suspended() {
    let Some(runtime) = runtime() else { return };
    let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    runtime.block_on(async {
        for attempt in 1.. {
            for _ in 0..3 {
                let (begun, ended) = (begun.clone(), ended.clone());
                let long = async move {
                    // A coroutine that has not begun is cancelled.
                    begun.fetch_add(1, Ordering::Relaxed);
                    burn(Duration::from_millis(40));
                    ended.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                };
                upshift::spawn(long, Level::at::<40>()).detach();
            }
            time::sleep(Duration::from_millis(5)).await;
            // After a standstill of the machine they may have ended already.
            if runtime.handle().preemption_stats().suspended > 0 {
                return;
            }
            assert!(attempt < 20, "no poll is suspended");
        }
    });
    drop(runtime);
    let [ended, begun] = [ended, begun].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(ended, begun, "polls are finished");
}

#[test]
fn vcpus_come_and_go() {
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async {
        let index = upshift::alloc_cpu().unwrap();
        assert_eq!(runtime.handle().preemption_stats().vcpus, 2);
        let handles: Vec<_> = (0..64)
            .map(|_| upshift::spawn(async { burn(Duration::from_millis(1)) }, Level::at::<40>()))
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(upshift::release_cpu().unwrap(), index);
        let after = upshift::spawn(async { 7 }, Level::at::<40>());
        assert_eq!(after.await.unwrap(), 7);
    });
}
