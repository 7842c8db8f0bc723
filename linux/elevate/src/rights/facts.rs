//! Reads the facts in `/proc` and `/sys` that determine whether this process may use SCHED_FIFO. A
//! fact that cannot be read counts as absent.

use std::fmt;

use crate::sys::Sys;

/// Number of the capability.
const CAP_SYS_NICE: u32 = 23;

/// The kernel's limit on all real-time threads of a CPU together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttling {
    /// Real-time threads may use the CPU forever.
    Off,
    /// Real-time threads get `runtime_us` of every `period_us`.
    On {
        /// µs for real-time threads in each period.
        runtime_us: u64,
        /// Length of a period, µs.
        period_us: u64,
    },
    /// `/proc/sys/kernel/sched_rt_runtime_us` cannot be read.
    Unknown,
}

impl fmt::Display for Throttling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Throttling::Off => {
                f.write_str("off: an elevated thread that never sleeps keeps its CPU forever")
            }
            Throttling::On {
                runtime_us,
                period_us,
            } => write!(
                f,
                "real-time threads get {} of every {} ms of a CPU; if they use that up, all of them stop for {} ms \
                 (`sysctl kernel.sched_rt_runtime_us=-1` turns this off, and the protection with it)",
                runtime_us / 1000,
                period_us / 1000,
                period_us.saturating_sub(runtime_us) / 1000
            ),
            Throttling::Unknown => {
                f.write_str("unknown: /proc/sys/kernel/sched_rt_runtime_us cannot be read")
            }
        }
    }
}

/// A cgroup (v1, RT_GROUP_SCHED) that limits RT time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RtGroup {
    /// Path of the cgroup's `cpu.rt_runtime_us`.
    pub path: String,
    /// Value of that file, which is the RT time in each period in µs. 0 lets no thread into
    /// SCHED_FIFO.
    pub runtime_us: i64,
}

impl fmt::Display for RtGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} µs", self.path, self.runtime_us)
    }
}

pub(super) fn throttling(sys: &dyn Sys) -> Throttling {
    let number = |name: &str| -> Option<i64> {
        let text = sys.read_file(&format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let (Some(runtime), Some(period)) =
        (number("sched_rt_runtime_us"), number("sched_rt_period_us"))
    else {
        return Throttling::Unknown;
    };
    match (u64::try_from(runtime), u64::try_from(period)) {
        (Ok(runtime_us), Ok(period_us)) if runtime_us < period_us => Throttling::On {
            runtime_us,
            period_us,
        },
        _ => Throttling::Off,
    }
}

/// Returns whether CAP_SYS_NICE is among the effective capabilities of `/proc/<tid>/status`.
pub(super) fn has_sys_nice(status: &str) -> bool {
    status_field(status, "CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|caps| caps & (1 << CAP_SYS_NICE) != 0)
}

/// Returns whether a seccomp filter is installed (mode 2).
pub(super) fn is_filtered(status: &str) -> bool {
    status_field(status, "Seccomp:") == Some("2")
}

fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// Returns whether the mapping of user ids differs from that of the first user namespace.
pub(super) fn in_user_namespace(sys: &dyn Sys) -> bool {
    let map = sys.read_file("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_whitespace().collect();
    !fields.is_empty() && fields != ["0", "0", "4294967295"]
}

/// Returns the cgroup of the v1 controller `cpu` and its RT time, if the kernel has RT_GROUP_SCHED.
pub(super) fn rt_group(sys: &dyn Sys) -> Option<RtGroup> {
    let groups = sys.read_file("/proc/self/cgroup").ok()?;
    let mounts = sys.read_file("/proc/self/mounts").ok()?;
    let group = v1_group(&groups)?;
    let mount = v1_mount(&mounts)?;
    // In a container the mount may show the group as its root.
    [
        format!("{mount}{}", group.trim_end_matches('/')),
        mount.to_string(),
    ]
    .into_iter()
    .find_map(|directory| {
        let path = format!("{directory}/cpu.rt_runtime_us");
        let runtime_us = sys.read_file(&path).ok()?.trim().parse().ok()?;
        Some(RtGroup { path, runtime_us })
    })
}

/// Returns the cgroup of the unified hierarchy, unless it is the root.
pub(super) fn unified_group(sys: &dyn Sys) -> Option<String> {
    let groups = sys.read_file("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .filter(|group| *group != "/")
        .map(str::to_string)
}

/// Returns the path of the line `n:…,cpu,…:path`.
fn v1_group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers
            .split(',')
            .any(|name| name == "cpu")
            .then_some(path)
    })
}

/// Returns the mount point of the v1 controller `cpu`.
fn v1_mount(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup" && options.split(',').any(|option| option == "cpu")).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_and_filter_are_read_from_the_status() {
        let status =
            "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t0000000000800000\nSeccomp:\t2\n";
        assert!(has_sys_nice(status) && is_filtered(status));
        let status = "CapEff:\tffffffffff7fffff\nSeccomp:\t0\n";
        assert!(!has_sys_nice(status) && !is_filtered(status));
        assert!(!has_sys_nice("") && !is_filtered("CapEff: zz"));
    }

    #[test]
    fn the_group_of_the_cpu_controller_is_found() {
        let groups = "12:cpuset:/a\n4:cpu,cpuacct:/docker/1:2\n0::/b\n";
        assert_eq!(v1_group(groups), Some("/docker/1:2"));
        assert_eq!(v1_group("2:cpuset:/a\n1:cpuacct:/b\n0::/\n"), None);
        let mounts = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,cpu 0 0\n";
        assert_eq!(v1_mount(mounts), Some("/sys/fs/cgroup/cpu,cpuacct"));
    }

    #[test]
    fn throttling_is_shown_with_its_consequence() {
        let text = Throttling::On {
            runtime_us: 950_000,
            period_us: 1_000_000,
        }
        .to_string();
        assert!(
            text.contains("950 of every 1000 ms") && text.contains("50 ms"),
            "{text}"
        );
    }
}
