//! Checks operations on 1 byte to 256 MiB. Every item of the results is checked, and long
//! operations must not be slower than short ones with the same total length.

use std::time::{Duration, Instant};

use upshift_mpi::{Comm, Op, Result, World};

/// Returns item `index` of the buffer of `rank`.
fn item(rank: usize, index: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(0x9e37_79b1) ^ index as u32
}

fn items(rank: usize, length: usize) -> Vec<u32> {
    (0..length).map(|index| item(rank, index)).collect()
}

/// Runs every operation with a longest buffer of `bytes` bytes, which is 1 or a multiple of 4.
async fn run_operations(world: &World, bytes: usize) -> Result<()> {
    let (comm, rank, size) = (world.comm(), world.rank(), world.size());
    if bytes < 4 {
        let all = comm.allreduce(vec![rank as u8 + 1; bytes], Op::Max).await?;
        assert_eq!(all, vec![size as u8; bytes]);
        let all = comm.broadcast(vec![rank as u8; bytes], size - 1).await?;
        assert_eq!(all, vec![size as u8 - 1; bytes]);
        return Ok(());
    }
    let length = bytes / 4;
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);

    let all = comm.allreduce(items(rank, length), Op::Xor).await?;
    assert_eq!(all.len(), length);
    for (index, found) in all.iter().enumerate() {
        let expected = (0..size).fold(0, |all, rank| all ^ item(rank, index));
        assert_eq!(*found, expected, "{index}");
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
    let exchanged = comm.alltoall(items(rank, share * size)).await?;
    for (index, found) in exchanged.iter().enumerate() {
        let (from, nth) = (index / share, index % share);
        assert_eq!(*found, item(from, rank * share + nth), "{index}");
    }
    drop(exchanged);
    let arrived = comm.irecv(vec![0u32; length], previous, 1);
    let sent = comm.isend(items(rank, length), next, 1);
    assert!(arrived.await?.data == items(previous, length));
    assert!(sent.await? == items(rank, length));
    Ok(())
}

pub(crate) async fn run_all(world: World) -> Result<()> {
    for bytes in [1, 4 << 10, 36 << 10, 1 << 20, 32 << 20] {
        run_operations(&world, bytes).await?;
    }
    world.comm().barrier().await
}

pub(crate) async fn huge(world: World) -> Result<()> {
    run_operations(&world, 256 << 20).await
}

/// Number of short operations that have the length of the long one.
const PARTS: usize = 32;
/// Length of a short operation, in bytes.
const PART: usize = 1 << 20;

/// Returns the shortest of three times that `parts` operations take one after the other.
async fn shortest(comm: &Comm, parts: usize, length: usize) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        comm.barrier().await?;
        let start_time = Instant::now();
        for _ in 0..parts {
            comm.allreduce(vec![1u8; length], Op::Sum).await?;
        }
        shortest = shortest.min(start_time.elapsed());
    }
    Ok(shortest)
}

/// Checks that a long operation, which MPI executes in many pieces, takes about as long as short
/// operations on the same number of bytes. The factor of 10 leaves a margin for other load.
pub(crate) async fn long(world: World) -> Result<()> {
    let parts = shortest(world.comm(), PARTS, PART).await?;
    let whole = shortest(world.comm(), 1, PARTS * PART).await?;
    println!("{PARTS} parts: {parts:?}, whole: {whole:?}");
    assert!(
        whole < parts * 10,
        "the whole took {whole:?}, its parts took {parts:?}"
    );
    Ok(())
}
