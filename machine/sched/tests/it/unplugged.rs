//! A CPU is unplugged and comes back while it is scheduled. All programs of the machine notice, so
//! only `cargo xtask soak` does this (`UPSHIFT_SCHED_UNPLUG`).

use std::process::{Child, Command, Stdio};

use upshift_elevate::Elevator;
use upshift_elevate::sys::CpuSet;
use upshift_sched::policies::RoundRobin;

use crate::world::{Process, attach_all, class, cpu_time_of, skipped, sleep, turn, until};

const CPU: usize = 1;
const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";

/// The CPU is unplugged until this is dropped, and for at most 15 s: a shell plugs it back in when
/// its input ends, so also when this process is killed.
struct Unplugged(Child);

impl Unplugged {
    fn new() -> std::io::Result<Unplugged> {
        let back = format!("timeout 15 cat > /dev/null; echo 1 > {SWITCH}");
        let mut shell = Command::new("setsid");
        shell.args(["sh", "-c", &back]).stdin(Stdio::piped());
        let unplugged = Unplugged(shell.spawn()?);
        std::fs::write(SWITCH, "0")?;
        Ok(unplugged)
    }
}

impl Drop for Unplugged {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_cpu_that_is_unplugged_leaves_its_tasks_to_the_other_until_it_is_back() {
    let Some(_turn) = turn() else { return };
    if std::env::var("UPSHIFT_SCHED_UNPLUG").is_err() {
        return skipped("it disturbs the whole machine: cargo xtask soak does it");
    }
    if std::fs::OpenOptions::new()
        .write(true)
        .open(SWITCH)
        .is_err()
    {
        return skipped("CPU 1 cannot be unplugged here");
    }
    let spinners = [(); 3].map(|()| Process::start("spin"));
    let pids = spinners.each_ref().map(Process::pid);
    let elevator = Elevator::with_guardian().unwrap();
    let start = || {
        let policy = Box::new(RoundRobin::new(5_000_000));
        attach_all(&elevator, &pids, policy, |c| c.cpus = vec![0, CPU], false).unwrap()
    };
    let before = pids.map(class);
    let scheduler = start();
    sleep(300);
    let away = match Unplugged::new() {
        Ok(away) => away,
        Err(error) => return skipped(format!("CPU 1 is not unplugged: {error}")),
    };
    let lost = || {
        scheduler
            .control()
            .report()
            .is_some_and(|report| report.lost == [CPU])
    };
    until("the CPU is lost", || {
        assert!(!scheduler.is_finished(), "the other CPU is there");
        lost()
    });
    let used = pids.map(cpu_time_of);
    sleep(600);
    for (&pid, &used) in pids.iter().zip(&used) {
        let all = class(pid);
        assert!(
            all.iter()
                .all(|(_, _, cpus)| Some(*cpus) == CpuSet::only(0)),
            "{all:?}"
        );
        assert!(
            cpu_time_of(pid) > used,
            "it takes its turns on the other CPU"
        );
    }
    drop(away);
    sleep(300);
    let (report, _) = scheduler.stop().unwrap();
    println!("{report:#?}");
    // Policy, priority and CPUs.
    assert_eq!(before, pids.map(class));
    let again = start();
    until("both CPUs are used again", || {
        let on = |cpu| {
            pids.iter().any(|&pid| {
                class(pid)
                    .iter()
                    .any(|thread| Some(thread.2) == CpuSet::only(cpu))
            })
        };
        on(0) && on(CPU)
    });
    again.stop().unwrap();
}
