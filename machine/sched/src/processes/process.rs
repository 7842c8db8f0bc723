//! A scheduled process: its pidfd, its directory of threads, and a guard for each thread, which
//! restores the thread on drop.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{Class, ElevateError, Elevated, Elevator, Policy, Priority};

use crate::error::SchedError;
use crate::member::TaskClass;
use crate::policy::Nanos;
use crate::process_monitor::{self, MonitoredProcess, ProcessMonitor};
use crate::procfs;

/// Number of times that an interrupted call is retried.
const RETRIES: usize = 16;

/// Time for which a process is ordinary after one of its threads was found on another CPU. It is
/// ten times the longest time for which the thread can have been there.
const MIGRATION_PENALTY: Duration = Duration::from_secs(1);

/// Maximum number of times that the threads are read in a row, if new threads keep starting.
const MAX_PASSES: usize = 8;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pidfd: OwnedFd,
    /// `/proc/PID/task`, which is locked so that no other scheduler takes the process.
    tasks: File,
    /// Link count of the directory when the threads were last read, which is the number of threads
    /// plus two. 0 if the threads must be read again.
    links: u64,
    guards: Vec<Elevated>,
    pub(super) refused: u64,
    /// Set if the elevator had no space for a thread. No other thread is then tried until the
    /// threads are read again.
    is_full: bool,
    /// Time until which the process is ordinary, because a thread of it was found on another CPU.
    ordinary_until: Option<Instant>,
    pub(super) cpu_time: Nanos,
    _monitored: MonitoredProcess,
}

#[must_use]
#[derive(Debug, PartialEq, Eq)]
enum Adoption {
    /// The thread belongs to the task, or has ended.
    Adopted,
    Refused,
    Full,
}

impl Process {
    /// Attaches process `pid`. `parent` is a thread of the process that forked it, if this thread
    /// was elevated at the time.
    pub(super) fn attach(
        elevator: &Elevator,
        monitor: &ProcessMonitor,
        pid: i32,
        class: TaskClass,
        parent: Option<&Elevated>,
    ) -> Result<Process, SchedError> {
        let gone = |_| SchedError::NoSuchProcess(pid);
        // From here on the pidfd shows whether the number still belongs to this process.
        let pidfd = process_monitor::pidfd(pid).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH | libc::EINVAL) => SchedError::NoSuchProcess(pid),
            _ => SchedError::os("open a pidfd")(error),
        })?;
        let tasks = File::open(format!("/proc/{pid}/task")).map_err(gone)?;
        // The lock prevents two schedulers from recording each other's changes as the process's
        // own. The lock ends with this process, however it ends. Any process can take such a lock,
        // so a lock of another user is ignored, unless this user is root.
        if matches!(tasks.try_lock(), Err(TryLockError::WouldBlock))
            && procfs::is_locked_by_a_peer(&tasks)
        {
            return Err(SchedError::AlreadyScheduled(pid));
        }
        let mut process = Process {
            pid,
            pidfd,
            tasks,
            links: 0,
            guards: Vec::new(),
            refused: 0,
            is_full: false,
            ordinary_until: None,
            cpu_time: 0,
            // Registered before the threads are read, so that no new thread is missed.
            _monitored: monitor.listen(pid),
        };
        let elevate = |tid: i32| match parent {
            Some(parent) => elevator.elevate_inheriting(tid, recording_priority(class), parent),
            None => elevator.elevate(tid, recording_priority(class)),
        };
        match elevate(pid) {
            Ok(guard) => process.guards.push(guard),
            Err(ElevateError::AlreadyElevated(_)) => return Err(SchedError::AlreadyScheduled(pid)),
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
        // Elevated threads may have started other threads meanwhile.
        process.update_threads(elevator, class, None, 1)?;
        if !matches!(class, TaskClass::Fifo(_)) {
            let threads = process.threads();
            process.set(class, threads)?;
        }
        monitor
            .add(process.pidfd.as_fd())
            .map_err(SchedError::os("watch a process"))?;
        Ok(process)
    }

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
        process_monitor::has_ended(self.pidfd.as_fd())
    }

    /// Returns whether the number of threads has changed, provided that there was space for all
    /// threads so far. This costs one system call.
    pub(super) fn has_changed(&self) -> bool {
        !self.is_full
            && self
                .tasks
                .metadata()
                .map_or(true, |found| found.nlink() != self.links)
    }

    pub(super) fn update_threads(
        &mut self,
        elevator: &Elevator,
        class: TaskClass,
        cpu: Option<usize>,
        threads: usize,
    ) -> Result<(), SchedError> {
        for _ in 0..MAX_PASSES {
            self.links = self.tasks.metadata().map_or(0, |found| found.nlink());
            let Ok(tids) = procfs::threads(self.pid) else {
                return Ok(());
            };
            let tids: HashSet<i32> = tids.into_iter().collect();
            self.guards.retain(|guard| tids.contains(&guard.tid()));
            let known: HashSet<i32> = self.tids().collect();
            let new_tids: Vec<i32> = tids.difference(&known).copied().collect();
            (self.refused, self.is_full) = (0, false);
            for (done, &tid) in new_tids.iter().enumerate() {
                match self.adopt_new(tid, elevator, class, cpu, threads)? {
                    Adoption::Adopted => {}
                    Adoption::Refused => self.refused += 1,
                    // The remaining threads would not fit either, and each attempt takes long.
                    Adoption::Full => {
                        self.is_full = true;
                        self.refused += (new_tids.len() - done) as u64;
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

    pub(super) fn add_thread(
        &mut self,
        tid: i32,
        elevator: &Elevator,
        class: TaskClass,
        cpu: Option<usize>,
        threads: usize,
    ) -> Result<(), SchedError> {
        if self.is_full || self.guards.iter().any(|guard| guard.tid() == tid) {
            return Ok(());
        }
        // Threads for which there is no space are counted when the directory is read.
        let adoption = self.adopt_new(tid, elevator, class, cpu, threads)?;
        self.is_full = adoption == Adoption::Full;
        Ok(())
    }

    pub(super) fn remove_thread(&mut self, tid: i32) {
        self.guards.retain(|guard| guard.tid() != tid);
    }

    fn adopt_new(
        &mut self,
        tid: i32,
        elevator: &Elevator,
        class: TaskClass,
        cpu: Option<usize>,
        threads: usize,
    ) -> Result<Adoption, SchedError> {
        let elevated = match self.first() {
            Some(sibling) => elevator.elevate_inheriting(tid, recording_priority(class), sibling),
            None => elevator.elevate(tid, recording_priority(class)),
        };
        let guard = match elevated {
            Ok(guard) => guard,
            Err(ElevateError::NoSuchThread(_)) => return Ok(Adoption::Adopted),
            Err(ElevateError::TableFull { .. }) => return Ok(Adoption::Full),
            Err(_) => return Ok(Adoption::Refused),
        };
        // From here on the guard refers to one particular thread, even if the TID is reused. So if
        // the thread is not in this process now, it never was.
        let listed = std::path::Path::new("/proc").join(format!("{}/task/{tid}", self.pid));
        if !listed.exists() || !cpu.map_or(Ok(true), |cpu| self.pin_one(&guard, cpu))? {
            return Ok(Adoption::Adopted);
        }
        match put(&guard, self.limited(class), threads) {
            Ok(()) => self.guards.push(guard),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(self.failed(error)),
        }
        Ok(Adoption::Adopted)
    }

    /// Returns `class`, or `Fair` instead of `Fifo` while the process is ordinary.
    fn limited(&self, class: TaskClass) -> TaskClass {
        match class {
            TaskClass::Fifo(_)
                if self
                    .ordinary_until
                    .is_some_and(|until| Instant::now() < until) =>
            {
                TaskClass::Fair
            }
            class => class,
        }
    }

    /// Moves all threads to `class`; `threads` is the number of threads of the task. Returns the
    /// number of system calls.
    pub(super) fn set(&mut self, class: TaskClass, threads: usize) -> Result<u32, SchedError> {
        let class = self.limited(class);
        let calls = self.guards.len() as u32;
        let mut index = 0;
        while let Some(guard) = self.guards.get(index) {
            match put(guard, class, threads) {
                Ok(()) => index += 1,
                Err(error) if is_gone(&error) => {
                    self.guards.swap_remove(index);
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

    /// Moves one thread to `cpu`. Returns `false` if the thread has ended.
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

    /// Restores the class of threads that have changed their own policy or CPUs. Returns the number
    /// of these threads. If a thread has ended, the next scan reads the directory, because a new
    /// thread may have left the number of threads unchanged. This costs three system calls for each
    /// thread.
    pub(super) fn correct(
        &mut self,
        class: TaskClass,
        cpu: usize,
        threads: usize,
    ) -> Result<u64, SchedError> {
        let only = CpuSet::only(cpu);
        let mut corrected = 0;
        let has_migrated = |guard: &Elevated| {
            let cpus = Kernel.sched_getaffinity(guard.tid());
            cpus.is_ok_and(|cpus| Some(cpus) != only)
        };
        if self.guards.iter().any(has_migrated) {
            // Until now, the thread could use the other CPU before all ordinary threads.
            self.ordinary_until = Some(Instant::now() + MIGRATION_PENALTY);
        }
        let class = self.limited(class);
        for guard in &self.guards {
            let is_elsewhere = Kernel.sched_getaffinity(guard.tid()).ok() != only;
            let has_other_class = match Policy::of(&Kernel, guard.tid()) {
                Ok(now) => !is_at(&now, class),
                Err(_) => {
                    self.links = 0;
                    continue;
                }
            };
            if !is_elsewhere && !has_other_class {
                continue;
            }
            if is_elsewhere && !self.pin_one(guard, cpu)? {
                continue;
            }
            match put(guard, class, threads) {
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

fn recording_priority(class: TaskClass) -> Priority {
    match class {
        TaskClass::Fifo(priority) => priority,
        TaskClass::Fair | TaskClass::Idle => Priority::MIN,
    }
}

fn put(guard: &Elevated, class: TaskClass, threads: usize) -> io::Result<()> {
    retrying(|| match class {
        TaskClass::Fifo(priority) => guard.set(priority),
        TaskClass::Fair => match guard.set_nice(nice_for(threads)) {
            // Lowering the nice value needs a right; without it the thread keeps its own value.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => guard.set_fair(),
            result => result,
        },
        TaskClass::Idle => guard.set_idle(),
    })
}

/// Returns the nice value at which `threads` threads have about the weight of one thread of nice 0,
/// because one step of nice is a factor of 1.25.
fn nice_for(threads: usize) -> i32 {
    let steps = (threads.max(1) as f64).ln() / 1.25f64.ln();
    (steps.round() as i32).min(19)
}

fn is_at(now: &Policy, class: TaskClass) -> bool {
    match (class, now.class()) {
        (TaskClass::Fifo(priority), Class::Fifo(now)) => now == u32::from(priority.get()),
        (TaskClass::Fair, Class::Other { .. }) | (TaskClass::Idle, Class::Idle) => true,
        _ => false,
    }
}

fn retrying(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut retries = RETRIES;
    loop {
        match call() {
            Err(error)
                if retries > 0
                    && matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) =>
            {
                retries -= 1;
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
        assert_eq!([1, 2, 4, 8].map(nice_for), [0, 3, 6, 9]);
        assert_eq!(nice_for(0), 0);
        assert_eq!(nice_for(1_000_000), 19);
    }
}
