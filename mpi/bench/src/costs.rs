//! Measures the costs of a message, a byte, a call and a multiplication.

use std::time::Instant;

use upshift::Level;
use upshift_mpi::{Launch, Result, World};
use upshift_mpi_matrix::multiply;

use crate::work::{Plain, median, micros, print_figure};

pub(crate) const SHORT: &str = "1 message of 8 bytes µs";
pub(crate) const LONG: &str = "2 message of 4 MiB µs";
pub(crate) const CALL: &str = "3 call µs";
pub(crate) const MULTIPLY: &str = "4 multiplication ns";
pub(crate) const BYTES: usize = 4 << 20;

pub(crate) fn run(way: &str, scale: u32) -> Result<()> {
    let times = 50 * scale as usize;
    if way == "blocking" {
        // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
        let plain = unsafe { Plain::init(mpi_sys::RSMPI_THREAD_SINGLE)? };
        let peer = 1 - plain.rank;
        for (name, bytes, times) in [(SHORT, 8, times * 20), (LONG, BYTES, times)] {
            let (out, mut into) = (vec![1; bytes], vec![0; bytes]);
            let taken = (0..times).map(|_| {
                let began = Instant::now();
                plain.round_trip(peer, &out, &mut into);
                began.elapsed()
            });
            let half = micros(median(taken.collect())) / 2.0;
            if plain.rank == 0 {
                print_figure(name, half);
            }
        }
        return Ok(());
    }
    // SAFETY: no message is longer than its buffer, since both sides have the same length.
    let launch = unsafe { Launch::new().single_copy() };
    launch.run(async |world: World| upshift(&world, times).await)
}

async fn upshift(world: &World, times: usize) -> Result<()> {
    let (comm, peer) = (world.comm(), 1 - world.rank());
    world.serve(async |request| request.body);
    for (name, bytes, times) in [(SHORT, 8, times * 20), (LONG, BYTES, times)] {
        let (mut out, mut into) = (vec![1u8; bytes], vec![0u8; bytes]);
        let mut taken = Vec::new();
        for _ in 0..times {
            let began = Instant::now();
            if world.rank() == 0 {
                out = comm.isend(out, peer, 1).await?;
                into = comm.irecv(into, peer, 1).await?.data;
            } else {
                into = comm.irecv(into, peer, 1).await?.data;
                out = comm.isend(out, peer, 1).await?;
            }
            taken.push(began.elapsed());
        }
        if world.rank() == 0 {
            print_figure(name, micros(median(taken)) / 2.0);
        }
    }
    let mut taken = Vec::new();
    if world.rank() == 0 {
        for _ in 0..times * 4 {
            let began = Instant::now();
            world.call_at(1, Level::at::<0>(), vec![1; 64]).await?;
            taken.push(began.elapsed());
        }
        print_figure(CALL, micros(median(taken)));
        let n = 256;
        let (a, b, mut c) = (vec![3; n * n], vec![5; n * n], vec![0; n * n]);
        let mut taken = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            multiply(&a, &b, &mut c, n, n).await;
            taken.push(began.elapsed());
        }
        std::hint::black_box(c);
        print_figure(
            MULTIPLY,
            micros(median(taken)) * 1000.0 / (n * n * n) as f64,
        );
    }
    comm.barrier().await
}
