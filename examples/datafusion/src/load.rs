//! Runs the clients. Two clients request one report after the other. Eight clients request prices
//! at times fixed in advance, so that a late answer also counts for the requests that wait behind
//! it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::policy;

const PRICE_CLIENTS: u32 = 8;
const REPORT_CLIENTS: u32 = 2;
/// Time between two price requests of a client.
const PERIOD: Duration = Duration::from_millis(20);
/// Time without an answer after which a client ends with an error.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Measurements {
    /// Latencies of prices, sorted.
    pub(crate) prices: Vec<Duration>,
    /// Reports per second.
    pub(crate) reports: f64,
}

impl Measurements {
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.prices.len().saturating_sub(1);
        let index = (self.prices.len() * percent / 100).min(last);
        self.prices.get(index).copied().unwrap_or_default()
    }
}

pub(crate) fn run(server: SocketAddr, length: Duration) -> io::Result<Measurements> {
    let end = Instant::now() + length;
    let (prices, reports) = thread::scope(|scope| {
        let reports = (0..REPORT_CLIENTS).map(|_| scope.spawn(move || ask_reports(server, end)));
        let reports: Vec<_> = reports.collect();
        let prices =
            (0..PRICE_CLIENTS).map(|client| scope.spawn(move || ask_prices(server, client, end)));
        let prices: Vec<_> = prices.collect();
        let prices: io::Result<Vec<_>> = prices.into_iter().map(join).collect();
        let reports: io::Result<Vec<f64>> = reports.into_iter().map(join).collect();
        (prices, reports)
    });
    let mut prices = prices?.concat();
    prices.sort_unstable();
    let reports = reports?.iter().sum();
    Ok(Measurements { prices, reports })
}

fn join<T>(client: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    client.join().expect("clients do not panic")
}

fn ask_prices(server: SocketAddr, client: u32, end: Instant) -> io::Result<Vec<Duration>> {
    policy::run_first();
    let mut connection = connect(server)?;
    let mut latencies = Vec::new();
    let mut due = Instant::now() + PERIOD * client / PRICE_CLIENTS;
    while due < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        get(&mut connection, "/prices/7")?;
        latencies.push(due.elapsed());
        due += PERIOD;
    }
    Ok(latencies)
}

fn ask_reports(server: SocketAddr, end: Instant) -> io::Result<f64> {
    let mut connection = connect(server)?;
    let start = Instant::now();
    let mut reports = 0;
    while Instant::now() < end {
        get(&mut connection, "/reports")?;
        reports += 1;
    }
    Ok(f64::from(reports) / start.elapsed().as_secs_f64())
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let connection = TcpStream::connect(server)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    Ok(connection)
}

/// Requests a path and returns the body of the answer, which must have status 200 and a length.
pub(crate) fn get(connection: &mut TcpStream, path: &str) -> io::Result<Vec<u8>> {
    write!(connection, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = connection.read(&mut piece)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&piece[..read]);
        if let Some(body) = body(&answer)? {
            return Ok(body.to_vec());
        }
    }
}

fn body(answer: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200") {
        return Err(io::Error::other(head));
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length = length.and_then(|length| length.parse::<usize>().ok());
    let length = length.ok_or_else(|| io::Error::other("an answer without a length"))?;
    let body = &answer[end + 4..];
    Ok((body.len() >= length).then_some(body))
}
