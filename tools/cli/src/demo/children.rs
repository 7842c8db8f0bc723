//! The demo's child processes: servers that run until stopped, and commands that print JSON.
//!
//! Every child is this same program with other arguments. No child outlives the demo: dropping a handle ends it, and the kernel
//! kills it if the demo itself is killed ([`Child`]). Children have a process group of their own, so Ctrl-C reaches only the demo,
//! which then ends them in order. All waits are bounded and notice Ctrl-C within [`POLL_INTERVAL`].

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use upshift_board::client::SOCKET_VARIABLE;
use upshift_load::child::{Child, listening};

/// How often a wait looks at the child and at Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a server may take to listen, and to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(20);

/// The error of a wait that a signal ended; carries the signal's number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupted(pub(crate) usize);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Remembers SIGINT and SIGTERM.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Takes over SIGINT and SIGTERM of this process.
    pub(crate) fn install() -> Result<Stop> {
        let word = Arc::new(AtomicUsize::new(0));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_usize(
                signal,
                Arc::clone(&word),
                signal.unsigned_abs() as usize,
            )
            .context("cannot install the handler for Ctrl-C")?;
        }
        Ok(Stop(word))
    }

    /// An error once a signal has come.
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(signal).into()),
        }
    }
}

/// Starts children of this program.
#[derive(Debug)]
pub(crate) struct Children {
    program: PathBuf,
    stop: Stop,
    /// The socket of the daemon that children join, if they join one.
    pub(crate) daemon: Option<PathBuf>,
}

impl Children {
    /// Children of the running program, watched together with `stop`.
    pub(crate) fn new(stop: Stop) -> Result<Children> {
        let program = std::env::current_exe()
            .context("cannot find the running program to start servers from it")?;
        Ok(Children {
            program,
            stop,
            daemon: None,
        })
    }

    fn spawn(&self, args: &[String]) -> Result<Running> {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(socket) = &self.daemon {
            command.env(SOCKET_VARIABLE, socket);
        }
        let mut child = Child::start(&mut command)
            .with_context(|| format!("cannot start `upshift {}`", args.join(" ")))?;
        let stderr = child.stderr().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = String::new();
                // What was read before an error is kept; there is no more to learn.
                let _ = pipe.read_to_string(&mut text);
                text
            })
        });
        Ok(Running {
            child,
            stderr,
            command: args.join(" "),
        })
    }

    /// Starts a server and waits until it has printed `addresses` lines `listening on ADDRESS`.
    pub(crate) fn server(&self, args: &[String], addresses: usize) -> Result<Server> {
        let (program, lines) = self.program(args, addresses)?;
        let address = |line: &String| {
            listening(line).ok_or_else(|| anyhow!("the server printed `{line}`, not its address"))
        };
        let addresses = lines.iter().map(address).collect::<Result<_>>()?;
        Ok(Server { program, addresses })
    }

    /// Starts a program and waits until it has printed so many lines, which say that it is ready.
    pub(crate) fn program(&self, args: &[String], ready: usize) -> Result<(Program, Vec<String>)> {
        let mut running = self.spawn(args)?;
        let deadline = Instant::now() + PATIENCE;
        let mut lines = Vec::with_capacity(ready);
        while lines.len() < ready {
            self.stop.check()?;
            match running.child.line(POLL_INTERVAL) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "`upshift {}` was not ready within {} s",
                        running.command,
                        PATIENCE.as_secs()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let (_, message) = running.finish(&self.stop, deadline, &mut || ())?;
                    bail!("`upshift {}` failed: {}", args.join(" "), message.trim());
                }
            }
        }
        Ok((Program(running), lines))
    }

    /// Runs a command to its end and reads the JSON it printed; `tick` is called while waiting.
    /// A command that fails after printing JSON is no error: the JSON says what failed.
    pub(crate) fn json<T: DeserializeOwned>(
        &self,
        args: &[String],
        patience: Duration,
        tick: &mut dyn FnMut(),
    ) -> Result<T> {
        let mut running = self.spawn(args)?;
        let (status, message) = running.finish(&self.stop, Instant::now() + patience, tick)?;
        let text = running.child.rest();
        serde_json::from_str(&text).map_err(|error| match message.trim() {
            "" => anyhow!(
                "`upshift {}` ended with {status} and no result ({error})",
                args.join(" ")
            ),
            message => anyhow!("`upshift {}`: {message}", args.join(" ")),
        })
    }
}

/// A child, and what it says on standard error.
#[derive(Debug)]
struct Running {
    child: Child,
    stderr: Option<JoinHandle<String>>,
    command: String,
}

impl Running {
    /// Waits for the end; returns the status and what was written to standard error.
    fn finish(
        &mut self,
        stop: &Stop,
        deadline: Instant,
        tick: &mut dyn FnMut(),
    ) -> Result<(ExitStatus, String)> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                let message = self
                    .stderr
                    .take()
                    .and_then(|thread| thread.join().ok())
                    .unwrap_or_default();
                return Ok((status, message));
            }
            stop.check()?;
            if Instant::now() > deadline {
                bail!("`upshift {}` took too long and was ended", self.command);
            }
            tick();
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A child that runs until it is stopped.
#[derive(Debug)]
pub(crate) struct Program(Running);

impl Program {
    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.child.pid()
    }

    /// Asks it to end and reaps it; what it has printed since it was ready. An error if it died before, did not end
    /// within 5 s or did not end with status 0.
    pub(crate) fn stop(mut self, stop: &Stop) -> Result<String> {
        self.0.child.terminate().context("cannot stop a child")?;
        let (status, message) = self.0.finish(stop, Instant::now() + PATIENCE, &mut || ())?;
        if !status.success() {
            bail!(
                "`upshift {}` ended with {status}: {}",
                self.0.command,
                message.trim()
            );
        }
        Ok(self.0.child.rest())
    }
}

/// A server process.
#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    /// What it listens on, in the order of its `--listen` flags.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Server {
    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// As [`Program::stop`].
    pub(crate) fn stop(self, stop: &Stop) -> Result<()> {
        self.program.stop(stop).map(|_| ())
    }
}
