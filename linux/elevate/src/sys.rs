//! The system calls of this crate, behind one trait.
//!
//! All access to policies, affinities and rights goes through [`Sys`]. [`Kernel`] makes the real
//! calls; [`testing::Faulty`](crate::testing::Faulty) makes them too but fails chosen ones. This
//! module keeps no state.
//!
//! The methods of [`Kernel`], except [`Sys::read_file`], allocate nothing and take no lock, because
//! the guardian calls them after a fork of a process with many threads. Each costs the system call
//! that it is named after. [`Sys::birth`] opens a pidfd, or before Linux 6.9 a file of `/proc`; so
//! does [`Sys::leader`], with the file before Linux 6.13.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use libc::{c_int, c_long, pid_t};

mod thread;
pub use thread::sleeps;

/// A thread id of Linux: `gettid()`, or a name in `/proc/<pid>/task`. 0 is not a thread here.
pub type Tid = pid_t;

/// Number of times that an interrupted call is repeated before its error is returned.
pub(crate) const RETRIES: usize = 16;

/// All parameters of a policy, in the layout of the kernel's `struct sched_attr` (its first two
/// versions, 56 bytes).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedAttr {
    /// Size of this structure in bytes.
    pub size: u32,
    /// `SCHED_OTHER`, `SCHED_FIFO`, …
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Nice value of `SCHED_OTHER` and `SCHED_BATCH`, −20 … 19.
    pub nice: i32,
    /// Priority of `SCHED_FIFO` and `SCHED_RR`, 1 … 99.
    pub priority: u32,
    /// `SCHED_DEADLINE`: budget in ns. Other policies: the slice in ns, if the kernel has one per
    /// thread.
    pub runtime: u64,
    /// `SCHED_DEADLINE`: deadline in ns.
    pub deadline: u64,
    /// `SCHED_DEADLINE`: period in ns.
    pub period: u64,
    /// Utilisation clamp, lower bound.
    pub util_min: u32,
    /// Utilisation clamp, upper bound.
    pub util_max: u32,
}

impl SchedAttr {
    /// Size in bytes that is passed to the kernel.
    pub const SIZE: u32 = size_of::<SchedAttr>() as u32;

    /// Returns `SCHED_OTHER`, nice 0, no flags.
    pub const fn normal() -> SchedAttr {
        SchedAttr {
            size: SchedAttr::SIZE,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            nice: 0,
            priority: 0,
            runtime: 0,
            deadline: 0,
            period: 0,
            util_min: 0,
            util_max: 0,
        }
    }
}

/// A set of up to 1024 CPUs, in the layout of `sched_setaffinity`.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuSet {
    bits: [u64; CpuSet::WORDS],
}

impl CpuSet {
    const WORDS: usize = CpuSet::MAX / 64;
    /// Upper bound (exclusive) of CPU numbers.
    pub const MAX: usize = 1024;

    /// Returns the empty set.
    pub const fn empty() -> CpuSet {
        CpuSet {
            bits: [0; CpuSet::WORDS],
        }
    }

    /// Returns the set of all CPUs. The kernel ignores CPUs that do not exist or are not allowed.
    pub const fn all() -> CpuSet {
        CpuSet {
            bits: [u64::MAX; CpuSet::WORDS],
        }
    }

    /// Returns the set of one CPU, or `None` if its number is [`CpuSet::MAX`] or more.
    pub fn only(cpu: usize) -> Option<CpuSet> {
        let mut set = CpuSet::empty();
        *set.bits.get_mut(cpu / 64)? |= 1 << (cpu % 64);
        Some(set)
    }

    /// Returns whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.bits
            .get(cpu / 64)
            .is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// Adds a CPU; numbers from [`CpuSet::MAX`] on are ignored.
    pub fn insert(&mut self, cpu: usize) {
        if let Some(word) = self.bits.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// Returns the CPUs in both sets.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        let mut intersection = *self;
        for (word, other) in intersection.bits.iter_mut().zip(&other.bits) {
            *word &= other;
        }
        intersection
    }

    /// Returns the CPUs in either set.
    pub fn or(&self, other: &CpuSet) -> CpuSet {
        let mut union_set = *self;
        for (word, other) in union_set.bits.iter_mut().zip(&other.bits) {
            *word |= other;
        }
        union_set
    }

    /// Returns an iterator over the CPUs of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..CpuSet::MAX).filter(|&cpu| self.contains(cpu))
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The system calls of this crate. Errors are the kernel's.
///
/// `tid` is a thread of any process; 0 stands for the calling thread, as it does for the kernel.
///
/// # Safety
/// [`Sys::fork_without_sigchld`] returns 0 only in a new process, because a caller that gets 0
/// closes the descriptors of its process and ends it.
pub unsafe trait Sys: Send + Sync + fmt::Debug {
    /// Reads the whole policy of a thread.
    fn sched_getattr(&self, tid: Tid) -> io::Result<SchedAttr>;
    /// Sets the whole policy of a thread.
    fn sched_setattr(&self, tid: Tid, attr: &SchedAttr) -> io::Result<()>;
    /// Sets policy (with `SCHED_RESET_ON_FORK`) and priority. This is the cheap call for the hot
    /// path.
    fn sched_setscheduler(&self, tid: Tid, policy: c_int, priority: c_int) -> io::Result<()>;
    /// Reads the nice value of a thread, which the thread keeps in every policy.
    fn nice(&self, tid: Tid) -> io::Result<i32>;
    /// Reads the CPUs a thread may run on.
    fn sched_getaffinity(&self, tid: Tid) -> io::Result<CpuSet>;
    /// Sets the CPUs a thread may run on.
    fn sched_setaffinity(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()>;
    /// Returns a number that no later thread with this tid has, so that tid and number together
    /// identify a thread forever.
    fn birth(&self, tid: Tid) -> io::Result<u64>;
    /// Returns the main thread of the thread's process.
    fn leader(&self, tid: Tid) -> io::Result<Tid>;
    /// Returns whether the thread belongs to the calling process.
    fn is_own(&self, tid: Tid) -> io::Result<bool>;
    /// Returns the soft and the hard limit of `resource`.
    fn getrlimit(&self, resource: Limit) -> io::Result<(u64, u64)>;
    /// Reads a small file of `/proc` or `/sys` (allocates).
    fn read_file(&self, path: &str) -> io::Result<String>;
    /// Forks without notifying the parent's `SIGCHLD` handler or `wait` loop, because the child is
    /// waited for with `__WCLONE`. Returns the child's pid, and 0 in the child.
    ///
    /// # Safety
    /// The child may call only async-signal-safe functions, must not unwind or return out of
    /// the caller's frame, and ends with `_exit`.
    unsafe fn fork_without_sigchld(&self) -> io::Result<pid_t>;
    /// Returns a descriptor that becomes readable when the process ends.
    fn pidfd_open(&self, pid: pid_t) -> io::Result<c_int>;
}

/// A resource limit that [`Sys::getrlimit`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `RLIMIT_RTPRIO`, the highest priority that an unprivileged thread may take.
    RtPrio,
    /// `RLIMIT_RTTIME`, the CPU time in µs that a real-time thread may use without blocking.
    RtTime,
}

/// The real system calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernel;

/// Returns the calling thread's id. One system call.
pub fn current_tid() -> Tid {
    // SAFETY: the call takes no arguments, so it has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as Tid }
}

fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

// SAFETY: `fork_without_sigchld` forks, so it returns 0 only in a new process.
unsafe impl Sys for Kernel {
    fn sched_getattr(&self, tid: Tid) -> io::Result<SchedAttr> {
        let mut attr = SchedAttr::normal();
        // SAFETY: the kernel writes at most `SIZE` bytes into `attr`, a structure of integers.
        check(unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                tid,
                &raw mut attr,
                SchedAttr::SIZE,
                0,
            )
        })?;
        attr.size = SchedAttr::SIZE;
        Ok(attr)
    }

    fn sched_setattr(&self, tid: Tid, attr: &SchedAttr) -> io::Result<()> {
        if attr.size > SchedAttr::SIZE {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: `attr` is at least as long as its `size` says.
        check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const *attr, 0) })?;
        Ok(())
    }

    fn sched_setscheduler(&self, tid: Tid, policy: c_int, priority: c_int) -> io::Result<()> {
        let param = [priority; 1];
        // SAFETY: the kernel reads one `int`, the whole of its `struct sched_param`.
        check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, param.as_ptr()) })?;
        Ok(())
    }

    fn nice(&self, tid: Tid) -> io::Result<i32> {
        // SAFETY: the call takes only integers, so it has no preconditions.
        let value =
            check(unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid) })?;
        // The kernel returns 20 minus the nice value, so that the result is never negative.
        Ok(20 - value as i32)
    }

    fn sched_getaffinity(&self, tid: Tid) -> io::Result<CpuSet> {
        let mut cpus = CpuSet::empty();
        // SAFETY: the kernel writes at most the given number of bytes into `cpus`, a structure of
        // integers.
        check(unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid,
                size_of::<CpuSet>(),
                &raw mut cpus,
            )
        })?;
        Ok(cpus)
    }

    fn sched_setaffinity(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        // SAFETY: the kernel reads as many bytes from `cpus` as it has.
        check(unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                tid,
                size_of::<CpuSet>(),
                &raw const *cpus,
            )
        })?;
        Ok(())
    }

    fn birth(&self, tid: Tid) -> io::Result<u64> {
        thread::birth(tid)
    }

    fn leader(&self, tid: Tid) -> io::Result<Tid> {
        thread::leader(tid)
    }

    fn is_own(&self, tid: Tid) -> io::Result<bool> {
        // SAFETY: the call takes only integers, and signal 0 sends nothing.
        match check(unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) }) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn getrlimit(&self, resource: Limit) -> io::Result<(u64, u64)> {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let resource = match resource {
            Limit::RtPrio => libc::RLIMIT_RTPRIO,
            Limit::RtTime => libc::RLIMIT_RTTIME,
        };
        // SAFETY: the pointer is valid for the type that the call writes.
        check(c_long::from(unsafe {
            libc::getrlimit(resource, &raw mut limit)
        }))?;
        Ok((limit.rlim_cur, limit.rlim_max))
    }

    fn read_file(&self, path: &str) -> io::Result<String> {
        read_at_once(path)
    }

    unsafe fn fork_without_sigchld(&self) -> io::Result<pid_t> {
        // SAFETY: without flags and a stack this is a plain fork, but the child's end raises no
        // signal in the parent. The caller guarantees what the child does.
        Ok(check(unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) })? as pid_t)
    }

    fn pidfd_open(&self, pid: pid_t) -> io::Result<c_int> {
        // SAFETY: the call takes only integers. The descriptor is close-on-exec.
        Ok(check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })? as c_int)
    }
}

/// Flags to open files of other users without waiting for them. The owner of a file, even of one in
/// `/proc`, may take a lease on it (`F_SETLEASE`). An open that may block then waits until the
/// lease is released, or for `fs.lease-break-time`.
const OPEN_FLAGS: c_int = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// Reads a file of `/proc`, `/sys` or a cgroup, even if another user owns the file or has
/// influenced its content. For example, a process may have a name that is not UTF-8, which appears
/// in its `status`. Bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// `WouldBlock` if the file's owner holds a lease on it; unlike [`std::fs::read_to_string`], this
/// does not wait.
pub fn read_at_once(path: impl AsRef<Path>) -> io::Result<String> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    let mut file = options.read(true).custom_flags(OPEN_FLAGS).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns RLIMIT_RTTIME of process `pid` in microseconds, or `None` if there is no limit. The
/// kernel kills a process that computes in SCHED_FIFO for longer.
///
/// # Errors
/// `NotFound` if there is no such process, `WouldBlock` if the file's owner holds a lease on it.
pub fn time_limit(pid: pid_t) -> io::Result<Option<u64>> {
    let limits = read_at_once(format!("/proc/{pid}/limits"))?;
    Ok(parse_time_limit(&limits))
}

fn parse_time_limit(limits: &str) -> Option<u64> {
    let mut lines = limits.lines();
    let rest = lines.find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the nanoseconds of CPU time that process `pid` has used, including its threads that have
/// ended. One system call; any process may be queried.
///
/// # Errors
/// `EINVAL` if there is no such process.
pub fn process_time(pid: pid_t) -> io::Result<u64> {
    // A larger value would name another clock below. The kernel's own limit is 2²².
    if !(1..1 << 28).contains(&pid) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // The id of a process's clock, as in linux/posix-timers_types.h (CPUCLOCK_SCHED).
    let clock = (!pid << 3) | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid for the type that the call writes.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_threads_of_this_process_are_its_own() {
        assert!(Kernel.is_own(current_tid()).unwrap());
        assert!(!Kernel.is_own(1).unwrap());
    }

    #[test]
    fn a_name_that_is_not_utf8_leaves_the_rest_readable() {
        let thread = std::thread::spawn(|| {
            let own = format!("/proc/self/task/{}", current_tid());
            std::fs::write(format!("{own}/comm"), b"\xff\xfe").unwrap();
            read_at_once(format!("{own}/status")).unwrap()
        });
        let status = thread.join().unwrap();
        assert!(status.starts_with("Name:\t\u{fffd}\u{fffd}\n"), "{status}");
        assert!(status.contains("\nUid:"));
    }

    #[test]
    fn limits_are_read() {
        let line =
            |soft| format!("Max realtime timeout      {soft}            unlimited            us\n");
        assert_eq!(parse_time_limit(&line("unlimited")), None);
        assert_eq!(parse_time_limit(&line("200000")), Some(200_000));
        assert_eq!(parse_time_limit(""), None);
        assert_eq!(time_limit(std::process::id() as pid_t).unwrap(), None);
    }

    #[test]
    fn cpu_sets_refuse_numbers_they_cannot_hold() {
        assert!(CpuSet::only(CpuSet::MAX).is_none());
        let set = CpuSet::only(1000).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [1000]);
        let mut more = set;
        more.insert(3);
        more.insert(CpuSet::MAX);
        assert_eq!(more.iter().collect::<Vec<_>>(), [3, 1000]);
        assert_eq!(more.and(&set), set);
        assert_eq!(set.or(&more), more);
    }

    #[test]
    fn the_time_of_a_process_includes_threads_that_have_ended() {
        let own = std::process::id() as pid_t;
        let before = process_time(own).unwrap();
        let burn = || {
            let start = std::time::Instant::now();
            while start.elapsed() < std::time::Duration::from_millis(20) {
                std::hint::spin_loop();
            }
        };
        std::thread::spawn(burn).join().unwrap();
        assert!(process_time(own).unwrap() > before);
        assert!(process_time(4_194_305).is_err() && process_time(pid_t::MAX).is_err());
    }
}
