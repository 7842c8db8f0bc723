//! [`Assign`] is a rule that gives programs a level without their cooperation.
//!
//! All conditions of a rule must match. A program chooses its own name, so a rule with only `comm`
//! lets every user that may start programs choose the level of a program. If users are not trusted,
//! a rule must also name a user, a unit or a cgroup.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use upshift_elevate::sys::read_at_once;

use crate::proc::cgroups::{self, Cgroup};
use crate::proc::container;
use crate::proc::living;

/// Returns whether systemd has booted the machine. The answer is the same in a container that sees
/// all processes of the machine.
fn has_systemd() -> bool {
    let init_name = || read_at_once("/proc/1/comm");
    Path::new("/run/systemd/system").is_dir()
        || init_name().is_ok_and(|name| name.trim_end() == "systemd")
}

/// An `[[assign]]` rule of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assign {
    /// Path of the cgroup; `*` matches any characters.
    pub cgroup: Option<String>,
    /// systemd unit: a directory of the cgroup's path; `*` matches any characters.
    pub unit: Option<String>,
    /// Id of the container, or its name in the container's engine; `*` matches any characters.
    pub container: Option<String>,
    /// Key of a label or an annotation of the container, and its value; `*` matches any characters
    /// in the value.
    pub label: Option<(String, String)>,
    /// User of the process.
    pub user: Option<u32>,
    /// Name of the program, as `ps -o comm` shows it; `*` matches any characters.
    pub comm: Option<String>,
    /// Level of the programs, 0 to 63.
    pub level: u8,
    /// Set if the processes that a matching process forks stay ordinary.
    pub leaves_children: bool,
    /// Limit on the CPU time of the programs.
    pub bound: Bound,
}

/// CPU time that all threads of an assigned process together may use in SCHED_FIFO. A process that
/// has exhausted it is ordinary until its usage matches its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Percent of each CPU that the process occupies, 1 to 95; it occupies as many CPUs as it has
    /// threads that compute.
    Each(u32),
    /// Percent of one CPU, 1 to 95.
    Budget(u32),
    /// Percent of the CPUs that the process may run on in one domain (last-level cache, or NUMA
    /// node), 1 to 95.
    Share(u32),
    /// CPU time of one CPU in each period.
    Periodic {
        /// CPU time in each period, at most 80 % of the period.
        runtime: Duration,
        /// Length of the period, 1 to 50 ms.
        period: Duration,
    },
}

impl Default for Bound {
    fn default() -> Bound {
        Bound::Each(80)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileAssign {
    pub(crate) cgroup: Option<String>,
    pub(crate) unit: Option<String>,
    pub(crate) container: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) user: Option<crate::config::Name>,
    pub(crate) comm: Option<String>,
    #[serde(deserialize_with = "crate::config::level")]
    pub(crate) level: u8,
    pub(crate) children: Option<bool>,
    budget: Option<u32>,
    share: Option<u32>,
    runtime_us: Option<u64>,
    /// Default of `period_us`, for files that give the period as a deadline.
    deadline_us: Option<u64>,
    period_us: Option<u64>,
}

impl FileAssign {
    /// Returns the limit on the CPU time that the fields describe.
    ///
    /// # Errors
    /// A message that names the invalid field and a remedy.
    pub(crate) fn bound(&self) -> Result<Bound, String> {
        use crate::config::within;
        let times = (self.runtime_us, self.deadline_us, self.period_us);
        match (self.budget, self.share, times) {
            (None, None, (None, None, None)) => Ok(Bound::default()),
            (Some(budget), None, (None, None, None)) => {
                within("assign.budget", budget, 1, 95)
                    .map(Bound::Budget)
                    .map_err(|error| {
                        format!("{error}, percent of one CPU; for several CPUs give `share`, percent of all that it may run on")
                    })
            }
            (None, Some(share), (None, None, None)) => {
                within("assign.share", share, 1, 95).map(Bound::Share)
            }
            (None, None, (Some(runtime), deadline, period)) if deadline.or(period).is_some() => {
                let period = period.or(deadline).unwrap_or(0);
                let period = within("assign.period_us", period, 1_000, 50_000)?;
                let runtime = within("assign.runtime_us", runtime, 100, period * 4 / 5)?;
                Ok(Bound::Periodic {
                    runtime: Duration::from_micros(runtime),
                    period: Duration::from_micros(period),
                })
            }
            _ => Err("[[assign]]: give at most one of `budget`, `share`, and `runtime_us` with `period_us`".to_string()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Traits {
    /// The user id of the process, if its real, effective, saved and file system user ids are
    /// equal. A set-user-id program matches no rule, because its starter controls it as well as its
    /// owner.
    pub(crate) user: u32,
    pub(crate) parent: i32,
    comm: String,
    cgroups: Vec<Cgroup>,
}

/// A running process that matches a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitting {
    /// Pid of the process.
    pub pid: i32,
    /// User of the process.
    pub user: u32,
    /// Name of the program, as `ps -o comm` shows it.
    pub comm: String,
}

/// Returns the running processes for each rule, by ascending pid. A process counts for the first
/// rule that it matches. Reads up to five files of `/proc` for each process of the machine.
pub(crate) fn fitting(rules: &[Assign]) -> Vec<Vec<Fitting>> {
    let mut found = vec![Vec::new(); rules.len()];
    for pid in all_processes() {
        let Some(traits) = Traits::read(pid) else {
            continue;
        };
        if let Some(rule) = rules.iter().position(|rule| rule.fits(&traits)) {
            let (user, comm) = (traits.user, traits.comm);
            found[rule].push(Fitting { pid, user, comm });
        }
    }
    found
}

fn all_processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut pids: Vec<i32> = pids.collect();
    pids.sort_unstable();
    pids
}

impl Traits {
    /// Returns the attributes of process `pid`; `None` if it has ended, is a kernel thread, or has
    /// different user ids. Reads five files of `/proc`, which takes about 70 µs.
    pub(crate) fn read(pid: i32) -> Option<Traits> {
        let read = |name: &str| read_at_once(format!("/proc/{pid}/{name}")).ok();
        let status = living::read(pid, "status").ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // Only kernel threads have no memory.
        field("VmSize:")?;
        Some(Traits {
            user: only_user(field("Uid:")?)?,
            parent: field("PPid:")?.trim().parse().ok()?,
            comm: read("comm")?.trim_end().to_string(),
            cgroups: cgroups::parse(&living::read(pid, "cgroup").ok()?),
        })
    }
}

fn only_user(ids: &str) -> Option<u32> {
    let mut ids = ids.split_ascii_whitespace();
    let first = ids.next()?;
    ids.all(|id| id == first).then(|| first.parse().ok())?
}

impl fmt::Display for Assign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self
            .label
            .as_ref()
            .map(|(key, glob)| format!("{key}={glob}"));
        let user = self.user.map(crate::config::user_name);
        let named = [
            ("cgroup", &self.cgroup),
            ("unit", &self.unit),
            ("container", &self.container),
            ("label", &label),
            ("user", &user),
            ("comm", &self.comm),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                write!(f, "{name} = \"{value}\", ")?;
            }
        }
        write!(f, "level = {}", self.level)?;
        if self.leaves_children {
            f.write_str(", children = false")?;
        }
        Ok(())
    }
}

/// Maximum length of a program's name in the kernel, bytes.
const MAX_COMM: usize = 15;

impl Assign {
    /// Checks that the rule has conditions, and that a process can match them.
    ///
    /// # Errors
    /// A message that names the invalid field and a remedy.
    pub fn check(&self) -> Result<(), String> {
        let named = [&self.cgroup, &self.unit, &self.container, &self.comm];
        if named.iter().all(|name| name.is_none()) && self.label.is_none() && self.user.is_none() {
            return Err(
                "give `cgroup`, `unit`, `container`, `label`, `user` or `comm`, or several"
                    .to_string(),
            );
        }
        let empty = named.into_iter().flatten().any(|name| name.is_empty());
        if empty {
            return Err("a condition is empty, so no program matches it".to_string());
        }
        if let Some(unit) = self.unit.as_ref().filter(|unit| !unit.contains(['.', '*'])) {
            return Err(format!(
                "unit = \"{unit}\": give its whole name, e.g. \"{unit}.service\""
            ));
        }
        if let Some(path) = self
            .cgroup
            .as_ref()
            .filter(|path| !path.starts_with(['/', '*']))
        {
            return Err(format!(
                "cgroup = \"{path}\": give its path from the root of the hierarchy, as /proc/PID/cgroup shows it, e.g. \"/{path}\""
            ));
        }
        if let Some(comm) = &self.comm
            && comm.split('*').map(str::len).sum::<usize>() > MAX_COMM
        {
            return Err(format!(
                "comm = \"{comm}\": the kernel keeps {MAX_COMM} bytes of a program's name (`ps -o comm` shows them)"
            ));
        }
        Ok(())
    }

    /// Returns whether the only condition is `comm`, so that any user can start a program that
    /// matches.
    pub(crate) fn names_programs_only(&self) -> bool {
        let places = [&self.cgroup, &self.unit, &self.container];
        places.iter().all(|name| name.is_none()) && self.label.is_none() && self.user.is_none()
    }

    /// Returns the reason why no process of this machine can match, if there is a reason.
    pub fn misfit(&self) -> Option<String> {
        let unit = self.unit.as_ref()?;
        (!has_systemd()).then(|| {
            format!("unit = \"{unit}\": systemd does not run here, so there are no units; use `cgroup`, `user` or `comm`")
        })
    }

    /// Returns the pids of the running processes that match, in ascending order. Reads up to five
    /// files of `/proc` for each process of the machine.
    pub fn processes(&self) -> Vec<i32> {
        let fits = |pid: &i32| Traits::read(*pid).is_some_and(|traits| self.fits(&traits));
        let mut found = all_processes();
        found.retain(fits);
        found
    }

    pub(crate) fn fits(&self, traits: &Traits) -> bool {
        // Directories that a user has created only count if the rule names that user.
        let path = |cgroup: &'_ Cgroup| match self.user {
            Some(_) => cgroup.path().to_string(),
            None => cgroup.trusted().to_string(),
        };
        let any =
            |test: &dyn Fn(&str) -> bool| traits.cgroups.iter().any(|cgroup| test(&path(cgroup)));
        let in_unit = |unit: &str| any(&|path| path.split('/').any(|part| matches(unit, part)));
        let fits = |glob: &Option<String>, text: &str| {
            glob.as_deref().is_none_or(|glob| matches(glob, text))
        };
        self.user.is_none_or(|user| user == traits.user)
            && fits(&self.comm, &traits.comm)
            && self.unit.as_deref().is_none_or(in_unit)
            && self
                .cgroup
                .as_deref()
                .is_none_or(|glob| any(&|path| matches(glob, path)))
            && (self.container.is_none() && self.label.is_none()
                || any(&|path| container::id(path).is_some_and(|id| self.fits_container(id))))
    }

    /// Returns whether the container with this id meets the conditions. Reads files of the
    /// container's engine, about 50 µs each, unless the id alone decides.
    fn fits_container(&self, id: &str) -> bool {
        let by_id = |glob: &String| matches(glob, id);
        if self.label.is_none() && self.container.as_ref().is_none_or(by_id) {
            return true;
        }
        let info = container::info(Path::new("/"), id);
        let named =
            |glob: &String| matches(glob, id) || info.names.iter().any(|name| matches(glob, name));
        let labelled = |(key, glob): &(String, String)| {
            let mut labels = info.labels.iter();
            labels.any(|(name, value)| name == key && matches(glob, value))
        };
        self.container.as_ref().is_none_or(named) && self.label.as_ref().is_none_or(labelled)
    }
}

/// Returns whether `glob` matches the whole `text`; `*` represents any number of characters. The
/// cost is linear in the length of both for every input.
fn matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(index) => rest = &rest[index + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_the_whole_text() {
        for (glob, text, expected) in [
            ("nginx", "nginx", true),
            ("nginx", "nginx2", false),
            ("ngin*", "nginx", true),
            ("*/web-*.service", "/system.slice/web-1.service", true),
            ("*/web-*.service", "/system.slice/web-1.service/x", false),
            ("/a/*/c", "/a/b/c", true),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(glob, text), expected, "{glob} {text}");
        }
    }

    #[test]
    fn a_program_with_the_set_user_id_bit_has_no_single_user() {
        assert_eq!(only_user("\t33\t33\t33\t33"), Some(33));
        for ids in ["1000 0 0 0", "33 33 0 33", "33 33 33 0", ""] {
            assert_eq!(only_user(ids), None, "{ids}");
        }
    }

    #[test]
    fn a_process_must_meet_all_conditions_of_a_rule() {
        let traits = Traits {
            user: 33,
            parent: 1,
            comm: "nginx".into(),
            cgroups: vec![
                Cgroup::of_root("/"),
                Cgroup::of_root("/system.slice/nginx.service"),
            ],
        };
        let rule = |text: &str| {
            let config = crate::Config::parse(&format!("[[assign]]\nlevel = 3\n{text}")).unwrap();
            config.assign[0].fits(&traits)
        };
        assert!(rule("user = 33\ncomm = \"ng*\"\nunit = \"nginx.service\""));
        assert!(rule("cgroup = \"/system.slice/*\""));
        assert!(!rule("user = 34\ncomm = \"nginx\""));
        assert!(rule("unit = \"ng*.service\""));
        assert!(!rule("unit = \"*.scope\""));
        assert!(!rule("container = \"*\""));
        assert!(Traits::read(std::process::id() as i32).is_some());
        assert!(Traits::read(2).is_none() || !std::path::Path::new("/proc/2/exe").exists());
    }
}
