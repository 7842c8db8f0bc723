//! CPU quotas of cgroups: no thread is elevated beyond them.
//!
//! The kernel holds ordinary threads to the quota of their cgroup, and real-time ones to nothing
//! of the kind. So the schedulers charge the CPU time of the registered threads of a cgroup with
//! a quota, elevated or not, to a token bucket that is filled at the rate of the quota, as far
//! as [`PERIOD`] of it; while it is overdrawn they are not elevated, and the kernel holds them.
//! Quotas of all ancestors count.
//!
//! Both versions of cgroups are understood. A thread of its own looks processes up, again each second, because processes
//! are moved and quotas are changed. A process of which that cannot be read, because it holds a lease on its files, is not elevated.

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

use crate::bounds::{SECOND, ns, per_second, whole};
use crate::proc::cgroups::mount_of;

/// The CPUs that the cgroups of process `pid` leave it; `None`: nothing limits it.
pub fn cpu_quota(pid: i32) -> Option<f64> {
    let groups = read_at_once(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = read_at_once("/proc/self/mountinfo").ok()?;
    let all = directories(&groups, &mounts);
    let limits = all.iter().filter_map(|directory| limit_of(directory).ok()?);
    limits.min_by(f64::total_cmp)
}

/// Time in which an empty bucket is full: the kernel's own period.
const PERIOD: Duration = Duration::from_millis(100);

/// How often processes are looked up.
const LOOK: Duration = Duration::from_secs(1);

/// The quota of one cgroup.
#[derive(Debug)]
pub(crate) struct Quota {
    /// ns of CPU per second. Not in the lock, which only the daemon's urgent threads take.
    rate: AtomicU64,
    bucket: Mutex<TokenBucket>,
}

impl Quota {
    /// Creates one of `cpus` CPUs, full.
    fn new(cpus: f64, now: Instant) -> Quota {
        let rate = rate_of(cpus);
        Quota {
            rate: AtomicU64::new(rate),
            bucket: Mutex::new(per_second(rate, burst_of(rate), now)),
        }
    }

    fn set(&self, cpus: f64) {
        self.rate.store(rate_of(cpus), Relaxed);
    }

    /// Charges `used`; whether anything is left.
    pub(crate) fn charge(&self, used: Duration, now: Instant) -> bool {
        let rate = self.rate.load(Relaxed);
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.set_rate((rate, SECOND), ns(now));
        bucket.set_capacity(burst_of(rate));
        bucket.charge(whole(used), ns(now))
    }
}

fn rate_of(cpus: f64) -> u64 {
    (cpus * 1e9) as u64
}

/// Returns the gain of a bucket of `rate` ns per second in one [`PERIOD`].
fn burst_of(rate: u64) -> u64 {
    rate / (Duration::from_secs(1).as_millis() / PERIOD.as_millis()) as u64
}

type Limits = Vec<Arc<Quota>>;

/// What limits one process. Before it is known, and while it cannot be read, nothing of it is elevated.
#[derive(Debug)]
pub(crate) struct Bill {
    board: Arc<Board>,
    limits: Option<Limits>,
    overdrawn: bool,
    awaited: bool,
}

/// Where the thread leaves what it has found. Threads that are elevated do not wait for its lock.
#[derive(Debug)]
struct Board {
    pid: i32,
    news: Mutex<Option<io::Result<Limits>>>,
}

impl Bill {
    /// Charges what the process has used since it was asked last, elevated or not, if anything limits it.
    pub(crate) fn charge(&mut self, used: impl FnOnce() -> Duration, now: Instant) {
        if let Ok(mut news) = self.board.news.try_lock()
            && let Some(found) = news.take()
        {
            self.limits = found.ok();
            self.awaited = false;
        }
        self.overdrawn = match &self.limits {
            None => true,
            Some(limits) if limits.is_empty() => false,
            Some(limits) => {
                let used = used();
                let left = |all: bool, quota: &Arc<Quota>| quota.charge(used, now) && all;
                !limits.iter().fold(true, left)
            }
        };
    }

    /// Whether the thread has not found out yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Whether it has nothing left to be elevated with.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.overdrawn
    }
}

/// The thread that looks processes up: an ordinary one, because reading `/proc` and cgroups may have to wait for others that are.
#[derive(Debug)]
pub(crate) struct Quotas {
    asks: Mutex<Sender<Weak<Board>>>,
}

impl Quotas {
    /// Starts the thread. Without one, nothing limits anything.
    pub(crate) fn start() -> Quotas {
        let (asks, asked) = channel();
        let thread = std::thread::Builder::new()
            .name("upshift-quota".into())
            .spawn(move || Clerk::default().run(&asked));
        drop(thread);
        Quotas {
            asks: Mutex::new(asks),
        }
    }

    /// What limits process `pid`, which is found out, and again each second, as long as the bill is there.
    pub(crate) fn bill(&self, pid: i32) -> Bill {
        let board = Arc::new(Board {
            pid,
            news: Mutex::default(),
        });
        let asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = asks.send(Arc::downgrade(&board)).is_ok();
        Bill {
            board,
            limits: (!asked).then(Vec::new),
            overdrawn: asked,
            awaited: asked,
        }
    }
}

/// The thread's side.
#[derive(Debug, Default)]
struct Clerk {
    boards: Vec<Weak<Board>>,
    quotas: HashMap<PathBuf, Arc<Quota>>,
}

impl Clerk {
    /// Ends with the daemon.
    fn run(mut self, asked: &Receiver<Weak<Board>>) {
        let mut next = Instant::now() + LOOK;
        loop {
            let rest = match self.boards.is_empty() {
                true => Duration::MAX,
                false => next.saturating_duration_since(Instant::now()),
            };
            match asked.recv_timeout(rest) {
                Ok(board) => {
                    self.find(&board);
                    self.boards.push(board);
                }
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + LOOK;
                    let mut boards = std::mem::take(&mut self.boards);
                    boards.retain(|board| self.find(board));
                    self.boards = boards;
                    self.quotas.retain(|_, it| Arc::strong_count(it) > 1);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// `false`: the answer is not wanted any more.
    fn find(&mut self, board: &Weak<Board>) -> bool {
        let Some(board) = board.upgrade() else {
            return false;
        };
        let found = self.of(board.pid);
        *board.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        true
    }

    /// The quotas that the threads of process `pid` are charged to; none if nothing limits it,
    /// or it has ended.
    fn of(&mut self, pid: i32) -> io::Result<Limits> {
        let groups = if_there(crate::proc::living::read(pid, "cgroup"))?.unwrap_or_default();
        if groups.contains(char::REPLACEMENT_CHARACTER) {
            // There is no such directory, so what limits it is not known.
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mounts = read_at_once("/proc/self/mountinfo")?;
        let mut found = Vec::new();
        for directory in directories(&groups, &mounts) {
            if let Some(rate) = limit_of(&directory)? {
                let quota = self
                    .quotas
                    .entry(directory)
                    .or_insert_with(|| Arc::new(Quota::new(rate, Instant::now())));
                quota.set(rate);
                found.push(Arc::clone(quota));
            }
        }
        Ok(found)
    }
}

/// There is no such file or process, or that kind of file says nothing.
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

/// `None`: there is no such file, or the process has ended.
fn read_if_there(path: impl AsRef<Path>) -> io::Result<Option<String>> {
    if_there(read_at_once(path))
}

fn if_there(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_absence(&error) => Ok(None),
        // A lease, or no descriptors are left.
        Err(error) => Err(error),
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
        let version = if of_cpu { "cpu" } else { "" };
        let Some((_, mount)) = mount_of(mounts, version) else {
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
    fn a_quota_gives_its_rate_and_no_more() {
        let start = Instant::now();
        let quota = Quota::new(0.2, start);
        let ms = Duration::from_millis;
        assert!(quota.charge(ms(19), start));
        assert!(!quota.charge(ms(36), start));
        assert!(!quota.charge(ms(0), start + ms(170)));
        assert!(quota.charge(ms(0), start + ms(180)));
        // However long it was not used.
        assert!(!quota.charge(ms(21), start + ms(9000)));
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_absent() {
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
