//! The configuration: a TOML file, every field optional.
//!
//! Values are checked when the file is read; what the rest of the daemon gets is in range. Users and groups are numbers or
//! names of `/etc/passwd` and `/etc/group`.

mod file;
mod members;
mod names;
mod subordinate;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::admission::Standing;
use crate::rules::rule::{Assign, Fitting, Traits, fitting};
use file::File;
pub(crate) use file::{level, within};
pub use members::Member;
pub(crate) use names::{Name, user_name};
pub use names::{group, user};
pub use subordinate::Subordinate;
use upshift_units::socket_file::check_directories;

/// What the daemon does, for which users, and within which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to listen.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Group of the socket; `None`: the daemon's.
    pub group: Option<u32>,
    /// How long one of several equals runs before the next.
    pub quantum: Duration,
    /// Share of each CPU that stays for programs that are not registered, percent.
    pub bystander_percent: u32,
    /// The level programs that are not registered count as; `None`: registered ones are elevated only against each other.
    pub bystander_level: Option<u8>,
    /// Whether to build only the global page and elevate nothing, even with rights.
    pub cooperative: bool,
    /// Where Prometheus may ask: a path for a Unix socket, or an address and port; `None`: nowhere.
    pub metrics: Option<String>,
    /// Bounds.
    pub limits: Limits,
    /// The most urgent level of users without a rule.
    pub ceiling: u8,
    /// Ceilings by user and group; the first that matches counts.
    pub rules: Vec<Rule>,
    /// Levels of programs that know nothing of the daemon; the first that fits counts.
    pub assign: Vec<Assign>,
    /// Users that belong to others: `/etc/subuid`, not the file.
    pub subordinate: Vec<Subordinate>,
    /// Members of the groups of rules by their accounts: `/etc/passwd` and `/etc/group`, not the file.
    pub members: Vec<Member>,
}

/// Bounds on what processes can take of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Registrations of all users together.
    pub registrations: usize,
    /// Registrations of one user, and its vCPUs on one CPU.
    pub per_user: usize,
    /// Open connections of all users together.
    pub connections: usize,
    /// Open connections of one user, registered or not.
    pub connections_per_user: usize,
    /// Threads of one registration.
    pub threads: usize,
    /// Threads of all registrations of one user.
    pub threads_per_user: usize,
    /// New registrations of one user per second, after a burst of as many.
    pub registrations_per_second: u32,
    /// Rings of one doorbell per second, after a burst of a fiftieth.
    pub rings_per_second: u32,
    /// Percent of a CPU that all dispatcher threads on it may use together.
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

/// A ceiling for some users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The users it is for.
    pub subject: Subject,
    /// Their most urgent level; `None`: they may not register.
    pub ceiling: Option<u8>,
}

/// The users a rule is for.
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

/// The system's socket for root, one in `XDG_RUNTIME_DIR` for others.
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
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], with the place in the file and what to write there.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let at = |text: String| ConfigError {
            path: path.to_path_buf(),
            text,
        };
        let text = std::fs::read_to_string(path).map_err(|error| at(error.to_string()))?;
        let config = Config::parse(&text).map_err(at)?;
        Ok(config.of_this_machine())
    }

    /// With the users that belong to others here, and the members of groups.
    pub fn of_this_machine(mut self) -> Config {
        self.subordinate = Subordinate::all();
        self.members = Member::of_groups_in(&self.rules);
        self
    }

    /// The user that answers for what user `uid` does.
    pub(crate) fn person(&self, uid: u32) -> u32 {
        let mut all = self.subordinate.iter();
        let found = all.find(|it| uid.checked_sub(it.first).is_some_and(|at| at < it.count));
        found.map_or(uid, Subordinate::person)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Where and what is wrong.
    pub fn parse(text: &str) -> Result<Config, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        file.check()
    }

    /// What is right in itself and has no effect on this machine, as it is now; for people.
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
        let trusting = |it: &Assign| it.names_programs_only();
        if let Some(rule) = self.assign.iter().find(|it| trusting(it)) {
            let comm = rule.comm.as_deref().unwrap_or_default();
            remarks.push(format!("[[assign]] comm = \"{comm}\" alone: every user that may start programs can give one that name; name a user, a unit or a cgroup beside it"));
        }
        remarks
    }

    /// Returns the running processes that each `[[assign]]` rule gives its level, in the order of
    /// the rules. Reads three files of `/proc` for each process there is.
    pub fn assigned_now(&self) -> Vec<Vec<Fitting>> {
        fitting(&self.assign)
    }

    /// How much of the daemon's room is kept free of others for a user with these groups.
    pub(crate) fn standing_of(&self, user: u32, groups: &[u32]) -> Standing {
        let named = |rule: Option<&Rule>| rule.is_some_and(|it| it.ceiling.is_some());
        match user {
            0 => Standing::Root,
            _ if self.rules_of(user, groups).into_iter().all(named) => Standing::Named,
            _ => Standing::Anybody,
        }
    }

    /// The level that a rule assigns to process `pid`, which no registration may exceed.
    pub(crate) fn assigned_level(&self, pid: i32) -> Option<u8> {
        if self.assign.is_empty() {
            return None;
        }
        let traits = Traits::of(pid)?;
        let rule = self.assign.iter().find(|rule| rule.fits(&traits));
        rule.map(|rule| rule.level)
    }

    /// The rule for a process of `user` with these groups, and the one that it would be if the process were in the groups of its account, too:
    /// what a process gains by leaving a group does not count.
    fn rules_of(&self, user: u32, groups: &[u32]) -> [Option<&Rule>; 2] {
        let person = self.person(user);
        let is_it = |it: u32| it == user || it == person;
        let is_member = |group: u32| {
            let mut members = self.members.iter();
            members.any(|it| it.group == group && is_it(it.user))
        };
        [false, true].map(|by_account| {
            self.rules.iter().find(|rule| match rule.subject {
                Subject::User(user) => is_it(user),
                Subject::Group(group) => {
                    groups.contains(&group) || (by_account && is_member(group))
                }
            })
        })
    }

    /// The most urgent level of a user with these groups; `None`: may not register.
    pub fn ceiling_of(&self, user: u32, groups: &[u32]) -> Option<u8> {
        let [own, by_account] = self.rules_of(user, groups).map(|rule| match rule {
            Some(rule) => rule.ceiling,
            None => Some(self.ceiling),
        });
        Some(own?.max(by_account?))
    }
}

/// A configuration file that cannot be used.
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
    fn subordinate_users_are_their_owner() {
        let mut config = Config::parse(
            "ceiling = 32\n[[rule]]\nuser = 100033\nceiling = 4\n[[rule]]\nuser = 7\ndeny = true\n",
        )
        .unwrap();
        let lines = "7:100000:65536\nroot:1000000:65536\nnobody knows\n9:4294967295:9\n";
        config.subordinate = lines.lines().filter_map(Subordinate::parse).collect();
        assert_eq!(config.subordinate.len(), 3);
        for (uid, person) in [
            (7, 7),
            (99_999, 99_999),
            (100_000, 7),
            (165_535, 7),
            (165_536, 165_536),
            (1_000_001, 1_000_000),
            (u32::MAX, 9),
        ] {
            assert_eq!(config.person(uid), person, "{uid}");
        }
        // A rule for one of them, or for their owner.
        assert_eq!(config.ceiling_of(100_033, &[]), Some(4));
        assert_eq!(config.ceiling_of(100_034, &[]), None);
        assert_eq!(config.standing_of(1_000_000, &[]), Standing::Anybody);
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
    fn a_user_that_leaves_a_group_gains_nothing_by_it() {
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
            // Though a later rule would let it in.
            (7, &[102], None),
            (1003, &[], None),
            (8, &[], Some(60)),
            (8, &[102], Some(60)),
            // A process that has left a group has not what the group has.
            (9, &[], Some(32)),
            (9, &[102], Some(4)),
        ] {
            assert_eq!(
                config.ceiling_of(user, groups),
                ceiling,
                "{user} {groups:?}"
            );
        }
        assert_eq!(config.standing_of(9, &[]), Standing::Anybody);
        assert_eq!(config.standing_of(9, &[102]), Standing::Named);
        assert_eq!(config.standing_of(7, &[102]), Standing::Anybody);
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
        for (text, says) in [
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
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
