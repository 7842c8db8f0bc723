//! Finds the processes that can be observed, and sends requests to them: a request is one line, the
//! answer one line of JSON. Answers are bounded in size and time, since any process may have
//! created the socket.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use upshift::observe::{PROTOCOL, Recording, SocketName, View, socket_dir, sockets, sockets_of};
use upshift::trace::Timeline;

/// Advice when no process is observable.
pub(super) const NO_PROCESS: &str = "no process of yours is observable: start one with UPSHIFT_OBSERVE=1 \
     (a program on the Upshift runtime with its feature `observe`, or a server of this command)";

/// Largest size of an answer in bytes, except for timelines.
const MAX_ANSWER: u64 = 8 << 20;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest size of a timeline in bytes: a quarter of a million events take 12 MiB.
const MAX_RECORDING: u64 = 64 << 20;
const RECORDING_TIMEOUT: Duration = Duration::from_secs(20);

/// An observable process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) pid: u32,
    pub(super) command: String,
    stream: BufReader<UnixStream>,
}

/// Returns all processes that answer, by pid.
pub(super) fn peers() -> Result<Vec<Peer>> {
    let all = sockets().context("cannot look for processes")?;
    Ok(all
        .iter()
        .filter_map(|name| Peer::connect(name).ok())
        .collect())
}

impl Peer {
    pub(super) fn of_pid(pid: u32) -> Result<Peer> {
        let mut all = sockets().context("cannot look for processes")?;
        all.extend(sockets_of(pid));
        match all.iter().find(|name| name.pid == pid) {
            Some(name) => Peer::connect(name).map_err(|error| connect_error(pid, &error)),
            None => Err(no_socket_error(pid)),
        }
    }

    fn connect(name: &SocketName) -> io::Result<Peer> {
        let stream = UnixStream::connect(&name.path)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Peer {
            pid: name.pid,
            command: command_line(name.pid),
            stream: BufReader::new(stream),
        })
    }

    pub(super) fn fetch(&mut self) -> Result<View> {
        self.ask("metrics", MAX_ANSWER, ANSWER_TIMEOUT)
    }

    /// Starts a recording of the process's coroutines. The recording ends with
    /// [`Peer::end_recording`], or when requests cease.
    pub(super) fn begin_recording(&mut self) -> Result<()> {
        let _: serde_json::Value = self.ask("record", MAX_ANSWER, ANSWER_TIMEOUT)?;
        Ok(())
    }

    pub(super) fn end_recording(&mut self) -> Result<Timeline> {
        let recording: Recording = self.ask("timeline", MAX_RECORDING, RECORDING_TIMEOUT)?;
        Ok(recording.timeline)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        request: &str,
        max_len: u64,
        timeout: Duration,
    ) -> Result<T> {
        let pid = self.pid;
        let mut line = String::new();
        let stream = self.stream.get_mut();
        let asked = stream.set_read_timeout(Some(timeout));
        let asked = asked.and_then(|()| stream.write_all(format!("{request}\n").as_bytes()));
        let answered = asked.and_then(|()| {
            let mut limited = self.stream.by_ref().take(max_len);
            limited.read_line(&mut line)
        });
        match answered {
            Ok(0) => bail!("process {pid} has ended, or has too many viewers (8 at most)"),
            Ok(_) => {}
            Err(error) => return Err(connect_error(pid, &error)),
        }
        let answer: serde_json::Value = serde_json::from_str(&line)
            .with_context(|| format!("process {pid} answers something else than JSON"))?;
        if let Some(error) = answer.get("error").and_then(|error| error.as_str()) {
            bail!("process {pid} refuses: {error}");
        }
        let protocol = answer.get("protocol").and_then(serde_json::Value::as_u64);
        if protocol != Some(u64::from(PROTOCOL)) {
            bail!(
                "process {pid} speaks protocol {}, this command {PROTOCOL}: use the `upshift` of its version",
                protocol.map_or_else(|| "?".into(), |protocol| protocol.to_string())
            );
        }
        serde_json::from_value(answer).with_context(|| {
            format!("process {pid} answers in a form that this command does not know")
        })
    }
}

fn connect_error(pid: u32, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => no_socket_error(pid),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => anyhow!("process {pid} has ended"),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            anyhow!("process {pid} does not answer: is it stopped?")
        }
        ErrorKind::PermissionDenied => {
            anyhow!("process {pid} belongs to another user: run this as that user")
        }
        _ => anyhow!("cannot look at process {pid}: {error}"),
    }
}

/// Returns the reason why there is no socket.
fn no_socket_error(pid: u32) -> anyhow::Error {
    let Ok(process) = fs::metadata(format!("/proc/{pid}")) else {
        return anyhow!("there is no process {pid}");
    };
    let own_uid = rustix::process::geteuid().as_raw();
    if process.uid() != own_uid && own_uid != 0 {
        return anyhow!(
            "process {pid} belongs to user {}: run this as that user (`sudo -u '#{}' upshift top {pid}`)",
            process.uid(),
            process.uid()
        );
    }
    anyhow!(
        "process {pid} offers no view in {}: build it with the feature `observe` and start it with UPSHIFT_OBSERVE=1 (`upshift help top`)",
        socket_dir().display()
    )
}

/// Returns the command line of a process, without the path of the program.
fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let all = std::iter::once(program).chain(words.map(String::from));
    let text = all
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    // Removes control characters, so that a process's name cannot move the cursor.
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
