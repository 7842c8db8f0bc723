//! Checks the result of every collective, in its one-shot and in its persistent form.

use std::time::Duration;

use upshift::{Level, spawn, time, yield_if_needed};
use upshift_mpi::{Error, Op, Result, World};

pub(crate) async fn run_all(world: World) -> Result<()> {
    for length in [1, 100, 30_000] {
        one_shot_forms(&world, length).await?;
        persistent_forms(&world, length).await?;
    }
    invalid_calls(&world).await?;
    beside_work(&world).await
}

fn sum(world: &World) -> u64 {
    (0..world.size() as u64).sum()
}

async fn one_shot_forms(world: &World, length: usize) -> Result<()> {
    let (comm, rank, size) = (world.comm(), world.rank() as u64, world.size());
    let (root, last) = (0, size - 1);
    comm.barrier().await?;
    let own_items = vec![rank; length];
    let from_last = comm.broadcast(own_items.clone(), last).await?;
    assert_eq!(from_last, vec![last as u64; length]);
    let reduced = comm.reduce(own_items.clone(), Op::Sum, root).await?;
    assert_eq!(reduced, (rank == 0).then(|| vec![sum(world); length]));
    let maximum = comm.allreduce(vec![rank as f64; length], Op::Max).await?;
    assert_eq!(maximum, vec![last as f64; length]);
    let in_order: Vec<u64> = (0..size as u64)
        .flat_map(|rank| vec![rank; length])
        .collect();
    let gathered = comm.gather(own_items.clone(), root).await?;
    assert_eq!(gathered, (rank == 0).then(|| in_order.clone()));
    assert_eq!(comm.allgather(own_items).await?, in_order);
    let whole = if rank == 0 {
        in_order.clone()
    } else {
        Vec::new()
    };
    assert_eq!(comm.scatter(whole, length, root).await?, vec![rank; length]);
    let exchanged = comm.alltoall(vec![rank; length * size]).await?;
    assert_eq!(exchanged, in_order);
    Ok(())
}

async fn persistent_forms(world: &World, length: usize) -> Result<()> {
    let (comm, rank, size) = (world.comm(), world.rank() as u64, world.size());
    let mut barrier = comm.barrier_init()?;
    let mut broadcast = comm.broadcast_init(vec![0u64; length], 0)?;
    let mut reduce = comm.reduce_init(vec![0u64; length], Op::Sum, 0)?;
    let mut allreduce = comm.allreduce_init(vec![0u64; length], Op::Sum)?;
    let mut gather = comm.gather_init(vec![0u64; length], 0)?;
    let mut allgather = comm.allgather_init(vec![0u64; length])?;
    let whole = vec![0u64; if rank == 0 { length * size } else { 0 }];
    let mut scatter = comm.scatter_init(whole, length, 0)?;
    let mut alltoall = comm.alltoall_init(vec![0u64; length * size])?;
    for round in 0..5u64 {
        barrier.run().await?;
        broadcast.input()?.fill(if rank == 0 { round } else { 99 });
        broadcast.run().await?;
        assert_eq!(broadcast.output()?, vec![round; length]);
        let total = sum(world) + round * size as u64;
        for persistent in [&mut reduce, &mut allreduce] {
            persistent.input()?.fill(rank + round);
            persistent.run().await?;
        }
        assert_eq!(allreduce.output()?, vec![total; length]);
        let at_root = if rank == 0 {
            vec![total; length]
        } else {
            Vec::new()
        };
        assert_eq!(reduce.output()?, at_root);
        for persistent in [&mut gather, &mut allgather, &mut alltoall] {
            persistent.input()?.fill(rank * 100 + round);
            persistent.run().await?;
        }
        let in_order: Vec<u64> = (0..size as u64)
            .flat_map(|rank| vec![rank * 100 + round; length])
            .collect();
        assert_eq!(allgather.output()?, in_order);
        assert_eq!(alltoall.output()?, in_order);
        assert_eq!(gather.output()?, if rank == 0 { &*in_order } else { &[] });
        scatter.input()?.fill(round);
        scatter.run().await?;
        assert_eq!(scatter.output()?, vec![round; length]);
    }
    Ok(())
}

/// Checks that invalid calls give errors.
async fn invalid_calls(world: &World) -> Result<()> {
    let (comm, size) = (world.comm(), world.size());
    if size > 1 {
        let uneven = comm.alltoall(vec![0u8; size + 1]).await;
        assert_eq!(uneven, Err(Error::Uneven(size + 1, size)));
    }
    if world.rank() == 0 {
        let uneven = comm.scatter(vec![0u8; 1], 7, 0).await;
        assert_eq!(uneven, Err(Error::Uneven(1, size)));
    }
    // MPI has no operations on the bits of floats.
    let bits = comm.allreduce(vec![1.0f32], Op::Xor).await;
    assert!(matches!(bits, Err(Error::Mpi(..))), "{bits:?}");
    Ok(())
}

/// Awaits collectives at an urgent level while every rank computes.
async fn beside_work(world: &World) -> Result<()> {
    let batch = spawn(
        async {
            let mut sum = 0u64;
            for n in 0..20_000_000u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31) ^ n);
                if n % 64 == 0 {
                    yield_if_needed().await;
                }
            }
            sum
        },
        Level::at::<40>(),
    );
    time::sleep(Duration::from_millis(1)).await;
    for _ in 0..20 {
        let all = world.comm().allreduce(vec![1u32; 1000], Op::Sum).await?;
        assert_eq!(all, vec![world.size() as u32; 1000]);
    }
    batch.await.unwrap();
    Ok(())
}
