//! Words for the operator: lines on standard error, and what to do where no thread can be had.
//!
//! `eprintln!` panics when no process reads the pipe any more or the disk is full; what the program
//! does must not depend on that.

use std::fmt;
use std::io::{self, Write};

/// Writes a line, if it can be written.
pub(crate) fn notice(text: fmt::Arguments<'_>) {
    // In one piece: lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("upshift: {text}\n").as_bytes());
}

/// Why a thread of a vCPU could not be started, and what to do.
pub(crate) fn no_thread(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "no thread for a vCPU: {error}: raise RLIMIT_NPROC (`ulimit -u`), pids.max of the cgroup, or the limit on memory"
        ),
    )
}
