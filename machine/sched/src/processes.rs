//! [`Processes`]: a task that consists of processes: one, or one and what it forks.
//!
//! Every thread is elevated through an [`Elevator`], so it is given back however this ends. A thread that is born while its
//! process is elevated starts as an ordinary one on the same CPU (`SCHED_RESET_ON_FORK`), behind all tasks. The kernel tells of it
//! where it may ([`Watch`]), and it joins at once. Elsewhere it is found when the number of threads
//! has changed, by one `fstat` of `/proc/PID/task` for each process, whose link count is the number
//! of threads and two; only then the directory is read. A
//! thorough look reads it anyway, then asks every thread for its policy and CPUs, and puts back what it has changed itself.
//!
//! Children: `/proc/PID/task/TID/children` of every thread, at every look.
//!
//! A thread that has ended leaves a number that may come to mean another one. It is forgotten when the kernel tells of its end, or
//! when the directory is read; until then, a thread of another process with its number could be raised in its place. Numbers are
//! given in turn: where the kernel does not tell, all of them would have to be used up within 100 ms.

mod process;

use upshift_elevate::sys::{process_time, sleeps};
use upshift_elevate::{Elevator, Priority};

use crate::error::SchedError;
use crate::member::{Member, Standing};
use crate::policy::Nanos;
use crate::procfs;
use crate::watch::Watch;
use process::Process;

/// Of so many threads it is found out whether they want to run; some 10 µs for each.
const ASKED: usize = 32;

/// One or several processes that are scheduled as one task.
#[derive(Debug)]
pub struct Processes {
    label: String,
    /// Before the watch: the end of the last watch is awaited, and its thread does not run below what is still elevated.
    processes: Vec<Process>,
    watch: Watch,
    elevator: Elevator,
    with_children: bool,
    standing: Standing,
    cpu: Option<usize>,
    /// CPU time of processes that have ended, ns.
    ended: Nanos,
    /// Times a child could not be had.
    refused: u64,
    /// Threads whose own change of policy or CPUs was undone.
    corrected: u64,
}

impl Processes {
    /// Takes process `pid` with all its threads, and with its present and future children if `with_children`. They are put at
    /// `base`: the lowest notch of the engine it is meant for. `elevator` needs a guardian.
    ///
    /// # Errors
    /// [`SchedError`]; everything is as it was then.
    pub fn attach(
        elevator: &Elevator,
        watch: &Watch,
        pid: i32,
        base: Priority,
        with_children: bool,
    ) -> Result<Processes, SchedError> {
        procfs::check(pid)?;
        if pid == std::process::id() as i32 || elevator.guardian_pid() == Some(pid) {
            return Err(SchedError::Own(pid));
        }
        let mut task = Processes {
            label: format!("{} {pid}", procfs::name(pid)),
            processes: Vec::new(),
            watch: watch.clone(),
            elevator: elevator.clone(),
            with_children,
            standing: Standing::At(base),
            cpu: None,
            ended: 0,
            refused: 0,
            corrected: 0,
        };
        let process = Process::attach(elevator, watch, pid, task.standing, None)?;
        task.processes.push(process);
        if with_children {
            task.follow_children();
        }
        Ok(task)
    }

    /// Names the task.
    pub fn labelled(mut self, label: impl Into<String>) -> Processes {
        self.label = label.into();
        self
    }

    /// The processes it has now.
    pub fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.processes.iter().map(|process| process.pid)
    }

    /// Times a thread's own change of policy or CPUs was undone.
    pub fn corrected(&self) -> u64 {
        self.corrected
    }

    /// Looks for children, and theirs, until there are no new ones.
    fn follow_children(&mut self) {
        let mut at = 0;
        while let Some(process) = self.processes.get(at) {
            at += 1;
            for pid in procfs::children(process.pid, process.tids()) {
                let known = self.processes.iter().any(|other| other.pid == pid);
                if known || procfs::check(pid).is_err() {
                    continue;
                }
                // Born before its parent was pinned, it has inherited nothing from us.
                let parent = self.cpu.and(self.processes.get(at - 1));
                let parent = parent.and_then(Process::first);
                let attached =
                    Process::attach(&self.elevator, &self.watch, pid, self.standing, parent);
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

    fn set(&mut self, standing: Standing) -> Result<u32, SchedError> {
        self.standing = standing;
        let threads = self.threads();
        let mut calls = 0;
        for process in &mut self.processes {
            calls += process.set(standing, threads)?;
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
        let mut sum = self.ended;
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
        threads.take(ASKED).any(|tid| !sleeps(tid))
    }

    fn follow(&mut self, thorough: bool) -> Result<bool, SchedError> {
        // If the guardian has demoted the threads because there was none for long, the next thorough look puts them back.
        self.elevator.beat();
        let (standing, cpu, threads) = (self.standing, self.cpu, self.threads());
        if thorough {
            // Or nothing would give the threads back if this process died, too.
            let guarded = self.elevator.ensure_guardian();
            guarded.map_err(SchedError::Elevate)?;
            let ended = &mut self.ended;
            self.processes.retain(|process| {
                let ends = process.has_ended();
                *ended += if ends { process.cpu_time } else { 0 };
                !ends
            });
        }
        // Where the kernel tells of each thread, the others need not be read when one is born.
        let told = self.watch.hears();
        for process in &mut self.processes {
            if thorough || (!told && process.has_changed()) {
                process.adopt(&self.elevator, standing, cpu, threads)?;
            }
            if thorough && let Some(cpu) = cpu {
                self.corrected += process.correct(standing, cpu, threads)?;
            }
        }
        if self.with_children {
            self.follow_children();
        }
        Ok(!self.processes.is_empty())
    }

    fn born(&mut self, parent: i32, pid: i32, tid: i32) -> Result<(), SchedError> {
        let (standing, cpu, threads) = (self.standing, self.cpu, self.threads() + 1);
        let own = self.processes.iter_mut().find(|process| process.pid == pid);
        if let Some(process) = own {
            process.take_in(tid, &self.elevator, standing, cpu, threads)?;
        } else if self.with_children && self.pids().any(|pid| pid == parent) {
            self.follow_children();
        }
        Ok(())
    }

    fn lost(&mut self, pid: i32, tid: i32) {
        let own = self.processes.iter_mut().find(|process| process.pid == pid);
        if let Some(process) = own {
            process.forget(tid);
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
