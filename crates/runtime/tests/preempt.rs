//! Preemptible vCPUs. Every test is bounded; without the right to use SCHED_FIFO they say so and are skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime};

/// No loop of these tests spins for longer.
const LIMIT: Duration = Duration::from_secs(5);

fn runtime() -> Option<Runtime> {
    let builder = Runtime::builder()
        .vcpus(1)
        .preemption(Preemption::Required)
        .quantum(Duration::from_micros(200));
    match builder.build() {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Burns CPU until the flag is set; true if it was in time.
fn spin_until(flag: &AtomicBool) -> bool {
    let began = Instant::now();
    while !flag.load(Ordering::Relaxed) {
        if began.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

#[test]
fn an_equal_gets_the_cpu_from_a_poll_that_does_not_return() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    let in_time = runtime.block_on(async {
        let (set, seen) = (flag.clone(), flag.clone());
        let long = upshift::spawn(async move { spin_until(&seen) }, Level::at::<20>());
        let short = upshift::spawn(
            async move { set.store(true, Ordering::Relaxed) },
            Level::at::<20>(),
        );
        short.await.unwrap();
        long.await.unwrap()
    });
    assert!(in_time);
    assert!(runtime.handle().preemption_stats().suspensions >= 1);
}

#[test]
fn a_timer_of_something_more_urgent_interrupts_at_once() {
    let Some(runtime) = runtime() else { return };
    let (flag, ticks) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let in_time = runtime.block_on(async {
        let (set, count, seen) = (flag.clone(), ticks.clone(), flag.clone());
        let urgent = upshift::spawn(
            async move {
                for _ in 0..20 {
                    upshift::time::sleep(Duration::from_millis(1)).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                set.store(true, Ordering::Relaxed);
            },
            Level::at::<0>(),
        );
        let long = upshift::spawn(async move { spin_until(&seen) }, Level::at::<40>());
        urgent.await.unwrap();
        long.await.unwrap()
    });
    assert!(in_time);
    assert_eq!(ticks.load(Ordering::Relaxed), 20);
}
