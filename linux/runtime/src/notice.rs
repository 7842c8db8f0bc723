//! Words for the operator: lines on standard error, and what to do where no thread can be had.
//!
//! `eprintln!` panics when no process reads the pipe any more or the disk is full; what the program
//! does must not depend on that.

use std::fmt;
use std::io::{self, Write};

use upshift_ring::SetupError;

/// Writes a line, if it can be written.
pub(crate) fn notice(text: fmt::Arguments<'_>) {
    // In one piece: lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("upshift: {text}\n").as_bytes());
}

/// Why a thread could not be started for something, and what to do.
pub(crate) fn no_thread(purpose: &str, error: &io::Error) -> io::Error {
    told(
        error,
        format!(
            "no thread for {purpose}: {error}: raise RLIMIT_NPROC (`ulimit -u`), pids.max of the cgroup, or the limit on memory"
        ),
    )
}

/// An error of the kernel in words, which hold the kernel's own: it is no source, or they would be printed twice.
#[derive(Debug)]
struct Told {
    words: String,
    errno: i32,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Told {}

/// `error` in words.
pub(crate) fn told(error: &io::Error, words: String) -> io::Error {
    match errno_of(error) {
        Some(errno) => io::Error::new(error.kind(), Told { words, errno }),
        None => io::Error::new(error.kind(), words),
    }
}

/// The kernel's error number, also of an error in which Upshift says what to do about it; `None` if it is not the kernel's.
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
        .or_else(|| Some(inner()?.downcast_ref::<Told>()?.errno))
        .or_else(|| Some(inner()?.downcast_ref::<SetupError>()?.errno()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_the_kernels_number() {
        let kernel = io::Error::from_raw_os_error(libc::EMFILE);
        let told = no_thread("a test", &kernel);
        assert_eq!(errno_of(&told), Some(libc::EMFILE));
        assert!(told.to_string().contains("Too many open files"), "{told}");
        assert_eq!(told.raw_os_error(), None);
        let own = no_thread("a test", &io::Error::other("of no kernel"));
        assert_eq!(errno_of(&own), None);
    }
}
