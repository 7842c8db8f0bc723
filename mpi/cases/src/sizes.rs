//! Checks operations on 1 byte to 256 MiB. Every item of the results is checked, and long
//! operations must not be slower than short ones with the same total length.

use std::time::{Duration, Instant};

use upshift_mpi::{Comm, Op, Result, World};

/// Returns item `at` of the buffer of `rank`.
fn item(rank: usize, at: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(0x9e37_79b1) ^ at as u32
}

fn items(rank: usize, length: usize) -> Vec<u32> {
    (0..length).map(|at| item(rank, at)).collect()
}

/// Runs every operation with a longest buffer of `bytes` bytes, which is 1 or a multiple of 4.
pub(crate) async fn of(world: &World, bytes: usize) -> Result<()> {
    let (comm, rank, size) = (world.comm(), world.rank(), world.size());
    if bytes < 4 {
        let all = comm.allreduce(vec![rank as u8 + 1; bytes], Op::Max).await?;
        assert_eq!(all, vec![size as u8; bytes]);
        let all = comm.broadcast(vec![rank as u8; bytes], size - 1).await?;
        assert_eq!(all, vec![size as u8 - 1; bytes]);
        return Ok(());
    }
    let length = bytes / 4;
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);

    let all = comm.allreduce(items(rank, length), Op::Xor).await?;
    assert_eq!(all.len(), length);
    for (at, found) in all.iter().enumerate() {
        let expected = (0..size).fold(0, |all, rank| all ^ item(rank, at));
        assert_eq!(*found, expected, "{at}");
    }
    drop(all);
    assert!(comm.broadcast(items(rank, length), 0).await? == items(0, length));
    let share = length / size;
    let gathered = comm.gather(items(rank, share), 0).await?;
    assert_eq!(gathered.is_some(), rank == 0);
    for (part, found) in gathered
        .iter()
        .flat_map(|all| all.chunks(share.max(1)).enumerate())
    {
        assert!(found == items(part, share), "{part}");
    }
    drop(gathered);
    let turned = comm.alltoall(items(rank, share * size)).await?;
    for (at, found) in turned.iter().enumerate() {
        let (from, nth) = (at / share, at % share);
        assert_eq!(*found, item(from, rank * share + nth), "{at}");
    }
    drop(turned);
    let arrived = comm.irecv(vec![0u32; length], before, 1);
    let sent = comm.isend(items(rank, length), next, 1);
    assert!(arrived.await?.data == items(before, length));
    assert!(sent.await? == items(rank, length));
    Ok(())
}

pub(crate) async fn run_all(world: World) -> Result<()> {
    for bytes in [1, 4 << 10, 36 << 10, 1 << 20, 32 << 20] {
        of(&world, bytes).await?;
    }
    world.comm().barrier().await
}

pub(crate) async fn huge(world: World) -> Result<()> {
    of(&world, 256 << 20).await
}

const PARTS: usize = 32;
const PART: usize = 1 << 20;

async fn shortest(comm: &Comm, parts: usize, length: usize) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..3 {
        comm.barrier().await?;
        let began = Instant::now();
        for _ in 0..parts {
            comm.allreduce(vec![1u8; length], Op::Sum).await?;
        }
        least = least.min(began.elapsed());
    }
    Ok(least)
}

/// Checks that a long operation, whose pieces need many looks, takes about as long as short
/// operations on the same number of bytes.
pub(crate) async fn long(world: World) -> Result<()> {
    let parts = shortest(world.comm(), PARTS, PART).await?;
    let whole = shortest(world.comm(), 1, PARTS * PART).await?;
    println!("{PARTS} parts: {parts:?}, whole: {whole:?}");
    assert!(
        whole < parts * 10,
        "{whole:?} for what takes {parts:?} in parts"
    );
    Ok(())
}
