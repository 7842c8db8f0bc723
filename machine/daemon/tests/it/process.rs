//! Child processes of the tests.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use upshift_elevate::Tid;
pub(crate) use upshift_elevate::testing::{Random, elevated_threads};
pub(crate) use upshift_testing::{PATIENCE, until, within};

/// Environment variable with the role of the child.
pub(crate) const ROLE: &str = "UPSHIFT_DAEMON_ROLE";

/// A child process: this program in a role. Killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
    into: ChildStdin,
}

impl Process {
    pub(crate) fn start(role: &str, socket: &Path, settings: &[(&str, String)]) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::plays_a_role", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env("SOCKET", socket)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let into = child.stdin.take().unwrap();
        Process { child, out, into }
    }

    pub(crate) fn pid(&self) -> Tid {
        self.child.id() as Tid
    }

    /// Gives a puppet an order.
    pub(crate) fn say(&mut self, order: impl std::fmt::Display) {
        let _ = writeln!(self.into, "{order}");
    }

    /// Gives a puppet an order, and waits until it has obeyed.
    pub(crate) fn obey(&mut self, order: impl std::fmt::Display) -> String {
        let order = order.to_string();
        self.say(&order);
        let name = order.split(' ').next().unwrap();
        let done = format!("{name}=");
        self.line(&done)
            .unwrap_or_else(|| panic!("the puppet died of {order}"))
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Tells the child to run until `deadline`, CLOCK_MONOTONIC in ns.
    pub(crate) fn go_until(&mut self, deadline: u64) {
        let _ = writeln!(self.into, "{deadline}");
    }

    /// Returns the rest of the next line that begins with `name`; `None` at the end of the output.
    pub(crate) fn line(&mut self, name: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.out.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness may have printed on the same line.
            if let Some((_, rest)) = line.trim().split_once(name) {
                return Some(rest.trim().to_string());
            }
        }
    }

    /// Returns [`Process::line`] as a number.
    pub(crate) fn number(&mut self, name: &str) -> u64 {
        let Some(line) = self.line(name) else {
            panic!("the child says nothing of {name}: {:?}", self.child.wait());
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

/// Returns the id of the thread of this process with that name, which a thread sets when it begins.
pub(crate) fn thread_named(name: &str) -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let has_name = |task: &std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
    };
    let mut found = tasks.filter(has_name);
    found.find_map(|task| task.file_name().into_string().ok())
}

/// Returns the CPU time of the threads of this process with that name, ns.
pub(crate) fn used_by_threads(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let used = tasks.filter_map(|task| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).ok();
        let has_name = read("comm")?.trim() == name;
        let used: u64 = read("schedstat")?.split(' ').next()?.parse().ok()?;
        has_name.then_some(used)
    });
    used.sum()
}

/// Bound of the promise that no thread stays elevated, on a machine whose CPUs the daemon gets when
/// it needs them.
pub(crate) const PROMISE: Duration = Duration::from_secs(1);

/// Returns CLOCK_MONOTONIC in ns: the same for all processes.
pub(crate) fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live structure of the type the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
