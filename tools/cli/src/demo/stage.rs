//! Runs the measurements of the demo's parts: chooses the CPUs for server and client, starts child
//! processes, and drives a server with a load.
//!
//! Every child is this same program with other arguments. No child outlives the demo, because
//! dropping a handle ends its child, and the kernel kills the child if the demo itself is killed
//! ([`Child`]). Children have their own process group, so Ctrl-C reaches only the demo, which then
//! ends them in order. All waits are bounded and notice Ctrl-C within [`POLL_INTERVAL`].

use std::fmt;
use std::io::{IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use upshift_board::client::SOCKET_VARIABLE;
use upshift_elevate::{Priority, Rights};
use upshift_load::child::{Child, listening_address};
use upshift_load::scenario::CLIENT_PRIORITY;
use upshift_load::{Awake, Plan, Report, machine, run};

/// Time between two checks of a child and of Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time within which a child must be ready, and within which it must end after SIGTERM.
const CHILD_TIMEOUT: Duration = Duration::from_secs(20);

/// The error of a wait that a signal ended; carries the signal's number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupted(pub(crate) usize);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// The CPUs, privileges and signals of the measurements.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Set if the measurements are shortened.
    pub(crate) quick: bool,
    /// CPU of the server; `None` if nothing is pinned.
    server: Option<usize>,
    /// CPU of the client, if it has its own.
    client: Option<usize>,
    /// Reason why SCHED_FIFO is not permitted, with its remedies.
    pub(crate) missing_privilege: Option<String>,
    /// Socket of the daemon that children join, if any.
    daemon: Option<PathBuf>,
    /// Set by SIGINT and SIGTERM.
    stop: Arc<AtomicBool>,
    /// Number of the signal that has arrived; 0 before.
    signal: Arc<AtomicUsize>,
}

impl Stage {
    /// Takes over SIGINT and SIGTERM of this process. Puts the server on the first CPU, and the
    /// client on the second if there are two.
    pub(crate) fn new(quick: bool) -> Result<Stage> {
        let (stop, signal) = (Arc::new(AtomicBool::new(false)), Arc::default());
        for number in [SIGINT, SIGTERM] {
            signal_hook::flag::register(number, Arc::clone(&stop))
                .and_then(|_| {
                    let word = Arc::clone(&signal);
                    signal_hook::flag::register_usize(number, word, number.unsigned_abs() as usize)
                })
                .context("cannot handle Ctrl-C")?;
        }
        let (server, client) = match machine::allowed_cpus()[..] {
            [first, second, ..] => (Some(first), Some(second)),
            _ => (None, None),
        };
        // The probe costs one short-lived thread.
        let missing_privilege = Priority::new(CLIENT_PRIORITY).map_err(anyhow::Error::from);
        let missing_privilege =
            missing_privilege.and_then(|highest| Ok(Rights::probe().require(highest)?));
        Ok(Stage {
            quick,
            server,
            client,
            missing_privilege: missing_privilege.err().map(|error| format!("{error:#}")),
            daemon: None,
            stop,
            signal,
        })
    }

    /// Describes the CPUs of server and client.
    pub(crate) fn placement(&self) -> String {
        match (self.server, self.client) {
            (Some(server), Some(client)) => {
                format!("server on CPU {server}, client on CPU {client}, over 127.0.0.1")
            }
            _ => "server and client share the only CPU, over 127.0.0.1".into(),
        }
    }

    /// Fails if SIGINT or SIGTERM has arrived.
    pub(crate) fn check_signal(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(signal).into()),
        }
    }

    /// Returns `full` milliseconds, or 30 % of them in quick mode.
    pub(crate) fn time(&self, full: u64) -> Duration {
        Duration::from_millis(if self.quick { full * 3 / 10 } else { full })
    }

    /// Keeps the server's CPU from halting until the result is dropped, if the client has its own
    /// CPU.
    pub(crate) fn keep_awake(&self) -> Option<Awake> {
        Awake::on(self.server.filter(|_| self.client.is_some())?).ok()
    }

    /// Starts a server of this kind on free ports, one for each of `levels`, on the server's CPU.
    pub(crate) fn server(&self, kind: &str, levels: &[u8], extra_args: &[&str]) -> Result<Server> {
        let mut args = vec![kind.to_owned()];
        for level in levels {
            args.extend(["--listen".to_owned(), format!("127.0.0.1:0@{level}")]);
        }
        args.extend(extra_args.iter().map(ToString::to_string));
        if let Some(cpu) = self.server {
            args.extend(["--pin".to_owned(), cpu.to_string()]);
        }
        let (program, lines) = self.start_program(&args, levels.len())?;
        let address = |line: &String| {
            listening_address(line)
                .ok_or_else(|| anyhow!("the server printed `{line}`, not its address"))
        };
        let addresses = lines.iter().map(address).collect::<Result<_>>()?;
        Ok(Server { program, addresses })
    }

    /// Starts a daemon, which children of the demo join from now on.
    pub(crate) fn start_daemon(&mut self) -> Result<Program> {
        // The folder is private, because the daemon refuses a socket that other users could
        // replace.
        let folder = std::env::temp_dir().join(format!("upshift-demo-{}", std::process::id()));
        let mut private = std::fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(&folder)?;
        let socket = folder.join("daemon.sock");
        let args = ["daemon".to_owned(), "--socket".to_owned()];
        let args: Vec<String> = args
            .into_iter()
            .chain([socket.display().to_string()])
            .collect();
        let (daemon, _) = self.start_program(&args, 1)?;
        self.daemon = Some(socket);
        Ok(daemon)
    }

    /// Ends the daemon, if there is one; later children do not join it.
    pub(crate) fn stop_daemon(&mut self, daemon: Option<Program>) -> Result<()> {
        let socket = self.daemon.take();
        let stopped = daemon.map_or(Ok(()), |daemon| daemon.stop(self).map(drop));
        if let Some(folder) = socket.as_deref().and_then(std::path::Path::parent) {
            let _ = std::fs::remove_dir(folder);
        }
        stopped
    }

    /// Starts this program with `args` and waits until it has printed `ready_lines` lines, which
    /// show that the child is ready.
    pub(crate) fn start_program(
        &self,
        args: &[String],
        ready_lines: usize,
    ) -> Result<(Program, Vec<String>)> {
        let command = format!("upshift {}", args.join(" "));
        let exe = std::env::current_exe()
            .context("cannot find the running program to start servers from it")?;
        let mut start = Command::new(exe);
        start
            .args(args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(socket) = &self.daemon {
            start.env(SOCKET_VARIABLE, socket);
        }
        let mut child =
            Child::start(&mut start).with_context(|| format!("cannot start `{command}`"))?;
        let stderr = child.stderr().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = String::new();
                // Text that arrived before an error is kept; the error itself is ignored.
                let _ = pipe.read_to_string(&mut text);
                text
            })
        });
        let mut program = Program {
            child,
            stderr,
            command,
        };
        let deadline = Instant::now() + CHILD_TIMEOUT;
        let mut lines = Vec::with_capacity(ready_lines);
        while lines.len() < ready_lines {
            self.check_signal()?;
            match program.child.line(POLL_INTERVAL) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("`{}` was not ready in time", program.command)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    program.child.end();
                    let why = program.stderr_text();
                    bail!("`{}` failed: {why}", program.command);
                }
            }
        }
        Ok((program, lines))
    }

    /// Shows the name of the run on a line that the next name replaces; prints nothing without a
    /// terminal.
    pub(crate) fn show_progress(&self, run: &str) {
        if std::io::stderr().is_terminal() {
            // A failed progress line is no reason to stop measuring.
            let _ = write!(std::io::stderr(), "\r\x1b[2K{run}")
                .and_then(|()| std::io::stderr().flush());
        }
    }

    pub(crate) fn measure(&self, name: &str, server: &Server, mut plan: Plan) -> Result<Report> {
        self.show_progress(&format!("  {name} …"));
        plan.pin = self.client;
        plan.server_pids = vec![server.program.child.pid()];
        plan.stop = Some(Arc::clone(&self.stop));
        plan.patience = plan.warmup + plan.duration + CHILD_TIMEOUT;
        let outcome = run(&plan);
        self.show_progress("");
        self.check_signal()?;
        let report = Report::new(&outcome?);
        if report.total.errors > 0 {
            let first = report.total.first_error.as_deref().unwrap_or("no details");
            bail!(
                "{} requests failed; the first: {first}",
                report.total.errors
            );
        }
        Ok(report)
    }
}

/// A child process that the demo has started.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    stderr: Option<JoinHandle<String>>,
    command: String,
}

impl Program {
    /// Asks the program to end and reaps it. Returns the lines that the program has printed since
    /// it was ready. Fails if the program died early, did not end in time or did not end with
    /// status 0.
    pub(crate) fn stop(mut self, stage: &Stage) -> Result<String> {
        self.child.terminate().context("cannot stop a child")?;
        let deadline = Instant::now() + CHILD_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    let why = self.stderr_text();
                    bail!("`{}` ended with {status}: {why}", self.command);
                }
                return Ok(self.child.rest());
            }
            stage.check_signal()?;
            if Instant::now() > deadline {
                bail!("`{}` did not end and was killed", self.command);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn stderr_text(&mut self) -> String {
        let text = self.stderr.take().and_then(|thread| thread.join().ok());
        text.unwrap_or_default().trim().to_owned()
    }
}

#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    /// Addresses in the order of the levels.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Server {
    pub(crate) fn stop(self, stage: &Stage) -> Result<()> {
        self.program.stop(stage).map(drop)
    }
}
