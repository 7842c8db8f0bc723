//! Figures for Prometheus: the census as its text format, over HTTP, on a socket of their own.
//!
//! An ordinary thread that asks the daemon as any client does, and answers one at a time: a client is given up [`PATIENCE`] after it was
//! taken. Nothing here can hold up what schedules. `metrics` of the configuration says where: a path for a Unix socket, or an
//! address and port.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use upshift_trace::prometheus::{CONTENT_TYPE, Text};

/// How long a client may take, to ask and to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest request.
const REQUEST: usize = 8192;

/// How long after no connection could be taken: there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// The file of the socket. It goes when this is dropped, if it still is the one that was made.
#[derive(Debug)]
pub(crate) struct Place(Option<(PathBuf, (u64, u64))>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((path, made)) = self.0.take()
            && identity(&path).is_ok_and(|now| now == made)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What tells a file from another that has its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Starts the thread, which lives as long as the process.
///
/// # Errors
/// It cannot listen there.
pub(crate) fn serve(place: &str, daemon: PathBuf) -> io::Result<Place> {
    if place.starts_with('/') {
        let path = Path::new(place);
        // What a former daemon has left.
        if std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let place = Place(Some((path.to_path_buf(), identity(path)?)));
        start(move || answer_all(|| Ok(listener.accept()?.0), &daemon))?;
        Ok(place)
    } else {
        let listener = TcpListener::bind(place)?;
        start(move || answer_all(|| Ok(listener.accept()?.0), &daemon))?;
        Ok(Place(None))
    }
}

fn start(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("upshift-metrics".into());
    thread.spawn(body).map(drop)
}

fn answer_all<S: Stream>(accept: impl Fn() -> io::Result<S>, daemon: &Path) {
    let mut figures = Figures { daemon, last: None };
    loop {
        match accept() {
            Ok(stream) => drop(answer(stream, &mut figures)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// How long figures are served again: a client that asks without end costs the daemon no more than this.
const FRESH: Duration = Duration::from_millis(100);

/// What is answered.
struct Figures<'a> {
    daemon: &'a Path,
    last: Option<(Instant, &'static str, String)>,
}

impl Figures<'_> {
    /// Status and body.
    fn now(&mut self) -> io::Result<(&'static str, &str)> {
        let is_fresh = |last: &(Instant, &str, String)| last.0.elapsed() < FRESH;
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

/// A connection, of either kind.
trait Stream: Read + Write {
    /// How long a call may take.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Stream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// A stream that is given up when the time of its client is over, however little each call takes.
struct Limited<S> {
    stream: S,
    until: Instant,
}

impl<S: Stream> Limited<S> {
    fn within(&mut self) -> io::Result<&mut S> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.limit(left)?;
        Ok(&mut self.stream)
    }
}

impl<S: Stream> Read for Limited<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.within()?.read(buffer)
    }
}

impl<S: Stream> Write for Limited<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.within()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// One request and its answer; the connection ends with it.
fn answer(stream: impl Stream, figures: &mut Figures<'_>) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut stream = Limited { stream, until };
    let mut request = Vec::new();
    let mut part = [0u8; 1024];
    while !request.windows(4).any(|it| it == b"\r\n\r\n") && request.len() < REQUEST {
        match stream.read(&mut part)? {
            0 => break,
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let (status, body) = match request.starts_with(b"GET ") {
        true => figures.now()?,
        false => ("405 Method Not Allowed", "GET only\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes())
}

/// The census as figures.
fn text(census: &Value) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(&mut Text::new(&mut out), census);
    out
}

/// A number of the census; of a truth 1, and 0 of what is not there.
fn number(value: &Value) -> f64 {
    let truth = f64::from(value == &Value::Bool(true));
    value.as_f64().unwrap_or(truth)
}

/// The entries of a list of the census.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn write_text(out: &mut Text<'_>, census: &Value) -> std::fmt::Result {
    let uptime = number(&census["uptime_ms"]) / 1e3;
    out.single("uptime_seconds", "Since the daemon began.", uptime)?;
    for (name, field, help) in [
        ("enforcing", "enforcing", "1: it elevates."),
        (
            "registrations_total",
            "registrations",
            "Registrations so far.",
        ),
        ("refused_total", "refused", "Requests refused."),
        (
            "ejected_total",
            "ejected",
            "Threads put out for what they did.",
        ),
        (
            "alarms_total",
            "alarms",
            "How often the canary of a CPU was silent.",
        ),
    ] {
        out.single(name, help, number(&census[field]))?;
    }
    for (name, field, help) in [
        ("processes", "processes", "Registered now."),
        ("barred_users", "barred", "Not elevated for what they did."),
        ("assigned_processes", "assigned", "With a level by a rule."),
    ] {
        out.single(name, help, list(&census[field]).len())?;
    }
    for (name, field, help) in [
        (
            "contenders",
            "contenders",
            "vCPUs with something to run, by CPU.",
        ),
        (
            "switches_total",
            "switches",
            "Changes of the winner, by CPU.",
        ),
    ] {
        out.family(name, help)?;
        for cpu in list(&census["cpus"]) {
            out.sample(&[("cpu", &cpu["cpu"])], number(&cpu[field]))?;
        }
    }
    // Of those that are registered now: it falls when one leaves.
    for (name, help) in [
        ("rings", "Doorbells heard, of registered processes."),
        ("floods", "Doorbells not listened to for a while."),
        ("overdrafts", "Dispatchers moved down."),
        ("breaths", "Times the CPU was left to others."),
    ] {
        let processes = list(&census["processes"]).iter();
        let vcpus = processes.flat_map(|it| list(&it["vcpus"]));
        out.single(name, help, vcpus.map(|it| number(&it[name])).sum::<f64>())?;
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
            "barred": [{"uid": 1, "ms": 2}],
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
            "upshift_barred_users 1",
            "upshift_switches_total{cpu=\"3\"} 40",
            "upshift_rings 11",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }
}
