//! Makes the errors that a program can make, such as sizes that do not match, dropped futures, and
//! counts and lengths beyond the limits. Each of them gives an error value, or does no harm.

use std::time::Duration;

use upshift::{Level, time};
use upshift_mpi::{Error, Op, Result, Source, World};

pub(crate) async fn run_all(world: World) -> Result<()> {
    mismatched(&world).await?;
    dropped(&world).await?;
    cancelled(&world).await?;
    thousands(&world).await?;
    world.comm().barrier().await
}

async fn mismatched(world: &World) -> Result<()> {
    let comm = world.comm();
    let peer = (world.rank() + 1) % world.size();
    for length in [10usize, 100_000] {
        let sent = comm.isend(vec![5u64; length], peer, 1);
        let short = comm.irecv(vec![0u64; length / 2], Source::Any, 1).await;
        assert!(matches!(short, Err(Error::Mpi(..))), "{short:?}");
        sent.await?;
    }
    // The number of bytes is not a multiple of the size of an item.
    let sent = comm.isend(vec![1u8; 13], peer, 2);
    let partial = comm.irecv(vec![0u64; 10], Source::Any, 2).await;
    assert_eq!(partial, Err(Error::PartialItem));
    sent.await?;
    let size = world.size();
    for rank in [size, size + 7, 1 << 31, usize::MAX] {
        let unknown = Error::Rank(rank, size);
        assert_eq!(comm.isend(vec![1u8], rank, 3).await, Err(unknown.clone()));
        assert_eq!(comm.irecv(vec![1u8], rank, 3).await, Err(unknown.clone()));
        assert_eq!(comm.broadcast(vec![1u8], rank).await, Err(unknown.clone()));
        assert_eq!(comm.improbe(rank, 3).await.err(), Some(unknown.clone()));
        assert_eq!(
            comm.send_init(vec![1u8], rank, 3).err(),
            Some(unknown.clone())
        );
        assert_eq!(
            comm.recv_init::<u8>(1, rank, 3).err(),
            Some(unknown.clone())
        );
        assert_eq!(
            comm.gather_init(vec![1u8], rank).err(),
            Some(unknown.clone())
        );
        let call = world.call_at(rank, Level::at::<0>(), vec![1]);
        assert_eq!(call.await, Err(unknown));
    }
    let refused = comm.split(Some(1 << 31), 0).await.err();
    assert_eq!(refused, Some(Error::Colour(1 << 31)));
    let refused = comm.split(Some(0), usize::MAX).await.err();
    assert_eq!(refused, Some(Error::Key(usize::MAX)));
    // The greatest colour and key.
    let max = i32::MAX as u32;
    let all = comm.split(Some(max), max as usize).await?;
    assert_eq!(all.map(|all| all.size()), Some(size));
    // The length exceeds MPI's count. The memory is never touched.
    let long = comm.isend(vec![0u8; 1 << 31], peer, 4).await;
    assert_eq!(long.err(), Some(Error::TooLong(1 << 31)));
    Ok(())
}

async fn dropped(world: &World) -> Result<()> {
    let comm = world.comm();
    let peer = (world.rank() + 1) % world.size();
    for length in [10usize, 200_000] {
        // The send completes although it is not awaited.
        drop(comm.isend(vec![9u32; length], peer, 1));
        let arrived = comm.irecv(vec![0u32; length], Source::Any, 1).await?;
        assert_eq!(arrived.data, vec![9; length]);
        // The receive was cancelled, so the next receive gets the message.
        drop(comm.irecv(vec![0u32; length], Source::Any, 2));
        comm.barrier().await?;
        time::sleep(Duration::from_millis(5)).await;
        let sent = comm.isend(vec![8u32; length], peer, 2);
        let arrived = comm.irecv(vec![0u32; length], Source::Any, 2).await?;
        assert_eq!(arrived.data, vec![8; length]);
        sent.await?;
        // A collective continues in the background.
        drop(comm.allreduce(vec![1u32; length], Op::Sum));
        drop(comm.improbe(Source::Any, 3));
        // A message that was probed is dropped instead of being received.
        let sent = comm.issend(vec![7u32; length], peer, 4);
        drop(comm.improbe(Source::Any, 4).await?);
        sent.await?;
        // A receive that is leaked also leaks its buffer, because MPI may still write to the
        // buffer.
        std::mem::forget(comm.irecv(vec![0u32; length], Source::Any, 5));
    }
    Ok(())
}

async fn cancelled(world: &World) -> Result<()> {
    let comm = world.comm();
    let peer = (world.rank() + 1) % world.size();
    let none = comm.irecv(vec![0u8; 10], Source::Any, 6).cancel().await?;
    assert_eq!(none, None);
    comm.barrier().await?;
    let receive = comm.irecv(vec![0u8; 10], Source::Any, 7);
    comm.isend(vec![3u8; 10], peer, 7).await?;
    comm.barrier().await?;
    // The message is not lost, whether it has arrived or not.
    let arrived = match receive.cancel().await? {
        Some(arrived) => arrived,
        None => comm.irecv(vec![0u8; 10], Source::Any, 7).await?,
    };
    assert_eq!(arrived.data, [3; 10]);
    comm.barrier().await
}

async fn thousands(world: &World) -> Result<()> {
    let comm = world.comm();
    let (rank, size) = (world.rank(), world.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let count = 5000usize;
    let receives: Vec<_> = (0..count)
        .map(|number| comm.irecv(vec![0u64; 4], previous, 2000 + (number % 1000) as u16))
        .collect();
    comm.barrier().await?;
    let sends: Vec<_> = (0..count)
        .map(|number| comm.isend(vec![number as u64; 4], next, 2000 + (number % 1000) as u16))
        .collect();
    for (number, receive) in receives.into_iter().enumerate() {
        assert_eq!(receive.await?.data, [number as u64; 4]);
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

pub(crate) async fn huge(world: World) -> Result<()> {
    let comm = world.comm();
    let (rank, size) = (world.rank(), world.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let length = (256 << 20) / 8 / size;
    let number = |rank: usize, index: usize| (rank as u64) << 40 | index as u64;
    let items: Vec<u64> = (0..length).map(|index| number(rank, index)).collect();
    let sent = comm.isend(items, next, 1);
    let arrived = comm.irecv(vec![0u64; length], previous, 1).await?;
    assert_eq!(arrived.data.len(), length);
    for (index, item) in arrived.data.iter().enumerate() {
        assert_eq!(*item, number(previous, index));
    }
    sent.await?;
    Ok(())
}
