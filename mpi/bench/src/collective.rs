//! Measures an allreduce that runs without pause while every rank serves calls of the previous
//! rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use upshift::{Level, spawn};
use upshift_mpi::{Error, Launch, Op, Result, World};

use crate::work::{Schedule, histogram, median, micros, print_figure, print_quantiles};

/// Calls per second of each rank.
const PER_SECOND: u32 = 200;
/// Number of items of an allreduce, which are 1 MiB.
const ITEMS: usize = (1 << 20) / 8;

pub(crate) fn run(way: &str, scale: u32) -> Result<()> {
    let seconds = f64::from(scale) * 0.2;
    let (collective, serving) = (way != "serving", way != "alone");
    // SAFETY: all ranks give each collective the same length, and no message is longer than its
    // buffer.
    let launch = unsafe { Launch::new().single_copy() };
    launch.run(async |world: World| {
        world.serve(async |request| request.body);
        world.comm().barrier().await?;
        let is_enabled = Arc::new(AtomicBool::new(serving));
        let reducer = spawn(
            reduce(world.clone(), collective, seconds),
            Level::at::<20>(),
        );
        let caller = spawn(call(world.clone(), is_enabled, seconds), Level::at::<0>());
        let join_error = |error: upshift::JoinError| Error::System(error.to_string());
        caller.await.map_err(join_error)??;
        reducer.await.map_err(join_error)?
    })
}

/// Reduces until rank 0 ends the measurement. Rank 0 announces the end by the first reduced number.
async fn reduce(world: World, is_enabled: bool, seconds: f64) -> Result<()> {
    if !is_enabled {
        return Ok(());
    }
    let comm = world.comm().dup().await?;
    let (start_time, mut times) = (Instant::now(), Vec::new());
    let mut items = vec![1.0f64; ITEMS];
    loop {
        let is_over = start_time.elapsed() > Duration::from_secs_f64(seconds) && world.rank() == 0;
        items.fill(1.0);
        items[0] = f64::from(u8::from(is_over));
        let before = Instant::now();
        items = comm.allreduce(items, Op::Sum).await?;
        times.push(before.elapsed());
        if items[1] != world.size() as f64 {
            return Err(Error::System("allreduce gave a wrong sum".into()));
        }
        if items[0] > 0.0 {
            break;
        }
    }
    if world.rank() == 0 {
        print_figure("1 allreduce median µs", micros(median(times)));
    }
    Ok(())
}

async fn call(world: World, is_enabled: Arc<AtomicBool>, seconds: f64) -> Result<()> {
    if !is_enabled.load(Relaxed) {
        return Ok(());
    }
    let next = (world.rank() + 1) % world.size();
    let mut latencies = histogram();
    let mut schedule = Schedule::new(PER_SECOND, seconds);
    while let Some(moment) = schedule.next().await {
        world.call_at(next, Level::at::<0>(), vec![1; 64]).await?;
        latencies.saturating_record(moment.elapsed().as_nanos() as u64);
    }
    if world.rank() == 0 {
        print_quantiles("2 call", &latencies);
    }
    Ok(())
}
