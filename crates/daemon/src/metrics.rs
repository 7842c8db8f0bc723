//! Figures for Prometheus: the census as its text format, over HTTP, on a socket of their own.
//!
//! An ordinary thread that asks the daemon as any client does, and answers one at a time: a slow client is given up after
//! [`PATIENCE`]. Nothing here can hold up what schedules. `metrics` of the configuration says where: a path for a Unix socket, or an
//! address and port.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

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
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The census as figures.
fn text(census: &Value) -> String {
    let mut out = String::new();
    let mut one = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(
            out,
            "# HELP upshift_{name} {help}\n# TYPE upshift_{name} {kind}"
        );
        for (labels, value) in values {
            let _ = writeln!(out, "upshift_{name}{labels} {value}");
        }
    };
    let number = |value: &Value| {
        value
            .as_f64()
            .unwrap_or(f64::from(value == &Value::Bool(true)))
    };
    let top = |name: &str| vec![(String::new(), number(&census[name]))];
    let list = |name: &str| census[name].as_array().cloned().unwrap_or_default();
    let count = |name: &str| vec![(String::new(), list(name).len() as f64)];
    let uptime = vec![(String::new(), number(&census["uptime_ms"]) / 1e3)];
    one(
        "uptime_seconds",
        "gauge",
        "Since the daemon began.",
        &uptime,
    );
    one("enforcing", "gauge", "1: it elevates.", &top("enforcing"));
    for (name, help) in [
        ("registrations", "Registrations so far."),
        ("refused", "Requests refused."),
        ("ejected", "Threads put out for what they did."),
        ("alarms", "How often the canary of a CPU was silent."),
    ] {
        one(&format!("{name}_total"), "counter", help, &top(name));
    }
    one("processes", "gauge", "Registered now.", &count("processes"));
    one(
        "barred_users",
        "gauge",
        "Not elevated for what they did.",
        &count("barred"),
    );
    one(
        "assigned_processes",
        "gauge",
        "With a level by a rule.",
        &count("assigned"),
    );
    let cpus = |name: &str| -> Vec<(String, f64)> {
        let of = |it: &Value| (format!("{{cpu=\"{}\"}}", it["cpu"]), number(&it[name]));
        list("cpus").iter().map(of).collect()
    };
    one(
        "contenders",
        "gauge",
        "vCPUs with something to run, by CPU.",
        &cpus("contenders"),
    );
    one(
        "switches_total",
        "counter",
        "Changes of the winner, by CPU.",
        &cpus("switches"),
    );
    let vcpus: Vec<Value> = list("processes")
        .iter()
        .flat_map(|it| it["vcpus"].as_array().cloned().unwrap_or_default())
        .collect();
    // Of those that are registered now: it falls when one leaves.
    for (name, help) in [
        ("rings", "Doorbells heard, of who is registered."),
        ("floods", "Doorbells not listened to for a while."),
        ("overdrafts", "Dispatchers moved down."),
        ("breaths", "Times the CPU was left to others."),
    ] {
        let sum = vcpus.iter().map(|it| number(&it[name])).sum();
        one(name, "gauge", help, &[(String::new(), sum)]);
    }
    out
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
