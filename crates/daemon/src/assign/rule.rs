//! [`Assign`]: which programs get which level without knowing of it.
//!
//! All that a rule names has to fit. A program chooses its own name, so a rule by `comm` alone lets whoever may start programs choose
//! its level: name a user, a unit or a cgroup beside it where users are not trusted.

use serde::Deserialize;

/// One `[[assign]]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assign {
    /// The path of its cgroup, `*` for any characters.
    pub cgroup: Option<String>,
    /// Its unit of systemd: a directory of that path.
    pub unit: Option<String>,
    /// Its user.
    pub user: Option<u32>,
    /// The name of its program, as `ps -o comm` shows it, `*` for any characters.
    pub comm: Option<String>,
    /// Its level, 0 to 63.
    pub level: u8,
    /// Percent of a CPU that it may use before others, of all its threads together.
    pub budget: u32,
}

/// What the file says of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileAssign {
    pub(crate) cgroup: Option<String>,
    pub(crate) unit: Option<String>,
    pub(crate) user: Option<crate::config::Name>,
    pub(crate) comm: Option<String>,
    pub(crate) level: u8,
    #[serde(default = "default_budget")]
    pub(crate) budget: u32,
}

fn default_budget() -> u32 {
    80
}

/// What rules are held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Traits {
    pub(crate) user: u32,
    pub(crate) comm: String,
    /// Of all hierarchies.
    pub(crate) cgroups: Vec<String>,
}

impl Traits {
    /// Of process `pid`, from three files of `/proc`, some 40 µs; `None`: it has ended, or is a thread of the kernel.
    pub(crate) fn of(pid: i32) -> Option<Traits> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let status = read("status")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // Threads of the kernel have no memory.
        field("VmSize:")?;
        let users: Vec<&str> = field("Uid:")?.split_ascii_whitespace().collect();
        let cgroups = read("cgroup")?;
        let paths = cgroups
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2));
        Some(Traits {
            user: users.get(1)?.parse().ok()?,
            comm: read("comm")?.trim_end().to_string(),
            cgroups: paths.map(str::to_string).collect(),
        })
    }
}

impl Assign {
    /// The processes that fit it now, ascending. Reads three files of `/proc` for each process there is.
    pub fn processes(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let fits = |pid: &i32| Traits::of(*pid).is_some_and(|traits| self.fits(&traits));
        let mut found: Vec<i32> = pids.filter(fits).collect();
        found.sort_unstable();
        found
    }

    pub(crate) fn fits(&self, traits: &Traits) -> bool {
        let any = |test: &dyn Fn(&str) -> bool| traits.cgroups.iter().any(|path| test(path));
        let of_unit = |unit: &str| any(&|path| path.split('/').any(|part| part == unit));
        self.user.is_none_or(|user| user == traits.user)
            && self
                .comm
                .as_deref()
                .is_none_or(|glob| matches(glob, &traits.comm))
            && self.unit.as_deref().is_none_or(of_unit)
            && self
                .cgroup
                .as_deref()
                .is_none_or(|glob| any(&|path| matches(glob, path)))
    }
}

/// Whether `text` is what `glob` describes: `*` stands for any characters, also none. O(length of both), whatever stands there.
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
            Some(at) => rest = &rest[at + part.len()..],
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
        for (glob, text, fits) in [
            ("nginx", "nginx", true),
            ("nginx", "nginx2", false),
            ("ngin*", "nginx", true),
            ("*/web-*.service", "/system.slice/web-1.service", true),
            ("*/web-*.service", "/system.slice/web-1.service/x", false),
            ("/a/*/c", "/a/b/c", true),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(glob, text), fits, "{glob} {text}");
        }
    }

    #[test]
    fn all_that_a_rule_names_has_to_fit() {
        let traits = Traits {
            user: 33,
            comm: "nginx".into(),
            cgroups: vec!["/".into(), "/system.slice/nginx.service".into()],
        };
        let rule = |text: &str| {
            let config = crate::Config::parse(&format!("[[assign]]\nlevel = 3\n{text}")).unwrap();
            config.assign[0].fits(&traits)
        };
        assert!(rule("user = 33\ncomm = \"ng*\"\nunit = \"nginx.service\""));
        assert!(rule("cgroup = \"/system.slice/*\""));
        assert!(!rule("user = 34\ncomm = \"nginx\""));
        assert!(!rule("unit = \"nginx\""));
        assert!(Traits::of(std::process::id() as i32).is_some());
        assert!(Traits::of(2).is_none() || !std::path::Path::new("/proc/2/exe").exists());
    }
}
