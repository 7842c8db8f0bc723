//! Measures the overlap of communication and computing in three ways: blocking MPI without overlap,
//! a separate thread for communication with `MPI_THREAD_MULTIPLE`, and coroutines.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use upshift::{Level, spawn};
use upshift_mpi::{Launch, Result, World};

use crate::work::{
    BlockingMpi, compute, compute_cooperatively, median, micros, partner, pieces_in, print_figure,
};

/// Length of a message.
const BYTES: usize = 1 << 20;

pub(crate) fn run(way: &str, scale: u32) -> Result<()> {
    let repeats = 20 * scale as usize;
    match way {
        "blocking" => blocking(repeats),
        "threads" => threads(repeats),
        // SAFETY: no message is longer than its buffer, since both sides have the same length.
        _ => unsafe { Launch::new().single_copy() }
            .run(async |world: World| coroutines(&world, repeats).await),
    }
}

fn report(is_first_rank: bool, sides: [Vec<Duration>; 3]) {
    if !is_first_rank {
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

fn measure(
    repeats: usize,
    barrier: impl Fn(),
    mut sides: [&mut dyn FnMut(); 3],
) -> [Vec<Duration>; 3] {
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..repeats {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            barrier();
            let start_time = Instant::now();
            side();
            times.push(start_time.elapsed());
        }
    }
    times
}

/// Returns the number of pieces of computing that together take as long as the messages.
fn pieces(mpi: &BlockingMpi, peer: i32, send_buffer: &[u8], receive_buffer: &mut [u8]) -> u64 {
    let mut times = Vec::new();
    for _ in 0..10 {
        mpi.barrier();
        let start_time = Instant::now();
        mpi.exchange(peer, send_buffer, receive_buffer);
        times.push(start_time.elapsed());
    }
    pieces_in(median(times))
}

fn blocking(repeats: usize) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let mpi = unsafe { BlockingMpi::init(mpi_sys::RSMPI_THREAD_SINGLE)? };
    let peer = partner(mpi.rank as usize, mpi.size as usize) as i32;
    let (send_buffer, mut receive_buffer, mut other) =
        (vec![1; BYTES], vec![0; BYTES], vec![0; BYTES]);
    let pieces = pieces(&mpi, peer, &send_buffer, &mut receive_buffer);
    let times = measure(
        repeats,
        || mpi.barrier(),
        [
            &mut || mpi.exchange(peer, &send_buffer, &mut receive_buffer),
            &mut || compute(pieces),
            &mut || {
                mpi.exchange(peer, &send_buffer, &mut other);
                compute(pieces);
            },
        ],
    );
    report(mpi.rank == 0, times);
    Ok(())
}

fn threads(repeats: usize) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let mpi = unsafe { BlockingMpi::init(mpi_sys::RSMPI_THREAD_MULTIPLE)? };
    let peer = partner(mpi.rank as usize, mpi.size as usize) as i32;
    let (send_buffer, mut receive_buffer) = (vec![1; BYTES], vec![0; BYTES]);
    let pieces = pieces(&mpi, peer, &send_buffer, &mut receive_buffer);
    let (start_sender, start_receiver) = sync_channel::<()>(1);
    let (end_sender, end_receiver) = sync_channel::<()>(1);
    let times = std::thread::scope(|scope| {
        let (mpi, send_buffer) = (&mpi, &send_buffer);
        scope.spawn(move || {
            let mut receive_buffer = vec![0; BYTES];
            while start_receiver.recv().is_ok() {
                mpi.exchange(peer, send_buffer, &mut receive_buffer);
                if end_sender.send(()).is_err() {
                    return;
                }
            }
        });
        let exchange = || {
            // The thread lives as long as its channels.
            let _ = start_sender.send(());
        };
        let times = measure(
            repeats,
            || mpi.barrier(),
            [
                &mut || {
                    exchange();
                    let _ = end_receiver.recv();
                },
                &mut || compute(pieces),
                &mut || {
                    exchange();
                    compute(pieces);
                    let _ = end_receiver.recv();
                },
            ],
        );
        drop(start_sender);
        times
    });
    report(mpi.rank == 0, times);
    Ok(())
}

async fn coroutines(world: &World, repeats: usize) -> Result<()> {
    let peer = partner(world.rank(), world.size());
    let comm = world.comm();
    let exchange =
        async |send_buffer: Vec<u8>, receive_buffer: Vec<u8>| -> Result<(Vec<u8>, Vec<u8>)> {
            let sent = comm.isend(send_buffer, peer, 1);
            let received = comm.irecv(receive_buffer, peer, 1).await?.data;
            Ok((sent.await?, received))
        };
    let (mut send_buffer, mut receive_buffer) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let mut times = Vec::new();
    for _ in 0..10 {
        comm.barrier().await?;
        let start_time = Instant::now();
        (send_buffer, receive_buffer) = exchange(send_buffer, receive_buffer).await?;
        times.push(start_time.elapsed());
    }
    let pieces = pieces_in(median(times));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..repeats {
        comm.barrier().await?;
        let start_time = Instant::now();
        (send_buffer, receive_buffer) = exchange(send_buffer, receive_buffer).await?;
        times[0].push(start_time.elapsed());
        comm.barrier().await?;
        let start_time = Instant::now();
        compute_cooperatively(pieces).await;
        times[1].push(start_time.elapsed());
        comm.barrier().await?;
        let start_time = Instant::now();
        let computing = spawn(compute_cooperatively(pieces), Level::at::<60>());
        (send_buffer, receive_buffer) = exchange(send_buffer, receive_buffer).await?;
        // Awaited only now, because awaiting lends the level of this coroutine to `computing`.
        let _ = computing.await;
        times[2].push(start_time.elapsed());
    }
    report(world.rank() == 0, times);
    Ok(())
}
