//! A program that was started.
//!
//! ```text
//!   running ── its end: the pidfd becomes readable ──► ended ── waited for ──► reaped
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

/// A program that was started; made by [`Command::spawn`](super::Command::spawn).
///
/// Dropped before the program has ended, it is left running, or killed if
/// [`kill_on_drop`](super::Command::kill_on_drop) was set. A thread reaps it when it ends, also
/// after the end of the runtime.
#[derive(Debug)]
pub struct Child {
    /// Its standard input, if piped. Close it by dropping it.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, if piped.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, if piped.
    pub stderr: Option<ChildStderr>,
    /// `None` only while it is dropped.
    process: Option<Process>,
    kill_on_drop: bool,
}

/// What is needed to see its end.
#[derive(Debug)]
struct Process {
    child: std::process::Child,
    pidfd: Fd,
    end: Readiness,
    status: Option<ExitStatus>,
}

fn open_pidfd(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened (close-on-exec), without another owner.
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
    /// On a thread that may block.
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
                // Its end could not be seen, so it shall not run.
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
        self.process.as_mut().expect("it is there until the drop")
    }

    /// Its process id; `None` once it has been waited for, because the id may then be
    /// another's.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        let process = self.process.as_ref()?;
        process.status.is_none().then(|| process.child.id())
    }

    /// A descriptor of the process, readable when it has ended.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        let process = self.process.as_ref().expect("it is there until the drop");
        process.pidfd.as_fd()
    }

    /// Sends it a signal. It cannot hit another process.
    ///
    /// # Errors
    /// ESRCH if it has ended; `PermissionDenied`; `InvalidInput` for no signal.
    pub fn send_signal(&mut self, number: i32) -> io::Result<()> {
        let pidfd = self.pidfd().as_raw_fd();
        // SAFETY: no pointers but one that is null.
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

    /// Kills it (SIGKILL), without waiting for its end. No error if it has ended.
    ///
    /// # Errors
    /// `PermissionDenied`, if it has become another user's.
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.process().child.kill()
    }

    /// Kills it (SIGKILL) and waits for its end.
    ///
    /// # Errors
    /// As [`start_kill`](Child::start_kill) and [`wait`](Child::wait).
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }

    /// Has it ended?
    ///
    /// # Errors
    /// What `waitpid` answers.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process().try_wait()
    }

    /// Closes its standard input and waits for its end. Dropping the future changes
    /// nothing; asked again it answers the same.
    ///
    /// # Errors
    /// What `waitpid` answers; outside a runtime.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        // It might wait for what will never be written.
        drop(self.stdin.take());
        let process = self.process();
        poll_fn(|cx| process.poll_wait(cx)).await
    }

    /// Closes its standard input, collects what it writes to the streams that are
    /// piped, and waits for its end.
    ///
    /// # Errors
    /// As [`wait`](Child::wait), and of reading.
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        async fn collect(stream: Option<PipeReader>) -> io::Result<Vec<u8>> {
            let mut all = Vec::new();
            if let Some(mut stream) = stream {
                stream.read_to_end(&mut all).await?;
            }
            Ok(all)
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
            // It may have ended.
            let _ = process.child.kill();
        }
        if !matches!(process.try_wait(), Ok(None)) {
            return;
        }
        let Process { child, pidfd, .. } = process;
        reaper::reap(Orphan { child, pidfd });
    }
}
