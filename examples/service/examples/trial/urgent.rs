//! Runs an urgent client, which sends one request after the other, with pauses, on one connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::waits::{GROUPS, WaitTimes, Waits};

const REQUEST: &[u8] = b"GET /orders/1 HTTP/1.1\r\nHost: here\r\n\r\n";
const PAUSE: Duration = Duration::from_millis(2);

pub struct Figures {
    /// Median latency, in µs.
    pub p50: u64,
    /// 99th percentile of the latency, in µs.
    pub p99: u64,
    /// Mean latency of the slowest hundredth of the requests, in µs.
    pub slow: u64,
    /// Mean time for which threads waited for a CPU during these requests, in µs.
    pub waited: WaitTimes,
}

/// Measures the service with this process id.
pub fn measure(address: SocketAddr, service: u32, span: Duration) -> Result<Figures> {
    thread::spawn(move || client(address, service, span))
        .join()
        .map_err(|_| "the client panicked")?
}

fn client(address: SocketAddr, service: u32, span: Duration) -> Result<Figures> {
    take_short_slices();
    let waits = Waits::open(service);
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut times = Vec::new();
    let mut answer = [0; 4096];
    let start_time = Instant::now();
    while start_time.elapsed() < span {
        let before = waits.now();
        let sent_at = Instant::now();
        stream.write_all(REQUEST)?;
        let count = stream.read(&mut answer)?;
        let latency_us = sent_at.elapsed().as_micros() as u64;
        let after = waits.now();
        let waited: WaitTimes = std::array::from_fn(|group| after[group] - before[group]);
        times.push((latency_us, waited));
        // An answer is shorter than a TCP segment, so one read receives all of it.
        if !answer[..count].starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(&answer[..count]).into_owned();
            return Err(format!("the urgent client got {text:?}").into());
        }
        thread::sleep(PAUSE);
    }
    times.sort_unstable();
    let slowest = &times[times.len() * 99 / 100..];
    let mean = |figure: &dyn Fn(&(u64, WaitTimes)) -> u64| {
        slowest.iter().map(figure).sum::<u64>() / slowest.len() as u64
    };
    Ok(Figures {
        p50: times[times.len() / 2].0,
        p99: slowest[0].0,
        slow: mean(&|(latency_us, _)| *latency_us),
        waited: std::array::from_fn(|group| mean(&|(_, waited)| waited[group] / 1000)),
    })
}

/// Returns a line of a table: the means of [`Figures::slow`] and [`Figures::waited`] over the
/// rounds.
pub fn slowest(rounds: &[Figures]) -> String {
    let mean = |figure: &dyn Fn(&Figures) -> u64| {
        rounds.iter().map(figure).sum::<u64>() / rounds.len() as u64
    };
    let waited = (0..GROUPS.len()).map(|group| mean(&|figures| figures.waited[group]));
    let cells = std::iter::once(mean(&|figures| figures.slow)).chain(waited);
    cells.map(|cell| format!("{cell} | ")).collect()
}

pub fn median(figures: impl IntoIterator<Item = u64>) -> u64 {
    let mut figures: Vec<u64> = figures.into_iter().collect();
    figures.sort_unstable();
    figures[figures.len() / 2]
}

/// Requests short time slices, so that the kernel runs this thread as soon as its answer arrives,
/// even beside busy threads. Otherwise the delay of this client would count as latency of the
/// service. No privilege is needed.
fn take_short_slices() {
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the pointer is valid, and the first field of `attributes` contains the size of the
    // struct. A kernel without custom slices refuses or ignores the request.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
