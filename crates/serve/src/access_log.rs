//! The access log: one line of JSON per request, written off the hot path.
//!
//! A request appends a record to a vector under a lock; a thread takes the vector ten times a
//! second and writes it, so no request pays for formatting or a system call. The vector
//! is bounded: when the disk does not keep up, records are dropped, and the next line that is
//! written says how many.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, Uri, Version};
use serde::Serialize;

const MOST: usize = 1 << 16;
const EVERY: Duration = Duration::from_millis(100);

/// What is kept of a request.
pub(crate) struct Record {
    pub(crate) at: SystemTime,
    pub(crate) peer: SocketAddr,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) level: u8,
    pub(crate) waited: Duration,
    pub(crate) took: Duration,
}

/// A line.
#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time: f64,
    peer: SocketAddr,
    method: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<&'a str>,
    version: &'a str,
    status: u16,
    bytes: u64,
    level: u8,
    /// Before it began, in ms.
    wait_ms: f64,
    /// To the end of its response, in ms.
    took_ms: f64,
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for a reference"
)]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Default)]
struct Pending {
    records: Vec<Record>,
    dropped: u64,
    over: bool,
}

#[derive(Default)]
struct Queue {
    pending: Mutex<Pending>,
    over: Condvar,
}

/// The log: takes records, and has written them when it has been dropped.
pub(crate) struct AccessLog {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl AccessLog {
    /// Appends to a file, or writes to standard output if it is called `-`.
    pub(crate) fn open(path: &Path) -> io::Result<AccessLog> {
        let file: Box<dyn Write + Send> = if path.as_os_str() == "-" {
            Box::new(io::stdout())
        } else {
            Box::new(OpenOptions::new().append(true).create(true).open(path)?)
        };
        let queue = Arc::new(Queue::default());
        let theirs = queue.clone();
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || theirs.write(BufWriter::new(file)))?;
        Ok(AccessLog {
            queue,
            thread: Some(thread),
        })
    }

    pub(crate) fn push(&self, record: Record) {
        let mut pending = self
            .queue
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if pending.records.len() < MOST {
            pending.records.push(record);
        } else {
            pending.dropped += 1;
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .over = true;
        self.queue.over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn write(&self, mut file: impl Write) {
        let mut records = Vec::new();
        loop {
            let (dropped, over) = {
                let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                let (mut pending, _) = self
                    .over
                    .wait_timeout_while(pending, EVERY, |pending| !pending.over)
                    .unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(&mut records, &mut pending.records);
                (std::mem::take(&mut pending.dropped), pending.over)
            };
            let mut dropped = dropped;
            for record in records.drain(..) {
                // A full disk must not end the server.
                let _ = line(&mut file, &record, std::mem::take(&mut dropped));
            }
            let _ = file.flush();
            if over {
                return;
            }
        }
    }
}

fn line(file: &mut impl Write, record: &Record, dropped: u64) -> io::Result<()> {
    let round = |seconds: f64| (seconds * 1e6).round() / 1e6;
    let line = Line {
        time: round(
            record
                .at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        ),
        peer: record.peer,
        method: record.method.as_str(),
        path: record.uri.path(),
        query: record.uri.query(),
        version: match record.version {
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2",
            _ => "1.1",
        },
        status: record.status,
        bytes: record.bytes,
        level: record.level,
        wait_ms: record.waited.as_micros() as f64 / 1e3,
        took_ms: record.took.as_micros() as f64 / 1e3,
        dropped,
    };
    serde_json::to_writer(&mut *file, &line)?;
    file.write_all(b"\n")
}
