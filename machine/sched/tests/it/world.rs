//! Child processes, schedulers over them, and their scheduling before and after.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
use upshift_elevate::testing::hides_processes;
use upshift_elevate::{Elevator, Priority, Rights};
use upshift_sched::{Config, Engine, Policy, ProcessMonitor, Processes, SchedError, Scheduler};
pub(crate) use upshift_testing::until;

/// Environment variable with the role of the child.
pub(crate) const ROLE: &str = "UPSHIFT_SCHED_ROLE";

/// Priority of the schedulers of these tests.
pub(crate) const SCHEDULER: Priority = Priority::of::<45>();

/// Reports that the calling test is skipped, past the capture of the test harness.
pub(crate) fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// Returns the turn of the calling test; `None`, with a report, if this machine lacks a right.
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if hides_processes() {
        skipped(
            "/proc is mounted with hidepid, which hides the processes of others: `mount -o remount,hidepid=0 /proc`",
        );
        return None;
    }
    match Rights::probe().require(Priority::MAX) {
        Ok(()) => Some(turn),
        Err(missing) => {
            skipped(missing);
            None
        }
    }
}

/// Returns the last CPU that this process may use: the first one has most of the interrupts.
pub(crate) fn cpu() -> usize {
    let allowed = Kernel.sched_getaffinity(0).unwrap();
    allowed.iter().last().unwrap()
}

/// A child process: this program in a role. Killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a child and waits until it runs.
    pub(crate) fn start(role: &str) -> Process {
        let mut process = Process::start_with(role, "");
        process.wait_for("ready");
        process
    }

    pub(crate) fn start_with(role: &str, pids: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::plays_a_role", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env("PIDS", pids)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Process { child, out }
    }

    /// Reads up to a line that ends with `word`.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(word) {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "no `{word}`");
        }
    }

    /// Returns the number on the next line that begins with `word`.
    pub(crate) fn number(&mut self, word: &str) -> i32 {
        loop {
            let mut line = String::new();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "no `{word}`");
            if let Some((_, number)) = line.split_once(word) {
                return number.trim().parse().unwrap();
            }
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the scheduling of every thread of a process.
pub(crate) fn class(pid: i32) -> Vec<(i32, SchedAttr, CpuSet)> {
    let tids = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tid = |entry: std::io::Result<std::fs::DirEntry>| -> i32 {
        entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    // A thread may end meanwhile.
    let scheduling = |tid| {
        let attr = Kernel.sched_getattr(tid).ok()?;
        Some((tid, attr, Kernel.sched_getaffinity(tid).ok()?))
    };
    tids.map(tid).filter_map(scheduling).collect()
}

/// Returns the CPU time of all threads of a process.
pub(crate) fn cpu_time_of(pid: i32) -> Duration {
    let (mut clock, mut time) = (
        0,
        libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
    );
    // SAFETY: both are written by the calls.
    let done = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) | libc::clock_gettime(clock, &raw mut time)
    };
    assert_eq!(done, 0, "no process {pid}");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Starts a scheduler of `pids` on [`cpu`].
pub(crate) fn attach_all(
    elevator: &Elevator,
    pids: &[i32],
    policy: Box<dyn Policy>,
    change: impl FnOnce(&mut Config),
    children: bool,
) -> Result<Scheduler, SchedError> {
    let mut config = Config::on([cpu()]);
    change(&mut config);
    let (with, pids) = (elevator.clone(), pids.to_vec());
    Scheduler::start(elevator, cpu(), SCHEDULER, move || {
        let base = config.base;
        let mut engine = Engine::new(config, policy);
        let monitor = ProcessMonitor::start(&engine.control(), &with, SCHEDULER)?;
        for pid in pids {
            engine.add(Processes::attach(&with, &monitor, pid, base, children)?)?;
        }
        Ok(engine)
    })
}

pub(crate) fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
