//! The configuration of the daemon, which is read from a TOML file. Every field is optional.
//!
//! Values are checked when the file is read, so the rest of the daemon uses only valid values.
//! Users and groups are numbers, or names in `/etc/passwd` and `/etc/group`.

mod file;
mod members;
mod names;
mod subordinate;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::admission::Trust;
use crate::rules::rule::{Assign, Fitting, Traits, fitting};
use file::File;
pub(crate) use file::{level, within};
pub use members::Member;
pub(crate) use names::{Name, user_name};
pub use names::{group, user};
pub use subordinate::Subordinate;
use upshift_units::socket_file::check_directories;

/// The settings of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Group of the socket; `None` for the group of the daemon.
    pub group: Option<u32>,
    /// Time for which one of several vCPUs of equal level runs before the next one.
    pub quantum: Duration,
    /// Part of each CPU that is left to programs that are not registered, in percent.
    pub bystander_percent: u32,
    /// Level of programs that are not registered; with `None`, registered programs are elevated
    /// only against each other.
    pub bystander_level: Option<u8>,
    /// Set if the daemon only publishes the global page and elevates no thread, even if it has the
    /// rights.
    pub cooperative: bool,
    /// Endpoint of the Prometheus metrics: the path of a Unix socket, or an address and port;
    /// `None` for no endpoint.
    pub metrics: Option<String>,
    /// Limits of users.
    pub limits: Limits,
    /// Most urgent level of users without a rule.
    pub ceiling: u8,
    /// Ceilings by user and group; the first rule that matches applies.
    pub rules: Vec<Rule>,
    /// Levels of programs that do not register; the first rule that matches applies.
    pub assign: Vec<Assign>,
    /// Users that belong to other users, from `/etc/subuid` and not from the file.
    pub subordinate: Vec<Subordinate>,
    /// Members of the groups in rules according to their accounts, from `/etc/passwd` and
    /// `/etc/group` and not from the file.
    pub members: Vec<Member>,
}

/// Limits on the daemon's resources that processes can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Number of registrations of all users together.
    pub registrations: usize,
    /// Number of registrations of one user; also the number of this user's vCPUs on one CPU.
    pub per_user: usize,
    /// Number of open connections of all users together.
    pub connections: usize,
    /// Number of open connections of one user, registered or not.
    pub connections_per_user: usize,
    /// Number of threads of one registration.
    pub threads: usize,
    /// Number of threads of all registrations of one user.
    pub threads_per_user: usize,
    /// Number of new registrations of one user per second, after a burst of the same number.
    pub registrations_per_second: u32,
    /// Number of rings of one doorbell per second, after a burst of a fiftieth of that number.
    pub rings_per_second: u32,
    /// Part of a CPU that all dispatcher threads on it may use together, in percent.
    pub dispatcher_percent: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            registrations: 256,
            per_user: 64,
            connections: 1024,
            connections_per_user: 128,
            threads: 128,
            threads_per_user: 1024,
            registrations_per_second: 50,
            rings_per_second: 10_000,
            dispatcher_percent: 20,
        }
    }
}

/// A ceiling for a user or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The users that the rule applies to.
    pub subject: Subject,
    /// The most urgent level of these users; with `None`, they may not register.
    pub ceiling: Option<u8>,
}

/// The users that a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A user.
    User(u32),
    /// Members of a group.
    Group(u32),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: default_socket(),
            mode: 0o660,
            group: None,
            quantum: Duration::from_millis(4),
            bystander_percent: 5,
            bystander_level: None,
            cooperative: false,
            metrics: None,
            limits: Limits::default(),
            ceiling: 0,
            rules: Vec::new(),
            assign: Vec::new(),
            subordinate: Vec::new(),
            members: Vec::new(),
        }
    }
}

/// Returns the system's socket for root, or a socket in `XDG_RUNTIME_DIR` for other users.
pub fn default_socket() -> PathBuf {
    let system = PathBuf::from(upshift_board::client::SYSTEM_SOCKET);
    if rustix::process::geteuid().is_root() {
        return system;
    }
    std::env::var_os("XDG_RUNTIME_DIR").map_or(system, |directory| {
        PathBuf::from(directory).join("upshift/daemon.sock")
    })
}

impl Config {
    /// Reads a configuration file, and the account files of this machine.
    ///
    /// # Errors
    /// [`ConfigError`], with the line of the file and a remedy.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let in_file = |text: String| ConfigError {
            path: path.to_path_buf(),
            text,
        };
        let text = std::fs::read_to_string(path).map_err(|error| in_file(error.to_string()))?;
        let config = Config::parse(&text).map_err(in_file)?;
        Ok(config.of_this_machine())
    }

    /// Adds the subordinate users and the group members of this machine.
    pub fn of_this_machine(mut self) -> Config {
        self.subordinate = Subordinate::all();
        self.members = Member::of_groups_in(&self.rules);
        self
    }

    /// Returns the user to whom the processes of user `uid` are accounted, which is another user
    /// if `uid` is a subordinate user.
    pub(crate) fn accountable_user(&self, uid: u32) -> u32 {
        let mut ranges = self.subordinate.iter();
        let contains = |range: &Subordinate| {
            let offset = uid.checked_sub(range.first);
            offset.is_some_and(|offset| offset < range.count)
        };
        let range = ranges.find(|range| contains(range));
        range.map_or(uid, Subordinate::accountable_user)
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// The error as text, with its line and a remedy.
    pub fn parse(text: &str) -> Result<Config, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        file.check()
    }

    /// Returns remarks on valid settings that have no effect on this machine, as text.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.assign.iter().filter_map(Assign::misfit).collect();
        if self.cooperative && !self.assign.is_empty() {
            remarks
                .push("[[assign]]: no program is given a level with `cooperative = true`".into());
        }
        if let Err(error) = check_directories(&self.socket) {
            let socket = self.socket.display();
            remarks.push(format!(
                "socket = \"{socket}\": no daemon will start, {error}"
            ));
        }
        let trusting = |rule: &Assign| rule.names_programs_only();
        if let Some(rule) = self.assign.iter().find(|rule| trusting(rule)) {
            let comm = rule.comm.as_deref().unwrap_or_default();
            remarks.push(format!("[[assign]] comm = \"{comm}\" alone: every user that may start programs can give one that name; name a user, a unit or a cgroup beside it"));
        }
        remarks
    }

    /// Returns the running processes to which each `[[assign]]` rule assigns its level, in the
    /// order of the rules. Reads up to five files of `/proc` for each process of the machine.
    pub fn assigned_now(&self) -> Vec<Vec<Fitting>> {
        fitting(&self.assign)
    }

    /// Returns the part of the daemon's capacity that a user with these groups may use.
    pub(crate) fn trust_of(&self, user: u32, groups: &[u32]) -> Trust {
        let named = |rule: Option<&Rule>| rule.is_some_and(|rule| rule.ceiling.is_some());
        match user {
            0 => Trust::Root,
            _ if self.rules_of(user, groups).into_iter().all(named) => Trust::Named,
            _ => Trust::Anybody,
        }
    }

    /// Returns the level that a rule assigns to process `pid`. When the process registers, it may
    /// not exceed this level.
    pub(crate) fn assigned_level(&self, pid: i32) -> Option<u8> {
        if self.assign.is_empty() {
            return None;
        }
        let traits = Traits::read(pid)?;
        let rule = self.assign.iter().find(|rule| rule.fits(&traits));
        rule.map(|rule| rule.level)
    }

    /// Returns the rule for a process of `user` with these groups, and the rule for the process
    /// with the groups of its account added, so that a process gains nothing by leaving a group.
    fn rules_of(&self, user: u32, groups: &[u32]) -> [Option<&Rule>; 2] {
        let accountable = self.accountable_user(user);
        let is_user = |other: u32| other == user || other == accountable;
        let is_member = |group: u32| {
            let mut members = self.members.iter();
            members.any(|member| member.group == group && is_user(member.user))
        };
        [false, true].map(|by_account| {
            self.rules.iter().find(|rule| match rule.subject {
                Subject::User(user) => is_user(user),
                Subject::Group(group) => {
                    groups.contains(&group) || (by_account && is_member(group))
                }
            })
        })
    }

    /// Returns the most urgent level of a user with these groups, or `None` if the user may not
    /// register.
    pub fn ceiling_of(&self, user: u32, groups: &[u32]) -> Option<u8> {
        let [by_process, by_account] = self.rules_of(user, groups).map(|rule| match rule {
            Some(rule) => rule.ceiling,
            None => Some(self.ceiling),
        });
        Some(by_process?.max(by_account?))
    }
}

/// Error of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.text.trim_end())
    }
}

impl Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn a_level_that_does_not_exist_is_reported_with_its_line() {
        for (text, line) in [
            ("ceiling = 64", "line 1"),
            ("bystander_level = -1", "line 1"),
            ("[[rule]]\nuser = 7\nceiling = 99", "line 3"),
            ("[[assign]]\ncomm = \"x\"\nlevel = 999", "line 3"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(line), "{error}");
            assert!(error.contains("give 0 to 63"), "{error}");
        }
    }

    #[test]
    fn a_rule_is_shown_with_the_name_of_its_user() {
        let shown = |user: &str| {
            let text = format!("[[assign]]\nuser = {user}\nlevel = 3");
            Config::parse(&text).unwrap().assign[0].to_string()
        };
        assert_eq!(shown("0"), "user = \"root\", level = 3");
        let unnamed = u32::MAX - 7;
        assert!(shown(&unnamed.to_string()).contains(&unnamed.to_string()));
    }

    #[test]
    fn the_owner_is_accountable_for_subordinate_users() {
        let mut config = Config::parse(
            "ceiling = 32\n[[rule]]\nuser = 100033\nceiling = 4\n[[rule]]\nuser = 7\ndeny = true\n",
        )
        .unwrap();
        let lines = "7:100000:65536\nroot:1000000:65536\nnobody knows\n9:4294967295:9\n";
        config.subordinate = lines.lines().filter_map(Subordinate::parse).collect();
        assert_eq!(config.subordinate.len(), 3);
        for (uid, user) in [
            (7, 7),
            (99_999, 99_999),
            (100_000, 7),
            (165_535, 7),
            (165_536, 165_536),
            (1_000_001, 1_000_000),
            (u32::MAX, 9),
        ] {
            assert_eq!(config.accountable_user(uid), user, "{uid}");
        }
        // A rule may name a subordinate user, or its owner.
        assert_eq!(config.ceiling_of(100_033, &[]), Some(4));
        assert_eq!(config.ceiling_of(100_034, &[]), None);
        assert_eq!(config.trust_of(1_000_000, &[]), Trust::Anybody);
    }

    #[test]
    fn the_first_rule_that_matches_counts() {
        let config = Config::parse(
            "ceiling = 32\n\
             [[rule]]\nuser = \"7\"\ndeny = true\n\
             [[rule]]\ngroup = 100\nceiling = 8\n\
             [[rule]]\nuser = \"root\"\nceiling = 0\n",
        )
        .unwrap();
        assert_eq!(config.ceiling_of(7, &[100]), None);
        assert_eq!(config.ceiling_of(8, &[3, 100]), Some(8));
        assert_eq!(config.ceiling_of(0, &[0]), Some(0));
        assert_eq!(config.ceiling_of(9, &[9]), Some(32));
    }

    #[test]
    fn a_user_that_leaves_a_group_gains_no_right() {
        let mut config = Config::parse(
            "ceiling = 32\n\
             [[rule]]\ngroup = 100\ndeny = true\n\
             [[rule]]\ngroup = 101\nceiling = 60\n\
             [[rule]]\ngroup = 102\nceiling = 4\n",
        )
        .unwrap();
        let members = [(7, 100), (8, 101), (9, 102), (10, 100)];
        config.members = members.map(|(user, group)| Member { user, group }).to_vec();
        config.subordinate = vec![Subordinate {
            first: 1000,
            count: 10,
            owner: 7,
        }];
        for (user, groups, ceiling) in [
            (6, &[][..], Some(32)),
            (7, &[], None),
            // A later rule would admit the user.
            (7, &[102], None),
            (1003, &[], None),
            (8, &[], Some(60)),
            (8, &[102], Some(60)),
            // A process that has left a group does not have the ceiling of the group.
            (9, &[], Some(32)),
            (9, &[102], Some(4)),
        ] {
            assert_eq!(
                config.ceiling_of(user, groups),
                ceiling,
                "{user} {groups:?}"
            );
        }
        assert_eq!(config.trust_of(9, &[]), Trust::Anybody);
        assert_eq!(config.trust_of(9, &[102]), Trust::Named);
        assert_eq!(config.trust_of(7, &[102]), Trust::Anybody);
    }

    #[test]
    fn a_rule_may_leave_children_ordinary() {
        for (text, leaves) in [
            ("", false),
            ("children = true", false),
            ("children = false", true),
        ] {
            let text = format!("[[assign]]\ncomm = \"x\"\nlevel = 3\n{text}\n");
            let config = Config::parse(&text).unwrap();
            assert_eq!(config.assign[0].leaves_children, leaves, "{text}");
        }
    }

    #[test]
    fn errors_name_the_line_or_the_remedy() {
        for (text, expected) in [
            ("soket = \"x\"", "unknown field `soket`"),
            ("\n\nceiling = \"high\"", "line 3"),
            ("ceiling = 64", "0 to 63"),
            ("socket = \"\"", "give the path"),
            ("[[assign]]\nlevel = 3\ncomm = \"\"", "is empty"),
            ("mode = \"999\"", "octal"),
            ("bystander_percent = 0", "1 to 50"),
            ("[[rule]]\nceiling = 3", "either `user` or `group`"),
            ("[[rule]]\nuser = 3", "either `ceiling"),
            ("group = \"no such group\"", "create it"),
            ("[limits]\nthreads = 0", "1 to 512"),
            ("[limits]\nper_user = 0", "1 to 4096"),
            ("[limits]\nconnections_per_user = 0", "1 to"),
            ("quantum_us = 3", "200 to"),
            ("[[assign]]\nlevel = 3", "`cgroup`, `unit`"),
            ("[[assign]]\nlevel = 3\nunit = \"redis\"", "redis.service"),
            ("[[assign]]\nlevel = 3\ncgroup = \"a/b\"", "\"/a/b\""),
            (
                "[[assign]]\nlevel = 3\ncomm = \"systemd-resolved\"",
                "15 bytes",
            ),
            ("[[assign]]\nlevel = 3\nlabel = \"x\"", "KEY=VALUE"),
            (
                "[[assign]]\ncomm = \"x\"\nlevel = 3\nshare = 4\nbudget = 3",
                "at most one",
            ),
            (
                "[[assign]]\ncomm = \"x\"\nlevel = 3\nruntime_us = 900\nperiod_us = 1000",
                "100 to 800",
            ),
            ("[[assign]]\ncomm = \"x\"\nlevel = 64", "0 to 63"),
            (
                "[[assign]]\ncomm = \"x\"\nlevel = 3\nbudget = 300",
                "for several CPUs give `share`",
            ),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
