//! Parses the configuration file, checks its values, and converts them to a [`Config`].

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use upshift_board::LEVELS;

use super::names::Name;
use super::{Config, Limits, Rule, Subject};
use crate::rules::rule::{Assign, FileAssign};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    socket: Option<PathBuf>,
    mode: Option<String>,
    group: Option<Name>,
    quantum_us: Option<u64>,
    bystander_percent: Option<u32>,
    #[serde(deserialize_with = "some_level")]
    bystander_level: Option<u8>,
    cooperative: bool,
    metrics: Option<String>,
    #[serde(deserialize_with = "some_level")]
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
    #[serde(default, deserialize_with = "some_level")]
    ceiling: Option<u8>,
    #[serde(default)]
    deny: bool,
}

impl File {
    pub(super) fn check(self) -> Result<Config, String> {
        let mut config = Config::default();
        if let Some(socket) = self.socket {
            if socket.as_os_str().is_empty() {
                return Err("socket = \"\": give the path of a Unix socket".to_string());
            }
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
        config.bystander_level = self.bystander_level;
        config.cooperative = self.cooperative;
        if let Some(address) = &self.metrics
            && !address.starts_with('/')
            && address.parse::<std::net::SocketAddr>().is_err()
        {
            return Err(format!(
                "metrics = \"{address}\": give the path of a Unix socket, or an address and port, e.g. \"127.0.0.1:9469\""
            ));
        }
        config.metrics = self.metrics;
        if let Some(ceiling) = self.ceiling {
            config.ceiling = ceiling;
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
            (Some(ceiling), false) => Some(ceiling),
            (None, true) => None,
            _ => return Err("[[rule]]: give either `ceiling = 0…63` or `deny = true`".to_string()),
        };
        Ok(Rule { subject, ceiling })
    }
}

fn check_assign(rule: FileAssign) -> Result<Assign, String> {
    let bound = rule.bound()?;
    let FileAssign {
        cgroup,
        unit,
        container,
        label,
        user,
        comm,
        level,
        children,
        ..
    } = rule;
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
        level,
        leaves_children: children == Some(false),
        bound,
    };
    match assign.check() {
        Ok(()) => Ok(assign),
        Err(text) => Err(format!("[[assign]]: {text}")),
    }
}

/// Deserializes a level here, so that an error contains the line of the file.
pub(crate) fn level<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    let level = i64::deserialize(from)?;
    let levels = 0..LEVELS;
    let number = u8::try_from(level)
        .ok()
        .filter(|level| levels.contains(level));
    number.ok_or_else(|| D::Error::custom(format!("level {level}: give 0 to {}", LEVELS - 1)))
}

fn some_level<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    level(from).map(Some)
}

/// Returns `value` if it is within `low` to `high`; otherwise an error that names the setting.
pub(crate) fn within<T: PartialOrd + fmt::Display + Copy>(
    setting: &str,
    value: T,
    low: T,
    high: T,
) -> Result<T, String> {
    if value >= low && value <= high {
        Ok(value)
    } else {
        Err(format!("{setting} = {value}: give {low} to {high}"))
    }
}
