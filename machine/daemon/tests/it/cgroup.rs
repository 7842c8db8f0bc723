//! Cgroups that tests make.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::Process;

/// A cgroup below the root of a hierarchy; goes with its guard. Processes in it have to end before.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// `None`: this machine does not let us. Below `above`, if that is given.
    pub(crate) fn new(name: &str, above: Option<&Cgroup>) -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(Path::new);
        let roots = roots
            .into_iter()
            .filter(|root| root.join("cgroup.procs").exists());
        let mut places = above.map_or_else(
            || roots.map(Path::to_path_buf).collect::<Vec<_>>(),
            |it| vec![it.0.clone()],
        );
        let place = places.drain(..).map(|it| it.join(name));
        place
            .into_iter()
            .find(|it| std::fs::create_dir(it).is_ok())
            .map(Cgroup)
    }

    /// Below the root of this hierarchy.
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

    /// Leaves the directory to `user`.
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

/// A cgroup with a fifth of a CPU; goes with its guard. `None`: this machine does not let us.
pub(crate) struct Fifth(std::path::PathBuf);

impl Fifth {
    pub(crate) fn new() -> Option<Fifth> {
        let name = format!("upshift-test-{}", std::process::id());
        for (root, first) in [("/sys/fs/cgroup/cpu", true), ("/sys/fs/cgroup", false)] {
            let path = Path::new(root).join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let it = Fifth(path);
            let write = |file: &str, text: &str| std::fs::write(it.0.join(file), text).is_ok();
            let limited = match first {
                // Where real-time is shared out by cgroup, a part of it is needed, too. Elsewhere there is no such file.
                true => {
                    let _ = write("cpu.rt_runtime_us", "500000");
                    write("cpu.cfs_period_us", "100000") && write("cpu.cfs_quota_us", "20000")
                }
                false => write("cpu.max", "20000 100000"),
            };
            if limited {
                return Some(it);
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
