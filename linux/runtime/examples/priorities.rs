//! Urgent work beside a batch computation that never ends. The batch checks in its loop whether
//! more urgent work is ready, so the urgent coroutine waits only briefly.
//!
//! Run it with `cargo run --release -p upshift --example priorities`.

use std::time::{Duration, Instant};

use upshift::{Level, time};

const URGENT: Level = Level::at::<2>();
const BATCH: Level = Level::at::<40>();

#[upshift::main(vcpus = 1)]
async fn main() {
    let batch = upshift::spawn(
        async {
            let mut sum = 0u64;
            for n in 0u64.. {
                sum = sum.wrapping_add(n * n);
                upshift::yield_if_needed().await;
            }
            sum
        },
        BATCH,
    );
    let urgent = upshift::spawn(
        async {
            let mut max_delay = Duration::ZERO;
            for _ in 0..100 {
                let due = Instant::now() + Duration::from_millis(2);
                time::sleep_until(due).await;
                max_delay = max_delay.max(due.elapsed());
            }
            max_delay
        },
        URGENT,
    );
    let max_delay = urgent.await.expect("the urgent coroutine panicked");
    println!("100 timers beside a busy batch: the latest was {max_delay:?} late");

    // A join lends the batch the level of this coroutine, so the batch is cancelled first.
    batch.cancel();
    assert!(batch.await.is_err());
}
