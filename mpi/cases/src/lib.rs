//! Starts the programs that the tests of this workspace need, which are jobs of `mpirun`, and the
//! daemon of Upshift. A program ends when its handle is dropped, or after a time limit.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a job is killed, in seconds.
const JOB_TIMEOUT_S: u32 = 60;
/// Time limit for an expected event.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Ensures that a test program runs one job at a time, because a job may have more ranks than the
/// machine has CPUs.
pub fn serialise_jobs() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a command that runs `mpirun`, if need be as root and with more ranks than CPUs. The
/// caller appends the program and its arguments. `timeout` kills the job after [`JOB_TIMEOUT_S`].
#[must_use]
pub fn mpirun(ranks: usize) -> Command {
    mpirun_for(JOB_TIMEOUT_S, ranks)
}

/// Like [`mpirun`], with a time limit in seconds.
#[must_use]
pub fn mpirun_for(limit: u32, ranks: usize) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", &limit.to_string()])
        .args(["mpirun", "--oversubscribe"])
        .args(["-n", &ranks.to_string()])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    command
}

/// Returns the contents of both output streams.
#[must_use]
pub fn text(output: &Output) -> String {
    let streams = [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy);
    streams.concat()
}

/// A program that runs beside the test.
pub struct Running {
    child: Child,
    /// Dropped to close the standard input.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Lines that were read.
    seen: Vec<String>,
}

impl Running {
    /// Starts the program, with its input and output connected.
    ///
    /// # Panics
    /// If the program does not start.
    #[must_use]
    pub fn start(command: &mut Command) -> Running {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (sender, lines) = channel();
        let output = child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let errors = child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        for pipe in [output, errors].into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Running {
            input: child.stdin.take(),
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line that contains `part`.
    ///
    /// # Panics
    /// If no such line appears in time.
    pub fn line(&mut self, part: &str) -> String {
        if let Some(line) = self.seen.iter().find(|line| line.contains(part)) {
            return line.clone();
        }
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(remaining) else {
                panic!("no line with {part:?} in\n{}", self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Closes the program's input and waits until the program ends. Returns its status and its
    /// output.
    ///
    /// # Panics
    /// If the program does not end in time.
    pub fn end(mut self) -> (ExitStatus, String) {
        drop(self.input.take());
        let deadline = Instant::now() + EVENT_TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of this process") {
                break status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(500)) {
            self.seen.push(line);
        }
        (status, self.seen.join("\n"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Ok(None) = self.child.try_wait() {
            // Sends SIGTERM, which `timeout` and `mpirun` pass on to the ranks.
            let pid = self.child.id().to_string();
            let _ = Command::new("kill").arg(&pid).status();
            std::thread::sleep(Duration::from_millis(1500));
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A daemon for one test.
pub struct Daemon {
    program: PathBuf,
    directory: PathBuf,
    _running: Running,
}

impl Daemon {
    /// Starts the daemon that was built in this checkout, or returns `None` if there is none.
    #[must_use]
    pub fn start(test: &str) -> Option<Daemon> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
        let program = target.join("debug/upshift");
        if !program.exists() {
            println!(
                "skipped: {test}: {} is not built: `cargo build`",
                program.display()
            );
            return None;
        }
        let directory =
            std::env::temp_dir().join(format!("upshift-mpi-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the socket");
        let socket = directory.join("daemon.sock");
        let mut running = Running::start(
            Command::new(&program)
                .arg("daemon")
                .arg("--socket")
                .arg(socket),
        );
        running.line("listening");
        Some(Daemon {
            program,
            directory,
            _running: running,
        })
    }

    /// Returns the path of the daemon's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("daemon.sock")
    }

    /// Returns the daemon's status as JSON.
    ///
    /// # Panics
    /// If the daemon does not answer.
    #[must_use]
    pub fn status(&self) -> String {
        let output = Command::new(&self.program)
            .args(["daemon", "--status"])
            .env("UPSHIFT_DAEMON_SOCKET", self.socket())
            .output()
            .expect("the daemon is asked");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
