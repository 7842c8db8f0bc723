//! Four rings of 128 coroutines each, on one to five vCPUs. Messages pass around each ring: every
//! coroutine reads them from its pipe, processes them and writes them to the next coroutine's pipe,
//! by asynchronous calls (SharedScheduler, the experiment of the rings).
//!
//! The published system takes six times as long with five pollers on four harts as with four,
//! because one of the pollers is always stopped while others wait for it. `rings` prints the median
//! time for each number of vCPUs, of several interleaved runs, and the ratio of five to four in
//! thousandths: with one message in each ring, where the fifth vCPU has no work, and with 16, where
//! all have work. `os-runner rings` boots this program. If a message is lost, the program does not
//! end.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use os_user::coroutine::{JoinHandle, current, spawn};
use os_user::cpu::{Cpu, alloc_cpu};
use os_user::{Error, Pipe, now, pipe, println, read, sys, ticks_per_second, write};

os_user::coroutine_entry!(main);

const RINGS: usize = 4;
const LINKS: usize = 128;
const MAX_CPUS: usize = 5;

/// Returns the number of rounds of all messages, the number of measurements, and the smallest
/// number of vCPUs.
fn sizes(messages: u64) -> (u64, usize, usize) {
    match os_user::argument() {
        b"short" => (4_u64.div_ceil(messages), 1, 3),
        b"exact" => (8_u64.div_ceil(messages), 1, 4),
        _ => (64 / messages, 9, 1),
    }
}

fn process(message: &mut [u8]) {
    let byte = u64::from(message[0]);
    let seen = (0..20).fold(byte, |seen, n| core::hint::black_box(seen ^ n) ^ n);
    message[0] = seen as u8;
}

/// Runs a coroutine of a ring, which passes `messages` messages on.
async fn link(source: Pipe, sink: Pipe, messages: u64) -> Result<(), Error> {
    let mut buffer = vec![0; 1];
    for _ in 0..messages {
        let (result, mut message) = read!(source.reader, buffer, current()).await;
        result?;
        process(&mut message);
        let (result, message) = write!(sink.writer, message, current()).await;
        result?;
        buffer = message;
    }
    Ok(())
}

type Links = Vec<JoinHandle<Result<(), Error>>>;

fn start_ring(ring: &[Pipe], messages: u64) -> Result<Links, Error> {
    let pairs = ring.iter().zip(ring.iter().cycle().skip(1));
    pairs
        .map(|(source, sink)| spawn(link(*source, *sink, messages), None))
        .collect()
}

/// Returns the ticks for this number of rounds of `messages` messages in each ring.
async fn measure(rings: &[Vec<Pipe>], messages: u64, rounds: u64) -> Result<u64, Error> {
    let mut links = Vec::new();
    for ring in rings {
        links.extend(start_ring(ring, messages * rounds)?);
    }
    let start = now();
    for ring in rings {
        for n in 0..messages as usize {
            write!(ring[n * LINKS / messages as usize].writer, &[n as u8])?;
        }
    }
    for link in links {
        link.await.ok_or(Error::NoProcess)??;
    }
    let time = now() - start;
    // Each message has returned to the pipe in which it started.
    for ring in rings {
        for n in 0..messages as usize {
            let mut byte = [0];
            read!(ring[n * LINKS / messages as usize].reader, &mut byte)?;
        }
    }
    Ok(time)
}

async fn measure_with_cpus(
    rings: &[Vec<Pipe>],
    count: usize,
    (messages, rounds): (u64, u64),
) -> Result<u64, Error> {
    let mut extra_cpus: Vec<Cpu> = Vec::new();
    for _ in 1..count {
        extra_cpus.push(alloc_cpu()?);
    }
    let time = measure(rings, messages, rounds).await;
    for cpu in extra_cpus {
        cpu.release()?;
    }
    time
}

async fn compare(rings: &[Vec<Pipe>], messages: u64) -> Result<(), Error> {
    let (rounds, measurements, min_cpus) = sizes(messages);
    let mut times: [Vec<u64>; MAX_CPUS] = Default::default();
    for _ in 0..measurements {
        for count in min_cpus..=MAX_CPUS {
            times[count - 1].push(measure_with_cpus(rings, count, (messages, rounds)).await?);
        }
    }
    let medians = times.map(|mut times| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    });
    for (index, ticks) in medians.iter().enumerate().skip(min_cpus - 1) {
        let micros = ticks * 1_000_000 / ticks_per_second();
        println!(
            "figure: rings of {messages}: {} vCPUs: {micros} microseconds",
            index + 1
        );
    }
    let ratio = medians[4] * 1000 / medians[3].max(1);
    println!("figure: rings of {messages}: 5 vCPUs to 4: {ratio} thousandths");
    Ok(())
}

async fn main() -> isize {
    match compare_all().await {
        Ok(()) => 0,
        Err(error) => {
            println!("rings: {error}");
            1
        }
    }
}

async fn compare_all() -> Result<(), Error> {
    let mut rings = Vec::new();
    for _ in 0..RINGS {
        let ring: Result<Vec<Pipe>, Error> = (0..LINKS).map(|_| pipe()).collect();
        rings.push(ring?);
    }
    for messages in [1, 16] {
        compare(&rings, messages).await?;
    }
    for pipe in rings.into_iter().flatten() {
        sys::close(pipe.reader)?;
        sys::close(pipe.writer)?;
    }
    Ok(())
}
