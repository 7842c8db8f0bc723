//! Tests that the tasks run on the other CPUs while a CPU of a scheduler is unplugged. Unplugging
//! affects all programs of the machine, so only `cargo xtask soak` runs the test
//! (`UPSHIFT_SCHED_UNPLUG`).

use upshift_elevate::Elevator;
use upshift_elevate::sys::CpuSet;
use upshift_sched::policies::RoundRobin;
use upshift_testing::{UnpluggedCpu, can_unplug};

use crate::support::{
    Process, cpu_time_of, scheduling_of, serial_test, skipped, sleep, start_scheduler, wait_until,
};

/// CPU that the test unplugs.
const CPU: usize = 1;

#[test]
fn tasks_of_an_unplugged_cpu_run_on_the_other_cpu_until_it_is_back() {
    let Some(_guard) = serial_test() else { return };
    if std::env::var("UPSHIFT_SCHED_UNPLUG").is_err() {
        return skipped("this test disturbs the whole machine: `cargo xtask soak` runs it");
    }
    if !can_unplug(CPU) {
        return skipped("CPU 1 cannot be unplugged here");
    }
    let spinners = [(); 3].map(|()| Process::start("spin"));
    let pids = spinners.each_ref().map(Process::pid);
    let elevator = Elevator::with_guardian().unwrap();
    let start = || {
        let policy = Box::new(RoundRobin::new(5_000_000));
        start_scheduler(&elevator, &pids, policy, |c| c.cpus = vec![0, CPU], false).unwrap()
    };
    let before = pids.map(scheduling_of);
    let scheduler = start();
    sleep(300);
    let offline = match UnpluggedCpu::new(CPU) {
        Ok(offline) => offline,
        Err(error) => return skipped(format!("CPU 1 cannot be unplugged: {error}")),
    };
    let is_lost = || {
        scheduler
            .control()
            .report()
            .is_some_and(|report| report.lost == [CPU])
    };
    wait_until("the CPU is lost", || {
        assert!(
            !scheduler.is_finished(),
            "the scheduler ended although a CPU is left"
        );
        is_lost()
    });
    let used = pids.map(cpu_time_of);
    sleep(600);
    for (&pid, &used) in pids.iter().zip(&used) {
        let all = scheduling_of(pid);
        assert!(
            all.iter()
                .all(|(_, _, cpus)| Some(*cpus) == CpuSet::only(0)),
            "{all:?}"
        );
        assert!(
            cpu_time_of(pid) > used,
            "a task does not run on the other CPU"
        );
    }
    drop(offline);
    sleep(300);
    let (report, _) = scheduler.stop().unwrap();
    println!("{report:#?}");
    assert_eq!(before, pids.map(scheduling_of));
    let second = start();
    wait_until("both CPUs are used again", || {
        let on = |cpu| {
            pids.iter().any(|&pid| {
                scheduling_of(pid)
                    .iter()
                    .any(|thread| Some(thread.2) == CpuSet::only(cpu))
            })
        };
        on(0) && on(CPU)
    });
    second.stop().unwrap();
}
