//! Measures urgent requests while matrix products are computed on all ranks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use upshift::{Level, spawn};
use upshift_mpi::{Error, Launch, Result, World};
use upshift_mpi_matrix::{Levels, Matrices, SPREAD};

use crate::work::{Schedule, histogram, print_figure, print_quantiles};

/// Urgent requests per second.
const PER_SECOND: u32 = 100;
/// Order of the matrices of urgent requests.
const SMALL: usize = 16;
/// Order of the matrices of the batch.
const LARGE: usize = 384;
/// Levels of the requests of the batch, which runs two products at a time.
const BATCH: [u8; 2] = [5, 6];

fn matrix(n: usize) -> Vec<u8> {
    (0..8 * n * n).map(|byte| byte as u8).collect()
}

pub(crate) fn run(way: &str, scale: u32) -> Result<()> {
    let seconds = f64::from(scale) * 0.3;
    // SAFETY: no message is longer than its buffer, since all ranks compute the lengths of all
    // messages and collectives from the order of the matrix.
    let launch = unsafe { Launch::new().single_copy() };
    launch.run(async |world: World| {
        let levels = if way == "equals" {
            Levels::One
        } else {
            Levels::Eight
        };
        let matrices = Matrices::new(&world, levels, SPREAD).await?;
        if world.rank() == 0 {
            measure(&matrices, levels, seconds, way != "alone").await?;
            matrices.end().await?;
        }
        matrices.ended().await;
        Ok(())
    })
}

async fn measure(matrices: &Matrices, levels: Levels, seconds: f64, has_batch: bool) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let products = Arc::new(AtomicU64::new(0));
    let batches: Vec<_> = BATCH
        .into_iter()
        .filter(|_| has_batch)
        .map(|request_level| {
            let (matrices, stop, products) = (matrices.clone(), stop.clone(), products.clone());
            let work = async move {
                let large = matrix(LARGE);
                while !stop.load(Relaxed) {
                    matrices.square(request_level, &large, LARGE).await?;
                    products.fetch_add(1, Relaxed);
                }
                Ok::<_, Error>(())
            };
            spawn(work, levels.level(request_level))
        })
        .collect();
    let latencies = Arc::new(Mutex::new(histogram()));
    let level = levels.level(0);
    let (client_matrices, client_latencies) = (matrices.clone(), latencies.clone());
    let start_time = Instant::now();
    // The coroutine that sends the requests represents clients on other machines. It is urgent,
    // too, so that it is not late.
    let client = spawn(
        async move {
            let mut schedule = Schedule::new(PER_SECOND, seconds);
            let mut requests = Vec::new();
            while let Some(moment) = schedule.next().await {
                let (matrices, client_latencies) =
                    (client_matrices.clone(), client_latencies.clone());
                let request = async move {
                    matrices.square(0, &matrix(SMALL), SMALL).await?;
                    let nanos = moment.elapsed().as_nanos() as u64;
                    let mut client_latencies = client_latencies
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    client_latencies.saturating_record(nanos);
                    Ok::<_, Error>(())
                };
                requests.push(spawn(request, level));
            }
            for request in requests {
                request
                    .await
                    .map_err(|error| Error::System(error.to_string()))??;
            }
            Ok::<_, Error>(())
        },
        Level::at::<0>(),
    );
    let join_error = |error: upshift::JoinError| Error::System(error.to_string());
    client.await.map_err(join_error)??;
    stop.store(true, Relaxed);
    let products_per_second = products.load(Relaxed) as f64 / start_time.elapsed().as_secs_f64();
    for batch in batches {
        batch.await.map_err(join_error)??;
    }
    let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    print_quantiles("1 urgent", &latencies);
    print_figure("2 batch products/s", products_per_second);
    Ok(())
}
