//! Parses the command line of the programs in the section `files`, and opens files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Measured operation; see [`files`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Opens and reads small files.
    Open,
    /// Reads random blocks of the big file.
    Random,
    /// Reads the big file in order.
    Read,
    /// Writes a file in order.
    Write,
    /// Appends records to a log.
    Append,
    /// Urgent reads beside bulk writes.
    Mixed,
    /// A few operations of each kind, not measured.
    Check,
}

/// Measures file operations
#[derive(Clone, Debug, Parser)]
pub struct Plan {
    /// Measured operation
    pub operation: Operation,
    /// Variant of the peer
    #[arg(long, default_value = "")]
    pub variant: String,
    /// Folder of the files
    #[arg(long)]
    pub dir: PathBuf,
    /// Duration of the measurement in seconds
    #[arg(long = "seconds", value_name = "S", default_value = "1", value_parser = seconds)]
    pub time: Duration,
    /// Number of tasks, or threads
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub tasks: usize,
    /// Bypass the page cache
    #[arg(long)]
    pub direct: bool,
    /// Read each block at most once
    #[arg(long)]
    pub once: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a number of seconds".into())
}

impl Plan {
    /// Parses the command line of this process. Exits with a message if it is invalid.
    #[must_use]
    pub fn from_args() -> Plan {
        Plan::parse()
    }

    /// Returns the file that a task of the operation uses, and its mode. The result has no meaning
    /// for [`Operation::Open`], which opens the small files.
    #[must_use]
    pub fn file(&self, task: usize) -> (PathBuf, Mode) {
        let (name, mode) = match self.operation {
            Operation::Write => ("out".to_owned(), Mode::Write),
            Operation::Append => ("log".to_owned(), Mode::Append),
            Operation::Mixed => (format!("bulk-{task}"), Mode::Write),
            _ if self.direct => ("big".to_owned(), Mode::Direct),
            Operation::Random => ("big".to_owned(), Mode::Random),
            _ => ("big".to_owned(), Mode::Read),
        };
        (self.dir.join(name), mode)
    }
}

/// Mode in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Reading.
    Read,
    /// Reading in random order, without the kernel's read-ahead.
    Random,
    /// Reading that bypasses the page cache.
    Direct,
    /// Writing; the file is created if it does not exist.
    Write,
    /// Writing at the end; the file is created if it does not exist.
    Append,
}

/// Opens a file with the standard library, outside of the measured time.
#[must_use]
pub fn open_std(path: &Path, mode: Mode) -> std::fs::File {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    match mode {
        Mode::Read | Mode::Random => options.read(true),
        Mode::Direct => options.read(true).custom_flags(libc::O_DIRECT),
        Mode::Write => options.write(true).create(true),
        Mode::Append => options.append(true).create(true),
    };
    let file = options
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if mode == Mode::Random {
        // SAFETY: `posix_fadvise` takes no pointers; `file` is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    }
    file
}
