//! Limits threads to the CPU quotas of their cgroups: no thread is elevated beyond the quota.
//!
//! The kernel limits ordinary threads to the quota of their cgroup, but not real-time threads. So
//! each cgroup with a quota has a token bucket, which is refilled at the rate of the quota and
//! holds the quota of one [`PERIOD`]. The schedulers charge it with the CPU time of the registered
//! threads of the cgroup, elevated or not. While the bucket is overdrawn, the threads are not
//! elevated, and the kernel limits them. The quotas of all ancestors also apply.
//!
//! Both versions of cgroups are supported. A separate thread looks up each process, and repeats
//! this every second, because processes move and quotas change. A process that holds a lease on its
//! files in `/proc`, so that its cgroup cannot be read, is not elevated.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use upshift_elevate::sys::read_at_once;

use upshift_core::TokenBucket;

use crate::bounds::{SECOND, bucket_per_second, nanos, timestamp_ns};
use crate::proc::cgroups::mount_of;

/// Returns the number of CPUs that the cgroups of process `pid` allow it, or `None` without a
/// limit.
pub fn cpu_quota(pid: i32) -> Option<f64> {
    let groups = read_at_once(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = read_at_once("/proc/self/mountinfo").ok()?;
    let directories = directories(&groups, &mounts);
    let limits = directories
        .iter()
        .filter_map(|directory| limit_of(directory).ok()?);
    limits.min_by(f64::total_cmp)
}

/// Time in which an empty bucket is filled, which is the kernel's own period.
const PERIOD: Duration = Duration::from_millis(100);

/// Time between two lookups of a process.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Quota {
    /// CPU time per second, ns. It is outside of the lock, so that only the daemon's urgent threads
    /// take the lock.
    rate: AtomicU64,
    bucket: Mutex<TokenBucket>,
}

impl Quota {
    fn new(cpus: f64, now: Instant) -> Quota {
        let rate = rate_of(cpus);
        Quota {
            rate: AtomicU64::new(rate),
            bucket: Mutex::new(bucket_per_second(rate, burst_of(rate), now)),
        }
    }

    fn set(&self, cpus: f64) {
        self.rate.store(rate_of(cpus), Relaxed);
    }

    /// Charges CPU time. Returns whether any time remains.
    pub(crate) fn charge(&self, used: Duration, now: Instant) -> bool {
        let rate = self.rate.load(Relaxed);
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.set_rate((rate, SECOND), timestamp_ns(now));
        bucket.set_capacity(burst_of(rate));
        bucket.charge(nanos(used), timestamp_ns(now))
    }
}

fn rate_of(cpus: f64) -> u64 {
    (cpus * 1e9) as u64
}

/// Returns the amount that a bucket with `rate` ns per second gains in one [`PERIOD`].
fn burst_of(rate: u64) -> u64 {
    rate / (Duration::from_secs(1).as_millis() / PERIOD.as_millis()) as u64
}

type Limits = Vec<Arc<Quota>>;

/// The quotas of a process. Until they are known, and while they cannot be read, the process is not
/// elevated.
#[derive(Debug)]
pub(crate) struct QuotaUsage {
    lookup: Arc<Lookup>,
    limits: Option<Limits>,
    is_overdrawn: bool,
    /// Set until the first lookup has a result.
    is_pending: bool,
}

/// The result of a lookup. Elevated threads only try its lock.
#[derive(Debug)]
struct Lookup {
    pid: i32,
    result: Mutex<Option<io::Result<Limits>>>,
}

impl QuotaUsage {
    /// Charges the CPU time that the process has used since the last call, elevated or not, if a
    /// quota limits the process.
    pub(crate) fn charge(&mut self, used: impl FnOnce() -> Duration, now: Instant) {
        if let Ok(mut result) = self.lookup.result.try_lock()
            && let Some(limits) = result.take()
        {
            self.limits = limits.ok();
            self.is_pending = false;
        }
        self.is_overdrawn = match &self.limits {
            None => true,
            Some(limits) if limits.is_empty() => false,
            Some(limits) => {
                let used = used();
                let has_time = |all: bool, quota: &Arc<Quota>| quota.charge(used, now) && all;
                !limits.iter().fold(true, has_time)
            }
        };
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    pub(crate) fn is_overdrawn(&self) -> bool {
        self.is_overdrawn
    }
}

/// The thread that looks up processes. It is an ordinary thread, because reads of `/proc` and
/// cgroups may wait for other ordinary threads.
#[derive(Debug)]
pub(crate) struct Quotas {
    requests: Mutex<Sender<Weak<Lookup>>>,
}

impl Quotas {
    /// Starts the thread. If that fails, no process is limited.
    pub(crate) fn start() -> Quotas {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("upshift-quota".into())
            .spawn(move || QuotaThread::default().run(&receiver));
        drop(thread);
        Quotas {
            requests: Mutex::new(sender),
        }
    }

    /// Returns the quotas of process `pid`, which are looked up now and every second until the
    /// returned value is dropped.
    pub(crate) fn usage(&self, pid: i32) -> QuotaUsage {
        let lookup = Arc::new(Lookup {
            pid,
            result: Mutex::default(),
        });
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sent = requests.send(Arc::downgrade(&lookup)).is_ok();
        QuotaUsage {
            lookup,
            limits: (!is_sent).then(Vec::new),
            is_overdrawn: is_sent,
            is_pending: is_sent,
        }
    }
}

#[derive(Debug, Default)]
struct QuotaThread {
    lookups: Vec<Weak<Lookup>>,
    quotas: HashMap<PathBuf, Arc<Quota>>,
}

impl QuotaThread {
    fn run(mut self, requests: &Receiver<Weak<Lookup>>) {
        let mut next = Instant::now() + INTERVAL;
        loop {
            let timeout = if self.lookups.is_empty() {
                Duration::MAX
            } else {
                next.saturating_duration_since(Instant::now())
            };
            match requests.recv_timeout(timeout) {
                Ok(lookup) => {
                    self.look_up(&lookup);
                    self.lookups.push(lookup);
                }
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + INTERVAL;
                    let mut lookups = std::mem::take(&mut self.lookups);
                    lookups.retain(|lookup| self.look_up(lookup));
                    self.lookups = lookups;
                    self.quotas.retain(|_, quota| Arc::strong_count(quota) > 1);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks up the quotas of a process, and stores the result. Returns false if the owner of the
    /// lookup has gone.
    fn look_up(&mut self, lookup: &Weak<Lookup>) -> bool {
        let Some(lookup) = lookup.upgrade() else {
            return false;
        };
        let quotas = self.quotas_of(lookup.pid);
        *lookup.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(quotas);
        true
    }

    /// Returns the quotas of a process. There are none if no cgroup limits the process, or if it
    /// has ended.
    fn quotas_of(&mut self, pid: i32) -> io::Result<Limits> {
        let groups = if_there(crate::proc::living::read(pid, "cgroup"))?.unwrap_or_default();
        if groups.contains(char::REPLACEMENT_CHARACTER) {
            // A name with this character has no directory, so the quota is unknown.
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mounts = read_at_once("/proc/self/mountinfo")?;
        let mut quotas = Vec::new();
        for directory in directories(&groups, &mounts) {
            if let Some(rate) = limit_of(&directory)? {
                let quota = self
                    .quotas
                    .entry(directory)
                    .or_insert_with(|| Arc::new(Quota::new(rate, Instant::now())));
                quota.set(rate);
                quotas.push(Arc::clone(quota));
            }
        }
        Ok(quotas)
    }
}

/// Returns whether the error means that the file or the process does not exist, or that the
/// controller is absent.
fn is_absence(error: &io::Error) -> bool {
    let absent = [
        libc::ENOENT,
        libc::ENOTDIR,
        libc::ESRCH,
        libc::ENODEV,
        libc::EOPNOTSUPP,
    ];
    error
        .raw_os_error()
        .is_some_and(|error| absent.contains(&error))
}

fn read_if_there(path: impl AsRef<Path>) -> io::Result<Option<String>> {
    if_there(read_at_once(path))
}

fn if_there(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_absence(&error) => Ok(None),
        // The cause is a lease, or a lack of descriptors.
        Err(error) => Err(error),
    }
}

/// Returns the directories of the cgroups in `groups` (the text of `/proc/<pid>/cgroup`) that can
/// limit CPU time, each with its ancestors.
fn directories(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_cpu = controllers.split(',').any(|name| name == "cpu");
        if !is_cpu && !controllers.is_empty() {
            continue;
        }
        let version = if is_cpu { "cpu" } else { "" };
        let Some((_, mount)) = mount_of(mounts, version) else {
            continue;
        };
        let mut directory = mount.join(path.trim_start_matches('/'));
        while directory.starts_with(&mount) {
            directories.push(directory.clone());
            if !directory.pop() {
                break;
            }
        }
    }
    directories
}

/// Returns the quota of a cgroup, in CPUs.
fn limit_of(directory: &Path) -> io::Result<Option<f64>> {
    let read = |name: &str| read_if_there(directory.join(name));
    let texts = match read("cpu.max")? {
        Some(text) => text
            .split_once(' ')
            .map(|(quota, period)| (quota.to_string(), period.to_string())),
        None => read("cpu.cfs_quota_us")?.zip(read("cpu.cfs_period_us")?),
    };
    // "max" and -1 mean no quota.
    let number = |text: &str| {
        text.trim()
            .parse::<f64>()
            .ok()
            .filter(|&number| number > 0.0)
    };
    let quota = |(quota, period): (String, String)| Some(number(&quota)? / number(&period)?);
    Ok(texts.and_then(quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_allows_its_rate_and_no_more() {
        let start = Instant::now();
        // 20 ms per period of 100 ms, which is also the burst.
        let quota = Quota::new(0.2, start);
        let ms = Duration::from_millis;
        assert!(quota.charge(ms(19), start));
        // This charge overdraws the bucket by 35 ms, which the bucket gains in 175 ms.
        assert!(!quota.charge(ms(36), start));
        assert!(!quota.charge(ms(0), start + ms(170)));
        assert!(quota.charge(ms(0), start + ms(180)));
        // A bucket holds one period, no matter how long it was unused.
        assert!(!quota.charge(ms(21), start + ms(9000)));
    }

    #[test]
    fn an_unreadable_file_does_not_count_as_absent() {
        let absent = |errno: i32| is_absence(&io::Error::from_raw_os_error(errno));
        for errno in [libc::ENOENT, libc::ESRCH, libc::EOPNOTSUPP] {
            assert!(absent(errno));
        }
        for errno in [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::EINTR,
            libc::EACCES,
        ] {
            assert!(!absent(errno));
        }
        assert!(read_if_there("/nonexistent/cpu.max").unwrap().is_none());
    }

    #[test]
    fn cgroups_of_both_versions_are_found_with_their_ancestors() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      26 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let paths = |groups| {
            let directories = directories(groups, mounts);
            directories
                .iter()
                .map(|path| path.display().to_string())
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
