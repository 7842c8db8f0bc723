//! Helpers for tests: real system calls with planned faults, a list of elevated threads, and
//! repeatable random numbers.
//!
//! [`Faulty`] is not a mock. It makes the real calls, except that chosen calls of one function, or
//! of any function, return an error. So a test sees the caller's reaction, with a real thread in a
//! real state.
//!
//! ```
//! use std::sync::Arc;
//! use upshift_elevate::testing::{Call, Faulty};
//! use upshift_elevate::{Elevator, Priority};
//!
//! let faulty = Arc::new(Faulty::new());
//! let elevator = Elevator::builder().sys(faulty.clone()).build()?;
//! faulty.fail(Call::SetScheduler, 0, 1, 1); // the next call fails once, with EPERM (1)
//! assert!(elevator.elevate_current(Priority::MIN).unwrap_err().is_rights());
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io;
use std::sync::{Mutex, PoisonError};

use libc::{c_int, pid_t};

use crate::Policy;
use crate::sys::{CpuSet, Kernel, Limit, SchedAttr, Sys, Tid};

/// Returns the threads of process `pid` that look elevated, or none if the process is gone.
pub fn elevated_threads(pid: Tid) -> Vec<Tid> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<Tid>().ok())
        .filter(|&tid| Policy::of(&Kernel, tid).is_ok_and(|policy| policy.looks_elevated()))
        .collect()
}

/// The heartbeat of an owner, in the memory that it shares with its guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatState {
    /// Whether the guardian checks the heartbeat.
    pub armed: bool,
    /// Number of signs of life of the owner.
    pub beats: u64,
    /// Number of times that the guardian has demoted all threads because there was no sign of life.
    pub demotions: u64,
    /// Number of recorded threads of other processes.
    pub foreign: usize,
}

/// Reads the table of the guardian `pid`. Needs the right to trace that process.
///
/// # Errors
/// The kernel's error; `NotFound` if that process has no table.
pub fn heartbeat_state(pid: Tid) -> io::Result<HeartbeatState> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let shared = maps.lines().filter(|line| line.contains(" rw-s "));
    let tables = shared.filter_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16));
        let (from, to) = (from.ok()?, to.ok()?);
        // No other shared anonymous mapping is as large.
        (line.ends_with("/dev/zero (deleted)") && to - from > 64 * 1024).then_some((from, to))
    });
    // The largest mapping is the guardian's own table. Its owner's smaller tables may be mapped,
    // too.
    let table = tables.max_by_key(|&(from, to)| to - from);
    let (from, to) = table.ok_or(io::ErrorKind::NotFound)?;
    let mut table = vec![0; to - from];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    let read = std::os::unix::fs::FileExt::read_at(&memory, &mut table, from as u64)?;
    Ok(crate::table::heartbeat_state(&table[..read]))
}

/// Returns whether `/proc` hides the processes of other users from ordinary ones.
pub fn hides_processes() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut options = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        (fields.nth(1) == Some("/proc")).then(|| fields.nth(1))?
    });
    let hides = |option: &str| {
        option.starts_with("hidepid=") && option != "hidepid=0" && option != "hidepid=off"
    };
    options
        .next_back()
        .is_some_and(|options| options.split(',').any(hides))
}

/// A small random number generator (xorshift), so that a failing seed can be repeated. The seed
/// must not be 0.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A function of [`Sys`], or any function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Any function.
    Any,
    /// [`Sys::sched_getattr`].
    GetAttr,
    /// [`Sys::sched_setattr`].
    SetAttr,
    /// [`Sys::sched_setscheduler`].
    SetScheduler,
    /// [`Sys::nice`].
    Nice,
    /// [`Sys::sched_getaffinity`].
    GetAffinity,
    /// [`Sys::sched_setaffinity`].
    SetAffinity,
    /// [`Sys::birth`].
    Birth,
    /// [`Sys::leader`].
    Leader,
    /// [`Sys::is_own`].
    IsOwn,
    /// [`Sys::getrlimit`].
    GetLimit,
    /// [`Sys::read_file`].
    ReadFile,
    /// [`Sys::fork_without_sigchld`].
    Fork,
    /// [`Sys::pidfd_open`].
    PidFd,
}

#[derive(Debug)]
struct Fault {
    call: Call,
    /// Number of calls that succeed first.
    skip: u64,
    /// Number of calls that fail afterwards.
    times: u64,
    errno: i32,
}

/// The real system calls with planned faults.
#[derive(Debug, Default)]
pub struct Faulty {
    plan: Mutex<Vec<Fault>>,
    calls: Mutex<u64>,
}

impl Faulty {
    /// Creates the system calls without faults.
    pub fn new() -> Faulty {
        Faulty::default()
    }

    /// Plans a fault: after `skip` more calls of `call`, the next `times` calls fail with `errno`.
    pub fn fail(&self, call: Call, skip: u64, times: u64, errno: i32) {
        self.plan().push(Fault {
            call,
            skip,
            times,
            errno,
        });
    }

    /// Removes all planned faults.
    pub fn clear_faults(&self) {
        self.plan().clear();
    }

    /// Returns the number of calls, including failed calls.
    pub fn calls(&self) -> u64 {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Vec<Fault>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inject(&self, call: Call) -> io::Result<()> {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        for fault in self
            .plan()
            .iter_mut()
            .filter(|fault| fault.call == call || fault.call == Call::Any)
        {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
        }
        Ok(())
    }
}

// SAFETY: `fork_without_sigchld` makes the kernel's fork or fails, so it returns 0 only in a new
// process.
unsafe impl Sys for Faulty {
    fn sched_getattr(&self, tid: Tid) -> io::Result<SchedAttr> {
        self.inject(Call::GetAttr)?;
        Kernel.sched_getattr(tid)
    }

    fn sched_setattr(&self, tid: Tid, attr: &SchedAttr) -> io::Result<()> {
        self.inject(Call::SetAttr)?;
        Kernel.sched_setattr(tid, attr)
    }

    fn sched_setscheduler(&self, tid: Tid, policy: c_int, priority: c_int) -> io::Result<()> {
        self.inject(Call::SetScheduler)?;
        Kernel.sched_setscheduler(tid, policy, priority)
    }

    fn nice(&self, tid: Tid) -> io::Result<i32> {
        self.inject(Call::Nice)?;
        Kernel.nice(tid)
    }

    fn sched_getaffinity(&self, tid: Tid) -> io::Result<CpuSet> {
        self.inject(Call::GetAffinity)?;
        Kernel.sched_getaffinity(tid)
    }

    fn sched_setaffinity(&self, tid: Tid, cpus: &CpuSet) -> io::Result<()> {
        self.inject(Call::SetAffinity)?;
        Kernel.sched_setaffinity(tid, cpus)
    }

    fn birth(&self, tid: Tid) -> io::Result<u64> {
        self.inject(Call::Birth)?;
        Kernel.birth(tid)
    }

    fn leader(&self, tid: Tid) -> io::Result<Tid> {
        self.inject(Call::Leader)?;
        Kernel.leader(tid)
    }

    fn is_own(&self, tid: Tid) -> io::Result<bool> {
        self.inject(Call::IsOwn)?;
        Kernel.is_own(tid)
    }

    fn getrlimit(&self, resource: Limit) -> io::Result<(u64, u64)> {
        self.inject(Call::GetLimit)?;
        Kernel.getrlimit(resource)
    }

    fn read_file(&self, path: &str) -> io::Result<String> {
        self.inject(Call::ReadFile)?;
        Kernel.read_file(path)
    }

    unsafe fn fork_without_sigchld(&self) -> io::Result<pid_t> {
        self.inject(Call::Fork)?;
        // SAFETY: the caller upholds the requirements of this call.
        unsafe { Kernel.fork_without_sigchld() }
    }

    fn pidfd_open(&self, pid: pid_t) -> io::Result<c_int> {
        self.inject(Call::PidFd)?;
        Kernel.pidfd_open(pid)
    }
}
