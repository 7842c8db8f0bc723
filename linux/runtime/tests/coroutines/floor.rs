//! Tests of the floor, the share of the CPU time that is reserved for less urgent work while more
//! urgent work never ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use upshift::{Builder, Level, Preemption, Runtime, yield_now};

/// Runs an endless coroutine at each of `levels`, and the urgent main coroutine. Returns the
/// numbers of polls of the two coroutines when the main coroutine has been polled `rounds` times,
/// or when `enough` returns true.
fn polls(
    builder: Builder,
    levels: [Level; 2],
    rounds: u64,
    enough: impl Fn([u64; 2]) -> bool,
) -> [u64; 2] {
    let runtime = builder.vcpus(1).main_level(Level::URGENT).build().unwrap();
    runtime.block_on(async {
        let counts = levels.map(|level| {
            let count = Arc::new(AtomicU64::new(0));
            let counts = count.clone();
            upshift::spawn(
                async move {
                    loop {
                        counts.fetch_add(1, Ordering::Relaxed);
                        yield_now().await;
                    }
                },
                level,
            )
            .detach();
            count
        });
        let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        for _ in 0..rounds {
            if enough(now()) {
                break;
            }
            yield_now().await;
        }
        now()
    })
}

#[test]
fn without_a_floor_background_work_waits_for_endless_urgent_work() {
    let levels = [Level::NORMAL, Level::BACKGROUND];
    assert_eq!(polls(Runtime::builder(), levels, 20_000, |_| false), [0, 0]);
}

#[test]
fn with_a_floor_background_work_runs_beside_endless_urgent_work() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let builder = Runtime::builder()
            .preemption(preemption)
            .floor(Level::NORMAL, 10);
        let levels = [Level::BACKGROUND, Level::at::<31>()];
        let enough = |[background, _]: [u64; 2]| background >= 1_000;
        let [background, above] = polls(builder, levels, u64::MAX, enough);
        assert!(background >= 1_000);
        assert_eq!(above, 0, "a level above the floor got a share");
    }
}

#[test]
fn a_floor_serves_the_most_urgent_of_its_levels() {
    let builder = Runtime::builder().floor(Level::NORMAL, 50);
    let levels = [Level::NORMAL, Level::BACKGROUND];
    let [normal, background] = polls(builder, levels, u64::MAX, |[normal, _]| normal >= 1_000);
    assert!(normal >= 1_000);
    assert_eq!(
        background, 0,
        "a less urgent level within the floor got a share"
    );
}

#[test]
fn a_floor_is_between_1_and_99_percent() {
    for percent in [0, 100] {
        let error = Runtime::builder()
            .floor(Level::NORMAL, percent)
            .build()
            .unwrap_err();
        assert!(error.to_string().contains("1 to 99 percent"), "{error}");
    }
}
