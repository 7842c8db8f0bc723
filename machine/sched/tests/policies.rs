//! Tests of the policies in virtual time. They check exact sequences of tasks, and compare stride
//! and deadline scheduling with naive oracles.

use proptest::prelude::*;
use upshift_sched::policies::{
    Edf, EdfError, Entry, Levels, Reservation, RoundRobin, Table, Weighted,
};
use upshift_sched::{Nanos, Policy, TaskId, Turn, Usage};

const MS: Nanos = 1_000_000;

fn pick(policy: &mut dyn Policy, now: Nanos, cpus: usize) -> (Vec<usize>, Option<Nanos>) {
    let mut turn = Turn::new(cpus);
    policy.pick(now, &mut turn);
    let tasks = turn.favoured().iter().map(|task| task.0).collect();
    (tasks, turn.end())
}

fn report_usage(policy: &mut dyn Policy, task: usize, cpu_time: Nanos, now: Nanos) {
    let usage = Usage {
        task: TaskId(task),
        cpu_time,
        slept: false,
    };
    policy.used(usage, now);
}

#[test]
fn late_timers_do_not_shift_the_slices_of_round_robin() {
    let mut policy = RoundRobin::new(5 * MS);
    for task in 0..3 {
        policy.added(TaskId(task), 0);
    }
    assert_eq!(pick(&mut policy, 0, 1), (vec![0], Some(5 * MS)));
    assert_eq!(pick(&mut policy, 2 * MS, 1), (vec![0], Some(5 * MS)));
    assert_eq!(pick(&mut policy, 5 * MS + 40, 1), (vec![1], Some(10 * MS)));
    policy.removed(TaskId(1), 7 * MS);
    assert_eq!(pick(&mut policy, 7 * MS, 1), (vec![2], Some(12 * MS)));
    policy.removed(TaskId(0), 8 * MS);
    assert_eq!(pick(&mut policy, 8 * MS, 1), (vec![2], None));
}

#[test]
fn a_timetable_repeats_and_skips_missed_entries() {
    let entry = |tasks: &[usize], length: u64| Entry {
        tasks: tasks.iter().map(|&task| TaskId(task)).collect(),
        length: length * MS,
    };
    let mut policy = Table::new(vec![entry(&[0], 2), entry(&[1], 3), entry(&[], 5)]);
    let start = 100 * MS;
    assert_eq!(pick(&mut policy, start, 1), (vec![0], Some(start + 2 * MS)));
    assert_eq!(
        pick(&mut policy, start + 2 * MS + 30, 1),
        (vec![1], Some(start + 5 * MS))
    );
    assert_eq!(
        pick(&mut policy, start + 5 * MS, 1),
        (vec![], Some(start + 10 * MS))
    );
    assert_eq!(
        pick(&mut policy, start + 10 * MS, 1),
        (vec![0], Some(start + 12 * MS))
    );
    assert_eq!(
        pick(&mut policy, start + 1003 * MS, 1),
        (vec![1], Some(start + 1005 * MS))
    );
    policy.removed(TaskId(1), start + 1004 * MS);
    assert_eq!(
        pick(&mut policy, start + 1004 * MS, 1),
        (vec![], Some(start + 1005 * MS))
    );
}

#[test]
fn tasks_of_equal_level_rotate() {
    let mut policy = Levels::new(5 * MS).level(TaskId(0), 1).level(TaskId(1), 1);
    for task in 0..3 {
        policy.added(TaskId(task), 0);
    }
    let mut favoured = Vec::new();
    for turn in 0..6 {
        favoured.extend(pick(&mut policy, turn * 5 * MS, 1).0);
    }
    assert_eq!(favoured, [0, 1, 0, 1, 0, 1]);
    assert_eq!(pick(&mut policy, 30 * MS, 3).0.len(), 3);
}

#[test]
fn impossible_reservations_are_refused() {
    let reserve = |period, budget| Reservation { period, budget };
    let policy = Edf::new().reserve(TaskId(0), reserve(10, 6), 1.0).unwrap();
    let error = policy.reserve(TaskId(1), reserve(10, 5), 1.0).unwrap_err();
    assert!(matches!(error, EdfError::Overcommitted { .. }));
    assert!(error.to_string().contains("1.10 CPUs of 1.00"), "{error}");
    for (period, budget) in [(0, 0), (10, 0), (10, 11)] {
        let error = Edf::new().reserve(TaskId(0), reserve(period, budget), 1.0);
        assert!(matches!(error, Err(EdfError::Impossible(_))));
    }
    let reversed = Edf::new().reserve(TaskId(0), reserve(5_000_000, 20_000_000), 1.0);
    let error = reversed.unwrap_err().to_string();
    assert!(
        error.contains("a budget of 20ms in a period of 5ms"),
        "{error}"
    );
}

#[test]
fn tasks_without_a_reservation_share_the_remaining_time() {
    let reserved = Reservation {
        period: 20 * MS,
        budget: 5 * MS,
    };
    for unreserved in [2, 3] {
        let policy = Edf::new().reserve(TaskId(0), reserved, 1.0).unwrap();
        let mut policy = policy.reserve(TaskId(1), reserved, 1.0).unwrap();
        for task in 0..2 + unreserved {
            policy.added(TaskId(task), 0);
        }
        let (mut used, mut now) = (vec![0; 2 + unreserved], 0);
        while now < 600 * MS {
            let (favoured, until) = pick(&mut policy, now, 1);
            let until = until.unwrap();
            used[favoured[0]] += until - now;
            report_usage(&mut policy, favoured[0], until - now, until);
            now = until;
        }
        // Each of the two reservations takes a quarter of the 600 ms, which leaves 300 ms. The
        // shares of these differ by at most one slice of 5 ms.
        let expected_ms = 300 / unreserved as u64;
        assert_eq!(used[..2], [150 * MS; 2]);
        assert!(
            used[2..]
                .iter()
                .all(|used| (used / MS).abs_diff(expected_ms) <= 5),
            "CPU time of each task, ns: {used:?}"
        );
    }
}

#[test]
fn the_slices_of_a_sleeping_task_go_to_all_other_tasks_equally() {
    for tasks in 3..7 {
        let mut policy = RoundRobin::new(5 * MS);
        for task in 0..tasks {
            policy.added(TaskId(task), 0);
        }
        let mut extra_slices = vec![0; tasks];
        for slice in 0..tasks * (tasks - 1) * 4 {
            let now = slice as u64 * 5 * MS;
            let (favoured, _) = pick(&mut policy, now, 1);
            let sleeps = favoured[0] == 0;
            if sleeps && slice > tasks {
                extra_slices[favoured[1]] += 1;
            }
            let usage = Usage {
                task: TaskId(favoured[0]),
                cpu_time: 0,
                slept: sleeps,
            };
            policy.used(usage, now);
        }
        let min_slices = extra_slices[1..].iter().min().unwrap();
        let max_slices = extra_slices[1..].iter().max().unwrap();
        assert!(
            min_slices + 1 >= *max_slices,
            "additional slices of each task: {extra_slices:?}"
        );
    }
}

/// The oracle of stride scheduling: returns the task with the least CPU time per share, and of
/// several such tasks the first.
fn least_per_share(used: &[Nanos], shares: &[u32]) -> usize {
    let mut best = 0;
    for task in 1..used.len() {
        let scaled = u128::from(used[task]) * u128::from(shares[best]);
        if scaled < u128::from(used[best]) * u128::from(shares[task]) {
            best = task;
        }
    }
    best
}

/// The oracle of deadline scheduling: returns the task whose period ends first, of the tasks that
/// have a part of their budget left in the current period.
fn earliest_deadline(
    now: Nanos,
    used: &[Vec<(Nanos, Nanos)>],
    all: &[Reservation],
) -> Option<usize> {
    let deadline = |task: usize| (now / all[task].period + 1) * all[task].period;
    let has_budget = |task: usize| {
        let begin = deadline(task) - all[task].period;
        let spent = used[task].iter().filter(|(start, _)| *start >= begin);
        all[task].budget > spent.map(|(_, length)| length).sum::<Nanos>()
    };
    let ready = (0..all.len()).filter(|&task| has_budget(task));
    ready.min_by_key(|&task| (deadline(task), task))
}

proptest! {
    #[test]
    fn stride_follows_the_oracle(
        // Powers of two, so that the passes of the policy are exact.
        shares in prop::collection::vec((0u32..6).prop_map(|power| 1 << power), 1..6),
        lengths in prop::collection::vec(1u64..10, 1..200),
    ) {
        let mut policy = Weighted::new(MS);
        for (task, &share) in shares.iter().enumerate() {
            policy = policy.share(TaskId(task), share);
        }
        for task in 0..shares.len() {
            policy.added(TaskId(task), 0);
        }
        let mut used = vec![0; shares.len()];
        let mut now = 0;
        for length in lengths {
            let (favoured, _) = pick(&mut policy, now, 1);
            prop_assert_eq!(&favoured, &[least_per_share(&used, &shares)]);
            now += length * MS;
            used[favoured[0]] += length * MS;
            report_usage(&mut policy, favoured[0], length * MS, now);
        }
    }

    #[test]
    fn shares_differ_from_the_ideal_by_less_than_a_slice(
        shares in prop::collection::vec(1u32..20, 2..6),
        slices in 1u64..400,
    ) {
        let mut policy = Weighted::new(MS);
        for (task, &share) in shares.iter().enumerate() {
            policy = policy.share(TaskId(task), share);
        }
        for task in 0..shares.len() {
            policy.added(TaskId(task), 0);
        }
        let mut used = vec![0u64; shares.len()];
        for slice in 0..slices {
            let task = pick(&mut policy, slice * MS, 1).0[0];
            used[task] += 1;
            report_usage(&mut policy, task, MS, slice * MS);
        }
        // The difference of the usage per share of two tasks is at most the sum of one slice per
        // share of each.
        for a in 0..shares.len() {
            for b in 0..shares.len() {
                let per = |task: usize| used[task] as f64 / f64::from(shares[task]);
                let bound = 1.0 / f64::from(shares[a]) + 1.0 / f64::from(shares[b]) + 1e-6;
                prop_assert!((per(a) - per(b)).abs() <= bound);
            }
        }
    }

    #[test]
    fn deadlines_follow_the_oracle(
        requested in prop::collection::vec((2u64..20, 1u64..10), 1..5),
        steps in 1usize..200,
    ) {
        let all: Vec<Reservation> = requested
            .iter()
            .map(|&(period, budget)| Reservation { period, budget: budget.min(period) })
            .collect();
        let mut policy = Edf::new();
        for (task, &reserved) in all.iter().enumerate() {
            policy = policy.reserve(TaskId(task), reserved, 100.0).unwrap();
        }
        for task in 0..all.len() {
            policy.added(TaskId(task), 0);
        }
        let mut used = vec![Vec::new(); all.len()];
        let mut now = 0;
        for _ in 0..steps {
            let (favoured, until) = pick(&mut policy, now, 1);
            // If no task has a part of its budget left, the policy may favour any task.
            let expected = earliest_deadline(now, &used, &all);
            prop_assert!(expected.is_none() || favoured.first().copied() == expected);
            let until = until.unwrap();
            prop_assert!(until > now);
            if let Some(&task) = favoured.first() {
                // Usage is recorded by its time, so that the oracle can tell in which period it
                // was.
                used[task].push((now, until - now));
                report_usage(&mut policy, task, until - now, until);
            }
            now = until;
        }
    }
}
