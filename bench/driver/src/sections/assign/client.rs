//! Sends requests at fixed times over several connections, each with its own thread. The threads
//! run in SCHED_FIFO, above ordinary threads and below all other elevated threads.
//!
//! A client above the server would displace the server. If a more urgent thread runs on the CPU of
//! a real-time thread, the kernel wakes the real-time thread on another CPU. If the kernel is not
//! preemptible, that other CPU may be in the kernel for milliseconds on behalf of an ordinary
//! thread.
//!
//! A latency counts from the time at which the request was due, so waits behind a late answer
//! count, too. A thread sleeps until its next request is due, and while it waits in `read`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use upshift_load::Histogram;

use super::server_kind::ServerKind;
use crate::results::Run;

/// Number of connections, which share the requests.
const CONNECTIONS: usize = 4;
/// Requests per second, over all connections together.
const PER_SECOND: f64 = 1000.0;

/// SCHED_FIFO priority of the client, below those of the remedies, which use 2 and above.
const PRIORITY: i32 = 1;

/// Time at the beginning that is not counted.
const WARMUP: Duration = Duration::from_millis(300);

/// Length of the intervals whose 99 % latencies are taken.
const PIECE: Duration = Duration::from_millis(100);

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Connection {
    kind: ServerKind,
    stream: TcpStream,
    buffer: Vec<u8>,
}

pub(super) fn connect(kind: ServerKind, address: SocketAddr) -> Result<Vec<Connection>, String> {
    let mut all: Vec<Connection> = Vec::new();
    for _ in 0..CONNECTIONS {
        all.push(Connection::open(kind, address)?);
    }
    if let Some(first) = all.first_mut() {
        first.prepare()?;
    }
    Ok(all)
}

impl Connection {
    pub(super) fn open(kind: ServerKind, address: SocketAddr) -> Result<Connection, String> {
        let stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
        let set = stream
            .set_nodelay(true)
            .and(stream.set_read_timeout(Some(ANSWER_TIMEOUT)));
        set.map_err(|e| e.to_string())?;
        let mut connection = Connection {
            kind,
            stream,
            buffer: Vec::new(),
        };
        if kind == ServerKind::Postgres {
            let mut hello = vec![0, 0, 0, 0, 0, 3, 0, 0];
            hello.extend(b"user\0postgres\0database\0postgres\0\0");
            let length = hello.len() as u32;
            hello[..4].copy_from_slice(&length.to_be_bytes());
            connection.ask(&hello)?;
        }
        Ok(connection)
    }

    /// Creates the data that the requests read.
    fn prepare(&mut self) -> Result<(), String> {
        match self.kind {
            ServerKind::Nginx => Ok(()),
            ServerKind::Redis => self.ask(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n"),
            ServerKind::Postgres => self.ask(&query(
                "create table kv as select k, 'value' || k as v from generate_series(1, 1000) k; create unique index on kv (k)",
            )),
        }
    }

    fn request(&self) -> Vec<u8> {
        match self.kind {
            ServerKind::Nginx => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            ServerKind::Redis => b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_vec(),
            ServerKind::Postgres => query("select v from kv where k = 7"),
        }
    }

    fn ask(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|e| e.to_string())?;
        self.buffer.clear();
        let mut part = [0u8; 4096];
        loop {
            let length = self.stream.read(&mut part).map_err(|e| e.to_string())?;
            if length == 0 {
                return Err("the server has closed the connection".into());
            }
            self.buffer.extend_from_slice(&part[..length]);
            match answer(self.kind, &self.buffer) {
                Answer::Whole => return Ok(()),
                Answer::Part => {}
                Answer::Wrong => {
                    let text = String::from_utf8_lossy(&self.buffer);
                    return Err(format!("wrong answer: {text:?}"));
                }
            }
        }
    }
}

/// Encodes a simple query of postgres.
fn query(text: &str) -> Vec<u8> {
    let mut message = vec![b'Q'];
    message.extend((text.len() as u32 + 5).to_be_bytes());
    message.extend(text.as_bytes());
    message.push(0);
    message
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Whole,
    Part,
    Wrong,
}

fn answer(kind: ServerKind, bytes: &[u8]) -> Answer {
    let part_unless = |whole: bool| if whole { Answer::Whole } else { Answer::Part };
    match kind {
        ServerKind::Nginx if bytes.len() > 12 && !bytes.starts_with(b"HTTP/1.1 200") => {
            Answer::Wrong
        }
        ServerKind::Nginx => part_unless(bytes.ends_with(b"\r\n\r\nhello")),
        ServerKind::Redis if bytes.starts_with(b"-") => Answer::Wrong,
        ServerKind::Redis => part_unless(bytes == b"+OK\r\n" || bytes == b"$5\r\nvalue\r\n"),
        ServerKind::Postgres => {
            let mut rest = bytes;
            while let [message_type, a, b, c, d, ..] = rest {
                let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
                match (message_type, rest.get(1 + length..)) {
                    (b'E', _) => return Answer::Wrong,
                    // The server is ready for the next query.
                    (b'Z', Some(_)) => return Answer::Whole,
                    (_, Some(after)) => rest = after,
                    (_, None) => return Answer::Part,
                }
            }
            Answer::Part
        }
    }
}

fn histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(|e| e.to_string())
}

struct Latencies {
    latencies: Histogram<u64>,
    lag: Histogram<u64>,
    /// Latencies in ns, by the interval in which the request was due.
    pieces: Vec<Vec<u64>>,
    error: Option<String>,
}

/// Returns the median of the 99 % latencies of all intervals, in µs.
fn median_p99(mut pieces: Vec<Vec<u64>>) -> f64 {
    let mut p99s: Vec<u64> = Vec::new();
    for piece in pieces.iter_mut().filter(|it| !it.is_empty()) {
        piece.sort_unstable();
        p99s.push(piece[(piece.len() * 99).div_ceil(100) - 1]);
    }
    p99s.sort_unstable();
    p99s.get(p99s.len() / 2).map_or(0.0, |&ns| ns as f64 / 1e3)
}

/// Sends requests for `time` after a warm-up.
pub(super) fn drive(connections: Vec<Connection>, time: Duration) -> Result<Run, String> {
    let count = connections.len() as f64;
    let gap = Duration::from_secs_f64(count / PER_SECOND);
    let begin = Instant::now() + Duration::from_millis(20);
    let threads: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(index, connection)| {
            let first = begin + gap.mul_f64(index as f64 / count);
            std::thread::spawn(move || send(connection, first, gap, begin + WARMUP, time))
        })
        .collect();
    let (mut latencies, mut lag, mut error) = (histogram()?, histogram()?, None);
    let mut pieces: Vec<Vec<u64>> = Vec::new();
    for thread in threads {
        let part = thread.join().map_err(|_| "a client thread panicked")??;
        latencies.add(&part.latencies).map_err(|e| e.to_string())?;
        lag.add(&part.lag).map_err(|e| e.to_string())?;
        error = error.or(part.error);
        pieces.resize_with(pieces.len().max(part.pieces.len()), Vec::new);
        for (all, own) in pieces.iter_mut().zip(part.pieces) {
            all.extend(own);
        }
    }
    let us = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Run {
        per_second: latencies.len() as f64 / time.as_secs_f64(),
        p50: us(0.5),
        p99: us(0.99),
        p999: us(0.999),
        p99_of_pieces: median_p99(pieces),
        send_lag: lag.value_at_quantile(0.99) as f64 / 1e3,
        errors: u64::from(error.is_some()),
        first_error: error,
        ..Run::default()
    })
}

/// Sends the requests of one connection, the first at `first`; requests due before `count_from`
/// do not count.
fn send(
    mut connection: Connection,
    first: Instant,
    gap: Duration,
    count_from: Instant,
    time: Duration,
) -> Result<Latencies, String> {
    elevate()?;
    let mut result = Latencies {
        latencies: histogram()?,
        lag: histogram()?,
        pieces: Vec::new(),
        error: None,
    };
    let request = connection.request();
    let mut due = first;
    while due < count_from + time {
        let free_at = Instant::now();
        std::thread::sleep(due.saturating_duration_since(free_at));
        let sent_at = Instant::now();
        if let Err(error) = connection.ask(&request) {
            result.error = Some(error);
            return Ok(result);
        }
        if due >= count_from {
            let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let latency = ns(due.elapsed());
            result.latencies.saturating_record(latency);
            let piece = ((due - count_from).as_nanos() / PIECE.as_nanos()) as usize;
            if result.pieces.len() <= piece {
                result.pieces.resize_with(piece + 1, Vec::new);
            }
            result.pieces[piece].push(latency);
            if free_at < due {
                result.lag.saturating_record(ns(sent_at - due));
            }
        }
        due += gap;
    }
    Ok(result)
}

fn elevate() -> Result<(), String> {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the pointer is valid, because the call only reads `parameters`, an initialized local.
    // 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(format!(
            "cannot elevate the client to SCHED_FIFO: {}",
            std::io::Error::last_os_error()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_in_a_few_intervals_does_not_decide_the_median() {
        let quiet: Vec<u64> = (1..=100).map(|it| it * 1000).collect();
        let mut stalled = quiet.clone();
        stalled[..4].fill(5_000_000);
        let pieces = vec![quiet.clone(), stalled, vec![], quiet];
        assert_eq!(median_p99(pieces), 99.0);
        assert_eq!(median_p99(vec![]), 0.0);
    }

    #[test]
    fn answers_are_partial_whole_or_wrong_and_a_query_has_a_length() {
        for (kind, bytes, expected_answer) in [
            (
                ServerKind::Nginx,
                &b"HTTP/1.1 200 OK\r\n\r\nhel"[..],
                Answer::Part,
            ),
            (
                ServerKind::Nginx,
                b"HTTP/1.1 200 OK\r\n\r\nhello",
                Answer::Whole,
            ),
            (
                ServerKind::Nginx,
                b"HTTP/1.1 404 No\r\n\r\nhello",
                Answer::Wrong,
            ),
            (ServerKind::Redis, b"$5\r\nvalue", Answer::Part),
            (ServerKind::Redis, b"$5\r\nvalue\r\n", Answer::Whole),
            (ServerKind::Redis, b"-ERR\r\n", Answer::Wrong),
            (
                ServerKind::Postgres,
                b"C\0\0\0\x05xZ\0\0\0\x05",
                Answer::Part,
            ),
            (
                ServerKind::Postgres,
                b"C\0\0\0\x05xZ\0\0\0\x05I",
                Answer::Whole,
            ),
            (ServerKind::Postgres, b"E\0\0\0\x05x", Answer::Wrong),
        ] {
            assert_eq!(answer(kind, bytes), expected_answer, "{bytes:?}");
        }
        assert_eq!(query("x"), b"Q\0\0\0\x06x\0");
    }
}
