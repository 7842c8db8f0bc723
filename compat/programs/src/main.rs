//! Measures crates that need a tokio runtime. They run on Upshift with the feature `tokio-rt`,
//! against real servers.
//!
//! `compat-programs NAME` runs the operation of that name 300 times alone, and 300 times at level 8
//! beside four busy coroutines of level 40, which is less urgent. The busy coroutines must still
//! run when the series ends. A third series of 300 runs in a `current_thread` runtime of tokio. The
//! output is a line of a table with the medians in microseconds. The servers are in
//! `COMPAT_POSTGRES` (a connection string), `COMPAT_POSTGRES_URL`, `COMPAT_REDIS` and
//! `COMPAT_RABBITMQ` (URLs); HTTP servers are part of the program.

mod operations;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use operations::{Operation, Result};
use upshift::{Level, Runtime};

/// Number of runs in a series.
const RUNS: usize = 300;
/// Time limit of a series. A series that takes longer has starved the urgent coroutine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let name = std::env::args()
        .nth(1)
        .ok_or("usage: compat-programs NAME")?;
    let runtime = Runtime::builder().vcpus(2).build()?;
    let operation_name = name.clone();
    let (alone, beside_busy) = runtime.block_on(async move {
        // The operation runs in a spawned coroutine, as in a program, and not in the main one.
        let run = async move {
            let operation = operations::make(&operation_name).await?;
            let alone = median(&operation).await?;
            let stop = Arc::new(AtomicBool::new(false));
            let busy_coroutines: Vec<_> = (0..4).map(|_| compute(stop.clone())).collect();
            let beside_busy = median(&operation).await?;
            stop.store(true, Ordering::Relaxed);
            for coroutine in busy_coroutines {
                if coroutine.await? {
                    return Err("a coroutine of level 40 reached its time limit".into());
                }
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((alone, beside_busy))
        };
        upshift::spawn(run, Level::at::<8>()).await?
    })?;
    drop(runtime);
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { median(&operations::make(&name).await?).await })?;
    println!("| {name} | {alone} | {beside_busy} | {tokio} |");
    Ok(())
}

async fn median(operation: &Operation) -> Result<u128> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        operation().await?;
        times.push(start.elapsed().as_micros());
    }
    times.sort_unstable();
    Ok(times[RUNS / 2])
}

/// Starts a coroutine that computes until `stop` is set, for at most [`TIMEOUT`]. Its result is
/// true if the time limit ended it.
fn compute(stop: Arc<AtomicBool>) -> upshift::JoinHandle<bool> {
    let computation = async move {
        let start = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if start.elapsed() > TIMEOUT {
                return true;
            }
            for n in 0..2000_u32 {
                std::hint::black_box(n);
            }
            upshift::yield_if_needed().await;
        }
        false
    };
    upshift::spawn(computation, Level::at::<40>())
}
