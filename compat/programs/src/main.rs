//! Crates that need a tokio runtime, on Upshift with `tokio-rt`, against real servers.
//!
//! `compat-programs NAME` runs the operation of that name 300 times alone, and 300 times at level 8
//! beside four busy coroutines of level 40, which must not end first. A third series of 300 runs in
//! a `current_thread` runtime of tokio. The output is a line of the table: medians in microseconds.
//! The servers are in `COMPAT_POSTGRES` (a connection string), `COMPAT_POSTGRES_URL`,
//! `COMPAT_REDIS` and `COMPAT_RABBITMQ` (URLs); HTTP servers are part of the program.

mod operations;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use operations::{Operation, Result};
use upshift::{Level, Runtime};

const RUNS: usize = 300;
/// Longest duration of a series: beyond it, the urgent coroutine has starved.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let name = std::env::args().nth(1).ok_or("which operation?")?;
    let runtime = Runtime::builder().vcpus(2).build()?;
    let made = name.clone();
    let (alone, beside) = runtime.block_on(async move {
        // A spawned coroutine, as in a program, and not the main one.
        let run = async move {
            let operation = operations::make(&made).await?;
            let alone = median(&operation).await?;
            let over = Arc::new(AtomicBool::new(false));
            let busy: Vec<_> = (0..4).map(|_| compute(over.clone())).collect();
            let beside = median(&operation).await?;
            over.store(true, Ordering::Relaxed);
            for computes in busy {
                if computes.await? {
                    return Err("what computes at level 40 ended first".into());
                }
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((alone, beside))
        };
        upshift::spawn(run, Level::at::<8>()).await?
    })?;
    drop(runtime);
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { median(&operations::make(&name).await?).await })?;
    println!("| {name} | {alone} | {beside} | {tokio} |");
    Ok(())
}

/// Returns the median duration of an operation, in microseconds.
async fn median(operation: &Operation) -> Result<u128> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        operation().await?;
        times.push(began.elapsed().as_micros());
    }
    times.sort_unstable();
    Ok(times[RUNS / 2])
}

/// Computes until `over` is set; returns true if that did not happen in time.
fn compute(over: Arc<AtomicBool>) -> upshift::JoinHandle<bool> {
    let computes = async move {
        let began = Instant::now();
        while !over.load(Ordering::Relaxed) {
            if began.elapsed() > OPERATION_TIMEOUT {
                return true;
            }
            for n in 0..2000_u32 {
                std::hint::black_box(n);
            }
            upshift::yield_if_needed().await;
        }
        false
    };
    upshift::spawn(computes, Level::at::<40>())
}
