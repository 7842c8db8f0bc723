//! Measures the overlap of communication and computing in three ways, which are blocking MPI
//! without overlap, a separate thread for communication with `MPI_THREAD_MULTIPLE`, and coroutines.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use upshift::{Level, spawn};
use upshift_mpi::{Launch, Result, World};

use crate::work::{
    Plain, compute, compute_cooperatively, median, micros, partner, pieces_in, print_figure,
};

const BYTES: usize = 1 << 20;

pub(crate) fn run(way: &str, scale: u32) -> Result<()> {
    let times = 20 * scale as usize;
    match way {
        "blocking" => blocking(times),
        "threads" => threads(times),
        // SAFETY: no message is longer than its buffer, since both sides have the same length.
        _ => unsafe { Launch::new().single_copy() }
            .run(async |world: World| coroutines(&world, times).await),
    }
}

fn report(first: bool, sides: [Vec<Duration>; 3]) {
    if !first {
        return;
    }
    let [messages, computing, both] = sides.map(median);
    print_figure("1 messages µs", micros(messages));
    print_figure("2 computing µs", micros(computing));
    print_figure("3 both µs", micros(both));
    let sum = (messages + computing).as_secs_f64();
    let hidden = (sum - both.as_secs_f64()) / messages.min(computing).as_secs_f64();
    print_figure("4 hidden %", hidden * 100.0);
}

fn timed(times: usize, barrier: impl Fn(), mut sides: [&mut dyn FnMut(); 3]) -> [Vec<Duration>; 3] {
    let mut taken = [const { Vec::new() }; 3];
    for _ in 0..times {
        for (side, taken) in sides.iter_mut().zip(&mut taken) {
            barrier();
            let began = Instant::now();
            side();
            taken.push(began.elapsed());
        }
    }
    taken
}

/// Returns the number of pieces of computing that together take as long as the messages.
fn pieces(plain: &Plain, peer: i32, out: &[u8], into: &mut [u8]) -> u64 {
    let mut taken = Vec::new();
    for _ in 0..10 {
        plain.barrier();
        let began = Instant::now();
        plain.exchange(peer, out, into);
        taken.push(began.elapsed());
    }
    pieces_in(median(taken))
}

fn blocking(times: usize) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let plain = unsafe { Plain::init(mpi_sys::RSMPI_THREAD_SINGLE)? };
    let peer = partner(plain.rank as usize, plain.size as usize) as i32;
    let (out, mut into, mut other) = (vec![1; BYTES], vec![0; BYTES], vec![0; BYTES]);
    let pieces = pieces(&plain, peer, &out, &mut into);
    let taken = timed(
        times,
        || plain.barrier(),
        [
            &mut || plain.exchange(peer, &out, &mut into),
            &mut || compute(pieces),
            &mut || {
                plain.exchange(peer, &out, &mut other);
                compute(pieces);
            },
        ],
    );
    report(plain.rank == 0, taken);
    Ok(())
}

fn threads(times: usize) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let plain = unsafe { Plain::init(mpi_sys::RSMPI_THREAD_MULTIPLE)? };
    let peer = partner(plain.rank as usize, plain.size as usize) as i32;
    let (out, mut into) = (vec![1; BYTES], vec![0; BYTES]);
    let pieces = pieces(&plain, peer, &out, &mut into);
    let (ask, asked) = sync_channel::<()>(1);
    let (finish, finished) = sync_channel::<()>(1);
    let taken = std::thread::scope(|scope| {
        let (plain, out) = (&plain, &out);
        scope.spawn(move || {
            let mut into = vec![0; BYTES];
            while asked.recv().is_ok() {
                plain.exchange(peer, out, &mut into);
                if finish.send(()).is_err() {
                    return;
                }
            }
        });
        let exchange = || {
            // The thread lives as long as its channels.
            let _ = ask.send(());
        };
        let taken = timed(
            times,
            || plain.barrier(),
            [
                &mut || {
                    exchange();
                    let _ = finished.recv();
                },
                &mut || compute(pieces),
                &mut || {
                    exchange();
                    compute(pieces);
                    let _ = finished.recv();
                },
            ],
        );
        drop(ask);
        taken
    });
    report(plain.rank == 0, taken);
    Ok(())
}

async fn coroutines(world: &World, times: usize) -> Result<()> {
    let peer = partner(world.rank(), world.size());
    let comm = world.comm();
    let exchange = async |out: Vec<u8>, into: Vec<u8>| -> Result<(Vec<u8>, Vec<u8>)> {
        let sent = comm.isend(out, peer, 1);
        let arrived = comm.irecv(into, peer, 1).await?.data;
        Ok((sent.await?, arrived))
    };
    let (mut out, mut into) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let mut taken = Vec::new();
    for _ in 0..10 {
        comm.barrier().await?;
        let began = Instant::now();
        (out, into) = exchange(out, into).await?;
        taken.push(began.elapsed());
    }
    let pieces = pieces_in(median(taken));
    let mut taken = [const { Vec::new() }; 3];
    for _ in 0..times {
        comm.barrier().await?;
        let began = Instant::now();
        (out, into) = exchange(out, into).await?;
        taken[0].push(began.elapsed());
        comm.barrier().await?;
        let began = Instant::now();
        compute_cooperatively(pieces).await;
        taken[1].push(began.elapsed());
        comm.barrier().await?;
        let began = Instant::now();
        let computing = spawn(compute_cooperatively(pieces), Level::at::<60>());
        (out, into) = exchange(out, into).await?;
        // Awaited only now, because awaiting lends the level of this coroutine to `computing`.
        let _ = computing.await;
        taken[2].push(began.elapsed());
    }
    report(world.rank() == 0, taken);
    Ok(())
}
