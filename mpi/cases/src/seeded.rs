//! Runs random operations from a seed. Each operation is awaited, dropped at once, dropped later,
//! or cancelled.

use std::time::Duration;

use upshift::{Level, spawn, time};
use upshift_mpi::{Comm, Result, World};

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

const ROUNDS: u64 = 400;

/// Runs coroutines with random operations. All ranks draw the same numbers, so each rank knows the
/// messages of the other ranks. Each rank decides independently how it treats its receives.
pub(crate) async fn storm(world: World, seed: u64) -> Result<()> {
    let comms: Vec<_> = {
        let mut comms = Vec::new();
        for _ in 0..4 {
            comms.push(world.comm().dup().await?);
        }
        comms
    };
    let coroutines: Vec<_> = comms
        .into_iter()
        .enumerate()
        .map(|(number, comm)| {
            let level = Level::new(number as u8 * 9).unwrap();
            spawn(run_operations(comm, seed * 4 + number as u64), level)
        })
        .collect();
    for coroutine in coroutines {
        coroutine.await.unwrap()?;
    }
    world.comm().barrier().await
}

async fn run_operations(comm: Comm, seed: u64) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut common = Random(seed);
    let mut local = Random(seed ^ (rank as u64 + 1) << 32);
    for round in 0..ROUNDS {
        let length = match common.next(10) {
            0 => 100_000,
            1..4 => 1000,
            _ => common.next(20) as usize,
        };
        let operation = common.next(6);
        match operation {
            // The message must arrive.
            0 | 1 => {
                let sent = comm.isend(vec![round; length], next, 1);
                let arrived = comm.irecv(vec![0u64; length], previous, 1).await?;
                assert_eq!(arrived.data, vec![round; length]);
                if local.next(2) == 0 {
                    sent.await?;
                }
            }
            // The receives have no sender.
            2 => {
                for _ in 0..local.next(50) {
                    let receive = comm.irecv(vec![0u64; length], previous, 2);
                    match local.next(3) {
                        0 => drop(receive),
                        1 => assert_eq!(receive.cancel().await?, None),
                        _ => {
                            let limit = Duration::from_micros(local.next(100));
                            assert!(time::timeout(limit, receive).await.is_err());
                        }
                    }
                }
            }
            3 => {
                let probe = comm.improbe(previous, 3);
                drop(comm.isend(vec![round; length], next, 3));
                let message = probe.await?;
                assert_eq!(message.length::<u64>()?, length);
                if local.next(2) == 0 {
                    assert_eq!(message.receive::<u64>().await?.data, vec![round; length]);
                }
            }
            4 => {
                let all = comm.allgather(vec![rank as u64; length]);
                if local.next(2) == 0 {
                    let all = all.await?;
                    assert_eq!(all.len(), length * size);
                }
            }
            _ => {
                let mut persistent = comm.recv_init::<u64>(length, previous, 4)?;
                persistent.start()?;
                if local.next(2) == 0 {
                    let wait = persistent.wait();
                    let _ = time::timeout(Duration::from_micros(local.next(50)), wait).await;
                }
            }
        }
    }
    comm.barrier().await
}
