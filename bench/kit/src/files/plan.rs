//! The command line of a program of this section, and how it opens files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// See [`files`](super).
    Open,
    /// See [`files`](super).
    Random,
    /// See [`files`](super).
    Read,
    /// See [`files`](super).
    Write,
    /// See [`files`](super).
    Append,
    /// See [`files`](super).
    Mixed,
    /// See [`files`](super).
    Check,
}

/// Measures files
#[derive(Clone, Debug, Parser)]
pub struct Plan {
    /// What is measured
    pub row: Row,
    /// The flavour of the peer
    #[arg(long, default_value = "")]
    pub variant: String,
    /// Where the files are
    #[arg(long)]
    pub dir: PathBuf,
    /// How long it is measured, s
    #[arg(long = "seconds", value_name = "S", default_value = "1", value_parser = seconds)]
    pub time: Duration,
    /// Tasks, or threads, that do it
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub tasks: usize,
    /// Past the page cache
    #[arg(long)]
    pub direct: bool,
    /// Nothing is read twice
    #[arg(long)]
    pub once: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "use a number of seconds".into())
}

impl Plan {
    /// Of this process; ends it if the command line is wrong.
    #[must_use]
    pub fn of_process() -> Plan {
        Plan::parse()
    }

    /// The file that a row uses, and how it is opened; `open` uses none.
    #[must_use]
    pub fn file(&self, task: usize) -> (PathBuf, Mode) {
        let (name, mode) = match self.row {
            Row::Write => ("out".to_owned(), Mode::Write),
            Row::Append => ("log".to_owned(), Mode::Append),
            Row::Mixed => (format!("bulk-{task}"), Mode::Write),
            _ if self.direct => ("big".to_owned(), Mode::Direct),
            Row::Random => ("big".to_owned(), Mode::Random),
            _ => ("big".to_owned(), Mode::Read),
        };
        (self.dir.join(name), mode)
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For reading.
    Read,
    /// For reading in no order: the kernel reads nothing ahead.
    Random,
    /// For reading, past the page cache.
    Direct,
    /// For writing; created if it is not there.
    Write,
    /// For writing at the end; created if it is not there.
    Append,
}

/// Opens a file as the standard library does: outside of what is measured.
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
        // SAFETY: advice about a file that is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    }
    file
}
