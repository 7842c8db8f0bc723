//! Tests of suspended coroutines: their state, changes of their level, cancellation, panics, and
//! the end of their runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use upshift::{JoinHandle, Level, State, time};

use crate::{ExclusiveRuntime, burn, runtime, spin_until};

/// Starts a coroutine of level 40 that spins until the flag is set, and waits until it is
/// suspended.
async fn start_suspended(runtime: &ExclusiveRuntime, flag: &Arc<AtomicBool>) -> JoinHandle<bool> {
    let is_set = flag.clone();
    let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
    wait_until_suspended(runtime, &long).await;
    long
}

/// Sleeps until the spinning coroutine is suspended. The caller must be more urgent.
async fn wait_until_suspended<T>(runtime: &ExclusiveRuntime, long: &JoinHandle<T>) {
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
fn the_state_of_a_suspended_coroutine_is_suspended() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let long = start_suspended(&runtime, &flag).await;
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
        let long = start_suspended(&runtime, &flag).await;
        let id = long.id();
        flag.store(true, Ordering::Relaxed);
        assert!(long.await.unwrap());
        id
    });
    trace.stop();
    let timeline = trace.snapshot();
    let steps = timeline.events.iter().filter_map(|event| match event.kind {
        EventKind::Coroutine(step, coroutine) if coroutine.id == id => Some((step, coroutine.by)),
        _ => None,
    });
    let steps: Vec<_> = steps.collect();
    let suspensions = steps.iter().filter(|(step, _)| *step == Step::Suspended);
    assert!(suspensions.count() > 0, "{steps:?}");
    for pair in steps.windows(2) {
        if pair[0].0 == Step::Suspended {
            // The watcher's thread suspends the coroutine, and a thread of the vCPU resumes it.
            assert_eq!(pair[0].1, None);
            assert_eq!(pair[1], (Step::Resumed, Some(0)), "{steps:?}");
        }
    }
    assert_eq!(steps.last().map(|last| last.0), Some(Step::Exited));
}

#[test]
fn reprio_of_a_suspended_coroutine_determines_when_it_is_resumed() {
    let Some(runtime) = runtime() else { return };
    let (flag, busy_started) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    runtime.block_on(async {
        let long = start_suspended(&runtime, &flag).await;
        // Beside this coroutine of level 36, level 40 gets no CPU time.
        let (ran, stop) = (busy_started.clone(), flag.clone());
        let busy = upshift::spawn(
            async move {
                ran.store(true, Ordering::Relaxed);
                spin_until(&stop)
            },
            Level::at::<36>(),
        );
        crate::wait_until_set(&busy_started).await;
        // The suspended coroutine becomes more urgent and is resumed. The flag ends both
        // coroutines.
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
    let (is_set, continued) = (flag.clone(), Arc::new(AtomicBool::new(false)));
    let set_continued = continued.clone();
    runtime.block_on(async {
        let long = upshift::spawn(
            async move {
                assert!(spin_until(&is_set));
                set_continued.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            },
            Level::at::<40>(),
        );
        wait_until_suspended(&runtime, &long).await;
        long.cancel();
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!(runtime.handle().state(long.id()), State::Suspended);
        flag.store(true, Ordering::Relaxed);
        assert!(long.await.unwrap_err().is_cancelled());
    });
    assert!(
        continued.load(Ordering::Relaxed),
        "the poll was not finished"
    );
}

#[test]
fn a_panic_in_a_resumed_poll_ends_only_its_coroutine() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let is_set = flag.clone();
        let long = upshift::spawn(
            async move {
                assert!(spin_until(&is_set));
                panic!("after it was resumed");
            },
            Level::at::<40>(),
        );
        wait_until_suspended(&runtime, &long).await;
        flag.store(true, Ordering::Relaxed);
        let error = long.await.unwrap_err();
        assert!(error.is_panic());
        // The vCPU of the panic still serves coroutines.
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
fn requests_of_suspended_polls_to_the_runtime_are_safe() {
    let Some(runtime) = runtime() else { return };
    let (stop, spawned) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    runtime.block_on(async {
        let (is_set, count) = (stop.clone(), spawned.clone());
        // The coroutine spawns children and requests its id as fast as possible, and is interrupted
        // every millisecond.
        let busy = upshift::spawn(
            async move {
                let id = upshift::get_cid();
                let began = Instant::now();
                while !is_set.load(Ordering::Relaxed) && began.elapsed() < crate::LIMIT {
                    let count = count.clone();
                    let child = async move {
                        count.fetch_add(1, Ordering::Relaxed);
                    };
                    upshift::spawn(child, Level::at::<41>()).detach();
                    assert_eq!(upshift::get_cid(), id);
                    // The level is the coroutine's own, or that of the join below.
                    let level = upshift::current_level();
                    assert!(
                        [Level::at::<40>(), Level::DEFAULT]
                            .map(Some)
                            .contains(&level)
                    );
                    if should_yield(began) {
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
        // The children are less urgent than all other coroutines here.
        let began = Instant::now();
        while spawned.load(Ordering::Relaxed) == 0 {
            assert!(began.elapsed() < crate::LIMIT);
            time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Returns true for a few of the calls, to limit the number of live coroutines.
fn should_yield(began: Instant) -> bool {
    began.elapsed().as_micros().is_multiple_of(64)
}

/// Returns whether a poll of a few milliseconds is interrupted for a coroutine of its level. With
/// `is_guarded`, the poll calls `no_suspend`.
fn is_interrupted(runtime: &ExclusiveRuntime, is_guarded: bool) -> bool {
    let ran = Arc::new(AtomicBool::new(false));
    let (setter, is_set) = (ran.clone(), ran.clone());
    runtime.block_on(async move {
        let long = upshift::spawn(
            async move {
                let work = || {
                    upshift::spawn(
                        async move { setter.store(true, Ordering::Relaxed) },
                        Level::at::<20>(),
                    )
                    .detach();
                    burn(Duration::from_millis(5));
                    is_set.load(Ordering::Relaxed)
                };
                if is_guarded {
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
fn a_poll_is_not_suspended_inside_no_suspend() {
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
                    // A coroutine that has not been polled would be cancelled.
                    begun.fetch_add(1, Ordering::Relaxed);
                    burn(Duration::from_millis(40));
                    ended.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                };
                upshift::spawn(long, Level::at::<40>()).detach();
            }
            time::sleep(Duration::from_millis(5)).await;
            // If the machine was stopped meanwhile, the polls may have ended.
            if runtime.handle().preemption_stats().suspended > 0 {
                return;
            }
            assert!(attempt < 20, "no poll is suspended");
        }
    });
    drop(runtime);
    let [ended, begun] = [ended, begun].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(ended, begun, "a suspended poll was not finished");
}

#[test]
fn preemptible_vcpus_are_added_and_released() {
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
        let later = upshift::spawn(async { 7 }, Level::at::<40>());
        assert_eq!(later.await.unwrap(), 7);
    });
}
