//! Applies the means by which a server is preferred to a batch process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use upshift_load::child::Child;

use super::server_kind::ServerKind;
use super::servers::Server;
use crate::peers::Program;
use crate::sections::processes::Daemon;

/// A means by which a server is preferred to a batch process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    Nothing,
    /// The lowest nice value, for all processes and threads of the server.
    Nice,
    /// The greatest cgroup weight.
    Weight,
    /// SCHED_FIFO 10, for all processes and threads of the server.
    Fifo,
    /// SCHED_DEADLINE for the serving processes, with a period of 10 ms. The processes together get
    /// 70 % of all CPUs, and each at most 8 ms in a period.
    Deadline,
    /// A rule of the daemon for level 8; all other settings are the defaults.
    Daemon,
    /// `upshift sched priority` over all CPUs, with all processes of the server at level 0.
    Sched,
}

/// Period of SCHED_DEADLINE.
const PERIOD_NS: usize = 10_000_000;

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

    /// Returns the words that precede the server's own command.
    pub(super) fn prefix(self) -> &'static [&'static str] {
        match self {
            Remedy::Nice => &["nice", "-n", "-20"],
            Remedy::Fifo => &["chrt", "-f", "10"],
            _ => &[],
        }
    }

    /// Starts the daemon, if that is the remedy. The daemon has to run before the server starts.
    pub(super) fn daemon(
        self,
        upshift: &Program,
        kind: ServerKind,
    ) -> Result<Option<Daemon>, String> {
        let rule = format!("[[assign]]\ncomm = \"{}\"\nlevel = 8\n", kind.comm());
        let daemon = (self == Remedy::Daemon).then(|| Daemon::start(upshift, &rule));
        daemon.transpose()
    }

    /// Applies that part of the remedy that needs established connections. A returned child
    /// maintains the remedy until it is dropped.
    pub(super) fn apply(self, upshift: &Program, server: &Server) -> Result<Option<Child>, String> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            Remedy::Deadline => {
                let serving = server.serving_processes();
                let runtime =
                    (PERIOD_NS * cpus * 7 / 10 / serving.len().max(1)).min(PERIOD_NS * 8 / 10);
                serving
                    .into_iter()
                    .try_for_each(|pid| reserve(pid, runtime))?;
                Ok(None)
            }
            // The kernel reports processes to the daemon at once, but the daemon's thread must run
            // before the daemon can act.
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
                // The scheduler first measures timers for 0.2 s, longer on a busy machine.
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
        .args(["--sched-period", &PERIOD_NS.to_string(), "--pid", "0"])
        .arg(pid.to_string())
        .output()
        .map_err(|e| format!("cannot start chrt: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "cannot reserve CPU time by SCHED_DEADLINE: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// A cgroup with the CPU controller, of cgroup version 1 or 2; removed on drop.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup, in which real-time threads can run if `permits_real_time`.
    pub(crate) fn new(name: &str, permits_real_time: bool) -> Result<Cgroup, String> {
        let name = format!("upshift-bench-{}-{name}", std::process::id());
        // Version 2 enables the controller in groups only on request.
        let _ = std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu");
        for root in ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup"] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let cgroup = Cgroup(path);
            if ["cpu.weight", "cpu.shares"]
                .iter()
                .any(|file| cgroup.0.join(file).exists())
            {
                // If the kernel distributes real-time runtime by cgroup, the group also needs a
                // share. On other kernels the file does not exist.
                let share = cgroup.0.join("cpu.rt_runtime_us");
                if permits_real_time && share.exists() {
                    std::fs::write(&share, "400000")
                        .map_err(|e| format!("{}: {e}", share.display()))?;
                }
                return Ok(cgroup);
            }
        }
        Err("cannot create a cgroup with the CPU controller".into())
    }

    pub(crate) fn add(&self, pid: u32) -> Result<(), String> {
        let file = self.0.join("cgroup.procs");
        std::fs::write(&file, pid.to_string()).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Sets 100 times the default weight, the maximum of version 2.
    pub(crate) fn set_heaviest(&self) -> Result<(), String> {
        // Version 1 gets the same factor.
        self.set_weight("10000", "102400")
    }

    /// Sets the smallest weight: a hundredth of the default in version 2, 2 of 1024 in version 1.
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
