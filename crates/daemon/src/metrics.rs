//! Figures for Prometheus: the census as its text format, over HTTP, on a socket of their own.
//!
//! An ordinary thread that asks the daemon as any client does, and answers one at a time: a slow client is given up after
//! [`PATIENCE`]. Nothing here can hold up what schedules. `metrics` of the configuration says where: a path for a Unix socket, or an
//! address and port.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use upshift_trace::prometheus::{CONTENT_TYPE, Text};

/// How long a client may take to ask, and to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest request.
const REQUEST: usize = 8192;

/// Starts the thread, which lives as long as the process.
///
/// # Errors
/// It cannot listen there.
pub(crate) fn serve(place: &str, daemon: PathBuf) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("upshift-metrics".into());
    if place.starts_with('/') {
        let path = Path::new(place);
        // What a former daemon has left.
        if std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        thread.spawn(move || {
            for stream in listener.incoming().flatten() {
                let limits = [
                    stream.set_read_timeout(Some(PATIENCE)),
                    stream.set_write_timeout(Some(PATIENCE)),
                ];
                if limits.iter().all(Result::is_ok) {
                    let _ = answer(stream, &daemon);
                }
            }
        })?;
    } else {
        let listener = TcpListener::bind(place)?;
        thread.spawn(move || {
            for stream in listener.incoming().flatten() {
                let limits = [
                    stream.set_read_timeout(Some(PATIENCE)),
                    stream.set_write_timeout(Some(PATIENCE)),
                ];
                if limits.iter().all(Result::is_ok) {
                    let _ = answer(stream, &daemon);
                }
            }
        })?;
    }
    Ok(())
}

/// One request and its answer; the connection ends with it.
fn answer(mut stream: impl Read + Write, daemon: &Path) -> io::Result<()> {
    let mut request = Vec::new();
    let mut part = [0u8; 1024];
    while !request.windows(4).any(|it| it == b"\r\n\r\n") && request.len() < REQUEST {
        match stream.read(&mut part)? {
            0 => break,
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let (status, body) = match request.starts_with(b"GET ") {
        true => match upshift_board::client::census(daemon) {
            Ok(census) => ("200 OK", text(&serde_json::from_str(&census.json)?)),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        false => ("405 Method Not Allowed", "GET only\n".to_string()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
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
        ("rings", "Doorbells heard, of who is registered."),
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
