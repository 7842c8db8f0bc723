//! Command line and listening socket of a peer server.
//!
//! `peer-NAME WORK [--variant V] [--listen ADDR]`, WORK being plaintext, matrix or what else the peer has: the server prints `listening on ADDR` as its first line and
//! serves until SIGTERM, whose default action ends it. Called once, from `main`.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::process::exit;

/// Bound of the two queues of a connection of the matrix server, in frames.
pub const QUEUE: usize = 16;

/// Bytes asked of one read.
pub const READ: usize = 8 * 1024;

/// Length of the queue of connections not yet accepted: more than the largest number of clients measured.
const BACKLOG: i32 = 1024;

/// Which server to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// HTTP/1.1 keep-alive with pipelining; one constant reply.
    Plaintext,
    /// Squares of matrices: three tasks and two bounded queues per connection.
    Matrix,
}

/// The command line of a peer server that is one of `W`.
#[derive(Clone, Debug)]
pub struct Args<W = Work> {
    /// Which server to be.
    pub work: W,
    /// Which flavour of the runtime, as the peer names it; the first name offered unless told otherwise.
    pub variant: String,
    /// Where to listen; port 0 picks a free one.
    pub address: SocketAddr,
}

/// Reads the command line of a plaintext and matrix server.
///
/// Ends the process with status 2 and a message when it is wrong. `variants` must not be empty.
pub fn args(variants: &[&str]) -> Args {
    let works = [("plaintext", Work::Plaintext), ("matrix", Work::Matrix)];
    args_for(&works, variants)
}

/// Reads the command line of a server that is one of `works`; otherwise as [`args`].
pub fn args_for<W: Copy>(works: &[(&str, W)], variants: &[&str]) -> Args<W> {
    match parse(works, variants) {
        Ok(args) => args,
        Err(message) => {
            let works: Vec<&str> = works.iter().map(|(name, _)| *name).collect();
            eprintln!(
                "{message}\nusage: {} [--variant {}] [--listen ADDR:PORT]",
                works.join("|"),
                variants.join("|")
            );
            exit(2)
        }
    }
}

fn parse<W: Copy>(works: &[(&str, W)], variants: &[&str]) -> Result<Args<W>, String> {
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("name the server to run")?;
    let known = works.iter().find(|(work, _)| *work == name);
    let (_, work) = *known.ok_or(format!("unknown server `{name}`"))?;
    let mut variant = variants[0].to_owned();
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("`{word}` needs a value"))?;
        match word.as_str() {
            "--variant" if variants.contains(&value.as_str()) => variant = value,
            "--variant" => return Err(format!("no variant `{value}`")),
            "--listen" => address = value.parse().map_err(|e| format!("`{value}`: {e}"))?,
            _ => return Err(format!("unknown option `{word}`")),
        }
    }
    Ok(Args {
        work,
        variant,
        address,
    })
}

/// Binds the socket, with room for all clients that are measured, and announces it.
///
/// # Errors
///
/// The address is not available.
pub fn listen<W>(args: &Args<W>) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(args.address)?;
    // SAFETY: listen() takes no pointers; the descriptor is open. A second call only changes the length of the queue.
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
