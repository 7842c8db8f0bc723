//! Serves the socket to which `upshift top` connects. One thread answers requests for snapshots of
//! the metrics, and for recordings of events.
//!
//! ```text
//!   client: metrics\n   ─►   server: {"protocol":1,"pid":…,"name":…,"metrics":{…}}\n
//!   client: record\n    ─►   server: {"protocol":1,"recording":true}\n
//!   client: timeline\n  ─►   server: {"protocol":1,"timeline":{…}}\n (the recording then ends)
//!   client: other text  ─►   server: {"error":"…"}\n, and the connection is closed
//! ```
//!
//! The thread answers only processes of the same user and of root (SO_PEERCRED). It bounds the load
//! from clients. At most [`MAX_CLIENTS`] are connected at a time. A client may send requests of at
//! most [`MAX_REQUEST_BYTES`] bytes, must read an answer before it sends the next request, and gets
//! at most one answer per [`ANSWER_INTERVAL`]. A client is disconnected if it does not read its
//! answer within [`WRITE_TIMEOUT`] plus one second for each [`BYTES_PER_SECOND`] bytes, or sends no
//! request for [`IDLE_TIMEOUT`]. There is at most one recording at a time, of about
//! [`TRACE_EVENTS`] events; the recording ends when its client disconnects. The thread sleeps in
//! `poll`, and takes snapshots without stopping a vCPU. It never serves a vCPU itself.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::directory;
use crate::affinity::{self, Mask};
use crate::metrics::{self, Metrics};
use crate::runtime::shared::Shared;
use crate::trace::{Timeline, Trace};

/// Version of the answers. The version changes when a name or a unit in them changes.
pub const PROTOCOL: u32 = 1;
const MAX_CLIENTS: usize = 8;
const MAX_REQUEST_BYTES: usize = 64;
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 4 << 20;
/// Number of records in a recording, over all vCPUs, which take 10 MiB. A recording may hold up to
/// twice that number, because each ring rounds its share up to a power of two.
const TRACE_EVENTS: usize = 1 << 18;

/// Number of runtimes of this process that have had a socket.
static RUNTIMES: AtomicU32 = AtomicU32::new(0);

/// Answer to `metrics`, with the identity of a process and a snapshot of one of its runtimes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct View {
    /// Version of the answer: [`PROTOCOL`].
    pub protocol: u32,
    /// Id of the process.
    pub pid: u32,
    /// The name of the runtime; see [`Builder::name`](crate::Builder::name).
    pub name: String,
    /// The version of the library.
    pub version: String,
    /// The snapshot.
    pub metrics: Metrics,
}

/// Answer to `timeline`, with a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    /// Version of the answer: [`PROTOCOL`].
    pub protocol: u32,
    /// The recorded timeline.
    pub timeline: Timeline,
}

/// Handle to the thread and its socket. Its drop ends both.
pub(crate) struct Server {
    path: PathBuf,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the thread, on the CPUs of `mask`.
    pub(crate) fn start(shared: &Arc<Shared>, mask: Mask) -> io::Result<Server> {
        let number = RUNTIMES.fetch_add(1, Ordering::Relaxed) + 1;
        let path = directory::socket_path(number)?;
        // The socket may be left over from an earlier process with the same id.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let weak = Arc::downgrade(shared);
        let thread = thread::Builder::new()
            .name(format!("{}-view", shared.settings.name))
            .spawn(move || {
                // If the process may not use these CPUs any more, the thread keeps its present
                // CPUs.
                let _ = affinity::set(&mask);
                serve(&weak, &listener, &stopped);
            })?;
        Ok(Server {
            path,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
        // An error is ignored, because the socket may have been removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    /// Set if the answer is an error, after which the connection is closed.
    is_refused: bool,
    /// Time before which the next request is not read.
    ready_at: Instant,
    /// Time at which the client is disconnected, unless it reads its answer or sends a request.
    deadline: Instant,
    /// The recording that the client has requested and not fetched.
    recording: Option<RecordingGuard>,
}

/// Guard of the recording under way, whose drop ends it.
struct RecordingGuard(Trace);

impl Drop for RecordingGuard {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Answers a request. Returns `Err` with the reason for a refusal, or `None` if the runtime has
/// ended.
fn answer(
    request: &[u8],
    recording: &mut Option<RecordingGuard>,
    shared: &Weak<Shared>,
) -> Option<Result<String, String>> {
    let shared = shared.upgrade()?;
    let text = match request {
        b"metrics" => serde_json::to_string(&View {
            protocol: PROTOCOL,
            pid: std::process::id(),
            name: shared.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            metrics: metrics::collect(&shared),
        }),
        b"record" => {
            let trace = Trace::new(&shared);
            if trace.is_on() {
                return Some(Err("a recording is under way already".into()));
            }
            let rings = shared.domain.vcpus().count() + 1;
            if let Err(error) = trace.start((TRACE_EVENTS / rings).max(1)) {
                return Some(Err(format!("no memory for a recording: {error}")));
            }
            *recording = Some(RecordingGuard(trace));
            serde_json::to_string(&serde_json::json!({ "protocol": PROTOCOL, "recording": true }))
        }
        b"timeline" => match recording.take() {
            None => return Some(Err("nothing was recorded: ask to `record` first".into())),
            Some(running) => serde_json::to_string(&Recording {
                protocol: PROTOCOL,
                timeline: running.0.snapshot(),
            }),
        },
        _ => {
            let why = "unknown request: expected `metrics`, `record` or `timeline`";
            return Some(Err(why.into()));
        }
    };
    text.ok().map(Ok)
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        let now = Instant::now();
        let mut client = Client {
            stream,
            request: Vec::new(),
            answer: Vec::new(),
            sent: 0,
            is_refused: false,
            ready_at: now,
            deadline: now + IDLE_TIMEOUT,
            recording: None,
        };
        if !is_permitted(&client.stream) {
            client.refuse("only the user of the process, and root, may observe it");
        }
        Ok(client)
    }

    fn answer(&mut self, mut text: String) {
        text.push('\n');
        self.answer = text.into_bytes();
        self.sent = 0;
        let read_time = Duration::from_secs(self.answer.len() as u64 / BYTES_PER_SECOND);
        self.deadline = Instant::now() + WRITE_TIMEOUT + read_time;
    }

    fn refuse(&mut self, why: &str) {
        self.answer(serde_json::json!({ "error": why }).to_string());
        self.is_refused = true;
    }

    fn events(&self, now: Instant) -> libc::c_short {
        if !self.answer.is_empty() {
            libc::POLLOUT
        } else if now >= self.ready_at {
            libc::POLLIN
        } else {
            0
        }
    }

    /// Reads a request and writes its answer, as far as that is possible without waiting. Returns
    /// false if the connection is over.
    fn advance(&mut self, shared: &Weak<Shared>) -> bool {
        if self.answer.is_empty() && Instant::now() >= self.ready_at && !self.read(shared) {
            return false;
        }
        self.write()
    }

    fn read(&mut self, shared: &Weak<Shared>) -> bool {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        match (&self.stream).read(&mut bytes) {
            Ok(0) => return false,
            Ok(n) => self.request.extend_from_slice(&bytes[..n]),
            Err(error) => return is_temporary(&error),
        }
        let Some(end) = self.request.iter().position(|byte| *byte == b'\n') else {
            if self.request.len() > MAX_REQUEST_BYTES {
                self.refuse("request too long: send one short line, such as `metrics`");
            }
            return true;
        };
        let request: Vec<u8> = self.request.drain(..=end).collect();
        let text = if self.request.len() > MAX_REQUEST_BYTES {
            Err("wait for the answer before the next request".into())
        } else {
            match answer(request.trim_ascii(), &mut self.recording, shared) {
                Some(result) => result,
                None => return false,
            }
        };
        match text {
            Ok(text) => self.answer(text),
            Err(why) => self.refuse(&why),
        }
        self.ready_at = Instant::now() + ANSWER_INTERVAL;
        true
    }

    fn write(&mut self) -> bool {
        while self.sent < self.answer.len() {
            match (&self.stream).write(&self.answer[self.sent..]) {
                Ok(0) => return false,
                Ok(n) => self.sent += n,
                Err(error) => return is_temporary(&error),
            }
        }
        if !self.answer.is_empty() {
            self.answer = Vec::new();
            self.deadline = Instant::now() + IDLE_TIMEOUT;
        }
        !self.is_refused
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Returns whether the client runs as the user of this process, or as root.
fn is_permitted(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `length` are locals, and `length` is the size of `peer`, so the call
    // writes within `peer`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    result == 0 && (peer.uid == directory::effective_uid() || peer.uid == 0)
}

fn serve(shared: &Weak<Shared>, listener: &UnixListener, stopped: &UnixStream) {
    let mut clients: Vec<Client> = Vec::new();
    loop {
        let now = Instant::now();
        clients.retain(|client| client.deadline > now);
        let entry = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut fds = vec![
            entry(stopped.as_raw_fd(), libc::POLLIN),
            entry(listener.as_raw_fd(), libc::POLLIN),
        ];
        let of_client = |client: &Client| entry(client.stream.as_raw_fd(), client.events(now));
        fds.extend(clients.iter().map(of_client));
        let deadlines = clients.iter().map(|client| {
            if client.answer.is_empty() && client.ready_at > now {
                client.ready_at.min(client.deadline)
            } else {
                client.deadline
            }
        });
        let timeout = deadlines.min().map_or(-1, |deadline| {
            let millis = deadline.saturating_duration_since(now).as_millis();
            i32::try_from(millis).unwrap_or(i32::MAX).saturating_add(1)
        });
        // SAFETY: `fds` is a vector of the length given. An error is ignored, because the loop then
        // tries again.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        if fds[0].revents != 0 {
            return;
        }
        let mut events = fds[2..].iter().map(|fd| fd.revents);
        clients.retain_mut(|client| match events.next() {
            Some(0) | None => true,
            Some(_) => client.advance(shared),
        });
        if fds[1].revents != 0 {
            match listener.accept() {
                Ok((stream, _)) if clients.len() < MAX_CLIENTS => {
                    clients.extend(Client::new(stream))
                }
                // There are too many clients already.
                Ok(_) => {}
                Err(error) if is_temporary(&error) => {}
                // A lasting error, such as a lack of descriptors, so the loop waits before it tries
                // again.
                Err(_) => thread::sleep(ANSWER_INTERVAL),
            }
        }
    }
}
