//! A running child process, its streams, and the wait for its end.
//!
//! ```text
//!   running ── exit: the pidfd becomes readable ──► ended ── waited for ──► reaped
//!      └── dropped: killed if asked to; a thread reaps it when it ends (`reaper.rs`)
//! ```

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{ExitStatus, Output};
use std::task::{Context, Poll};

use futures_lite::future::zip;
use upshift_ring::Fd;

use super::reaper::{self, Orphan};
use crate::io::{AsyncReadExt, PipeReader, PipeWriter, Readiness};

/// The standard input of a child.
pub type ChildStdin = PipeWriter;
/// The standard output of a child.
pub type ChildStdout = PipeReader;
/// The standard error of a child.
pub type ChildStderr = PipeReader;

/// A started program; created by [`Command::spawn`](super::Command::spawn).
///
/// If it is dropped before the program has ended, the program is left running, or killed if
/// [`kill_on_drop`](super::Command::kill_on_drop) was set. A thread reaps the program when it ends,
/// even after the end of the runtime.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::process::Command;
///
/// let mut child = Command::new("sleep").arg("1000").spawn().await?;
/// assert!(child.try_wait()?.is_none());
/// child.kill().await?;
/// assert!(!child.wait().await?.success());
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Child {
    /// Standard input, if piped. Drop it to close it.
    pub stdin: Option<ChildStdin>,
    /// Standard output, if piped.
    pub stdout: Option<ChildStdout>,
    /// Standard error, if piped.
    pub stderr: Option<ChildStderr>,
    /// `None` only while the `Child` is dropped.
    process: Option<Process>,
    kill_on_drop: bool,
}

#[derive(Debug)]
struct Process {
    child: std::process::Child,
    pidfd: Fd,
    end: Readiness,
    status: Option<ExitStatus>,
}

fn open_pidfd(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened (close-on-exec), and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

impl Process {
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<ExitStatus>> {
        let (child, status) = (&mut self.child, &mut self.status);
        self.end.poll_io(cx, &self.pidfd, |_| {
            if status.is_none() {
                *status = child.try_wait()?;
            }
            status.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        })
    }
}

impl Child {
    /// Wraps a child. Called on a thread that may block.
    pub(super) fn new(mut child: std::process::Child, kill_on_drop: bool) -> io::Result<Child> {
        match Child::parts(&mut child) {
            Ok((pidfd, stdin, stdout, stderr)) => Ok(Child {
                stdin,
                stdout,
                stderr,
                process: Some(Process {
                    child,
                    pidfd: Fd::new(pidfd),
                    end: Readiness::readable(),
                    status: None,
                }),
                kill_on_drop,
            }),
            Err(error) => {
                // The child is killed, because the runtime could not wait for its end.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "taken apart at once")]
    fn parts(
        child: &mut std::process::Child,
    ) -> io::Result<(
        OwnedFd,
        Option<ChildStdin>,
        Option<ChildStdout>,
        Option<ChildStderr>,
    )> {
        let reader = |fd: Option<OwnedFd>| fd.map(PipeReader::from_owned_fd).transpose();
        let stdin = child.stdin.take().map(OwnedFd::from);
        Ok((
            open_pidfd(child.id())?,
            stdin.map(PipeWriter::from_owned_fd).transpose()?,
            reader(child.stdout.take().map(OwnedFd::from))?,
            reader(child.stderr.take().map(OwnedFd::from))?,
        ))
    }

    fn process(&mut self) -> &mut Process {
        self.process
            .as_mut()
            .expect("the process is taken only by the drop")
    }

    /// Returns the process id, or `None` once the child has been waited for, because the id may
    /// then belong to another process.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut shell = Command::new("sh");
    /// let child = shell.args(["-c", "echo $$"]).stdout(Stdio::piped()).spawn().await?;
    /// let id = child.id().expect("it has not been waited for").to_string();
    /// let output = child.wait_with_output().await?;
    /// assert_eq!(output.stdout.trim_ascii(), id.as_bytes());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        let process = self.process.as_ref()?;
        process.status.is_none().then(|| process.child.id())
    }

    /// Returns a descriptor of the process, readable when it has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        let process = self
            .process
            .as_ref()
            .expect("the process is taken only by the drop");
        process.pidfd.as_fd()
    }

    /// Sends a signal to the program. The signal cannot reach another process, even if the program
    /// has ended.
    ///
    /// # Errors
    /// ESRCH if the program has ended; `PermissionDenied`; `InvalidInput` if `number` is no signal.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::os::unix::process::ExitStatusExt;
    /// use upshift::process::Command;
    /// use upshift::signal::SIGTERM;
    ///
    /// let mut child = Command::new("sleep").arg("1000").spawn().await?;
    /// child.send_signal(SIGTERM)?;
    /// assert_eq!(child.wait().await?.signal(), Some(SIGTERM));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn send_signal(&mut self, number: i32) -> io::Result<()> {
        let pidfd = self.pidfd().as_raw_fd();
        // SAFETY: the only pointer is null, which the call allows.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                pidfd,
                number,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Kills the program (SIGKILL), without waiting for its end. Succeeds if the program has ended
    /// already.
    ///
    /// # Errors
    /// `PermissionDenied`, if it now runs as another user.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut child = upshift::process::Command::new("sleep").arg("1000").spawn().await?;
    /// child.start_kill()?;
    /// assert!(!child.wait().await?.success());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.process().child.kill()
    }

    /// Kills the program (SIGKILL) and waits for its end.
    ///
    /// # Cancellation safety
    /// The program is killed at the first poll; a dropped future only stops waiting.
    ///
    /// # Errors
    /// The errors of [`start_kill`](Child::start_kill) and [`wait`](Child::wait).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut child = upshift::process::Command::new("sleep").arg("1000").spawn().await?;
    /// child.kill().await?;
    /// // The program has ended.
    /// assert!(child.try_wait()?.is_some_and(|status| !status.success()));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }

    /// Returns the exit status if the program has ended.
    ///
    /// # Errors
    /// The error of `waitpid`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().await?;
    /// assert!(child.try_wait()?.is_none()); // The program waits for input.
    /// drop(child.stdin.take());
    /// let status = child.wait().await?;
    /// assert_eq!(child.try_wait()?, Some(status));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process().try_wait()
    }

    /// Closes the program's standard input and waits for its end. A repeated call returns the same
    /// status.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time; the standard input is closed by then.
    ///
    /// # Errors
    /// The error of `waitpid`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    ///
    /// let mut child = Command::new("sh").args(["-c", "exit 3"]).spawn().await?;
    /// assert_eq!(child.wait().await?.code(), Some(3));
    /// assert_eq!(child.wait().await?.code(), Some(3));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        // The input is closed, because the program might otherwise wait for input that will never
        // be written.
        drop(self.stdin.take());
        let process = self.process();
        poll_fn(|cx| process.poll_wait(cx)).await
    }

    /// Closes the program's standard input, collects the output of its piped streams, and
    /// waits for its end.
    ///
    /// # Cancellation safety
    /// A dropped future drops the [`Child`].
    ///
    /// # Errors
    /// The errors of [`wait`](Child::wait), and errors of reading.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut echo = Command::new("echo");
    /// let child = echo.arg("hello").stdout(Stdio::piped()).spawn().await?;
    /// let output = child.wait_with_output().await?;
    /// assert!(output.status.success());
    /// assert_eq!(output.stdout, b"hello\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        async fn collect(stream: Option<PipeReader>) -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                stream.read_to_end(&mut bytes).await?;
            }
            Ok(bytes)
        }
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let streams = zip(collect(stdout), collect(stderr));
        let (status, (stdout, stderr)) = zip(self.wait(), streams).await;
        Ok(Output {
            status: status?,
            stdout: stdout?,
            stderr: stderr?,
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        if self.kill_on_drop && process.status.is_none() {
            // The program may have ended, which is no error.
            let _ = process.child.kill();
        }
        if !matches!(process.try_wait(), Ok(None)) {
            return;
        }
        let Process { child, pidfd, .. } = process;
        reaper::reap(Orphan { child, pidfd });
    }
}
