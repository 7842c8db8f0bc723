//! Tests that timers in a runtime are never early, and may be cancelled, reset, and moved between
//! vCPUs. Upper bounds of times are asserted only where the alternative is to wait for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_lite::future::poll_once;
use upshift::time::{Instant, interval, sleep, sleep_until, timeout};
use upshift::{Priority, Runtime, yield_now};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

fn runtime_with_one_vcpu() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

fn runtime_with_two_vcpus() -> Runtime {
    Runtime::builder().vcpus(2).build().unwrap()
}

#[test]
fn a_sleep_is_never_early() {
    runtime_with_one_vcpu().block_on(async {
        for micros in [0, 1, 2, 50, 63, 64, 65, 500, 1000, 4000] {
            let duration = Duration::from_micros(micros);
            let start = Instant::now();
            sleep(duration).await;
            assert!(
                start.elapsed() >= duration,
                "a sleep of {micros} µs is early"
            );
            let deadline = Instant::now() + duration;
            sleep_until(deadline).await;
            assert!(
                Instant::now() >= deadline,
                "a sleep until {micros} µs later is early"
            );
        }
    });
}

#[test]
fn none_of_many_sleeps_is_early() {
    const COUNT: u64 = 5000;
    runtime_with_two_vcpus().block_on(async {
        let handles: Vec<_> = (0..COUNT)
            .map(|n| {
                upshift::spawn(
                    async move {
                        let duration = Duration::from_micros(n * 7919 % 40_000);
                        let start = Instant::now();
                        sleep(duration).await;
                        start.elapsed() >= duration
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        for handle in handles {
            assert!(handle.await.unwrap(), "a sleep ended early");
        }
    });
}

#[test]
fn a_reset_makes_a_sleep_earlier_or_later_before_and_after_its_end() {
    runtime_with_one_vcpu().block_on(async {
        let mut sleep = sleep(HOUR);
        assert!(poll_once(&mut sleep).await.is_none());
        sleep.reset(Instant::now() + MILLI);
        (&mut sleep).await;

        let later = Instant::now() + MILLI * 3;
        sleep.reset(Instant::now() + MILLI);
        assert!(poll_once(&mut sleep).await.is_none());
        sleep.reset(later);
        assert!(sleep.deadline().max(later) - sleep.deadline().min(later) < MILLI);
        (&mut sleep).await;
        assert!(Instant::now() >= later);

        // The timer is reset while it is armed, and not polled again. The coroutine must be woken
        // nevertheless.
        sleep.reset(Instant::now() + HOUR);
        assert!(poll_once(&mut sleep).await.is_none());
        sleep.reset(Instant::now() + MILLI);
        let mut polls = 0;
        std::future::poll_fn(|_| {
            polls += 1;
            if polls == 1 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        assert!(sleep.is_elapsed());
    });
}

#[test]
fn a_sleep_that_is_reset_after_it_has_fired_waits_again() {
    runtime_with_one_vcpu().block_on(async {
        let mut sleep = sleep(Duration::from_micros(100));
        assert!(poll_once(&mut sleep).await.is_none());
        // The vCPU fires the timer while this coroutine does not poll it.
        upshift::time::sleep(MILLI).await;
        let later = Instant::now() + MILLI;
        sleep.reset(later);
        sleep.await;
        assert!(Instant::now() >= later);
    });
}

#[test]
fn a_timeout_ends_a_future_that_uses_up_every_poll() {
    runtime_with_one_vcpu().block_on(async {
        let (sender, mut receiver) = upshift::sync::mpsc::unbounded_channel();
        let endless = async {
            loop {
                sender.send(()).unwrap();
                receiver.recv().await;
            }
        };
        let outcome: Result<(), _> = timeout(MILLI * 2, endless).await;
        assert!(outcome.is_err());
    });
}

#[test]
fn outside_a_runtime_a_sleep_panics_with_the_reason() {
    let panic = catch_unwind(AssertUnwindSafe(|| {
        futures_lite::future::block_on(sleep(MILLI))
    }))
    .unwrap_err();
    let message = panic.downcast_ref::<&str>().unwrap();
    assert!(message.contains("upshift runtime"), "{message}");
    // Outside of a runtime, a sleep may be created, reset and dropped.
    let mut unused = sleep(MILLI);
    unused.reset(Instant::now());
}

#[test]
fn an_armed_sleep_may_be_dropped_and_reset_outside_its_runtime() {
    let runtime = runtime_with_one_vcpu();
    let (mut reset_later, dropped) = runtime.block_on(async {
        let (mut reset_later, mut dropped) = (sleep(HOUR), sleep(HOUR));
        assert!(poll_once(&mut reset_later).await.is_none());
        assert!(poll_once(&mut dropped).await.is_none());
        (reset_later, dropped)
    });
    drop(dropped);
    reset_later.reset(Instant::now() + MILLI);
    runtime.block_on(async {
        (&mut reset_later).await;
        assert!(poll_once(sleep(HOUR)).await.is_none());
        reset_later.reset(Instant::now() + HOUR);
        assert!(poll_once(&mut reset_later).await.is_none());
    });
    drop(runtime);
    drop(reset_later);
}

#[test]
fn a_sleep_that_moves_between_vcpus_keeps_its_time() {
    runtime_with_two_vcpus().block_on(async {
        let handles: Vec<_> = (0..200_u64)
            .map(|n| {
                upshift::spawn(
                    async move {
                        let mut sleep = sleep(HOUR);
                        for round in 0..20 {
                            let _ = poll_once(&mut sleep).await;
                            let deadline =
                                Instant::now() + Duration::from_micros(100 + (n * round) % 300);
                            sleep.reset(deadline);
                            // Meanwhile an idle vCPU may steal this coroutine.
                            yield_now().await;
                            if (n + round) % 3 == 0 {
                                (&mut sleep).await;
                                assert!(Instant::now() >= deadline);
                            }
                        }
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
}

#[test]
fn timers_of_a_released_vcpu_continue_on_other_vcpus() {
    runtime_with_one_vcpu().block_on(async {
        for _ in 0..3 {
            upshift::alloc_cpu().unwrap();
            let handles: Vec<_> = (0..500_u64)
                .map(|n| {
                    upshift::spawn(
                        async move {
                            let duration = Duration::from_micros(500 + n * 20);
                            let start = Instant::now();
                            // The poll is long enough for other coroutines to be stolen.
                            while start.elapsed() < Duration::from_micros(20) {}
                            sleep(duration).await;
                            assert!(start.elapsed() >= duration);
                        },
                        Priority::Inherit,
                    )
                })
                .collect();
            sleep(MILLI * 4).await;
            upshift::release_cpu().unwrap();
            for handle in handles {
                timeout(HOUR / 360, handle)
                    .await
                    .expect("a timer was lost")
                    .unwrap();
            }
        }
    });
}

#[test]
#[should_panic(expected = "without preemption")]
fn time_cannot_be_paused_with_preemption() {
    let builder = Runtime::builder().vcpus(1);
    let runtime = builder.preemption(upshift::Preemption::Preferred).build();
    let runtime = runtime.unwrap();
    // Where the kernel permits no preemption, this assertion causes the expected panic.
    assert_eq!(
        runtime.handle().preemption_stats().vcpus,
        1,
        "without preemption"
    );
    runtime.block_on(async { upshift::time::pause() });
}

#[test]
fn time_advanced_to_its_end_does_not_end_longer_sleeps() {
    runtime_with_one_vcpu().block_on(async {
        upshift::time::pause();
        upshift::time::advance(Duration::from_secs(1 << 40)).await;
        let far = sleep(Duration::MAX);
        let mut far = pin!(far);
        assert!(poll_once(far.as_mut()).await.is_none());
        sleep(HOUR).await;
        assert!(poll_once(far.as_mut()).await.is_none());
        upshift::time::resume();
        assert!(poll_once(far.as_mut()).await.is_none());
        sleep(MILLI).await;
        assert!(poll_once(far.as_mut()).await.is_none());
    });
}

/// The sleep is first polled in one runtime, and later in another. Meanwhile the first runtime is
/// not in `block_on`, so it serves no timers.
#[test]
fn a_sleep_that_another_runtime_polls_ends_there() {
    let (first, second) = (runtime_with_one_vcpu(), runtime_with_one_vcpu());
    let mut moved_sleep = Box::pin(sleep(100 * MILLI));
    let minute = HOUR / 60;
    let first_result = first.block_on(async { timeout(MILLI, &mut moved_sleep).await });
    assert!(first_result.is_err());
    let ended = second.block_on(async { timeout(minute, &mut moved_sleep).await });
    assert!(ended.is_ok());
    let mut ticks = interval(50 * MILLI);
    for runtime in [&first, &second, &first, &second] {
        let tick = runtime.block_on(async { timeout(minute, ticks.tick()).await });
        assert!(tick.is_ok());
    }
}

#[test]
fn paused_time_moves_to_the_end_of_the_longest_sleeps() {
    runtime_with_one_vcpu().block_on(async {
        upshift::time::pause();
        let first = upshift::spawn(sleep(HOUR), Priority::Inherit);
        for margin in [MILLI, Duration::ZERO] {
            sleep(Duration::MAX - margin).await;
            assert!(first.is_finished());
        }
        // When the clock has reached its end, it can still be advanced, and sleeps still end.
        upshift::time::advance(HOUR).await;
        sleep(MILLI).await;
    });
}
