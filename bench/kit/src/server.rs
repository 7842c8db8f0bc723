//! Parses the command line and opens the listening socket of a *peer server*, a server on another
//! runtime with which a benchmark compares Upshift.
//!
//! `peer-NAME WORK [--variant V] [--workers N] [--listen ADDR]`, where WORK selects the service:
//! plaintext, matrix or another one that this server offers. The server prints `listening on ADDR`
//! as its first line and serves until SIGTERM, whose default action ends it. Call each function
//! once, from `main`.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;

use clap::{Arg, value_parser};

use crate::words;

/// Capacity, in frames, of each of the two queues that a connection to the matrix server has.
pub const QUEUE_CAPACITY: usize = 16;

/// Size of the buffer for one read, in bytes.
pub const READ_BYTES: usize = 8 * 1024;

/// Length of the queue of unaccepted connections, which exceeds the largest number of clients in a
/// benchmark.
const BACKLOG: i32 = 1024;

/// Service of a peer server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// HTTP/1.1 keep-alive with pipelining; one constant reply.
    Plaintext,
    /// Squares of matrices: three tasks and two bounded queues per connection.
    Matrix,
}

/// Command line of a peer server with the services `W`.
#[derive(Clone, Debug)]
pub struct Args<W = Work> {
    /// Selected service.
    pub work: W,
    /// Variant of the runtime, as the server names it; defaults to the first name that is offered.
    pub variant: String,
    /// Threads that run tasks, for servers that support several; 1 by default.
    pub workers: usize,
    /// Address to listen on; port 0 picks a free port.
    pub address: SocketAddr,
}

/// Parses the command line of a plaintext and matrix server.
///
/// Exits with status 2 and a message if the command line is invalid. `variants` must not be empty.
pub fn parse_args(variants: &[&'static str]) -> Args {
    let works = [("plaintext", Work::Plaintext), ("matrix", Work::Matrix)];
    parse_args_for(&works, variants)
}

/// Parses the command line of a server with the services `works`; otherwise like [`parse_args`].
pub fn parse_args_for<W: Copy>(works: &[(&'static str, W)], variants: &[&'static str]) -> Args<W> {
    let names: Vec<&'static str> = works.iter().map(|(name, _)| *name).collect();
    let listen = Arg::new("listen")
        .long("listen")
        .value_name("ADDR:PORT")
        .default_value("127.0.0.1:0")
        .value_parser(value_parser!(SocketAddr));
    let workers = Arg::new("workers")
        .long("workers")
        .value_name("N")
        .default_value("1")
        .value_parser(value_parser!(u16).range(1..=1024));
    let command = words::command(&names, variants).args([listen, workers]);
    let matches = command.get_matches();
    Args {
        work: works[words::word(&matches, &names)].1,
        variant: words::variant(&matches),
        workers: usize::from(*matches.get_one::<u16>("workers").expect("has a default")),
        address: *matches.get_one("listen").expect("has a default"),
    }
}

/// Binds the socket, with a backlog large enough for all clients of a benchmark, and announces its
/// address.
///
/// # Errors
///
/// The address is not available, or standard output is closed.
pub fn listen<W>(args: &Args<W>) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(args.address)?;
    // SAFETY: `listen` takes no pointers, so it has no requirements on memory; `listener` keeps the
    // descriptor open. On a socket that is listening already, the call only changes the length of
    // the queue.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    announce(listener.local_addr()?)?;
    Ok(listener)
}

/// Prints `listening on ADDR`, the line that the driver waits for.
///
/// # Errors
///
/// Standard output is closed.
pub fn announce(address: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "listening on {address}")?;
    stdout.flush()
}
