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
    /// Order of the matrices.
    pub(crate) n: usize,
    pub(crate) levels: usize,
    /// Milliseconds between two requests of a connection. 0 for a closed loop, in which a
    /// connection sends its next request after a reply.
    pub(crate) period: u64,
    /// Measured time in milliseconds.
    pub(crate) millis: u64,
}

/// The replies that a connection received in the measured time. All times are in ticks.
#[derive(Default)]
pub(crate) struct ConnectionResult {
    latencies: Vec<u64>,
    /// Time of the first reply.
    first: u64,
    /// Time of the last reply.
    last: u64,
}

/// Opens all connections, and sends the level of each connection to its server.
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
    // Let the servers' coroutines or threads start, for 20 ms.
    os_user::sleep(20_000).await;
    Ok(connections)
}

/// Warm-up of a closed loop, in milliseconds. After it every connection has a request in progress,
/// so the number of replies in the measured time is the throughput of the server.
const WARM_UP: u64 = 100;

/// Converts milliseconds to ticks.
fn ticks_of_millis(millis: u64) -> u64 {
    millis * ticks_per_second() / 1_000
}

/// A request of a connection, and the expected reply.
struct Exchange {
    request: Vec<u8>,
    expected: Vec<u8>,
}

impl Exchange {
    fn new(load: &Load, connection_index: usize) -> Exchange {
        let words = load.n * load.n;
        let mut request = Vec::from((8 * words as u32).to_le_bytes());
        for position in 0..words {
            request.extend_from_slice(&((position * 31 + connection_index) as u64).to_le_bytes());
        }
        let expected = square(&request);
        Exchange { request, expected }
    }
}

/// Sends requests on all connections until the measured time ends. The expected replies are
/// computed before it begins.
pub(crate) async fn run(
    load: &Load,
    connections: Vec<usize>,
) -> Result<Vec<ConnectionResult>, Error> {
    let exchanges = (0..connections.len()).map(|index| Exchange::new(load, index));
    let exchanges: Vec<_> = exchanges.collect();
    let (start, load) = (now(), *load);
    let mut clients = Vec::new();
    let pairs = connections.into_iter().zip(exchanges);
    for (index, (connection, exchange)) in pairs.enumerate() {
        let client = run_connection(load, connection, index, exchange, start);
        clients.push(spawn(client, Some(level_of(index % load.levels)))?);
    }
    let mut results = Vec::new();
    for client in clients {
        results.push(client.await.unwrap_or(Err(Error::Cancelled))?);
    }
    Ok(results)
}

async fn run_connection(
    load: Load,
    connection: usize,
    index: usize,
    exchange: Exchange,
    start: u64,
) -> Result<ConnectionResult, Error> {
    let Exchange {
        mut request,
        expected,
    } = exchange;
    let begin = match load.period {
        0 => start + ticks_of_millis(WARM_UP),
        _ => start,
    };
    let end = begin + ticks_of_millis(load.millis);
    let mut result = ConnectionResult::default();
    let mut buffer = vec![0; expected.len()];
    for round in 0.. {
        // The connections' requests are spread over a period.
        let offset = ticks_of_millis(load.period) * index as u64 / load.connections as u64;
        let intended = match load.period {
            0 => now(),
            period => start + offset + round * ticks_of_millis(period),
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
            // No error code stands for a wrong reply.
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

/// Quantiles of the latencies that the report contains, in thousandths.
const PERMILLES: [usize; 6] = [250, 500, 750, 900, 990, 999];

/// Returns mean, standard deviation, and the latency for each of [`PERMILLES`], in microseconds.
fn summary(latencies: &mut [u64]) -> (u64, u64, [u64; PERMILLES.len()]) {
    latencies.sort_unstable();
    let count = latencies.len() as u64;
    let micros = |ticks: u64| ticks * 1_000_000 / ticks_per_second();
    let Some(last) = latencies.len().checked_sub(1) else {
        return (0, 0, [0; PERMILLES.len()]);
    };
    let mean = latencies.iter().sum::<u64>() / count;
    let squares = latencies
        .iter()
        .map(|latency| latency.abs_diff(mean).pow(2));
    let deviation = (squares.sum::<u64>() / count).isqrt();
    let percentile = |permille: usize| micros(latencies[last * permille / 1000]);
    (micros(mean), micros(deviation), PERMILLES.map(percentile))
}

/// Returns the nanoseconds per request, from the first reply of each connection to its last, or 0
/// if a connection has fewer than two replies. In a closed loop the server serves the connections
/// in rounds, and several replies may arrive at the end of a round, so the number of replies in a
/// fixed time has an error of up to one round.
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

/// Prints a line for all connections, and a line for each level: `model`, the numbers of the load
/// (connections, n, levels, period), the level or `all`, the number of replies, the duration in
/// ticks, the mean, median and p99 latency and the standard deviation, the pages that the servers
/// use, the p25, p75, p90 and p999 latency, and the nanoseconds per request. Latencies are in
/// microseconds.
pub(crate) fn report(
    model: &str,
    load: &Load,
    results: &[ConnectionResult],
    duration: u64,
    pages: isize,
) {
    let line = |row: &str, connections: &[&ConnectionResult]| {
        let latencies = connections.iter().flat_map(|result| &result.latencies);
        let mut sorted: Vec<u64> = latencies.copied().collect();
        let (mean, deviation, [p25, median, p75, p90, p99, p999]) = summary(&mut sorted);
        let (count, nanos) = (sorted.len(), nanos_per_request(connections));
        println!(
            "matrix: {model} {} {} {} {} {row} {count} {duration} {mean} {median} {p99} {deviation} {pages} \
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
