//! Runs a policy that is not part of the crate on real processes. The task that has used the least
//! CPU time runs next.
//!
//! `sudo cargo run -p upshift-sched --example least_first -- PID PID …` schedules these processes
//! on CPU 0 for ten seconds; without pids it starts two processes that spin and schedules them for
//! one second. All threads are restored at the end.

use std::error::Error;
use std::process::{Child, Command};
use std::time::Duration;

use upshift_elevate::{Elevator, Priority, Rights};
use upshift_sched::{
    Config, Engine, Nanos, Policy, ProcessMonitor, Processes, SchedError, Scheduler, TaskId, Turn,
    Usage,
};

struct LeastFirst {
    used: Vec<(Nanos, TaskId)>,
}

impl Policy for LeastFirst {
    fn name(&self) -> &'static str {
        "least first"
    }

    fn added(&mut self, task: TaskId, _now: Nanos) {
        self.used.push((0, task));
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.used.retain(|&(_, other)| other != task);
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        for (used, task) in &mut self.used {
            *used += if *task == usage.task {
                usage.cpu_time
            } else {
                0
            };
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        self.used.sort();
        for &(_, task) in self.used.iter().take(turn.cpus()) {
            turn.favour(task);
        }
        turn.end_at(now + 2_000_000);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scheduler_priority = Priority::of::<45>();
    if let Err(missing) = Rights::probe().require(scheduler_priority) {
        println!("skipped: {missing}");
        return Ok(());
    }
    let mut pids: Vec<i32> = Vec::new();
    for word in std::env::args().skip(1) {
        pids.push(word.parse()?);
    }
    let mut spinners: Vec<Child> = Vec::new();
    if pids.is_empty() {
        for _ in 0..2 {
            spinners.push(
                Command::new("sh")
                    .args(["-c", "while :; do :; done"])
                    .spawn()?,
            );
        }
        pids = spinners.iter().map(|child| child.id() as i32).collect();
    }
    let time = Duration::from_secs(if spinners.is_empty() { 10 } else { 1 });
    let elevator = Elevator::with_guardian()?;
    let thread_elevator = elevator.clone();
    let running = Scheduler::start(&elevator, 0, scheduler_priority, move || {
        let config = Config::for_cpus([0]);
        let base = config.base;
        let mut engine = Engine::new(config, Box::new(LeastFirst { used: Vec::new() }));
        let monitor =
            ProcessMonitor::start(&engine.control(), &thread_elevator, scheduler_priority)?;
        for pid in pids {
            engine.add(Processes::attach(
                &thread_elevator,
                &monitor,
                pid,
                base,
                false,
            )?)?;
        }
        Ok::<_, SchedError>(engine)
    })?;
    std::thread::sleep(time);
    let (report, _) = running.stop()?;
    for mut child in spinners {
        child.kill()?;
        child.wait()?;
    }
    for task in report.tasks {
        println!("{:<20} {:5.1} %", task.label, 100.0 * task.share);
    }
    Ok(())
}
