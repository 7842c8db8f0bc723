//! The reasons why this process may not use SCHED_FIFO, each with the command or setting that
//! remedies it.

use std::fmt;
use std::io;

use super::Rights;

/// An obstacle to SCHED_FIFO, usually a missing right. Its text names the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The process has neither CAP_SYS_NICE nor RLIMIT_RTPRIO.
    Capability {
        /// The path of this program.
        program: String,
    },
    /// RLIMIT_RTPRIO permits priorities, but none that is high enough.
    Limit {
        /// The soft limit.
        soft: u64,
        /// The hard limit, up to which the process may raise the soft limit itself.
        hard: u64,
    },
    /// CAP_SYS_NICE in a user namespace does not count.
    UserNamespace,
    /// The cgroup (v1) has no RT time.
    GroupTime {
        /// Path of the cgroup's `cpu.rt_runtime_us`.
        path: String,
    },
    /// The kernel has RT_GROUP_SCHED and the process is in a v2 cgroup, which cannot have RT time.
    UnifiedGroup {
        /// The cgroup.
        group: String,
    },
    /// A seccomp filter may refuse the call.
    Filter,
    /// The kernel refused for another reason.
    Other {
        /// The kernel's error number.
        errno: i32,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Capability { program } => write!(
                f,
                "CAP_SYS_NICE or RLIMIT_RTPRIO. Run the program as root (`sudo {program} …`). Or give the limit to one user or \
                 to one unit (its programs can then keep a CPU from everybody else): LimitRTPRIO=49 in the [Service] \
                 section of the unit, or the line `<user> - rtprio 49` in /etc/security/limits.d/upshift.conf and a \
                 new login. In a container add `--cap-add=sys_nice`"
            ),
            Obstacle::Limit { soft, hard } => {
                write!(f, "a sufficient RLIMIT_RTPRIO: it is {soft}, less than 49. ")?;
                if *hard > *soft {
                    write!(f, "Run `ulimit -r {}` before starting (the hard limit is {hard}); or put ", (*hard).min(49))?;
                } else {
                    f.write_str("Put ")?;
                }
                f.write_str(
                    "LimitRTPRIO=49 into the [Service] section of the unit; or the line `<user> - rtprio 49` into \
                     /etc/security/limits.d/upshift.conf and log in again",
                )
            }
            Obstacle::UserNamespace => f.write_str(
                "CAP_SYS_NICE outside this user namespace (rootless container), the only place where it counts for \
                 the scheduler. Raise the limit instead: `--ulimit rtprio=49`, with LimitRTPRIO=49 for the service that \
                 starts the container; or run the container as root",
            ),
            Obstacle::GroupTime { path } => write!(
                f,
                "RT time of the cgroup. Run `echo 400000 | sudo tee {path}`, for its parents first (siblings have \
                 at most the parent's time together); with docker `--cpu-rt-runtime=400000`; or move the process to \
                 the root cgroup"
            ),
            Obstacle::UnifiedGroup { group } => write!(
                f,
                "RT time: this kernel gives out RT time by cgroup (RT_GROUP_SCHED), and cgroup v2 {group} cannot have \
                 any. Boot with `rt_group_sched=0`; or move the process to the root cgroup: `echo PID | sudo tee \
                 /sys/fs/cgroup/cgroup.procs`"
            ),
            Obstacle::Filter => f.write_str(
                "permission of the seccomp filter. Allow sched_setscheduler and sched_setattr in its profile (docker: \
                 `--cap-add=sys_nice` does)",
            ),
            Obstacle::Other { errno } => write!(
                f,
                "the kernel's consent: {}",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

/// Returns the reasons why the kernel refused [`Priority::MAX`](crate::Priority::MAX), most likely
/// reason first.
pub(super) fn explain(
    rights: &Rights,
    refusal: &io::Error,
    unified_group: Option<String>,
) -> Vec<Obstacle> {
    let errno = refusal.raw_os_error().unwrap_or(0);
    if errno != libc::EPERM {
        return vec![Obstacle::Other { errno }];
    }
    let mut obstacles = Vec::new();
    let limit_helps = rights.limit.0 > 0;
    if let Some(group) = rights.group.as_ref().filter(|group| group.runtime_us == 0) {
        obstacles.push(Obstacle::GroupTime {
            path: group.path.clone(),
        });
    }
    if rights.highest.is_some() {
        obstacles.push(Obstacle::Limit {
            soft: rights.limit.0,
            hard: rights.limit.1,
        });
        return obstacles;
    }
    if rights.capable && rights.user_namespace && !limit_helps {
        obstacles.push(Obstacle::UserNamespace);
    } else if !rights.capable && !limit_helps {
        obstacles.push(Obstacle::Capability { program: program() });
    } else if obstacles.is_empty() {
        // The process has the right, so there must be another reason for the refusal.
        if rights.group.is_none()
            && let Some(group) = unified_group
        {
            obstacles.push(Obstacle::UnifiedGroup { group });
        }
        if rights.filtered {
            obstacles.push(Obstacle::Filter);
        }
    }
    if obstacles.is_empty() {
        obstacles.push(Obstacle::Other { errno });
    }
    obstacles
}

fn program() -> String {
    std::env::current_exe().map_or_else(
        |_| "/path/to/program".into(),
        |path| path.display().to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{RtGroup, Throttling};
    use super::*;
    use crate::priority::Priority;

    fn rights() -> Rights {
        Rights {
            highest: None,
            capable: false,
            limit: (0, 0),
            time_limit_us: None,
            throttling: Throttling::Off,
            group: None,
            user_namespace: false,
            filtered: false,
            obstacles: Vec::new(),
        }
    }

    fn explanation(rights: &Rights, unified: Option<&str>) -> String {
        let refusal = io::Error::from_raw_os_error(libc::EPERM);
        let obstacles = explain(rights, &refusal, unified.map(str::to_string));
        let texts: Vec<String> = obstacles.iter().map(Obstacle::to_string).collect();
        texts.join("\n")
    }

    #[test]
    fn an_ordinary_user_is_told_three_remedies() {
        let text = explanation(&rights(), None);
        for remedy in ["sudo ", "LimitRTPRIO=49", "rtprio 49", "from everybody"] {
            assert!(text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn no_remedy_gives_the_right_to_every_user_of_the_machine() {
        let capable = Rights {
            capable: true,
            ..rights()
        };
        let namespace = Rights {
            user_namespace: true,
            ..capable.clone()
        };
        let limited = Rights {
            limit: (10, 20),
            highest: Some(Priority::of::<10>()),
            ..rights()
        };
        for rights in [rights(), capable, namespace, limited] {
            let text = explanation(&rights, Some("/user.slice"));
            assert!(!text.contains("setcap"), "{text}");
        }
    }

    #[test]
    fn a_group_without_time_is_named_by_its_file() {
        let path = "/sys/fs/cgroup/cpu/x/cpu.rt_runtime_us".to_string();
        let mut rights = rights();
        rights.capable = true;
        rights.group = Some(RtGroup {
            path: path.clone(),
            runtime_us: 0,
        });
        let text = explanation(&rights, None);
        assert!(text.contains(&path) && !text.contains("setcap"), "{text}");
    }

    #[test]
    fn a_capable_process_gets_the_other_reasons_for_a_refusal() {
        let mut rights = rights();
        rights.capable = true;
        assert!(explanation(&rights, Some("/user.slice")).contains("rt_group_sched=0"));
        rights.filtered = true;
        assert!(explanation(&rights, None).contains("seccomp"));
        rights.user_namespace = true;
        assert!(explanation(&rights, None).contains("rtprio=49"));
    }

    #[test]
    fn a_low_limit_gets_the_command_that_raises_it() {
        let mut rights = rights();
        rights.limit = (10, 20);
        rights.highest = Some(Priority::of::<10>());
        let text = explanation(&rights, None);
        assert!(text.contains("ulimit -r 20"), "{text}");
    }

    #[test]
    fn any_other_refusal_is_passed_on() {
        let refusal = io::Error::from_raw_os_error(libc::ENOSYS);
        let obstacles = explain(&rights(), &refusal, None);
        assert_eq!(
            obstacles,
            [Obstacle::Other {
                errno: libc::ENOSYS
            }]
        );
    }
}
