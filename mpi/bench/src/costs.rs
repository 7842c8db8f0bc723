//! Measures the costs of a message, a byte, a call and a multiplication.

use std::time::Instant;

use upshift::Level;
use upshift_mpi::{Launch, Result, World};
use upshift_mpi_matrix::multiply;

use crate::work::{BlockingMpi, median, micros, print_figure};

// Names of the figures.
pub(crate) const SHORT: &str = "1 message of 8 bytes µs";
pub(crate) const LONG: &str = "2 message of 4 MiB µs";
pub(crate) const CALL: &str = "3 call µs";
pub(crate) const MULTIPLY: &str = "4 multiplication ns";
/// Length of the long message.
pub(crate) const BYTES: usize = 4 << 20;

pub(crate) fn run(way: &str, scale: u32) -> Result<()> {
    let repeats = 50 * scale as usize;
    if way == "blocking" {
        // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
        let mpi = unsafe { BlockingMpi::init(mpi_sys::RSMPI_THREAD_SINGLE)? };
        let peer = 1 - mpi.rank;
        for (name, bytes, repeats) in [(SHORT, 8, repeats * 20), (LONG, BYTES, repeats)] {
            let (send_buffer, mut receive_buffer) = (vec![1; bytes], vec![0; bytes]);
            let times = (0..repeats).map(|_| {
                let start_time = Instant::now();
                mpi.round_trip(peer, &send_buffer, &mut receive_buffer);
                start_time.elapsed()
            });
            let one_way_us = micros(median(times.collect())) / 2.0;
            if mpi.rank == 0 {
                print_figure(name, one_way_us);
            }
        }
        return Ok(());
    }
    // SAFETY: no message is longer than its buffer, since both sides have the same length.
    let launch = unsafe { Launch::new().single_copy() };
    launch.run(async |world: World| upshift(&world, repeats).await)
}

async fn upshift(world: &World, repeats: usize) -> Result<()> {
    let (comm, peer) = (world.comm(), 1 - world.rank());
    world.serve(async |request| request.body);
    for (name, bytes, repeats) in [(SHORT, 8, repeats * 20), (LONG, BYTES, repeats)] {
        let (mut send_buffer, mut receive_buffer) = (vec![1u8; bytes], vec![0u8; bytes]);
        let mut times = Vec::new();
        for _ in 0..repeats {
            let start_time = Instant::now();
            if world.rank() == 0 {
                send_buffer = comm.isend(send_buffer, peer, 1).await?;
                receive_buffer = comm.irecv(receive_buffer, peer, 1).await?.data;
            } else {
                receive_buffer = comm.irecv(receive_buffer, peer, 1).await?.data;
                send_buffer = comm.isend(send_buffer, peer, 1).await?;
            }
            times.push(start_time.elapsed());
        }
        if world.rank() == 0 {
            print_figure(name, micros(median(times)) / 2.0);
        }
    }
    let mut times = Vec::new();
    if world.rank() == 0 {
        for _ in 0..repeats * 4 {
            let start_time = Instant::now();
            world.call_at(1, Level::at::<0>(), vec![1; 64]).await?;
            times.push(start_time.elapsed());
        }
        print_figure(CALL, micros(median(times)));
        let n = 256;
        let (a, b, mut c) = (vec![3; n * n], vec![5; n * n], vec![0; n * n]);
        let mut times = Vec::new();
        for _ in 0..5 {
            let start_time = Instant::now();
            multiply(&a, &b, &mut c, n, n).await;
            times.push(start_time.elapsed());
        }
        std::hint::black_box(c);
        print_figure(
            MULTIPLY,
            micros(median(times)) * 1000.0 / (n * n * n) as f64,
        );
    }
    comm.barrier().await
}
