//! What is done for a server beside a batch process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use upshift_load::child::Child;

use super::kind::Kind;
use super::servers::Server;
use crate::peers::Program;
use crate::sections::processes::Daemon;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing.
    Nothing,
    /// The least nice value, of all its processes and threads.
    Nice,
    /// The greatest weight of a cgroup.
    Weight,
    /// SCHED_FIFO 10, of all its processes and threads.
    Fifo,
    /// SCHED_DEADLINE, of those that serve: 10 ms, at most 8 of it, 70 % of the CPUs together.
    Deadline,
    /// A rule of the daemon: level 8, else as by default.
    Daemon,
    /// `upshift sched priority` over all CPUs, all its processes at level 0.
    Sched,
}

/// ns.
const PERIOD: usize = 10_000_000;

impl Remedy {
    pub(super) const ALL: [Remedy; 7] = [
        Remedy::Nothing,
        Remedy::Nice,
        Remedy::Weight,
        Remedy::Fifo,
        Remedy::Deadline,
        Remedy::Daemon,
        Remedy::Sched,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Remedy::Nothing => "nothing",
            Remedy::Nice => "nice −20",
            Remedy::Weight => "cpu.weight 10000",
            Remedy::Fifo => "chrt -f",
            Remedy::Deadline => "SCHED_DEADLINE",
            Remedy::Daemon => "upshift daemon",
            Remedy::Sched => "upshift sched",
        }
    }

    /// The words before the server's own.
    pub(super) fn prefix(self) -> &'static [&'static str] {
        match self {
            Remedy::Nice => &["nice", "-n", "-20"],
            Remedy::Fifo => &["chrt", "-f", "10"],
            _ => &[],
        }
    }

    /// What has to run before the server.
    pub(super) fn daemon(self, upshift: &Program, kind: Kind) -> Result<Option<Daemon>, String> {
        let rule = format!("[[assign]]\ncomm = \"{}\"\nlevel = 8\n", kind.comm());
        let daemon = (self == Remedy::Daemon).then(|| Daemon::start(upshift, &rule));
        daemon.transpose()
    }

    /// What can be done only when the connections are there; it lasts as long as what is returned.
    pub(super) fn apply(self, upshift: &Program, server: &Server) -> Result<Option<Child>, String> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            Remedy::Deadline => {
                let serving = server.serving();
                let runtime = (PERIOD * cpus * 7 / 10 / serving.len().max(1)).min(PERIOD * 8 / 10);
                serving
                    .into_iter()
                    .try_for_each(|pid| reserve(pid, runtime))?;
                Ok(None)
            }
            // It hears of processes at once; what is in between is a thread that has to run.
            Remedy::Daemon => {
                std::thread::sleep(Duration::from_millis(100));
                Ok(None)
            }
            Remedy::Sched => {
                let cpus: Vec<String> = (0..cpus).map(|cpu| cpu.to_string()).collect();
                let mut command = Command::new(&upshift.file);
                command.args(["sched", "priority", "--json", "--cpu"]);
                command.arg(cpus.join(","));
                for pid in server.processes() {
                    command.args(["--pid", &format!("{pid}=0")]);
                }
                let mut child =
                    Child::start(&mut command).map_err(|e| format!("cannot start sched: {e}"))?;
                // It measures timers first, for 0.2 s where nothing is in its way.
                std::thread::sleep(Duration::from_millis(700));
                match child.try_wait() {
                    Ok(None) => Ok(Some(child)),
                    _ => Err("upshift sched has ended".into()),
                }
            }
            _ => Ok(None),
        }
    }
}

fn reserve(pid: u32, runtime: usize) -> Result<(), String> {
    let output = Command::new("chrt")
        .args(["--deadline", "--sched-runtime", &runtime.to_string()])
        .args(["--sched-period", &PERIOD.to_string(), "--pid", "0"])
        .arg(pid.to_string())
        .output()
        .map_err(|e| format!("cannot start chrt: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "SCHED_DEADLINE does not fit: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// A cgroup of the CPU controller, of either version; goes with its guard.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// `urgent`: real-time threads may be in it.
    pub(crate) fn new(name: &str, urgent: bool) -> Result<Cgroup, String> {
        let name = format!("upshift-bench-{}-{name}", std::process::id());
        // The second version gives its groups the controller only if it is asked to.
        let _ = std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
        for root in ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let it = Cgroup(path);
            if ["cpu.weight", "cpu.shares"]
                .iter()
                .any(|file| it.0.join(file).exists())
            {
                // Where real-time is shared out by cgroup, a part of it is needed, too; elsewhere there is no such file.
                let share = it.0.join("cpu.rt_runtime_us");
                if urgent && share.exists() {
                    std::fs::write(&share, "400000")
                        .map_err(|e| format!("{}: {e}", share.display()))?;
                }
                return Ok(it);
            }
        }
        Err("no cgroup with the CPU controller can be made".into())
    }

    pub(crate) fn take(&self, pid: u32) -> Result<(), String> {
        let file = self.0.join("cgroup.procs");
        std::fs::write(&file, pid.to_string()).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// 100 times the default: all that the second version allows.
    pub(crate) fn set_heaviest(&self) -> Result<(), String> {
        // 100 times the default of the first version, too.
        self.set_weight("10000", "102400")
    }

    /// The least weight: a hundredth of the default in the second version, 2 of 1024 in the first.
    pub(crate) fn set_lightest(&self) -> Result<(), String> {
        self.set_weight("1", "2")
    }

    fn set_weight(&self, weight: &str, shares: &str) -> Result<(), String> {
        std::fs::write(self.0.join("cpu.weight"), weight)
            .or_else(|_| std::fs::write(self.0.join("cpu.shares"), shares))
            .map_err(|e| format!("the weight of a cgroup cannot be set: {e}"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
