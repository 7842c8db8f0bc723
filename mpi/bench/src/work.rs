//! Provides helpers for all measurements, such as interruptible computing, clocks, histograms, and
//! blocking MPI.

use std::ffi::c_int;
use std::hint::black_box;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mpi_sys as sys;
use upshift::{time, yield_if_needed};
use upshift_mpi::{Error, Result};

/// Number of steps of computing between two points at which a coroutine may yield. The steps take
/// about 100 ns.
const STEPS: u64 = 128;

fn piece(seed: u64) -> u64 {
    (0..STEPS).fold(seed, |sum, n| black_box(sum.wrapping_mul(31) ^ n))
}

pub(crate) fn compute(pieces: u64) {
    black_box((0..pieces).fold(1, |seed, _| piece(seed)));
}

pub(crate) async fn compute_cooperatively(pieces: u64) {
    let mut seed = 1;
    for _ in 0..pieces {
        seed = piece(seed);
        yield_if_needed().await;
    }
    black_box(seed);
}

/// Returns the number of pieces that currently take `time` on this rank.
pub(crate) fn pieces_in(time: Duration) -> u64 {
    let start_time = Instant::now();
    compute(20_000);
    let per_piece = start_time.elapsed().as_secs_f64() / 20_000.0;
    (time.as_secs_f64() / per_piece) as u64 + 1
}

pub(crate) fn print_figure(name: &str, value: f64) {
    println!("figure {name} {value}");
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Creates a histogram of latencies in nanoseconds. A latency begins when the request is due, even
/// if the request is sent late.
pub(crate) fn histogram() -> Histogram<u64> {
    // The upper bound is a minute.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("these bounds are allowed")
}

pub(crate) fn print_quantiles(name: &str, latencies: &Histogram<u64>) {
    for (label, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let value = latencies.value_at_quantile(quantile) as f64 / 1000.0;
        print_figure(&format!("{name} {label} µs"), value);
    }
}

/// The schedule of requests that are sent at fixed times, whether earlier requests were answered or
/// not (an open loop).
pub(crate) struct Schedule {
    start_time: Instant,
    period: Duration,
    /// Number of the next request.
    number: u32,
    /// Time from the start after which no request is due.
    end: Duration,
}

impl Schedule {
    pub(crate) fn new(per_second: u32, seconds: f64) -> Schedule {
        Schedule {
            start_time: Instant::now(),
            period: Duration::from_secs(1) / per_second,
            number: 0,
            end: Duration::from_secs_f64(seconds),
        }
    }

    /// Waits until the next request is due, and returns this moment. Returns `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Instant> {
        let offset = self.period * self.number;
        self.number += 1;
        if offset >= self.end {
            return None;
        }
        let moment = self.start_time + offset;
        time::sleep(moment.saturating_duration_since(Instant::now())).await;
        Some(moment)
    }
}

/// Blocking MPI, as a C program uses it.
pub(crate) struct BlockingMpi {
    pub(crate) rank: c_int,
    pub(crate) size: c_int,
}

impl BlockingMpi {
    /// Initialises MPI.
    ///
    /// # Safety
    /// Called once, before any other call of MPI.
    pub(crate) unsafe fn init(threads: c_int) -> Result<BlockingMpi> {
        let (mut provided, mut rank, mut size) = (0, 0, 0);
        // SAFETY: the caller guarantees that this is the first call of MPI; the out-parameters are
        // locals.
        unsafe {
            sys::MPI_Init_thread(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                threads,
                &mut provided,
            );
            if provided < threads {
                return Err(Error::System("the MPI library lacks thread support".into()));
            }
            sys::MPI_Comm_rank(sys::RSMPI_COMM_WORLD, &mut rank);
            sys::MPI_Comm_size(sys::RSMPI_COMM_WORLD, &mut size);
        }
        Ok(BlockingMpi { rank, size })
    }

    /// Sends to a rank and receives from it at the same time, and waits for both.
    pub(crate) fn exchange(&self, peer: c_int, send_buffer: &[u8], receive_buffer: &mut [u8]) {
        // SAFETY: MPI is initialised while a `BlockingMpi` lives, and both sides exchange buffers
        // of the same length.
        unsafe {
            let mut status: sys::MPI_Status = std::mem::zeroed();
            sys::MPI_Sendrecv(
                send_buffer.as_ptr().cast(),
                send_buffer.len() as c_int,
                sys::RSMPI_UINT8_T,
                peer,
                1,
                receive_buffer.as_mut_ptr().cast(),
                receive_buffer.len() as c_int,
                sys::RSMPI_UINT8_T,
                peer,
                1,
                sys::RSMPI_COMM_WORLD,
                &mut status,
            );
        }
    }

    /// Makes a round trip, in which rank 0 sends first, and rank 1 replies.
    pub(crate) fn round_trip(&self, peer: c_int, send_buffer: &[u8], receive_buffer: &mut [u8]) {
        let send = || {
            // SAFETY: MPI is initialised while a `BlockingMpi` lives.
            unsafe {
                sys::MPI_Send(
                    send_buffer.as_ptr().cast(),
                    send_buffer.len() as c_int,
                    sys::RSMPI_UINT8_T,
                    peer,
                    2,
                    sys::RSMPI_COMM_WORLD,
                )
            };
        };
        if self.rank == 0 {
            send();
        }
        // SAFETY: as above; both sides have buffers of the same length.
        unsafe {
            let mut status: sys::MPI_Status = std::mem::zeroed();
            sys::MPI_Recv(
                receive_buffer.as_mut_ptr().cast(),
                receive_buffer.len() as c_int,
                sys::RSMPI_UINT8_T,
                peer,
                2,
                sys::RSMPI_COMM_WORLD,
                &mut status,
            );
        }
        if self.rank != 0 {
            send();
        }
    }

    pub(crate) fn barrier(&self) {
        // SAFETY: as above.
        unsafe { sys::MPI_Barrier(sys::RSMPI_COMM_WORLD) };
    }
}

impl Drop for BlockingMpi {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::MPI_Finalize() };
    }
}

/// Returns the partner of a rank; the last rank of an odd number is its own partner.
pub(crate) fn partner(rank: usize, size: usize) -> usize {
    let other = rank ^ 1;
    if other < size { other } else { rank }
}
