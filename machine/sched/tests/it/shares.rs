//! Tests of the shares of real processes that spin. `engine/tests.rs` tests each policy in virtual
//! time.

use upshift_elevate::Elevator;
use upshift_sched::policies::{Entry, RoundRobin, Table};
use upshift_sched::{EventKind, TaskId};

use crate::support::{Process, scheduling_of, serial_test, sleep, start_scheduler};

const MS: u64 = 1_000_000;

#[test]
fn two_processes_share_the_cpu() {
    let Some(_guard) = serial_test() else { return };
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = spinners.each_ref().map(Process::pid);
    let before = pids.map(scheduling_of);
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(RoundRobin::new(5 * MS));
    let scheduler = start_scheduler(&elevator, &pids, policy, |_| {}, false).unwrap();
    sleep(600);
    let (report, _) = scheduler.stop().unwrap();
    assert_eq!(before, pids.map(scheduling_of), "a thread is not restored");
    // Each task should get half of the CPU. Other programs of the machine may distort the shares.
    for task in &report.tasks {
        assert!((0.3..0.7).contains(&task.share), "{report:#?}");
        assert!(task.turns > 10, "{report:#?}");
    }
}

#[test]
fn tasks_follow_a_timetable() {
    let Some(_guard) = serial_test() else { return };
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = [spinners[0].pid(), spinners[1].pid()];
    let entry = |task, ms: u64| Entry {
        tasks: vec![TaskId(task)],
        length: ms * MS,
    };
    let policy = Table::new(vec![entry(0, 6), entry(1, 2), entry(0, 3), entry(1, 9)]);
    let elevator = Elevator::with_guardian().unwrap();
    let traced = |config: &mut upshift_sched::Config| config.trace = 10_000;
    let scheduler = start_scheduler(&elevator, &pids, Box::new(policy), traced, false).unwrap();
    sleep(400);
    let (report, trace) = scheduler.stop().unwrap();
    let switches: Vec<(u64, usize)> = trace
        .events()
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Front { task, .. } => Some((event.at, task.unwrap().0)),
            _ => None,
        })
        .collect();
    // One task runs at a time, in the order of the table, and each in its entry. The median
    // deviation must be less than the shortest entry.
    let grid = [(0, 0), (6, 1), (8, 0), (11, 1)];
    let mut delays: Vec<u64> = Vec::new();
    for &(at, task) in &switches {
        let since = at % (20 * MS);
        let entry = grid
            .iter()
            .rev()
            .find(|(begin, _)| begin * MS <= since)
            .unwrap();
        assert_eq!(entry.1, task, "at {at}");
        delays.push(since - entry.0 * MS);
    }
    delays.sort_unstable();
    assert!(switches.len() > 20, "only {} switches", switches.len());
    assert!(delays[delays.len() / 2] < 2 * MS, "delays, ns: {delays:?}");
    // The table gives the first task 9 of 20 ms.
    assert!((0.3..0.6).contains(&report.tasks[0].share), "{report:#?}");
}
