//! Runs ranks that fail in several ways. The tests check the messages of the other ranks, and how
//! long these ranks take to end.

use std::time::Duration;

use upshift::{Level, time};
use upshift_mpi::{Error, Op, Result, World};

async fn serve(world: &World) -> Result<()> {
    world.serve(async |request| request.body);
    let last = world.size() - 1;
    world.comm().barrier().await?;
    if world.rank() == 0 {
        world.call_at(last, Level::at::<0>(), vec![1; 77]).await?;
        // This call is less urgent, so the message must not name it.
        world.call_at(last, Level::at::<5>(), vec![1; 11]).await?;
    }
    world.comm().barrier().await
}

/// Kills the last rank while the other ranks wait for it in several ways.
pub(crate) async fn killed(world: World) -> Result<()> {
    serve(&world).await?;
    let comm = world.comm();
    let last = world.size() - 1;
    if world.rank() == last {
        time::sleep(Duration::from_millis(50)).await;
        // SAFETY: the call takes no pointers, and ends only this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let other = comm.dup().await?;
    let reduced = other.allreduce(vec![1u8], Op::Sum);
    let receive = comm.irecv(vec![0u8], last, 1);
    let call = world.call_at(last, Level::at::<3>(), vec![2]);
    let assert_names_last = |error: Option<Error>| match error {
        Some(Error::Died(death)) => assert_eq!(death.rank, last),
        other => panic!("{other:?}"),
    };
    assert_names_last(receive.await.err());
    assert_names_last(reduced.await.err());
    assert_names_last(call.await.err());
    assert_names_last(world.failure());
    assert_names_last(comm.barrier().await.err());
    println!("rank {} saw it", world.rank());
    time::sleep(Duration::from_secs(60)).await;
    Ok(())
}

/// Blocks the thread of the last rank.
pub(crate) async fn hung(world: World) -> Result<()> {
    serve(&world).await?;
    if world.rank() == world.size() - 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    world.comm().barrier().await?;
    Ok(())
}

/// Ends the last rank with an error.
pub(crate) async fn error(world: World) -> Result<()> {
    serve(&world).await?;
    if world.rank() == world.size() - 1 {
        return Err(Error::System("the last rank fails".into()));
    }
    world.comm().barrier().await
}

/// Ends the last rank with a panic.
pub(crate) async fn panics(world: World) -> Result<()> {
    serve(&world).await?;
    assert!(world.rank() < world.size() - 1, "the last rank fails");
    world.comm().barrier().await
}
