//! CPU quotas of cgroups: no thread is elevated beyond them.
//!
//! The kernel holds ordinary threads to the quota of their cgroup, and real-time ones to nothing of the kind. So the schedulers charge
//! what the registered threads of a cgroup with a quota use, elevated or not, to an *account* that is filled at the rate of the quota,
//! as far as [`PERIOD`] of it; while it is overdrawn they are not elevated, and the kernel holds them. Quotas of all ancestors count.
//!
//! Both versions of cgroups are understood. Looking a process up costs some 30 µs; it is done again each second, because processes
//! are moved and quotas are changed. A process of which that cannot be read, because it holds a lease on its files, is not elevated.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use upshift_elevate::sys::read_at_once;

/// The CPUs that the cgroups of process `pid` leave it; `None`: nothing limits it.
pub fn cpu_quota(pid: i32) -> Option<f64> {
    let groups = read_at_once(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = read_at_once("/proc/self/mountinfo").ok()?;
    let all = directories(&groups, &mounts);
    let limits = all.iter().filter_map(|directory| limit_of(directory).ok()?);
    limits.min_by(f64::total_cmp)
}

/// How much of the future an account holds at most: the kernel's own period.
const PERIOD: Duration = Duration::from_millis(100);

/// The quota of one cgroup, and what is left of it.
#[derive(Debug)]
pub(crate) struct Account {
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// CPUs, or parts of one.
    rate: f64,
    /// Seconds of CPU.
    balance: f64,
    filled: Instant,
}

impl Account {
    fn new(rate: f64, now: Instant) -> Account {
        let state = State {
            rate,
            balance: rate * PERIOD.as_secs_f64(),
            filled: now,
        };
        Account {
            state: Mutex::new(state),
        }
    }

    fn set_rate(&self, rate: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rate = rate;
    }

    /// Charges `used`; whether anything is left.
    pub(crate) fn charge(&self, used: Duration, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(state.filled).as_secs_f64();
        state.filled = state.filled.max(now);
        let full = state.rate * PERIOD.as_secs_f64();
        state.balance = (state.balance + elapsed * state.rate).min(full) - used.as_secs_f64();
        state.balance > 0.0
    }
}

/// The accounts of all cgroups with a quota and a registered or assigned process.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    accounts: Mutex<HashMap<PathBuf, Arc<Account>>>,
}

impl Quotas {
    /// The accounts that the threads of process `pid` are charged to; none if nothing limits it, or it has ended.
    ///
    /// # Errors
    /// What limits it cannot be read.
    pub(crate) fn of(&self, pid: i32, now: Instant) -> io::Result<Vec<Arc<Account>>> {
        let groups = read_if_there(format!("/proc/{pid}/cgroup"))?.unwrap_or_default();
        let mounts = read_at_once("/proc/self/mountinfo")?;
        let mut limits = Vec::new();
        for directory in directories(&groups, &mounts) {
            limits.extend(limit_of(&directory)?.map(|rate| (directory, rate)));
        }
        if limits.is_empty() {
            return Ok(Vec::new());
        }
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|_, account| Arc::strong_count(account) > 1);
        let found = limits.into_iter().map(|(directory, rate)| {
            let account = accounts
                .entry(directory)
                .or_insert_with(|| Arc::new(Account::new(rate, now)));
            account.set_rate(rate);
            Arc::clone(account)
        });
        Ok(found.collect())
    }
}

/// `None`: there is no such file, or the process has ended.
fn read_if_there(path: impl AsRef<Path>) -> io::Result<Option<String>> {
    match read_at_once(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(None),
    }
}

/// The directories of a process's cgroups for the CPU, and of their ancestors.
fn directories(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let of_cpu = controllers.split(',').any(|it| it == "cpu");
        if !of_cpu && !controllers.is_empty() {
            continue;
        }
        let Some(mount) = mount_of(mounts, of_cpu) else {
            continue;
        };
        let mut directory = mount.join(path.trim_start_matches('/'));
        while directory.starts_with(&mount) {
            all.push(directory.clone());
            if !directory.pop() {
                break;
            }
        }
    }
    all
}

/// Where cgroups are mounted: the first version with its CPU controller, or the second.
fn mount_of(mounts: &str, first_version: bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let found = match first_version {
            true => kind == "cgroup" && options.split(',').any(|it| it == "cpu"),
            false => kind == "cgroup2",
        };
        let path = before.split(' ').nth(4)?;
        found.then(|| PathBuf::from(path))
    })
}

/// The quota of one cgroup, in CPUs.
fn limit_of(directory: &Path) -> io::Result<Option<f64>> {
    let read = |name: &str| read_if_there(directory.join(name));
    let texts = match read("cpu.max")? {
        Some(text) => text
            .split_once(' ')
            .map(|(quota, period)| (quota.to_string(), period.to_string())),
        None => read("cpu.cfs_quota_us")?.zip(read("cpu.cfs_period_us")?),
    };
    // "max" or -1: none.
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|&it| it > 0.0);
    let quota = |(quota, period): (String, String)| Some(number(&quota)? / number(&period)?);
    Ok(texts.and_then(quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_gives_its_rate_and_no_more() {
        let start = Instant::now();
        let account = Account::new(0.2, start);
        let ms = Duration::from_millis;
        assert!(account.charge(ms(19), start));
        assert!(!account.charge(ms(36), start));
        assert!(!account.charge(ms(0), start + ms(170)));
        assert!(account.charge(ms(0), start + ms(180)));
        // However long it was not used.
        assert!(!account.charge(ms(21), start + ms(9000)));
    }

    #[test]
    fn cgroups_of_both_versions_are_found_with_their_ancestors() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      26 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let paths = |groups| {
            let found = directories(groups, mounts);
            found
                .iter()
                .map(|it| it.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            paths("4:cpuacct,cpu:/a/b\n3:memory:/x\n"),
            [
                "/sys/fs/cgroup/cpu/a/b",
                "/sys/fs/cgroup/cpu/a",
                "/sys/fs/cgroup/cpu"
            ]
        );
        assert_eq!(
            paths("0::/c\n"),
            ["/sys/fs/cgroup/unified/c", "/sys/fs/cgroup/unified"]
        );
        assert!(paths("nonsense").is_empty());
    }
}
