//! Starts and controls child processes, and measures processes and threads.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use upshift_elevate::Tid;
pub(crate) use upshift_elevate::testing::{Random, elevated_threads};
pub(crate) use upshift_testing::{WAIT_LIMIT, wait_until, wait_within};

pub(crate) const ROLE: &str = "UPSHIFT_DAEMON_ROLE";

/// A child process, which runs this program in a role. Killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
    input: ChildStdin,
}

impl Process {
    pub(crate) fn start(role: &str, socket: &Path, settings: &[(&str, String)]) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::entry_point", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env("SOCKET", socket)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take().unwrap();
        Process {
            child,
            output,
            input,
        }
    }

    pub(crate) fn pid(&self) -> Tid {
        self.child.id() as Tid
    }

    pub(crate) fn send(&mut self, command: impl std::fmt::Display) {
        let _ = writeln!(self.input, "{command}");
    }

    /// Sends a command to a scripted client. Returns the client's reply.
    pub(crate) fn execute(&mut self, command: impl std::fmt::Display) -> String {
        let command = command.to_string();
        self.send(&command);
        let name = command.split(' ').next().unwrap();
        let prefix = format!("{name}=");
        self.line(&prefix)
            .unwrap_or_else(|| panic!("the client died of `{command}`"))
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its pid is not reused.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Tells the child to run until `deadline`, CLOCK_MONOTONIC in ns.
    pub(crate) fn run_until(&mut self, deadline: u64) {
        let _ = writeln!(self.input, "{deadline}");
    }

    /// Returns the text after `name` in the next line that contains `name`; `None` at the end of
    /// the output.
    pub(crate) fn line(&mut self, name: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness may have printed on the same line.
            if let Some((_, value)) = line.trim().split_once(name) {
                return Some(value.trim().to_string());
            }
        }
    }

    /// Returns the number after `name` in the next line that contains `name`.
    pub(crate) fn number(&mut self, name: &str) -> u64 {
        let Some(line) = self.line(name) else {
            panic!("the child did not print `{name}`: {:?}", self.child.wait());
        };
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the TID of the thread with this name in this process; `None` until the thread has set
/// its name.
pub(crate) fn thread_with_name(name: &str) -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let has_name = |task: &std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    };
    let mut found = tasks.filter(has_name);
    found.find_map(|task| task.file_name().into_string().ok())
}

/// Returns the CPU time of all threads with this name in this process, ns.
pub(crate) fn cpu_time_of_threads(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let used = tasks.filter_map(|task| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).ok();
        let has_name = read("comm")?.trim() == name;
        let used: u64 = read("schedstat")?.split(' ').next()?.parse().ok()?;
        has_name.then_some(used)
    });
    used.sum()
}

/// Time within which all threads are restored after the death of a process, provided that the
/// daemon gets a CPU when it needs one.
pub(crate) const RESTORE_LIMIT: Duration = Duration::from_secs(1);

/// Returns CLOCK_MONOTONIC in ns, which is the same for all processes.
pub(crate) fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
