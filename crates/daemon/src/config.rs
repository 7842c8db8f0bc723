//! The configuration: a TOML file, every field optional.
//!
//! Values are checked when the file is read; what the rest of the daemon gets is in range. Users and groups are numbers or
//! names of `/etc/passwd` and `/etc/group`.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use upshift_board::LEVELS;

use crate::admission::Standing;
use crate::assign::{Assign, FileAssign, Traits};

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
}

/// A range of users that belong to another: an ordinary user may be any of its own in a user namespace (`newuidmap`), so limits, contests and
/// bars of one would be those of 65,536.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subordinate {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Whose they are.
    pub owner: u32,
}

impl Subordinate {
    /// Those of this machine.
    pub fn all() -> Vec<Subordinate> {
        let text = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
        text.lines().filter_map(Subordinate::parse).collect()
    }

    /// `USER:FIRST:COUNT`
    fn parse(line: &str) -> Option<Subordinate> {
        let mut fields = line.trim().split(':');
        let owner = user(fields.next()?).ok()?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Subordinate {
            first,
            count,
            owner,
        })
    }

    /// Who answers for them. Root gives its own to containers, for whose deeds it does not stand: the range is one user.
    fn person(&self) -> u32 {
        match self.owner {
            0 => self.first,
            owner => owner,
        }
    }
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

/// The number of a user, given by number or name.
///
/// # Errors
/// There is no such user; for people.
pub fn user(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => Name::Text(text.to_string()).find("/etc/passwd", "user"),
    }
}

/// The number of a group, given by number or name.
///
/// # Errors
/// There is no such group; for people.
pub fn group(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => Name::Text(text.to_string()).find("/etc/group", "group"),
    }
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

    /// With the users that belong to others here.
    pub fn of_this_machine(mut self) -> Config {
        self.subordinate = Subordinate::all();
        self
    }

    /// Who answers for what user `uid` does.
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
        let trusting = |it: &Assign| it.names_programs_only();
        if let Some(rule) = self.assign.iter().find(|it| trusting(it)) {
            let comm = rule.comm.as_deref().unwrap_or_default();
            remarks.push(format!("[[assign]] comm = \"{comm}\" alone: whoever may start programs can give one that name; name a user, a unit or a cgroup beside it"));
        }
        remarks
    }

    /// How much of the daemon's room is kept free of others for a user with these groups.
    pub(crate) fn standing_of(&self, user: u32, groups: &[u32]) -> Standing {
        match self.rule_of(user, groups) {
            _ if user == 0 => Standing::Root,
            Some(Rule {
                ceiling: Some(_), ..
            }) => Standing::Named,
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

    fn rule_of(&self, user: u32, groups: &[u32]) -> Option<&Rule> {
        let person = self.person(user);
        self.rules.iter().find(|rule| match rule.subject {
            Subject::User(rule) => rule == user || rule == person,
            Subject::Group(rule) => groups.contains(&rule),
        })
    }

    /// The most urgent level of a user with these groups; `None`: may not register.
    pub fn ceiling_of(&self, user: u32, groups: &[u32]) -> Option<u8> {
        match self.rule_of(user, groups) {
            Some(rule) => rule.ceiling,
            None => Some(self.ceiling),
        }
    }
}

/// What a file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    socket: Option<PathBuf>,
    mode: Option<String>,
    group: Option<Name>,
    quantum_us: Option<u64>,
    bystander_percent: Option<u32>,
    bystander_level: Option<u8>,
    cooperative: bool,
    metrics: Option<String>,
    ceiling: Option<u8>,
    limits: Limits,
    rule: Vec<FileRule>,
    assign: Vec<FileAssign>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    user: Option<Name>,
    group: Option<Name>,
    ceiling: Option<u8>,
    #[serde(default)]
    deny: bool,
}

/// A user or group: a number, or a name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Name {
    Number(u32),
    Text(String),
}

impl Name {
    fn find(&self, database: &str, what: &str) -> Result<u32, String> {
        let name = match self {
            Name::Number(number) => return Ok(*number),
            Name::Text(name) => name,
        };
        let text = std::fs::read_to_string(database)
            .map_err(|error| format!("{database}: {error}: give the {what} as a number"))?;
        text.lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.first() == Some(&name.as_str()))
            .and_then(|fields| fields.get(2)?.parse().ok())
            .ok_or_else(|| {
                format!("{what} `{name}` is not in {database}: create it, or give a number")
            })
    }
}

impl File {
    fn check(self) -> Result<Config, String> {
        let mut config = Config::default();
        if let Some(socket) = self.socket {
            config.socket = socket;
        }
        if let Some(mode) = self.mode {
            config.mode = u32::from_str_radix(&mode, 8)
                .ok()
                .filter(|&mode| mode <= 0o777)
                .ok_or_else(|| {
                    format!("mode = \"{mode}\": give octal permission bits, e.g. \"0660\"")
                })?;
        }
        if let Some(group) = &self.group {
            config.group = Some(group.find("/etc/group", "group")?);
        }
        if let Some(quantum) = self.quantum_us {
            config.quantum =
                within("quantum_us", quantum, 200, 1_000_000).map(Duration::from_micros)?;
        }
        if let Some(percent) = self.bystander_percent {
            config.bystander_percent = within("bystander_percent", percent, 1, 50)?;
        }
        config.bystander_level = self
            .bystander_level
            .map(level("bystander_level"))
            .transpose()?;
        config.cooperative = self.cooperative;
        if let Some(place) = &self.metrics
            && !place.starts_with('/')
            && place.parse::<std::net::SocketAddr>().is_err()
        {
            return Err(format!(
                "metrics = \"{place}\": give the path of a Unix socket, or an address and port, e.g. \"127.0.0.1:9469\""
            ));
        }
        config.metrics = self.metrics;
        if let Some(ceiling) = self.ceiling {
            config.ceiling = level("ceiling")(ceiling)?;
        }
        config.limits = self.limits;
        within("limits.registrations", config.limits.registrations, 1, 4096)?;
        within("limits.per_user", config.limits.per_user, 1, 4096)?;
        let limits = &config.limits;
        within("limits.connections", limits.connections, 1, 16_384)?;
        within(
            "limits.connections_per_user",
            limits.connections_per_user,
            1,
            16_384,
        )?;
        within("limits.threads", config.limits.threads, 1, 512)?;
        within("limits.threads_per_user", limits.threads_per_user, 1, 8192)?;
        within(
            "limits.registrations_per_second",
            config.limits.registrations_per_second,
            1,
            1_000_000,
        )?;
        within(
            "limits.rings_per_second",
            config.limits.rings_per_second,
            100,
            1_000_000,
        )?;
        within(
            "limits.dispatcher_percent",
            config.limits.dispatcher_percent,
            1,
            90,
        )?;
        config.rules = self
            .rule
            .iter()
            .map(FileRule::check)
            .collect::<Result<_, _>>()?;
        config.assign = self
            .assign
            .into_iter()
            .map(check_assign)
            .collect::<Result<_, _>>()?;
        Ok(config)
    }
}

impl FileRule {
    fn check(&self) -> Result<Rule, String> {
        let subject = match (&self.user, &self.group) {
            (Some(user), None) => Subject::User(user.find("/etc/passwd", "user")?),
            (None, Some(group)) => Subject::Group(group.find("/etc/group", "group")?),
            _ => return Err("[[rule]]: give either `user` or `group`".to_string()),
        };
        let ceiling = match (self.ceiling, self.deny) {
            (Some(ceiling), false) => Some(level("rule.ceiling")(ceiling)?),
            (None, true) => None,
            _ => return Err("[[rule]]: give either `ceiling = 0…63` or `deny = true`".to_string()),
        };
        Ok(Rule { subject, ceiling })
    }
}

fn check_assign(said: FileAssign) -> Result<Assign, String> {
    let bound = said.bound()?;
    let FileAssign {
        cgroup,
        unit,
        container,
        label,
        user,
        comm,
        level: asked,
        ..
    } = said;
    let user = user
        .map(|user| user.find("/etc/passwd", "user"))
        .transpose()?;
    let split = |label: String| match label.split_once('=') {
        Some((key, value)) => Ok((key.to_string(), value.to_string())),
        None => Err(format!("label = \"{label}\": give \"KEY=VALUE\"")),
    };
    let assign = Assign {
        cgroup,
        unit,
        container,
        label: label.map(split).transpose()?,
        user,
        comm,
        level: level("assign.level")(asked)?,
        bound,
    };
    match assign.check() {
        Ok(()) => Ok(assign),
        Err(text) => Err(format!("[[assign]]: {text}")),
    }
}

fn level(what: &'static str) -> impl Fn(u8) -> Result<u8, String> {
    move |level| within(what, level, 0, LEVELS - 1)
}

pub(crate) fn within<T: PartialOrd + fmt::Display + Copy>(
    what: &str,
    value: T,
    low: T,
    high: T,
) -> Result<T, String> {
    if value >= low && value <= high {
        Ok(value)
    } else {
        Err(format!("{what} = {value}: give {low} to {high}"))
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
             [[rule]]\nuser = 7\ndeny = true\n\
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
    fn errors_name_the_line_or_the_remedy() {
        for (text, says) in [
            ("soket = \"x\"", "unknown field `soket`"),
            ("\n\nceiling = \"high\"", "line 3"),
            ("ceiling = 64", "0 to 63"),
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
                "[[assign]]\ncomm = \"x\"\nlevel = 3\nruntime_us = 900\ndeadline_us = 1000",
                "100 to 800",
            ),
            ("[[assign]]\ncomm = \"x\"\nlevel = 64", "0 to 63"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
