//! One process: its pidfd, its directory of threads, and a guard for each thread.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{Class, ElevateError, Elevated, Elevator, Policy, Priority};

use crate::error::SchedError;
use crate::member::Standing;
use crate::policy::Nanos;
use crate::procfs;
use crate::watch::{self, Watch, Watched};

/// How often a call that was interrupted is made again.
const RETRIES: usize = 16;

/// Time for which a process is ordinary after one of its threads was found on another CPU: ten
/// times the longest that it can have been there.
const STRAY: Duration = Duration::from_secs(1);

/// Passes over the threads of a process that is forking off new ones all the time.
const PASSES: usize = 8;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pidfd: OwnedFd,
    /// `/proc/PID/task`, locked: no other scheduler has the process.
    tasks: File,
    /// Its link count when its threads were read, which is their number and two; 0: they are to be read again.
    links: u64,
    guards: Vec<Elevated>,
    /// Threads that could not be had when they were looked at last.
    pub(super) refused: u64,
    /// There was no room for a thread: none is tried, which takes long, until they are read again.
    full: bool,
    /// It is ordinary until then, because a thread of it was found on another CPU.
    stray_until: Option<Instant>,
    /// CPU time seen last, ns.
    pub(super) cpu_time: Nanos,
    _watched: Watched,
}

/// What became of taking a thread in.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    /// It belongs to the task, or has ended.
    Yes,
    /// It is another user's, or has put itself above all.
    No,
    /// There is no room, for it or any other.
    Full,
}

impl Process {
    /// `parent`: a thread of the process that forked it, if that was elevated then.
    pub(super) fn attach(
        elevator: &Elevator,
        watch: &Watch,
        pid: i32,
        standing: Standing,
        parent: Option<&Elevated>,
    ) -> Result<Process, SchedError> {
        let gone = |_| SchedError::NoSuchProcess(pid);
        // The pidfd first: from here on the number cannot come to mean another process unnoticed.
        let pidfd = watch::pidfd(pid).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH | libc::EINVAL) => SchedError::NoSuchProcess(pid),
            _ => SchedError::os("open a pidfd")(error),
        })?;
        let tasks = File::open(format!("/proc/{pid}/task")).map_err(gone)?;
        // Two schedulers would record each other's doing as the process's own. The lock ends with this process, however it ends.
        // Any process can take such a lock, so that of another user, if that is not root, means nothing.
        if matches!(tasks.try_lock(), Err(TryLockError::WouldBlock))
            && procfs::is_locked_by_a_peer(&tasks)
        {
            return Err(SchedError::Twice(pid));
        }
        let mut process = Process {
            pid,
            pidfd,
            tasks,
            links: 0,
            guards: Vec::new(),
            refused: 0,
            full: false,
            stray_until: None,
            cpu_time: 0,
            // Before its threads are read, so that none is missed.
            _watched: watch.listen(pid),
        };
        let elevate = |tid: i32| match parent {
            Some(parent) => elevator.elevate_born(tid, floor(standing), parent),
            None => elevator.elevate(tid, floor(standing)),
        };
        match elevate(pid) {
            Ok(guard) => process.guards.push(guard),
            Err(ElevateError::AlreadyElevated(_)) => return Err(SchedError::Twice(pid)),
            Err(error) => return Err(SchedError::refused(pid, error)),
        }
        for tid in procfs::threads(pid).map_err(gone)? {
            if tid == pid {
                continue;
            }
            match elevate(tid) {
                Ok(guard) => process.guards.push(guard),
                Err(ElevateError::NoSuchThread(_)) => {}
                Err(error) => return Err(SchedError::refused(pid, error)),
            }
        }
        // What was born meanwhile, by threads that were elevated already.
        process.adopt(elevator, standing, None, 1)?;
        if !matches!(standing, Standing::At(_)) {
            let threads = process.threads();
            process.set(standing, threads)?;
        }
        watch
            .add(process.pidfd.as_fd())
            .map_err(SchedError::os("watch a process"))?;
        Ok(process)
    }

    /// A thread of it that is elevated.
    pub(super) fn first(&self) -> Option<&Elevated> {
        self.guards.first()
    }

    pub(super) fn threads(&self) -> usize {
        self.guards.len()
    }

    pub(super) fn tids(&self) -> impl Iterator<Item = i32> + '_ {
        self.guards.iter().map(Elevated::tid)
    }

    pub(super) fn has_ended(&self) -> bool {
        watch::has_ended(self.pidfd.as_fd())
    }

    /// Whether the number of threads has changed, and there was room for all so far. One system call.
    pub(super) fn has_changed(&self) -> bool {
        !self.full
            && self
                .tasks
                .metadata()
                .map_or(true, |found| found.nlink() != self.links)
    }

    /// Elevates threads that were born, forgets those that have ended.
    pub(super) fn adopt(
        &mut self,
        elevator: &Elevator,
        standing: Standing,
        cpu: Option<usize>,
        threads: usize,
    ) -> Result<(), SchedError> {
        for _ in 0..PASSES {
            self.links = self.tasks.metadata().map_or(0, |found| found.nlink());
            let Ok(tids) = procfs::threads(self.pid) else {
                return Ok(());
            };
            let tids: HashSet<i32> = tids.into_iter().collect();
            self.guards.retain(|guard| tids.contains(&guard.tid()));
            let known: HashSet<i32> = self.tids().collect();
            let born: Vec<i32> = tids.difference(&known).copied().collect();
            (self.refused, self.full) = (0, false);
            for (done, &tid) in born.iter().enumerate() {
                match self.take_in_new(tid, elevator, standing, cpu, threads)? {
                    Taken::Yes => {}
                    Taken::No => self.refused += 1,
                    // The others would not fit either, and trying takes long.
                    Taken::Full => {
                        self.full = true;
                        self.refused += (born.len() - done) as u64;
                        return Ok(());
                    }
                }
            }
            if !self.has_changed() {
                break;
            }
        }
        Ok(())
    }

    /// Elevates a thread that was born.
    pub(super) fn take_in(
        &mut self,
        tid: i32,
        elevator: &Elevator,
        standing: Standing,
        cpu: Option<usize>,
        threads: usize,
    ) -> Result<(), SchedError> {
        if self.full || self.guards.iter().any(|guard| guard.tid() == tid) {
            return Ok(());
        }
        // What there was no room for is counted when the threads are read.
        let taken = self.take_in_new(tid, elevator, standing, cpu, threads)?;
        self.full = taken == Taken::Full;
        Ok(())
    }

    /// A thread has ended.
    pub(super) fn forget(&mut self, tid: i32) {
        self.guards.retain(|guard| guard.tid() != tid);
    }

    fn take_in_new(
        &mut self,
        tid: i32,
        elevator: &Elevator,
        standing: Standing,
        cpu: Option<usize>,
        threads: usize,
    ) -> Result<Taken, SchedError> {
        let elevated = match self.first() {
            Some(like) => elevator.elevate_born(tid, floor(standing), like),
            None => elevator.elevate(tid, floor(standing)),
        };
        let guard = match elevated {
            Ok(guard) => guard,
            Err(ElevateError::NoSuchThread(_)) => return Ok(Taken::Yes),
            Err(ElevateError::TableFull { .. }) => return Ok(Taken::Full),
            Err(_) => return Ok(Taken::No),
        };
        // Recorded, which fixes the thread: now it is still of this process, or its number has come to mean another's.
        let listed = std::path::Path::new("/proc").join(format!("{}/task/{tid}", self.pid));
        if !listed.exists() || !cpu.map_or(Ok(true), |cpu| self.pin_one(&guard, cpu))? {
            return Ok(Taken::Yes);
        }
        match put(&guard, self.allowed(standing), threads) {
            Ok(()) => self.guards.push(guard),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(self.failed(error)),
        }
        Ok(Taken::Yes)
    }

    /// What `standing` means for a process that may be ordinary at the most.
    fn allowed(&self, standing: Standing) -> Standing {
        match standing {
            Standing::At(_) if self.stray_until.is_some_and(|until| Instant::now() < until) => {
                Standing::Fair
            }
            standing => standing,
        }
    }

    /// Puts all threads at `standing`; the task has so many `threads`. Returns the number of system calls.
    pub(super) fn set(&mut self, standing: Standing, threads: usize) -> Result<u32, SchedError> {
        let standing = self.allowed(standing);
        let calls = self.guards.len() as u32;
        let mut at = 0;
        while let Some(guard) = self.guards.get(at) {
            match put(guard, standing, threads) {
                Ok(()) => at += 1,
                Err(error) if is_gone(&error) => {
                    self.guards.swap_remove(at);
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(calls)
    }

    pub(super) fn pin(&mut self, cpu: usize) -> Result<(), SchedError> {
        for guard in &self.guards {
            self.pin_one(guard, cpu)?;
        }
        Ok(())
    }

    /// Pins a thread; `false`: it has ended.
    fn pin_one(&self, guard: &Elevated, cpu: usize) -> Result<bool, SchedError> {
        match retrying(|| guard.pin(cpu)) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Err(SchedError::Cpu { cpu, error })
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Puts threads that have changed their own policy or CPUs back. Returns how many. If one has ended, the threads are read
    /// at the next look: another may have been born, so that their number is the same. Two system calls for each thread.
    pub(super) fn correct(
        &mut self,
        standing: Standing,
        cpu: usize,
        threads: usize,
    ) -> Result<u64, SchedError> {
        let only = CpuSet::only(cpu);
        let mut corrected = 0;
        let strays = |guard: &Elevated| {
            let cpus = Kernel.sched_getaffinity(guard.tid());
            cpus.is_ok_and(|cpus| Some(cpus) != only)
        };
        if self.guards.iter().any(strays) {
            // There it was before everything, until it was looked at.
            self.stray_until = Some(Instant::now() + STRAY);
        }
        let standing = self.allowed(standing);
        for guard in &self.guards {
            let moved = Kernel.sched_getaffinity(guard.tid()).ok() != only;
            let changed = match Policy::of(&Kernel, guard.tid()) {
                Ok(now) => !is_at(&now, standing),
                Err(_) => {
                    self.links = 0;
                    continue;
                }
            };
            if !moved && !changed {
                continue;
            }
            if moved && !self.pin_one(guard, cpu)? {
                continue;
            }
            match put(guard, standing, threads) {
                Ok(()) => corrected += 1,
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(corrected)
    }

    fn failed(&self, error: io::Error) -> SchedError {
        if error.raw_os_error() == Some(libc::EPERM) {
            SchedError::missing_rights(self.pid)
        } else {
            SchedError::os("change the priority of a thread")(error)
        }
    }
}

/// The priority at which a thread is recorded before it is put at `standing`.
fn floor(standing: Standing) -> Priority {
    match standing {
        Standing::At(priority) => priority,
        Standing::Fair | Standing::Idle => Priority::MIN,
    }
}

fn put(guard: &Elevated, standing: Standing, threads: usize) -> io::Result<()> {
    retrying(|| match standing {
        Standing::At(priority) => guard.set(priority),
        Standing::Fair => match guard.set_nice(nice_of_one_in(threads)) {
            // Below its own nice value, which takes a right: then it keeps that.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => guard.set_fair(),
            result => result,
        },
        Standing::Idle => guard.set_idle(),
    })
}

/// The nice value at which so many threads weigh about as much as one of nice 0: a step of nice is a factor of 1.25.
fn nice_of_one_in(threads: usize) -> i32 {
    let steps = (threads.max(1) as f64).ln() / 1.25f64.ln();
    (steps.round() as i32).min(19)
}

fn is_at(now: &Policy, standing: Standing) -> bool {
    match (standing, now.class()) {
        (Standing::At(priority), Class::Fifo(now)) => now == u32::from(priority.get()),
        (Standing::Fair, Class::Other { .. }) | (Standing::Idle, Class::Idle) => true,
        _ => false,
    }
}

fn retrying(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut left = RETRIES;
    loop {
        match call() {
            Err(error)
                if left > 0 && matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) =>
            {
                left -= 1;
            }
            result => return result,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_weigh_as_one() {
        assert_eq!([1, 2, 4, 8].map(nice_of_one_in), [0, 3, 6, 9]);
        assert_eq!(nice_of_one_in(0), 0);
        assert_eq!(nice_of_one_in(1_000_000), 19);
    }
}
