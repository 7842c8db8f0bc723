//! Messages for the operator: lines on standard error, and errors of the kernel with an
//! explanation.
//!
//! `eprintln!` panics when no process reads the pipe any more or the disk is full; the behaviour of
//! the program must not depend on either.

use std::fmt;
use std::io::{self, Write};

use upshift_ring::SetupError;

/// Writes a line to standard error. A failure is ignored.
pub(crate) fn notice(text: fmt::Arguments<'_>) {
    // A single write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("upshift: {text}\n").as_bytes());
}

/// Returns the error for a thread that could not be started, with the limits to raise.
pub(crate) fn no_thread(purpose: &str, error: &io::Error) -> io::Error {
    explained(
        error,
        format!(
            "no thread for {purpose}: {error}: raise RLIMIT_NPROC (`ulimit -u`), pids.max of the cgroup, or the limit on memory"
        ),
    )
}

/// An error of the kernel with an explanation that quotes it. The kernel's error is not the
/// `source`, because it would then be printed twice.
#[derive(Debug)]
struct Explained {
    text: String,
    errno: i32,
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Explained {}

/// Returns `error` with an explanation, which replaces its text and keeps its number.
pub(crate) fn explained(error: &io::Error, text: String) -> io::Error {
    match errno_of(error) {
        Some(errno) => io::Error::new(error.kind(), Explained { text, errno }),
        None => io::Error::new(error.kind(), text),
    }
}

/// Returns the kernel's error number, even for an error that Upshift has explained. Returns `None`
/// if the error is not the kernel's.
///
/// ```
/// let error = std::fs::File::open("/nonexistent").unwrap_err();
/// assert_eq!(upshift::errno_of(&error), Some(2));
/// ```
#[must_use]
pub fn errno_of(error: &io::Error) -> Option<i32> {
    let inner = || error.get_ref();
    error
        .raw_os_error()
        .or_else(|| Some(inner()?.downcast_ref::<Explained>()?.errno))
        .or_else(|| Some(inner()?.downcast_ref::<SetupError>()?.errno()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explained_error_keeps_the_kernels_number() {
        let kernel = io::Error::from_raw_os_error(libc::EMFILE);
        let explained = no_thread("a test", &kernel);
        assert_eq!(errno_of(&explained), Some(libc::EMFILE));
        assert!(
            explained.to_string().contains("Too many open files"),
            "{explained}"
        );
        assert_eq!(explained.raw_os_error(), None);
        let other = no_thread("a test", &io::Error::other("not the kernel's"));
        assert_eq!(errno_of(&other), None);
    }
}
