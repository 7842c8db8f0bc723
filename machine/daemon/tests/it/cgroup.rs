//! Cgroups that tests create.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::Process;

/// A cgroup, removed when dropped. All its processes must have ended before.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup, below `parent` if it is given; `None` if this machine does not allow it.
    pub(crate) fn new(name: &str, parent: Option<&Cgroup>) -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(Path::new);
        let roots = roots
            .into_iter()
            .filter(|root| root.join("cgroup.procs").exists());
        let mut parents = parent.map_or_else(
            || roots.map(Path::to_path_buf).collect::<Vec<_>>(),
            |parent| vec![parent.0.clone()],
        );
        let paths = parents.drain(..).map(|parent| parent.join(name));
        paths
            .into_iter()
            .find(|path| std::fs::create_dir(path).is_ok())
            .map(Cgroup)
    }

    /// Creates the cgroup `name` below the directory `root`; `None` if this machine does not allow
    /// it.
    pub(crate) fn below(root: &Path, name: impl AsRef<Path>) -> Option<Cgroup> {
        let path = root.join(name);
        std::fs::create_dir(&path).is_ok().then_some(Cgroup(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.0.join(file).exists()
    }

    pub(crate) fn delegate(&self, user: u32) {
        chown(&self.0, Some(user), Some(user)).unwrap();
    }

    /// Returns `false` if the kernel refuses the move.
    pub(crate) fn add(&self, process: &Process) -> bool {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).is_ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was killed takes a moment to leave the cgroup.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// A cgroup with a quota of a fifth of a CPU, removed when dropped.
pub(crate) struct QuotaCgroup(std::path::PathBuf);

impl QuotaCgroup {
    /// Creates the cgroup; `None` if this machine does not allow it.
    pub(crate) fn new() -> Option<QuotaCgroup> {
        let name = format!("upshift-test-{}", std::process::id());
        for (root, is_v1) in [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let cgroup = QuotaCgroup(path);
            let write = |file: &str, text: &str| std::fs::write(cgroup.0.join(file), text).is_ok();
            let limited = if is_v1 {
                // If the kernel divides real-time runtime by cgroup, this cgroup needs a part of
                // it.
                let _ = write("cpu.rt_runtime_us", "500000");
                write("cpu.cfs_period_us", "100000") && write("cpu.cfs_quota_us", "20000")
            } else {
                write("cpu.max", "20000 100000")
            };
            if limited {
                return Some(cgroup);
            }
        }
        None
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns `false` if the kernel refuses the move.
    pub(crate) fn add(&self, process: &Process) -> bool {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).is_ok()
    }
}

impl Drop for QuotaCgroup {
    fn drop(&mut self) {
        // A process that was killed takes a moment to leave the cgroup.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
