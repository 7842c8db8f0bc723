//! Serves Prometheus metrics over HTTP on a separate socket. They contain the numbers of the
//! census, the daemon's report about the machine.
//!
//! A thread that is not elevated requests the census from the daemon, and serves several HTTP
//! connections concurrently. It closes each connection [`CLIENT_TIMEOUT`] after accepting it. The
//! thread cannot delay the schedulers. The setting `metrics` is the endpoint: the path of a Unix
//! socket, or an address and port.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;
use upshift_trace::prometheus::{CONTENT_TYPE, Text};

use upshift_units::socket_file::{self, SocketFile, check_directories};

const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);

const MAX_CLIENTS: usize = 32;

const MAX_REQUEST_BYTES: usize = 8192;

const BACKLOG: i32 = 128;

/// Time until the next attempt after a failed accept, for example without free descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Starts the thread, which lives as long as the process. Returns the file of the socket, if it is
/// a Unix socket.
///
/// # Errors
/// The daemon cannot listen on the address.
pub(crate) fn serve(address: &str, daemon: PathBuf) -> io::Result<Option<SocketFile>> {
    if address.starts_with('/') {
        let path = Path::new(address);
        check_directories(path)?;
        let (listener, file) = socket_file::listen(path, None, BACKLOG)?;
        listener.set_nonblocking(true)?;
        start(listener, |listener| Ok(listener.accept()?.0.into()), daemon)?;
        Ok(Some(file))
    } else {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        start(listener, |listener| Ok(listener.accept()?.0.into()), daemon)?;
        Ok(None)
    }
}

fn start<L: AsFd + Send + 'static>(
    listener: L,
    accept: fn(&L) -> io::Result<OwnedFd>,
    daemon: PathBuf,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("upshift-metrics".into());
    thread
        .spawn(move || answer_all(listener.as_fd(), || accept(&listener), &daemon))
        .map(drop)
}

/// Serves connections concurrently. Beyond [`MAX_CLIENTS`] the oldest connection is closed.
fn answer_all(listener: BorrowedFd<'_>, accept: impl Fn() -> io::Result<OwnedFd>, daemon: &Path) {
    let mut reply = CachedReply { daemon, last: None };
    let mut clients: VecDeque<Client> = VecDeque::new();
    loop {
        let now = Instant::now();
        clients.retain(|client| now < client.until);
        let next = clients.front().map(|client| client.until - now);
        let timeout = next.and_then(|next| Timespec::try_from(next).ok());
        let mut fds = vec![PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        fds.extend(clients.iter().map(Client::poll_fd));
        // Ignore errors (EINTR): each client is tried, and one that is not ready does not change.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        drop(fds);
        clients.retain_mut(|client| client.advance(&mut reply));
        for _ in 0..MAX_CLIENTS {
            match accept() {
                Ok(socket) => {
                    let mut client = Client::new(socket);
                    if !client.advance(&mut reply) {
                        continue;
                    }
                    if clients.len() >= MAX_CLIENTS {
                        clients.pop_front();
                    }
                    clients.push_back(client);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    std::thread::sleep(ACCEPT_RETRY);
                    break;
                }
            }
        }
    }
}

/// Time for which a reply is reused, which bounds the cost of frequent requests for the daemon.
const CACHE_TIME: Duration = Duration::from_millis(100);

struct CachedReply<'a> {
    daemon: &'a Path,
    last: Option<(Instant, &'static str, String)>,
}

impl CachedReply<'_> {
    fn current(&mut self) -> io::Result<(&'static str, &str)> {
        let is_fresh = |last: &(Instant, &str, String)| last.0.elapsed() < CACHE_TIME;
        if !self.last.as_ref().is_some_and(is_fresh) {
            let (status, body) = match upshift_board::client::census(self.daemon) {
                Ok(census) => ("200 OK", text(&serde_json::from_str(&census.json)?)),
                Err(error) => ("503 Service Unavailable", format!("{error}\n")),
            };
            self.last = Some((Instant::now(), status, body));
        }
        let last = self.last.as_ref();
        Ok(last.map_or(("", ""), |(_, status, body)| (status, body)))
    }
}

struct Client {
    socket: OwnedFd,
    until: Instant,
    request: Vec<u8>,
    answer: Option<VecDeque<u8>>,
}

impl Client {
    fn new(socket: OwnedFd) -> Client {
        Client {
            socket,
            until: Instant::now() + CLIENT_TIMEOUT,
            request: Vec::new(),
            answer: None,
        }
    }

    fn poll_fd(&self) -> PollFd<'_> {
        let events = match self.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        };
        PollFd::new(&self.socket, events)
    }

    /// Advances as far as possible without waiting. Returns false when the connection has ended.
    fn advance(&mut self, reply: &mut CachedReply<'_>) -> bool {
        match self.try_advance(reply) {
            Ok(is_finished) => !is_finished,
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        }
    }

    fn try_advance(&mut self, reply: &mut CachedReply<'_>) -> io::Result<bool> {
        let mut part = [0u8; 1024];
        while self.answer.is_none() {
            let (length, _) = rustix::net::recv(&self.socket, &mut part, RecvFlags::DONTWAIT)?;
            self.request.extend_from_slice(&part[..length]);
            let is_complete = self.request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
            if is_complete || length == 0 || self.request.len() >= MAX_REQUEST_BYTES {
                self.answer = Some(answer(&self.request, reply)?.into());
            }
        }
        let Some(answer) = &mut self.answer else {
            return Ok(true);
        };
        while !answer.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = rustix::net::send(&self.socket, answer.as_slices().0, flags)?;
            answer.drain(..sent);
        }
        Ok(true)
    }
}

fn answer(request: &[u8], reply: &mut CachedReply<'_>) -> io::Result<Vec<u8>> {
    let (status, body) = if request.starts_with(b"GET ") {
        reply.current()?
    } else {
        ("405 Method Not Allowed", "GET only\n")
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Ok((head + body).into_bytes())
}

fn text(census: &Value) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut Text::new(&mut out), census);
    out
}

/// Returns a number of the census: 1 for `true`, 0 for a missing value.
fn number(value: &Value) -> f64 {
    let truth = f64::from(value == &Value::Bool(true));
    value.as_f64().unwrap_or(truth)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn write_text(out: &mut Text<'_>, census: &Value) -> std::fmt::Result {
    let uptime = number(&census["uptime_ms"]) / 1e3;
    out.single("uptime_seconds", "Time since the daemon started.", uptime)?;
    for (name, field, help) in [
        ("enforcing", "enforcing", "1: the daemon elevates threads."),
        (
            "registrations_total",
            "registrations",
            "Registrations so far.",
        ),
        ("refused_total", "refused", "Refused requests."),
        (
            "ejected_total",
            "ejected",
            "Threads and users that lost their elevation for their behaviour.",
        ),
        (
            "alarms_total",
            "alarms",
            "Times that a canary, an ordinary thread on each CPU, did not run in time.",
        ),
    ] {
        out.single(name, help, number(&census[field]))?;
    }
    for (name, field, help) in [
        ("processes", "processes", "Registered processes."),
        (
            "assigned_processes",
            "assigned",
            "Processes whose level a rule of the configuration assigns.",
        ),
    ] {
        out.single(name, help, list(&census[field]).len())?;
    }
    for (name, field, help) in [
        (
            "contenders",
            "contenders",
            "vCPUs with work that is ready or waited for, by CPU.",
        ),
        (
            "switches_total",
            "switches",
            "Times that another vCPU became the one that runs first, by CPU.",
        ),
    ] {
        out.family(name, help)?;
        for cpu in list(&census["cpus"]) {
            out.sample(&[("cpu", &cpu["cpu"])], number(&cpu[field]))?;
        }
    }
    // These are sums over the registered processes, so they decrease when a process leaves.
    for (name, help) in [
        (
            "rings",
            "Notifications (doorbell rings) by the registered processes that were answered.",
        ),
        (
            "floods",
            "Times that a vCPU notified too often and was ignored for a while.",
        ),
        (
            "overdrafts",
            "Times that a dispatcher thread exceeded its CPU budget and lost its priority.",
        ),
        (
            "pauses",
            "Pauses of elevated threads that leave CPU time to other programs.",
        ),
    ] {
        let processes = list(&census["processes"]).iter();
        let vcpus = processes.flat_map(|process| list(&process["vcpus"]));
        out.single(
            name,
            help,
            vcpus.map(|vcpu| number(&vcpu[name])).sum::<f64>(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_census_becomes_figures() {
        let census = serde_json::json!({
            "uptime_ms": 1500, "enforcing": true, "registrations": 7, "alarms": 1,
            "cpus": [{"cpu": 3, "contenders": 2, "switches": 40}],
            "processes": [{"vcpus": [{"rings": 5}, {"rings": 6}]}],
        });
        let text = text(&census);
        for line in [
            "upshift_uptime_seconds 1.5",
            "upshift_enforcing 1",
            "# TYPE upshift_registrations_total counter",
            "upshift_registrations_total 7",
            "upshift_refused_total 0",
            "upshift_switches_total{cpu=\"3\"} 40",
            "upshift_rings 11",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
