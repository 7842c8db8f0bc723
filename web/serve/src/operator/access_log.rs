//! The access log. It consists of one line of JSON per request, which is written off the hot path.
//!
//! A request appends a record to the vector of its vCPU, under a lock that only the requests of
//! this vCPU and the writer take. The writer, a thread, drains the vectors ten times a second and
//! writes the records in the order in which the requests ended, so no request pays for formatting
//! or a system call. The vectors are bounded. When the disk is full or too slow, records are
//! dropped, and the next line contains the number of dropped records.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, Version};
use serde::{Serialize, Serializer};

use crate::operator::notice::Notices;
use crate::per_vcpu::PerVcpu;
use crate::server::bind::UNIX_PEER;

/// Maximum number of waiting records of all vCPUs.
const MAX_RECORDS: usize = 1 << 16;
/// Maximum total length of the texts in waiting records, in bytes.
const MAX_TEXT_BYTES: usize = 16 << 20;
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Number of buffered bytes at which the writer calls `write`.
const WRITE_SIZE: usize = 64 * 1024;
/// Maximum wait for the last lines to be written when the log is dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

static FAILURES: Notices = Notices::new();

pub(crate) struct Record {
    pub(crate) ended_at: SystemTime,
    pub(crate) peer: SocketAddr,
    pub(crate) method: Method,
    /// Host, if several sites are served.
    pub(crate) host: Option<Box<str>>,
    /// Path with its query. The text is copied, since a `Uri` keeps all bytes alive that were
    /// received with it.
    pub(crate) path: Box<str>,
    pub(crate) referer: Option<Box<str>>,
    pub(crate) user_agent: Option<Box<str>>,
    pub(crate) version: Version,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) level: u8,
    pub(crate) waited: Duration,
    pub(crate) took: Duration,
}

impl Record {
    fn text_bytes(&self) -> usize {
        let texts = [&self.host, &self.referer, &self.user_agent];
        let texts = texts.into_iter().flatten().map(|text| text.len());
        self.path.len() + texts.sum::<usize>()
    }
}

/// An address, or the word `unix` for a Unix socket.
struct Peer(SocketAddr);

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            UNIX_PEER => to.serialize_str("unix"),
            address => address.serialize(to),
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970 at which the request ended.
    time: f64,
    peer: Peer,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    version: &'a str,
    status: u16,
    bytes: u64,
    level: u8,
    wait_ms: f64,
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
    /// Total length of the texts in `records`, in bytes.
    bytes: usize,
    /// Number of records that were dropped since the writer last drained this vector.
    dropped: u64,
}

/// Requests to the writer, and its state.
#[derive(Default)]
struct WriterState {
    reopen: bool,
    closed: bool,
    done: bool,
}

struct Queue {
    pending: PerVcpu<Mutex<Pending>>,
    writer: Mutex<WriterState>,
    /// Notified when `closed` or `done` changes.
    ending: Condvar,
}

/// The log. Its drop waits until all records are written, at most [`SHUTDOWN_TIMEOUT`].
pub(crate) struct AccessLog {
    queue: Arc<Queue>,
}

impl AccessLog {
    pub(crate) fn open(path: &Path, vcpus: usize) -> io::Result<AccessLog> {
        let lines = LineWriter::new(open(path)?);
        let queue = Arc::new(Queue {
            pending: PerVcpu::new(vcpus),
            writer: Mutex::default(),
            ending: Condvar::new(),
        });
        let (shared, path) = (queue.clone(), path.to_owned());
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || shared.write(lines, &path))?;
        Ok(AccessLog { queue })
    }

    pub(crate) fn push(&self, record: Record) {
        let vcpus = self.queue.pending.count();
        let mut pending = lock(self.queue.pending.local());
        if pending.records.len() < MAX_RECORDS / vcpus && pending.bytes < MAX_TEXT_BYTES / vcpus {
            pending.bytes += record.text_bytes();
            pending.records.push(record);
        } else {
            pending.dropped += 1;
        }
    }

    pub(crate) fn reopen(&self) {
        lock(&self.queue.writer).reopen = true;
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        let mut writer = lock(&self.queue.writer);
        writer.closed = true;
        self.queue.ending.notify_all();
        let waited = self
            .queue
            .ending
            .wait_timeout_while(writer, SHUTDOWN_TIMEOUT, |writer| !writer.done);
        drop(waited);
    }
}

fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() == "-" {
        return Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    }
    OpenOptions::new().append(true).create(true).open(path)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn write(&self, mut lines: LineWriter<File>, path: &Path) {
        let mut records = Vec::new();
        loop {
            let (reopen, closed) = {
                let (mut writer, _) = self
                    .ending
                    .wait_timeout_while(lock(&self.writer), FLUSH_INTERVAL, |writer| !writer.closed)
                    .unwrap_or_else(PoisonError::into_inner);
                (std::mem::take(&mut writer.reopen), writer.closed)
            };
            for pending in self.pending.iter() {
                let mut pending = lock(pending);
                records.append(&mut pending.records);
                pending.bytes = 0;
                lines.lost += std::mem::take(&mut pending.dropped);
            }
            records.sort_by_key(|record| record.ended_at);
            if reopen {
                match open(path) {
                    Ok(file) => lines.set_file(file),
                    Err(error) => FAILURES.report(format_args!(
                        "access log {}: {error}; the open file remains in use",
                        path.display()
                    )),
                }
            }
            for record in records.drain(..) {
                lines.push(&record);
            }
            lines.flush();
            if closed {
                lock(&self.writer).done = true;
                self.ending.notify_all();
                return;
            }
        }
    }
}

/// A buffer of lines for a file. A full disk or a closed pipe must not end the server. So lines
/// that cannot be written are dropped and counted, and a torn line is terminated before the next
/// line.
struct LineWriter<W> {
    file: W,
    text: Vec<u8>,
    /// Number of lines in `text`.
    count: u64,
    /// Number of dropped records that the first line in `text` reports.
    reported: u64,
    /// Number of dropped records that were not reported yet.
    lost: u64,
    /// Set if the file ends within a line.
    torn: bool,
}

impl<W: Write> LineWriter<W> {
    fn new(file: W) -> LineWriter<W> {
        LineWriter {
            file,
            text: Vec::new(),
            count: 0,
            reported: 0,
            lost: 0,
            torn: false,
        }
    }

    fn set_file(&mut self, file: W) {
        self.file = file;
        self.torn = false;
    }

    fn push(&mut self, record: &Record) {
        let mut dropped = 0;
        if self.count == 0 {
            self.reported = std::mem::take(&mut self.lost);
            dropped = self.reported;
        }
        // Writing to memory cannot fail.
        let _ = line(&mut self.text, record, dropped);
        self.count += 1;
        if self.text.len() >= WRITE_SIZE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut written = 0;
        let mut result = Ok(());
        if self.torn && self.count != 0 {
            result = self.file.write_all(b"\n");
            self.torn = result.is_err();
        }
        while result.is_ok() && written < self.text.len() {
            match self.file.write(&self.text[written..]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        if let Err(error) = result {
            let written_text = &self.text[..written];
            let whole_lines = written_text.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.lost += self.count - whole_lines;
            if whole_lines == 0 {
                self.lost += self.reported;
            }
            self.torn |= written_text.last().is_some_and(|last| *last != b'\n');
            FAILURES.report(format_args!(
                "access log: {error}; lines are dropped until it can be written"
            ));
        }
        self.text.clear();
        (self.count, self.reported) = (0, 0);
    }
}

fn line(text: &mut Vec<u8>, record: &Record, dropped: u64) -> io::Result<()> {
    let round = |seconds: f64| (seconds * 1e6).round() / 1e6;
    let (path, query) = match record.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*record.path, None),
    };
    let line = Line {
        time: round(
            record
                .ended_at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        ),
        peer: Peer(record.peer),
        method: record.method.as_str(),
        host: record.host.as_deref(),
        path,
        query,
        referer: record.referer.as_deref(),
        user_agent: record.user_agent.as_deref(),
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
    serde_json::to_writer(&mut *text, &line)?;
    text.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Disk {
        content: Vec<u8>,
        space: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.space);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.space -= count;
            self.content.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn record(path: &'static str) -> Record {
        Record {
            ended_at: SystemTime::now(),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            method: Method::GET,
            host: None,
            path: path.into(),
            referer: None,
            user_agent: None,
            version: Version::HTTP_11,
            status: 200,
            bytes: 0,
            level: 28,
            waited: Duration::ZERO,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn records_lost_to_a_full_disk_are_counted_in_the_next_line() {
        let mut one = Vec::new();
        line(&mut one, &record("/0"), 0).unwrap();
        // The disk has space for one line and a part of the second line.
        let mut lines = LineWriter::new(Disk {
            content: Vec::new(),
            space: one.len() + 20,
        });
        for path in ["/0", "/1", "/2"] {
            lines.push(&record(path));
        }
        lines.flush();
        lines.push(&record("/3"));
        lines.flush();
        assert_eq!(lines.lost, 3);
        lines.file.space = 1 << 20;
        lines.flush();
        lines.push(&record("/4"));
        lines.push(&record("/5"));
        lines.flush();
        let text = String::from_utf8(lines.file.content).unwrap();
        let whole: Vec<serde_json::Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        assert_eq!(text.lines().count(), 4, "{text}");
        let paths: Vec<_> = whole.iter().map(|line| line["path"].as_str()).collect();
        assert_eq!(paths, [Some("/0"), Some("/4"), Some("/5")], "{text}");
        assert_eq!(whole[1]["dropped"], 3);
        assert_eq!(whole[2].get("dropped"), None);
        assert_eq!(lines.lost, 0);
    }
}
