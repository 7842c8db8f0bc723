//! [`Processes`] is a task that consists of a process, or of a process and its descendants.
//!
//! Every thread is elevated through an [`Elevator`], so it is restored however the scheduler ends.
//! A thread that starts while its process is elevated is an ordinary thread on the same CPU
//! (`SCHED_RESET_ON_FORK`), behind all tasks. Where the kernel reports new threads
//! ([`ProcessMonitor`]), it is elevated at once. Elsewhere a scan compares the link count of
//! `/proc/PID/task`, which is the number of threads plus two, and reads the directory only if the
//! count has changed. This costs one `fstat` for each process. A thorough scan always reads the
//! directory, reads the policy and the CPUs of every thread, and reverts changes that a thread made
//! itself.
//!
//! Children are listed in `/proc/PID/task/TID/children` of every thread, at every scan.
//!
//! The TID of a thread that has ended may be reused. The thread is forgotten when the kernel
//! reports its end, or when the directory is read. Until then, a thread of another process with the
//! same TID could be elevated in its place. TIDs are assigned in sequence, so without reports, a
//! full cycle of TIDs would have to pass within 100 ms.

mod process;

use upshift_elevate::sys::{process_time, sleeps};
use upshift_elevate::{Elevator, Priority};

use crate::error::SchedError;
use crate::member::{Member, TaskClass};
use crate::policy::Nanos;
use crate::process_monitor::ProcessMonitor;
use crate::procfs;
use process::Process;

/// Maximum number of threads that `wants_cpu` examines, at about 10 µs each.
const MAX_EXAMINED_THREADS: usize = 32;

/// A task that consists of one or several processes.
#[derive(Debug)]
pub struct Processes {
    label: String,
    /// Dropped before the monitor, because dropping the monitor joins its thread, which the
    /// elevated threads of these processes could keep from running.
    processes: Vec<Process>,
    monitor: ProcessMonitor,
    elevator: Elevator,
    with_children: bool,
    class: TaskClass,
    cpu: Option<usize>,
    /// CPU time of processes that have ended, ns.
    ended_cpu_time: Nanos,
    refused: u64,
    corrections: u64,
}

impl Processes {
    /// Attaches process `pid` with all its threads and, if `with_children`, its present and future
    /// children. They get the priority `base`, the lowest that the scheduler will use for them.
    /// `elevator` needs a guardian.
    ///
    /// # Errors
    /// [`SchedError`]; all threads have then been restored.
    pub fn attach(
        elevator: &Elevator,
        monitor: &ProcessMonitor,
        pid: i32,
        base: Priority,
        with_children: bool,
    ) -> Result<Processes, SchedError> {
        procfs::check(pid)?;
        if pid == std::process::id() as i32 || elevator.guardian_pid() == Some(pid) {
            return Err(SchedError::OwnProcess(pid));
        }
        let mut task = Processes {
            label: format!("{} {pid}", procfs::name(pid)),
            processes: Vec::new(),
            monitor: monitor.clone(),
            elevator: elevator.clone(),
            with_children,
            class: TaskClass::Fifo(base),
            cpu: None,
            ended_cpu_time: 0,
            refused: 0,
            corrections: 0,
        };
        let process = Process::attach(elevator, monitor, pid, task.class, None)?;
        task.processes.push(process);
        if with_children {
            task.scan_children();
        }
        Ok(task)
    }

    /// Sets the name of the task.
    pub fn with_label(mut self, label: impl Into<String>) -> Processes {
        self.label = label.into();
        self
    }

    /// Iterates over the present processes of the task.
    pub fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.processes.iter().map(|process| process.pid)
    }

    /// Returns the number of times that a thread's own change of policy or CPUs was reverted.
    pub fn corrections(&self) -> u64 {
        self.corrections
    }

    fn scan_children(&mut self) {
        let mut next = 0;
        while let Some(process) = self.processes.get(next) {
            next += 1;
            for pid in procfs::children(process.pid, process.tids()) {
                let known = self.processes.iter().any(|other| other.pid == pid);
                if known || procfs::check(pid).is_err() {
                    continue;
                }
                // A child that started before its parent was pinned has inherited neither policy
                // nor CPU.
                let parent = self.cpu.and(self.processes.get(next - 1));
                let parent = parent.and_then(Process::first);
                let attached =
                    Process::attach(&self.elevator, &self.monitor, pid, self.class, parent);
                match attached {
                    Ok(mut child) => {
                        if let Some(cpu) = self.cpu {
                            self.refused += u64::from(child.pin(cpu).is_err());
                        }
                        self.processes.push(child);
                    }
                    Err(_) => self.refused += 1,
                }
            }
        }
    }
}

impl Member for Processes {
    fn label(&self) -> &str {
        &self.label
    }

    fn set(&mut self, class: TaskClass) -> Result<u32, SchedError> {
        self.class = class;
        let threads = self.threads();
        let mut calls = 0;
        for process in &mut self.processes {
            calls += process.set(class, threads)?;
        }
        Ok(calls)
    }

    fn pin(&mut self, cpu: usize) -> Result<(), SchedError> {
        self.cpu = Some(cpu);
        for process in &mut self.processes {
            process.pin(cpu)?;
        }
        Ok(())
    }

    fn cpu_time(&mut self) -> Nanos {
        let mut sum = self.ended_cpu_time;
        for process in &mut self.processes {
            if let Ok(time) = process_time(process.pid) {
                process.cpu_time = process.cpu_time.max(time);
            }
            sum += process.cpu_time;
        }
        sum
    }

    fn wants_cpu(&self) -> bool {
        let threads = self.processes.iter().flat_map(Process::tids);
        threads.take(MAX_EXAMINED_THREADS).any(|tid| !sleeps(tid))
    }

    fn scan(&mut self, thorough: bool) -> Result<bool, SchedError> {
        // If this heartbeat is late, the guardian has already demoted the threads; the next
        // thorough scan elevates them again.
        self.elevator.beat();
        let (class, cpu, threads) = (self.class, self.cpu, self.threads());
        if thorough {
            // Without a guardian, the end of this process would leave the threads elevated.
            let guarded = self.elevator.ensure_guardian();
            guarded.map_err(SchedError::Elevate)?;
            let ended_cpu_time = &mut self.ended_cpu_time;
            self.processes.retain(|process| {
                let has_ended = process.has_ended();
                *ended_cpu_time += if has_ended { process.cpu_time } else { 0 };
                !has_ended
            });
        }
        // Where the kernel reports each new thread, the other processes need not be read.
        let reported = self.monitor.reports_threads();
        for process in &mut self.processes {
            if thorough || (!reported && process.has_changed()) {
                process.update_threads(&self.elevator, class, cpu, threads)?;
            }
            if thorough && let Some(cpu) = cpu {
                self.corrections += process.correct(class, cpu, threads)?;
            }
        }
        if self.with_children {
            self.scan_children();
        }
        Ok(!self.processes.is_empty())
    }

    fn on_thread_start(&mut self, parent: i32, pid: i32, tid: i32) -> Result<(), SchedError> {
        let (class, cpu, threads) = (self.class, self.cpu, self.threads() + 1);
        let process = self.processes.iter_mut().find(|process| process.pid == pid);
        if let Some(process) = process {
            process.add_thread(tid, &self.elevator, class, cpu, threads)?;
        } else if self.with_children && self.pids().any(|pid| pid == parent) {
            self.scan_children();
        }
        Ok(())
    }

    fn on_thread_end(&mut self, pid: i32, tid: i32) {
        let process = self.processes.iter_mut().find(|process| process.pid == pid);
        if let Some(process) = process {
            process.remove_thread(tid);
        }
    }

    fn refused(&self) -> u64 {
        let threads: u64 = self.processes.iter().map(|process| process.refused).sum();
        self.refused + threads
    }

    fn threads(&self) -> usize {
        self.processes.iter().map(Process::threads).sum()
    }
}
