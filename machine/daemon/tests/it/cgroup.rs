//! Cgroups for tests.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::Process;

/// A cgroup below the root of a hierarchy, removed when dropped. Its processes have to end before.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup, below `above` if that is given; `None` if this machine does not allow it.
    pub(crate) fn new(name: &str, above: Option<&Cgroup>) -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(Path::new);
        let roots = roots
            .into_iter()
            .filter(|root| root.join("cgroup.procs").exists());
        let mut parents = above.map_or_else(
            || roots.map(Path::to_path_buf).collect::<Vec<_>>(),
            |above| vec![above.0.clone()],
        );
        let paths = parents.drain(..).map(|parent| parent.join(name));
        paths
            .into_iter()
            .find(|path| std::fs::create_dir(path).is_ok())
            .map(Cgroup)
    }

    /// Creates a cgroup below the root of this hierarchy.
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

    /// Gives the directory to `user`.
    pub(crate) fn delegate(&self, user: u32) {
        chown(&self.0, Some(user), Some(user)).unwrap();
    }

    pub(crate) fn take(&self, process: &Process) -> bool {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).is_ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes have been killed a moment ago.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

/// A cgroup with a fifth of a CPU, removed when dropped.
pub(crate) struct Fifth(std::path::PathBuf);

impl Fifth {
    pub(crate) fn new() -> Option<Fifth> {
        let name = format!("upshift-test-{}", std::process::id());
        for (root, first) in [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let fifth = Fifth(path);
            let write = |file: &str, text: &str| std::fs::write(fifth.0.join(file), text).is_ok();
            let limited = if first {
                // Where real-time is divided by cgroup, a part of it is needed, too.
                let _ = write("cpu.rt_runtime_us", "500000");
                write("cpu.cfs_period_us", "100000") && write("cpu.cfs_quota_us", "20000")
            } else {
                write("cpu.max", "20000 100000")
            };
            if limited {
                return Some(fifth);
            }
        }
        None
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn take(&self, process: &Process) -> bool {
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).is_ok()
    }
}

impl Drop for Fifth {
    fn drop(&mut self) {
        // A process that was killed takes a moment to leave.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
