//! The clients of the matrix server: a coroutine for each connection, which checks every reply.

use alloc::vec;
use alloc::vec::Vec;

use os_user::coroutine::{current, spawn};
use os_user::{Error, now, println, read, sys, ticks_per_second, write};

use crate::{PORT, connect as connect_to, level_of, square};

/// A load, as the argument of the program describes it (`main.rs`).
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) n: usize,
    pub(crate) levels: usize,
    pub(crate) period: u64,
    pub(crate) millis: u64,
}

/// Answered requests of a connection in the measured time; times in ticks.
#[derive(Default)]
pub(crate) struct ConnectionResult {
    latencies: Vec<u64>,
    /// Time of the first reply.
    first: u64,
    /// Time of the last reply.
    last: u64,
}

/// Opens all connections, and sends the level of each.
pub(crate) async fn connect(
    load: &Load,
    connections_per_server: usize,
) -> Result<Vec<usize>, Error> {
    let mut connections = Vec::new();
    for index in 0..load.connections {
        let connection = connect_to(PORT + (index / connections_per_server) as u16)?;
        os_user::write(connection, &[level_of(index % load.levels)])?;
        connections.push(connection);
    }
    // Let the servers' coroutines or threads start.
    os_user::sleep(20_000).await;
    Ok(connections)
}

/// Warm-up of a closed loop, in milliseconds. After it all requests are in progress, so the number
/// of replies in the measured time is the throughput of the server.
const WARM_UP: u64 = 100;

/// Converts milliseconds to ticks.
fn millis(millis: u64) -> u64 {
    millis * ticks_per_second() / 1_000
}

/// A request of a connection, and the expected reply.
struct Request {
    request: Vec<u8>,
    expected: Vec<u8>,
}

impl Request {
    fn new(load: &Load, at: usize) -> Request {
        let words = load.n * load.n;
        let mut request = Vec::from((8 * words as u32).to_le_bytes());
        for place in 0..words {
            request.extend_from_slice(&((place * 31 + at) as u64).to_le_bytes());
        }
        let expected = square(&request);
        Request { request, expected }
    }
}

/// Sends requests on all connections until the time has passed. The expected replies are computed
/// before the time begins.
pub(crate) async fn run(
    load: &Load,
    connections: Vec<usize>,
) -> Result<Vec<ConnectionResult>, Error> {
    let questions = (0..connections.len()).map(|at| Request::new(load, at));
    let questions: Vec<_> = questions.collect();
    let (start, load) = (now(), *load);
    let mut clients = Vec::new();
    let pairs = connections.into_iter().zip(questions);
    for (at, (connection, question)) in pairs.enumerate() {
        let client = ask(load, connection, at, question, start);
        clients.push(spawn(client, Some(level_of(at % load.levels)))?);
    }
    let mut results = Vec::new();
    for client in clients {
        results.push(client.await.unwrap_or(Err(Error::Cancelled))?);
    }
    Ok(results)
}

async fn ask(
    load: Load,
    connection: usize,
    at: usize,
    question: Request,
    start: u64,
) -> Result<ConnectionResult, Error> {
    let Request {
        mut request,
        expected,
    } = question;
    let begin = match load.period {
        0 => start + millis(WARM_UP),
        _ => start,
    };
    let end = begin + millis(load.millis);
    let mut result = ConnectionResult::default();
    let mut buffer = vec![0; expected.len()];
    for turn in 0.. {
        // The connections' requests are spread over a period.
        let offset = millis(load.period) * at as u64 / load.connections as u64;
        let intended = match load.period {
            0 => now(),
            period => start + offset + turn * millis(period),
        };
        if intended >= end {
            break;
        }
        let _ = os_user::asynchronous::sleep_until(intended, current()).await;
        let (sent, bytes) = write!(connection, request, current()).await;
        sent?;
        request = bytes;
        let mut received = Vec::new();
        while received.len() < expected.len() {
            let (count, bytes) = read!(connection, buffer, current()).await;
            buffer = bytes;
            match count? {
                0 => return Err(Error::BrokenPipe),
                count => received.extend_from_slice(&buffer[..count]),
            }
        }
        if received != expected {
            return Err(Error::BadArgument);
        }
        let received_at = now();
        if received_at > begin && received_at <= end {
            if result.latencies.is_empty() {
                result.first = received_at;
            }
            result.last = received_at;
            result.latencies.push(received_at - intended);
        }
    }
    sys::close(connection)?;
    Ok(result)
}

/// Percentiles of the latencies, in thousandths.
const SHARES: [usize; 6] = [250, 500, 750, 900, 990, 999];

/// Returns mean, standard deviation, and the latency for each of [`SHARES`], in microseconds.
fn summary(latencies: &mut [u64]) -> (u64, u64, [u64; SHARES.len()]) {
    latencies.sort_unstable();
    let count = latencies.len() as u64;
    let micros = |ticks: u64| ticks * 1_000_000 / ticks_per_second();
    let Some(last) = latencies.len().checked_sub(1) else {
        return (0, 0, [0; SHARES.len()]);
    };
    let mean = latencies.iter().sum::<u64>() / count;
    let squares = latencies
        .iter()
        .map(|latency| latency.abs_diff(mean).pow(2));
    let deviation = (squares.sum::<u64>() / count).isqrt();
    let percentile = |share: usize| micros(latencies[last * share / 1000]);
    (micros(mean), micros(deviation), SHARES.map(percentile))
}

/// Returns the nanoseconds per request, from the first reply of each connection to its last, or 0
/// if a connection has fewer than two replies. In a closed loop connections are served in turn, and
/// several replies may arrive at the end of a turn, so the number of replies in a fixed time is off
/// by up to a turn.
fn nanos_per_request(results: &[&ConnectionResult]) -> u64 {
    // Scale of `rate`, which counts requests per tick.
    const SCALE: u64 = 1_000_000_000_000;
    let mut rate = 0;
    for result in results {
        match result.latencies.len() as u64 {
            0 | 1 => return 0,
            count => rate += (count - 1) * SCALE / (result.last - result.first).max(1),
        }
    }
    let nanos_of_tick = 1_000_000_000 / ticks_per_second();
    (SCALE * nanos_of_tick).checked_div(rate).unwrap_or(0)
}

pub(crate) fn report(
    model: &str,
    load: &Load,
    results: &[ConnectionResult],
    took: u64,
    pages: isize,
) {
    let line = |row: &str, connections: &[&ConnectionResult]| {
        let latencies = connections.iter().flat_map(|result| &result.latencies);
        let mut sorted: Vec<u64> = latencies.copied().collect();
        let (mean, deviation, [p25, median, p75, p90, p99, p999]) = summary(&mut sorted);
        let (count, nanos) = (sorted.len(), nanos_per_request(connections));
        println!(
            "matrix: {model} {} {} {} {} {row} {count} {took} {mean} {median} {p99} {deviation} {pages} \
             {p25} {p75} {p90} {p999} {nanos}",
            load.connections, load.n, load.levels, load.period
        );
    };
    line("all", &results.iter().collect::<Vec<_>>());
    for class in 0..load.levels {
        let results_of_class = results.iter().skip(class).step_by(load.levels);
        line(
            &alloc::format!("{}", level_of(class)),
            &results_of_class.collect::<Vec<_>>(),
        );
    }
}
