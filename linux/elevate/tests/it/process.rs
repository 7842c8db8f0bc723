//! Starts the child processes and threads on which the tests act.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
pub(crate) use upshift_elevate::testing::{Random, elevated_threads};
use upshift_elevate::{Policy, Tid, current_tid};
pub(crate) use upshift_testing::{WAIT_LIMIT, wait_until};

pub(crate) const ROLE: &str = "UPSHIFT_ELEVATE_ROLE";

/// A child process that runs this program in a role. Dropping it kills the child.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) output: BufReader<ChildStdout>,
    /// Entry `NAME=VALUE` of the environment, which the child's own children inherit.
    pub(crate) marker: String,
}

impl Process {
    /// Starts a child in `role`, with `settings` in its environment.
    pub(crate) fn start(role: &str, settings: &[(&str, String)]) -> Process {
        Process::try_start(role, settings, || Ok(())).unwrap()
    }

    /// Starts a child like [`Process::start`], and calls `before_exec` in the child before the
    /// child executes this program.
    pub(crate) fn try_start(
        role: &str,
        settings: &[(&str, String)],
        before_exec: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Process> {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let marker = format!("UPSHIFT_ELEVATE_MARK={}-{number}", std::process::id());
        let (name, value) = marker.split_once('=').unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "child::role_of_a_child_process",
                "--nocapture",
                "--quiet",
            ])
            .env(ROLE, role)
            .env(name, value)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // SAFETY: the closures of the tests only make system calls, so they are safe after `fork`.
        unsafe { command.pre_exec(before_exec) };
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().unwrap());
        Ok(Process {
            child,
            output,
            marker,
        })
    }

    pub(crate) fn pid(&self) -> Tid {
        self.child.id() as Tid
    }

    /// Returns the rest of the next line that begins with `name`; `None` at the end of the output.
    pub(crate) fn line(&mut self, name: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness may have written a prefix on the same line.
            if let Some((_, rest)) = line.trim().split_once(name) {
                return Some(rest.trim().to_string());
            }
        }
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

/// A process with a thread for each of several policies, and the threads' state before a test.
pub(crate) struct Victim {
    _process: Process,
    pub(crate) threads: Vec<(Tid, SchedAttr, CpuSet)>,
}

impl Victim {
    pub(crate) fn start(role: &str) -> Victim {
        let mut process = Process::start(role, &[]);
        let tids = process.line("threads").unwrap();
        let threads = tids
            .split_whitespace()
            .map(|tid| {
                let tid = tid.parse().unwrap();
                let former = Kernel.sched_getattr(tid).unwrap();
                (tid, former, Kernel.sched_getaffinity(tid).unwrap())
            })
            .collect();
        Victim {
            _process: process,
            threads,
        }
    }

    pub(crate) fn tids(&self) -> String {
        let tids: Vec<String> = self
            .threads
            .iter()
            .map(|(tid, ..)| tid.to_string())
            .collect();
        tids.join(" ")
    }

    /// Describes the first thread whose policy or CPUs differ from the recorded values.
    pub(crate) fn first_change(&self) -> Option<String> {
        self.threads.iter().find_map(|(tid, former, cpus)| {
            let now = Kernel.sched_getattr(*tid).unwrap();
            let now_cpus = Kernel.sched_getaffinity(*tid).unwrap();
            (now != *former || now_cpus != *cpus)
                .then(|| format!("thread {tid}: {former:?} {cpus:?} became {now:?} {now_cpus:?}"))
        })
    }
}

/// A sleeping thread of this process. Dropping it ends the thread.
pub(crate) struct Sleeper {
    pub(crate) tid: Tid,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    pub(crate) fn start() -> Sleeper {
        let (wake, wake_receiver) = channel::<()>();
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || {
            sender.send(current_tid()).unwrap();
            let _ = wake_receiver.recv();
        });
        Sleeper {
            tid: receiver.recv().unwrap(),
            wake: Some(wake),
            thread: Some(thread),
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        Policy::of(&Kernel, self.tid).unwrap()
    }

    pub(crate) fn end(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        // The kernel removes the thread some time after `join` has returned.
        wait_until("the thread has been removed", || {
            Policy::of(&Kernel, self.tid).is_err()
        });
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Time within which the crate guarantees to restore threads, if the guardian gets a CPU.
pub(crate) const RESTORE_BOUND: Duration = Duration::from_secs(1);

pub(crate) fn processes_with_marker(marker: &str) -> Vec<Tid> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<Tid>().ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
                environ
                    .split(|&byte| byte == 0)
                    .any(|variable| variable == marker.as_bytes())
            })
        })
        .collect()
}
