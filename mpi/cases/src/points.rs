//! Checks messages between two ranks, and from each rank to itself.

use std::sync::Arc;

use upshift_mpi::{Error, Result, Source, Tag, World};

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Particle {
    position: [f64; 3],
    charge: i64,
}

pub(crate) async fn run_all(world: World) -> Result<()> {
    ring(&world).await?;
    everyone_to_everyone(&world).await?;
    probes(&world).await?;
    structures(&world).await?;
    persistent(&world).await?;
    communicators(&world).await
}

async fn ring(world: &World) -> Result<()> {
    let comm = world.comm();
    let (rank, size) = (world.rank(), world.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    // The largest message is too long for MPI to send eagerly.
    for length in [0, 1, 100, 1 << 10, 1 << 14, 1 << 18] {
        let sent = comm.isend(vec![rank as u64; length], next, 1);
        let arrived = comm.irecv(vec![0u64; length + 3], previous, 1).await?;
        assert_eq!(arrived.data, vec![previous as u64; length]);
        assert_eq!((arrived.source, arrived.tag), (previous, 1));
        assert_eq!(sent.await?, vec![rank as u64; length]);
    }
    Ok(())
}

/// Sends one shared buffer to all ranks, and receives from any rank.
async fn everyone_to_everyone(world: &World) -> Result<()> {
    let comm = world.comm();
    let items: Arc<[u32]> = vec![world.rank() as u32; 5000].into();
    let sends: Vec<_> = (0..world.size())
        .map(|rank| comm.isend(items.clone(), rank, 2))
        .collect();
    let mut seen = vec![false; world.size()];
    for _ in 0..world.size() {
        let arrived = comm.irecv(vec![0u32; 5000], Source::Any, 2).await?;
        assert_eq!(arrived.data, vec![arrived.source as u32; 5000]);
        assert!(!std::mem::replace(&mut seen[arrived.source], true));
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

async fn probes(world: &World) -> Result<()> {
    let comm = world.comm();
    let peer = (world.rank() + 1) % world.size();
    let previous = (world.rank() + world.size() - 1) % world.size();
    // The longest message is not yet there when its receive starts.
    for length in [0usize, 7, 40_000, 1 << 20] {
        let probe = comm.improbe(Source::Any, Tag::Any);
        let tag = length as u16 | 1;
        let sent = comm.isend(vec![1i16; length], peer, tag);
        let message = probe.await?;
        assert_eq!(message.length::<i16>()?, length);
        assert_eq!((message.source(), message.tag()), (previous, tag));
        let arrived = message.receive::<i16>().await?;
        assert_eq!(arrived.data, vec![1; length]);
        assert_eq!((arrived.source, arrived.tag), (previous, tag));
        sent.await?;
    }
    // The message contains half of an item.
    let sent = comm.isend(vec![1u8; 12], peer, 3);
    let message = comm.improbe(Source::Any, 3).await?;
    assert_eq!(message.length::<u64>(), Err(Error::PartialItem));
    assert_eq!(message.receive::<u32>().await?.data.len(), 3);
    sent.await.map(drop)
}

async fn structures(world: &World) -> Result<()> {
    let comm = world.comm();
    let peer = (world.rank() + 1) % world.size();
    let particle = Particle {
        position: [1.0, -2.5, 1e300],
        charge: -1,
    };
    let sent = comm.isend(vec![particle; 1000], peer, 4);
    let none = Particle {
        position: [0.0; 3],
        charge: 0,
    };
    let arrived = comm.irecv(vec![none; 1000], Source::Any, 4).await?;
    assert_eq!(arrived.data, vec![particle; 1000]);
    sent.await.map(drop)
}

async fn persistent(world: &World) -> Result<()> {
    let comm = world.comm();
    let (rank, size) = (world.rank(), world.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut send = comm.send_init(vec![0u64; 4000], next, 5)?;
    let mut receive = comm.recv_init::<u64>(4000, previous, 5)?;
    for round in 0..20u64 {
        send.input()?.fill(round);
        receive.start()?;
        send.start()?;
        assert_eq!(receive.start(), Err(Error::Busy));
        send.wait().await?;
        receive.wait().await?;
        assert_eq!(receive.output()?, vec![round; 4000]);
    }
    // The message never arrives, so dropping the receive must cancel it.
    receive.start()?;
    assert_eq!(receive.output(), Err(Error::Busy));
    Ok(())
}

async fn communicators(world: &World) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let other = world.comm().dup().await?;
    let peer = (rank + 1) % size;
    // Both messages have the same rank and tag, so only the communicator distinguishes them.
    let first = world.comm().isend(vec![1u8], peer, 6);
    let second = other.isend(vec![2u8], peer, 6);
    assert_eq!(other.irecv(vec![0u8], Source::Any, 6).await?.data, [2]);
    let arrived = world.comm().irecv(vec![0u8], Source::Any, 6).await?;
    assert_eq!(arrived.data, [1]);
    first.await?;
    second.await?;

    let half = world.comm().split(Some((rank % 2) as u32), size - rank);
    let half = half.await?.unwrap();
    // The keys reverse the order, so the last rank of the world is the first of its half.
    assert_eq!(half.size(), (size + 1 - rank % 2) / 2);
    let gathered = half.allgather(vec![rank as u32]).await?;
    assert!(gathered.is_sorted_by(|a, b| a > b), "{gathered:?}");
    let none = world.comm().split((rank > 0).then_some(0), 0).await?;
    assert_eq!(none.is_none(), rank == 0);
    for _ in 0..20 {
        other.dup().await?;
    }
    Ok(())
}
