//! Finds the cgroups of a process, and the part of each path that only root can have created.
//!
//! A user with a delegated part of the tree can create directories in it with any name, even one
//! called `redis.service` or named like the cgroup of a container. A path is trusted down to the
//! first directory that root does not own.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use upshift_elevate::sys::read_at_once;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cgroup {
    path: String,
    /// Length in bytes of the trusted part of the path, which only root can have created.
    trusted: usize,
}

impl Cgroup {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn trusted(&self) -> &str {
        &self.path[..self.trusted]
    }

    #[cfg(test)]
    pub(crate) fn of_root(path: &str) -> Cgroup {
        Cgroup {
            path: path.to_string(),
            trusted: path.len(),
        }
    }
}

pub(crate) fn parse(groups: &str) -> Vec<Cgroup> {
    let mounts = read_at_once("/proc/self/mountinfo").unwrap_or_default();
    let is_of_root =
        |path: &Path| std::fs::metadata(path).is_ok_and(|metadata| metadata.uid() == 0);
    with_mounts(groups, &mounts, is_of_root)
}

fn with_mounts(groups: &str, mounts: &str, is_of_root: impl Fn(&Path) -> bool) -> Vec<Cgroup> {
    let cgroup = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let trusted = match mount_of(mounts, controllers) {
            Some((top, mount)) => trusted_length((&top, &mount), path, &is_of_root),
            // Without a mount no user can create directories in the hierarchy.
            None => path.len(),
        };
        let path = path.to_string();
        Some(Cgroup { path, trusted })
    };
    groups.lines().filter_map(cgroup).collect()
}

/// Returns the length of the trusted part of `path`, in a hierarchy of which `top` and the
/// directories below it are mounted. A path that leads out of the mount (from a cgroup namespace,
/// to a process outside of it) has no trusted part, because its directories cannot be checked.
fn trusted_length(
    (top, mount): (&str, &Path),
    path: &str,
    is_of_root: impl Fn(&Path) -> bool,
) -> usize {
    let top = top.trim_end_matches('/');
    let suffix = path.strip_prefix(top);
    let Some(suffix) = suffix.filter(|suffix| suffix.is_empty() || suffix.starts_with('/')) else {
        return 0;
    };
    let mut directory = mount.to_path_buf();
    let mut length = top.len();
    for part in suffix.split('/').skip(1) {
        directory.push(part);
        if part == ".." || !is_of_root(&directory) {
            break;
        }
        length += 1 + part.len();
    }
    length
}

/// Returns the mounted part of the hierarchy with these controllers, and its mount point. Without
/// controllers, returns the mounted part and the mount point of the cgroup v2 hierarchy.
pub(crate) fn mount_of(mounts: &str, controllers: &str) -> Option<(String, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let has = |option: &str| options.split(',').any(|found| found == option);
        let is_match = match controllers {
            "" => kind == "cgroup2",
            all => kind == "cgroup" && all.split(',').all(has),
        };
        let mut before = before.split(' ').skip(3);
        let (top, path) = (before.next()?, before.next()?);
        is_match.then(|| (top.to_string(), PathBuf::from(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths and the top of a mount are relative to the cgroup namespace. A path that leads out of
    /// the namespace must be trusted down to the first directory that root does not own or that
    /// cannot be checked.
    #[test]
    fn a_path_out_of_the_namespace_is_trusted_where_it_can_be_checked() {
        let mounts = "26 20 0:23 /../.. /host rw - cgroup2 cgroup2 rw\n";
        let is_of_root = |path: &Path| !path.starts_with("/host/user");
        let trusted = |path: &str| {
            let found = with_mounts(&format!("0::{path}\n"), mounts, is_of_root);
            found[0].trusted().to_string()
        };
        for (path, expected) in [
            (
                "/../../system.slice/redis.service",
                "/../../system.slice/redis.service",
            ),
            ("/../../user/redis.service", "/../.."),
            ("/../../../x", "/../.."),
            ("/../..", "/../.."),
            ("/own", ""),
        ] {
            assert_eq!(trusted(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_is_trusted_as_far_as_root_owns_its_directories() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      26 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      27 20 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let groups = "4:cpu,cpuacct:/a/u/x..y/redis.service\n1:name=systemd:/a/redis.service\n\
                      9:memory:/not/mounted\n0::/../x\n";
        let is_of_root = |path: &Path| !path.starts_with("/sys/fs/cgroup/cpu/a/u");
        let found = with_mounts(groups, mounts, is_of_root);
        let trusted: Vec<&str> = found.iter().map(Cgroup::trusted).collect();
        assert_eq!(trusted, ["/a", "/a/redis.service", "/not/mounted", ""]);
        assert_eq!(found[0].path(), "/a/u/x..y/redis.service");
        assert_eq!(with_mounts("0::/\n", mounts, is_of_root)[0].trusted(), "/");
        assert!(with_mounts("nonsense", mounts, is_of_root).is_empty());
    }
}
