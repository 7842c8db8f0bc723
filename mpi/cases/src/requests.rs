//! Checks requests between ranks, that is, their levels (urgency) and order, panics of handlers,
//! dropped callers, and the cost of an idle rank.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use upshift::{Handle, Level, current_level, spawn, spawn_blocking, time, yield_if_needed};
use upshift_mpi::{Error, Result, World};

pub(crate) async fn run_all(world: World) -> Result<()> {
    world.serve(async |request| {
        assert_eq!(current_level(), Some(request.level));
        if request.body == b"panic" {
            panic!("asked to");
        }
        let mut reply = request.body;
        reply.push(request.level.get());
        reply
    });
    let urgent = Level::at::<3>();
    for rank in 0..world.size() {
        for length in [0, 10, 100_000] {
            let reply = world.call_at(rank, urgent, vec![7; length]).await?;
            assert_eq!(reply.len(), length + 1);
            assert_eq!(reply.last(), Some(&3));
        }
        let failed = world.call_at(rank, urgent, b"panic".to_vec()).await;
        assert_eq!(failed, Err(Error::Handler));
        // The handler is as urgent as the caller.
        let level = current_level().unwrap().get();
        assert_eq!(world.call(rank, Vec::new()).await?, [level]);
    }
    world.comm().barrier().await?;
    many(&world).await?;
    world.comm().barrier().await?;
    dropped_callers(&world).await?;
    always_ready(&world).await
}

/// Checks that a coroutine whose operations are always complete at once yields nevertheless.
async fn always_ready(world: &World) -> Result<()> {
    let alone = world.comm().split(Some(world.rank() as u32), 0).await?;
    let alone = alone.unwrap();
    let stop = Arc::new(AtomicUsize::new(0));
    let (seen, deadline) = (stop.clone(), Instant::now() + Duration::from_secs(20));
    let batch = spawn(
        async move {
            while seen.load(SeqCst) == 0 {
                alone.barrier().await?;
                assert!(
                    Instant::now() < deadline,
                    "the batch coroutine never yielded"
                );
            }
            Ok(())
        },
        Level::at::<40>(),
    );
    let urgent = async move {
        time::sleep(Duration::from_millis(2)).await;
        stop.store(1, SeqCst);
    };
    spawn(urgent, Level::at::<0>()).await.unwrap();
    batch.await.unwrap()
}

/// Sends more concurrent requests than may have a handler at a time. All must be answered.
async fn many(world: &World) -> Result<()> {
    let calls: Vec<_> = (0..1000usize)
        .map(|number| {
            let world = world.clone();
            let level = Level::new((number % 64) as u8).unwrap();
            let rank = number % world.size();
            let call = async move {
                world
                    .call_at(rank, level, number.to_le_bytes().to_vec())
                    .await
            };
            (number, spawn(call, level))
        })
        .collect();
    for (number, call) in calls {
        let reply = call.await.unwrap()?;
        assert_eq!(reply[..8], number.to_le_bytes());
        assert_eq!(usize::from(reply[8]), number % 64);
    }
    Ok(())
}

/// Checks that a dropped call harms no later call.
async fn dropped_callers(world: &World) -> Result<()> {
    let rank = (world.rank() + 1) % world.size();
    for _ in 0..100 {
        let call = world.call_at(rank, Level::at::<9>(), vec![1; 5000]);
        let _ = time::timeout(Duration::from_micros(20), call).await;
    }
    let reply = world.call_at(rank, Level::at::<9>(), vec![2]).await?;
    assert_eq!(reply, [2, 9]);
    Ok(())
}

/// Checks that a rank with many batch requests answers an urgent request first.
pub(crate) async fn overtakes(world: World) -> Result<()> {
    let batches = 40;
    let ended_batches = Arc::new(AtomicUsize::new(0));
    let counter = ended_batches.clone();
    world.serve(move |request| {
        let ended_batches = counter.clone();
        async move {
            if request.level.get() == 0 {
                return ended_batches.load(SeqCst).to_le_bytes().to_vec();
            }
            let mut sum = 0u64;
            for n in 0..2_000_000u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31) ^ n);
                if n % 64 == 0 {
                    yield_if_needed().await;
                }
            }
            ended_batches.fetch_add(1, SeqCst);
            sum.to_le_bytes().to_vec()
        }
    });
    world.comm().barrier().await?;
    if world.rank() == 0 {
        let last = world.size() - 1;
        let calls: Vec<_> = (0..batches)
            .map(|_| {
                let world = world.clone();
                let batch = Level::at::<40>();
                spawn(
                    async move { world.call_at(last, batch, Vec::new()).await },
                    batch,
                )
            })
            .collect();
        time::sleep(Duration::from_millis(5)).await;
        let urgent = world.clone();
        let urgent = spawn(
            async move { urgent.call_at(last, Level::at::<0>(), Vec::new()).await },
            Level::at::<0>(),
        );
        let reply = urgent.await.unwrap()?;
        let ended_batches = usize::from_le_bytes(reply.try_into().unwrap());
        assert!(
            ended_batches < batches,
            "{ended_batches} batch requests came first"
        );
        for call in calls {
            call.await.unwrap()?;
        }
    }
    Ok(())
}

fn cpu_time() -> Duration {
    // SAFETY: `rusage` is valid when zeroed, and the kernel fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time =
        |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Measures the CPU time of a rank that serves but receives no requests, and checks that it then
/// answers its first request.
pub(crate) async fn idle(world: World) -> Result<()> {
    world.serve(async |request| request.body);
    // The first sleep is long enough for all ranks to fall asleep.
    world.comm().barrier().await?;
    time::sleep(Duration::from_millis(200)).await;
    let (start_time, before) = (Instant::now(), cpu_time());
    time::sleep(Duration::from_secs(2)).await;
    let share = (cpu_time() - before).as_secs_f64() / start_time.elapsed().as_secs_f64();
    println!("rank {}: {:.3} % of a CPU", world.rank(), share * 100.0);
    assert!(share < 0.01, "{:.3} % of a CPU", share * 100.0);
    world.comm().barrier().await?;
    let peer = (world.rank() + 1) % world.size();
    let reply = world.call_at(peer, Level::at::<0>(), vec![1]).await?;
    assert_eq!(reply, [1]);
    Ok(())
}

/// Runs ranks that a daemon elevates in turn. The ranks end after the input of rank 0 has ended.
pub(crate) async fn beside_a_daemon(world: World) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !Handle::current().is_ok_and(|handle| handle.board_stats().joined) {
        assert!(
            Instant::now() < deadline,
            "rank {} has not joined",
            world.rank()
        );
        time::sleep(Duration::from_millis(10)).await;
    }
    world.comm().barrier().await?;
    if world.rank() == 0 {
        println!("all have joined");
        let input = spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        input.await.unwrap().unwrap();
    }
    busy(world).await
}

/// Runs ranks that call each other without pause. Each rank must make progress, even if there are
/// more ranks than CPUs.
pub(crate) async fn busy(world: World) -> Result<()> {
    world.serve(async |request| request.body);
    world.comm().barrier().await?;
    for round in 0..200 {
        let rank = (world.rank() + round) % world.size();
        let reply = world
            .call_at(rank, Level::at::<0>(), vec![1; round])
            .await?;
        assert_eq!(reply.len(), round);
        if round % 20 == 0 {
            world.comm().barrier().await?;
        }
    }
    Ok(())
}
