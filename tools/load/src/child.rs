//! Starts the measured servers and other programs as child processes.
//!
//! A [`Child`] hands out the output of its program line by line, and always reads to the end, so
//! that a program that prints more than its reader takes never blocks on a full pipe. No child
//! outlives its parent, because dropping the handle ends the child, and the kernel kills the child
//! (`PR_SET_PDEATHSIG`) when the thread that started it ends. Start children from a thread that
//! outlives them.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{self, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::os;

/// Time that a program may take to end after SIGTERM before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Period of the checks for the program's end.
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running program, which is ended on drop; see [`end`](Child::end).
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    /// Lines of the output. The mutex is never contended; it makes the handle `Sync`.
    lines: Mutex<Receiver<String>>,
}

impl Child {
    /// Starts the program; its standard output becomes [`line`](Child::line)s.
    ///
    /// ```
    /// # use std::process::Command;
    /// # use std::time::Duration;
    /// use upshift_load::child::Child;
    /// let mut hello = Child::start(Command::new("echo").arg("hello"))?;
    /// assert_eq!(hello.line(Duration::from_secs(10)).as_deref(), Ok("hello"));
    /// assert!(hello.wait()?.success());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Child> {
        os::die_with_parent(command);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output
                .into_iter()
                .flat_map(|pipe| BufReader::new(pipe).lines());
            for line in lines.map_while(Result::ok) {
                // The handle may be gone, but the output is read all the same.
                let _ = sender.send(line);
            }
        });
        Ok(Child {
            process,
            lines: Mutex::new(lines),
        })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Takes the standard error, once, if the command has piped it.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.process.stderr.take()
    }

    /// Returns the next line of the output.
    ///
    /// # Errors
    /// Fails if no line was printed in this time, or the program has closed its output.
    pub fn line(&mut self, timeout: Duration) -> Result<String, RecvTimeoutError> {
        self.lines().recv_timeout(timeout)
    }

    /// Returns the output from now to the end of the program.
    pub fn rest(&mut self) -> String {
        self.lines().iter().collect::<Vec<_>>().join("\n")
    }

    fn lines(&mut self) -> &Receiver<String> {
        self.lines.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the exit status, if the program has ended.
    ///
    /// # Errors
    /// Returns the errors of [`process::Child::try_wait`].
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// Returns the errors of [`process::Child::wait`].
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait()
    }

    /// Asks the program to end by SIGTERM. Has no effect if it has ended.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn terminate(&mut self) -> io::Result<()> {
        terminate(&mut self.process)
    }

    /// Kills the program.
    pub fn kill(&mut self) {
        // Fails only if the program has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Sends SIGTERM, and SIGKILL if the program has not ended three seconds later.
    pub fn end(&mut self) {
        end(&mut self.process);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

fn terminate(process: &mut process::Child) -> io::Result<()> {
    if process.try_wait()?.is_some() {
        return Ok(());
    }
    // The child has not been waited for, so the id is still its own.
    os::terminate(process.id())
}

/// Ends a child like [`Child::end`].
pub fn end(process: &mut process::Child) {
    if terminate(process).is_ok() {
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            if !matches!(process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(END_POLL_INTERVAL);
        }
    }
    let _ = process.kill();
    let _ = process.wait();
}

/// Makes the program of `command` start on `cpu` alone.
pub fn pin(command: &mut Command, cpu: usize) {
    os::pin_program(command, cpu);
}

/// Takes the right to use SCHED_FIFO from the program of `command`, regardless of the limits of
/// this process.
pub fn without_real_time(command: &mut Command) {
    os::without_real_time(command);
}

/// Returns the address in the line of a server that listens: `listening on ADDRESS`, or `… on
/// http://ADDRESS …` as `upshift serve` prints it.
pub fn listening_address(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("listening on ")
        .or_else(|| Some(line.split_once(" on http://")?.1))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time limit of each wait.
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Child {
        Child::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn lines_are_returned_one_by_one_before_the_status() {
        let mut child = shell("echo one; echo two; echo three; exit 3");
        assert_eq!(child.line(TIMEOUT).as_deref(), Ok("one"));
        assert_eq!(child.rest(), "two\nthree");
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert!(child.terminate().is_ok());
    }

    #[test]
    fn a_child_that_ignores_sigterm_is_killed() {
        let mut child = shell("trap '' TERM; echo ready; while :; do sleep 0.1; done");
        assert_eq!(child.line(TIMEOUT).as_deref(), Ok("ready"));
        child.end();
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let starter = std::thread::spawn(|| shell("echo ready; sleep 100"));
        let mut child = starter.join().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the child still runs");
            std::thread::sleep(END_POLL_INTERVAL);
        }
    }

    #[test]
    fn addresses_are_parsed_from_listening_lines() {
        let address = "127.0.0.1:80".parse().ok();
        assert_eq!(listening_address("listening on 127.0.0.1:80"), address);
        assert_eq!(
            listening_address("serving /srv on http://127.0.0.1:80 (2 vCPUs)"),
            address
        );
        assert_eq!(listening_address("listening on a terrace"), None);
    }
}
