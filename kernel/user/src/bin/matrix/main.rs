//! The matrix server of the SharedScheduler papers, and its clients, in one machine over the
//! loopback. Three coroutines, or three threads, receive, compute and send back a request, with two
//! queues in between.
//!
//! ```text
//!  client ──► receive ──► queue ──► square the matrix ──► queue ──► send ──► client
//! ```
//!
//! The argument is a list of words, `model,connections,n,levels,period,millis,harts`:
//!
//! | word | meaning |
//! |---|---|
//! | `model` | `coroutines` or `threads` |
//! | `connections` | number of connections |
//! | `n` | order of the matrices |
//! | `levels` | number of levels over which the connections are spread |
//! | `period` | milliseconds between two requests of a connection; 0: one after the other |
//! | `millis` | duration of the measurement, in milliseconds |
//! | `harts` | number of harts |
//!
//! With `serve,…` the program is a server. With `outside,model,connections,harts` its clients are
//! outside of the machine, and all connections have one level. The program prints a line for all
//! connections and a line for each level, with the throughput and the latency from the time at
//! which a request was due.
//!
//! A process has at most 64 threads, so the model `threads` has a server for every 16 connections;
//! the clients are coroutines of one process, the same for both models.

#![no_std]
#![no_main]

extern crate alloc;

mod client;
mod coroutines;
mod threads;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use os_user::cpu::{Cpu, alloc_cpu};
use os_user::{Error, now, println, sleep_micros, sys, wait};

os_user::coroutine_entry!(main);

/// Port of the first server.
const PORT: u16 = 7000;
/// Maximum number of connections of a server with threads.
const CONNECTIONS_PER_SERVER: usize = 16;
/// Length of a frame's header, in bytes: it contains the length of the matrix.
const HEADER: usize = 4;
/// Maximum number of requests or replies in a queue.
const QUEUE_LEN: usize = 16;

/// Level of the most urgent connections.
const FIRST_LEVEL: u8 = 10;
/// Distance between the levels of two classes of connections.
const STEP: u8 = 4;

fn level_of(class: usize) -> u8 {
    FIRST_LEVEL + class as u8 * STEP
}

async fn main() -> isize {
    let argument = String::from_utf8_lossy(os_user::argument()).into_owned();
    let words: Vec<&str> = argument.split(',').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let outcome = match (&words[..], number(1), number(2)) {
        (["serve", _, _, model, cpus, rest @ ..], Some(port), Some(count)) => {
            let cpus = cpus.parse().unwrap_or(1);
            // All connections have one level, and no byte of the client selects it.
            let level = rest.first().map(|_| FIRST_LEVEL);
            match *model {
                "threads" => threads::serve(port as u16, count, level),
                _ => coroutines::serve(port as u16, count, cpus, level).await,
            }
        }
        (["outside", model, ..], _, Some(connections)) => {
            outside(model, connections, number(3).unwrap_or(1))
        }
        ([model @ ("coroutines" | "threads"), ..], Some(connections), Some(n)) => {
            let load = client::Load {
                connections,
                n,
                levels: number(3).unwrap_or(1).clamp(1, 8),
                period: number(4).unwrap_or(0) as u64,
                millis: number(5).unwrap_or(100) as u64,
            };
            measure(model, load, number(6).unwrap_or(1)).await
        }
        _ => {
            println!("matrix: the argument must be model,connections,n,levels,period,millis,harts");
            return 2;
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            println!("matrix: {argument}: {error}");
            1
        }
    }
}

fn connections_per_server(model: &str, connections: usize) -> usize {
    match model {
        "threads" => CONNECTIONS_PER_SERVER,
        _ => connections,
    }
}

/// Maximum backlog of a server.
const BACKLOG: usize = 128;

/// Returns the backlog of a server. Clients outside of the machine need a long backlog, because
/// they all connect at once, and a connection beyond the backlog is refused.
fn backlog(level: Option<u8>, count: usize) -> usize {
    if level.is_some() {
        count.min(BACKLOG)
    } else {
        4
    }
}

/// Starts a server for each port; each serves `more` connections in addition to its share of
/// `connections`.
fn start(model: &str, connections: usize, more: usize, rest: &str) -> Result<Vec<usize>, Error> {
    let connections_per_server = connections_per_server(model, connections);
    let start = |first: usize| {
        let count = connections_per_server.min(connections - first) + more;
        let port = PORT + (first / connections_per_server) as u16;
        let argument = format!("serve,{port},{count},{model},{rest}");
        os_user::spawn("matrix", argument.as_bytes(), &[0, 1, 2], FIRST_LEVEL)
    };
    (0..connections)
        .step_by(connections_per_server)
        .map(start)
        .collect()
}

/// Starts servers, each with an additional connection for a probe, and waits until they exit.
fn outside(model: &str, connections: usize, cpus: usize) -> Result<(), Error> {
    for server in start(model, connections, 1, &format!("{cpus},plain"))? {
        wait(server)?;
    }
    Ok(())
}

/// Starts servers, measures, and waits until the servers exit.
async fn measure(model: &str, load: client::Load, cpus: usize) -> Result<(), Error> {
    let before = sys::free_pages()?;
    let connections_per_server = connections_per_server(model, load.connections);
    let servers = start(model, load.connections, 0, &format!("{cpus}"))?;
    let connections = client::connect(&load, connections_per_server).await?;
    let used = before - sys::free_pages()?;
    // Use as many vCPUs as a server has, because clients on one vCPU would delay the server.
    let extra_cpus: Vec<Cpu> = (1..cpus).map(|_| alloc_cpu()).collect::<Result<_, _>>()?;
    let start = now();
    let results = client::run(&load, connections).await?;
    let duration = now() - start;
    for cpu in extra_cpus {
        cpu.release()?;
    }
    client::report(model, &load, &results, duration, used);
    for server in servers {
        wait(server)?;
    }
    Ok(())
}

/// The square of a matrix of numbers modulo 2⁶⁴, computed by rows.
struct Square {
    words: Vec<u64>,
    /// Header, and the rows that have been computed.
    reply: Vec<u8>,
}

/// Begins the square of a request, which consists of header and matrix.
#[inline(never)]
fn begin_square(frame: &[u8]) -> Square {
    let words: Vec<u64> = frame[HEADER..]
        .chunks_exact(8)
        .map(|bytes| bytes.try_into().map_or(0u64, u64::from_le_bytes))
        .collect();
    let mut reply = Vec::with_capacity(frame.len());
    reply.extend_from_slice(&frame[..HEADER]);
    Square { words, reply }
}

/// Computes row `row` and appends it to the reply.
#[inline(never)]
fn square_row(square: &mut Square, row: usize) {
    let (words, reply) = (&square.words[..], &mut square.reply);
    // Compute `n` from the length, so that the compiler knows that no index overflows.
    let n = words.len().isqrt();
    for column in 0..n {
        let product = |sum: u64, k: usize| {
            let product = words[row * n + k].wrapping_mul(words[k * n + column]);
            sum.wrapping_add(product)
        };
        reply.extend_from_slice(&(0..n).fold(0u64, product).to_le_bytes());
    }
}

/// Returns a request with its matrix replaced by the square.
fn square(frame: &[u8]) -> Vec<u8> {
    let mut square = begin_square(frame);
    for row in 0..square.words.len().isqrt() {
        square_row(&mut square, row);
    }
    square.reply
}

/// Removes the first complete frame from the received bytes.
fn take_frame(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let header: [u8; HEADER] = received.get(..HEADER)?.try_into().ok()?;
    let end = HEADER + u32::from_le_bytes(header) as usize;
    if received.len() < end {
        return None;
    }
    let rest = received.split_off(end);
    Some(core::mem::replace(received, rest))
}

/// Connects to a server, and retries until it listens.
fn connect(port: u16) -> Result<usize, Error> {
    loop {
        match os_user::net::connect(os_user::net::SELF, port) {
            Err(Error::Refused) => sleep_micros(1_000),
            answer => return answer,
        }
    }
}
