//! Helpers of the tests: child processes, schedulers that schedule these processes, and the
//! scheduling attributes of their threads.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
use upshift_elevate::testing::hides_processes;
use upshift_elevate::{Elevator, Priority, Rights};
use upshift_sched::{Config, Engine, Policy, ProcessMonitor, Processes, SchedError, Scheduler};
pub(crate) use upshift_testing::wait_until;

/// Environment variable that contains the role of a child process.
pub(crate) const ROLE: &str = "UPSHIFT_SCHED_ROLE";

/// Priority of the scheduler's thread and of the process monitor.
pub(crate) const SCHEDULER_PRIORITY: Priority = Priority::of::<45>();

/// Reports that the calling test is skipped. Writes to the standard error directly, since the test
/// harness captures `eprintln!`.
pub(crate) fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}

/// Waits until no other test runs. Returns `None`, and reports the reason, if this process lacks a
/// right.
pub(crate) fn serial_test() -> Option<MutexGuard<'static, ()>> {
    static SERIAL: Mutex<()> = Mutex::new(());
    let guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    if hides_processes() {
        skipped(
            "/proc is mounted with hidepid, which hides the processes of others: `mount -o remount,hidepid=0 /proc`",
        );
        return None;
    }
    match Rights::probe().require(Priority::MAX) {
        Ok(()) => Some(guard),
        Err(missing) => {
            skipped(missing);
            None
        }
    }
}

/// Returns the last CPU that this process may use, because the first CPU handles most interrupts.
pub(crate) fn test_cpu() -> usize {
    let allowed = Kernel.sched_getaffinity(0).unwrap();
    allowed.iter().last().unwrap()
}

/// A child process that runs this program in a role: the variable [`ROLE`] selects what the child
/// does. Killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a child in `role`, and waits until it runs.
    pub(crate) fn start(role: &str) -> Process {
        let mut process = Process::start_with(role, "");
        process.wait_for("ready");
        process
    }

    /// Starts a child in `role`, and passes `pids` in the environment variable `PIDS`. Does not
    /// wait.
    pub(crate) fn start_with(role: &str, pids: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::entry_point", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env("PIDS", pids)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    /// Reads the output up to a line that ends with `word`.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(word) {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the output of the child ended before `{word}`"
            );
        }
    }

    /// Returns the number after `word` in the next line that contains `word`.
    pub(crate) fn number(&mut self, word: &str) -> i32 {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the output of the child ended before `{word}`"
            );
            if let Some((_, number)) = line.split_once(word) {
                return number.trim().parse().unwrap();
            }
        }
    }

    /// Returns the pid of the child.
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

/// Returns the scheduling attributes and the CPUs of every thread of a process.
pub(crate) fn scheduling_of(pid: i32) -> Vec<(i32, SchedAttr, CpuSet)> {
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
    // A thread may end before its attributes are read.
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
    // SAFETY: `clock` and `time` are valid for writes.
    let done = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) | libc::clock_gettime(clock, &raw mut time)
    };
    assert_eq!(done, 0, "no process {pid}");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Starts a scheduler of the processes `pids` on [`test_cpu`], after `configure` has changed its
/// configuration. With `children`, the children of these processes are scheduled, too.
pub(crate) fn start_scheduler(
    elevator: &Elevator,
    pids: &[i32],
    policy: Box<dyn Policy>,
    configure: impl FnOnce(&mut Config),
    children: bool,
) -> Result<Scheduler, SchedError> {
    let mut config = Config::for_cpus([test_cpu()]);
    configure(&mut config);
    let (owned_elevator, pids) = (elevator.clone(), pids.to_vec());
    Scheduler::start(elevator, test_cpu(), SCHEDULER_PRIORITY, move || {
        let base = config.base;
        let mut engine = Engine::new(config, policy);
        let monitor =
            ProcessMonitor::start(&engine.control(), &owned_elevator, SCHEDULER_PRIORITY)?;
        for pid in pids {
            engine.add(Processes::attach(
                &owned_elevator,
                &monitor,
                pid,
                base,
                children,
            )?)?;
        }
        Ok(engine)
    })
}

/// Sleeps for `ms` ms.
pub(crate) fn sleep(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
