//! How much each gets: real processes that spin. Margins are wide, because the machine may be busy.

use upshift_elevate::Elevator;
use upshift_sched::policies::{Entry, Levels, RoundRobin, Solo, Table, Weighted};
use upshift_sched::{Policy, TaskId, What};

use crate::world::{Process, attach_all, sleep, standing, turn};

const MS: u64 = 1_000_000;

/// Shares of so many spinning processes after `ms`, and the number of turns of each.
fn shares(count: usize, policy: impl Policy + 'static, ms: u64) -> Vec<(f64, u64)> {
    let spinners: Vec<Process> = (0..count).map(|_| Process::start("spin")).collect();
    let pids: Vec<i32> = spinners.iter().map(Process::pid).collect();
    let before: Vec<_> = pids.iter().map(|&pid| standing(pid)).collect();
    let elevator = Elevator::with_guardian().unwrap();
    let scheduler = attach_all(&elevator, &pids, Box::new(policy), |_| {}, false).unwrap();
    sleep(ms);
    let (report, _) = scheduler.stop().unwrap();
    let after: Vec<_> = pids.iter().map(|&pid| standing(pid)).collect();
    assert_eq!(before, after, "everything is as it was");
    println!("{report:#?}");
    let tasks = report.tasks.iter();
    tasks.map(|task| (task.share, task.turns)).collect()
}

#[test]
fn two_processes_take_turns() {
    let Some(_turn) = turn() else { return };
    for (share, turns) in shares(2, RoundRobin::new(5 * MS), 600) {
        assert!((0.3..0.7).contains(&share), "{share}");
        assert!(turns > 10, "{turns}");
    }
}

#[test]
fn eight_processes_take_short_turns() {
    let Some(_turn) = turn() else { return };
    for (share, _) in shares(8, RoundRobin::new(200_000), 600) {
        assert!((0.04..0.3).contains(&share), "{share}");
    }
}

#[test]
fn shares_are_in_proportion() {
    let Some(_turn) = turn() else { return };
    // A task that gets less than half of its turn counts as asleep and saves nothing up, and a machine that takes the CPU away for long
    // makes it so; not every time.
    let mut found = Vec::new();
    let kept = (0..3).any(|_| {
        let policy = Weighted::new(2 * MS).share(TaskId(0), 3);
        found = shares(2, policy, 600);
        (0.58..0.92).contains(&found[0].0)
    });
    assert!(kept, "{found:?}");
}

#[test]
fn the_less_urgent_starve_and_equals_do_not() {
    let Some(_turn) = turn() else { return };
    let policy = Levels::new(5 * MS).level(TaskId(0), 0).level(TaskId(1), 0);
    let found = shares(3, policy, 600);
    assert!(found[0].0 > 0.25 && found[1].0 > 0.25, "{found:?}");
    assert!(found[2].0 < 0.2, "{found:?}");
}

#[test]
fn one_alone_keeps_the_cpu() {
    let Some(_turn) = turn() else { return };
    let mut found = Vec::new();
    // A machine that is busy with other things may let the one in front begin late.
    let kept = (0..3).any(|_| {
        found = shares(2, Solo::new(), 400);
        found[0].0.max(found[1].0) > 0.7
    });
    assert!(kept, "{found:?}");
}

#[test]
fn a_timetable_is_kept() {
    let Some(_turn) = turn() else { return };
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = [spinners[0].pid(), spinners[1].pid()];
    let entry = |task, ms: u64| Entry {
        tasks: vec![TaskId(task)],
        length: ms * MS,
    };
    let policy = Table::new(vec![entry(0, 6), entry(1, 2), entry(0, 3), entry(1, 9)]);
    let elevator = Elevator::with_guardian().unwrap();
    let traced = |config: &mut upshift_sched::Config| config.trace = 10_000;
    let scheduler = attach_all(&elevator, &pids, Box::new(policy), traced, false).unwrap();
    sleep(400);
    let (report, trace) = scheduler.stop().unwrap();
    let fronts: Vec<(u64, usize)> = trace
        .events()
        .iter()
        .filter_map(|event| match event.what {
            What::Front { task, .. } => Some((event.at, task.unwrap().0)),
            _ => None,
        })
        .collect();
    // One at a time, in the order of the table, each on its place in the grid: the median deviation is less than the
    // shortest entry.
    let grid = [(0, 0), (6, 1), (8, 0), (11, 1)];
    let mut late: Vec<u64> = Vec::new();
    for &(at, task) in &fronts {
        let since = at % (20 * MS);
        let place = grid
            .iter()
            .rev()
            .find(|(begin, _)| begin * MS <= since)
            .unwrap();
        assert_eq!(place.1, task, "at {at}");
        late.push(since - place.0 * MS);
    }
    late.sort_unstable();
    assert!(fronts.len() > 20, "{}", fronts.len());
    assert!(late[late.len() / 2] < 2 * MS, "{late:?}");
    assert!((0.3..0.6).contains(&report.tasks[0].share), "{report:#?}");
}
