//! Command line and listening socket of a peer server.
//!
//! `peer-NAME plaintext|matrix [--variant V] [--listen ADDR]`: the server prints `listening on ADDR` as its first line and
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

/// The command line of a peer server.
#[derive(Clone, Debug)]
pub struct Args {
    /// Which server to be.
    pub work: Work,
    /// Which flavour of the runtime, as the peer names it; the first name offered unless told otherwise.
    pub variant: String,
    /// Where to listen; port 0 picks a free one.
    pub address: SocketAddr,
}

/// Reads the command line.
///
/// Ends the process with status 2 and a message when it is wrong. `variants` must not be empty.
pub fn args(variants: &[&str]) -> Args {
    match parse(variants) {
        Ok(args) => args,
        Err(message) => {
            eprintln!(
                "{message}\nusage: plaintext|matrix [--variant {}] [--listen ADDR:PORT]",
                variants.join("|")
            );
            exit(2)
        }
    }
}

fn parse(variants: &[&str]) -> Result<Args, String> {
    let mut words = std::env::args().skip(1);
    let work = match words.next().as_deref() {
        Some("plaintext") => Work::Plaintext,
        Some("matrix") => Work::Matrix,
        Some(other) => return Err(format!("unknown server `{other}`")),
        None => return Err("name the server to run".into()),
    };
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
pub fn listen(args: &Args) -> io::Result<TcpListener> {
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
