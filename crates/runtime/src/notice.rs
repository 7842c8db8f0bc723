//! Words for the operator, on standard error.
//!
//! `eprintln!` panics when no process reads the pipe any more or the disk is full; what the program
//! does must not depend on that.

use std::fmt;
use std::io::Write;

/// Writes a line, if it can be written.
pub(crate) fn notice(text: fmt::Arguments<'_>) {
    // In one piece: lines of several threads do not mix.
    let _ = std::io::stderr().write_all(format!("upshift: {text}\n").as_bytes());
}
