//! Tests that programs cannot evade the CPU budget of the rule that assigns a level to them. The
//! attackers are in `budgets/attackers.rs`.

pub(crate) mod attackers;

use std::time::Instant;

use upshift_daemon::Assign;
use upshift_elevate::sys::process_time;

use crate::assign::{assigned, rule};
use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, bystander, daemon_with_rules, deadline_after, settings,
    start_child, us, uses_at_most,
};
use crate::client::census;
use crate::process::{Process, wait_until};
use crate::{permitted, serial_test, socket};

/// Percent of a CPU that an assigned program may use beside a bystander. The program may use its
/// budget of 80 % and half of the remaining time, which is 90 %. The other 3 % are a margin.
const MAX_PERCENT: u64 = 93;

/// Like [`MAX_PERCENT`], for a program that starts many threads or processes that end after a short
/// time. The larger margin is for the moment for which each of them runs before the daemon has
/// looked it up.
const MAX_PERCENT_OF_SHORT_LIVED: u64 = 96;

/// Runs [`race`] with `count` programs in `role`, which a rule assigns by their user.
fn race_copies(name: &str, role: &str, count: usize, extra_settings: &[(&str, String)]) -> u64 {
    let path = socket(name);
    let start = |_| start_child(role, &path, MALLORY, (0, 0), extra_settings);
    race(name, rule(MALLORY, 8), (0..count).map(start).collect())
}

/// Runs `programs` against a bystander, all on CPU 0. `rule` must match the programs. Returns the
/// CPU time of all programs together, µs.
fn race(name: &str, rule: Assign, mut programs: Vec<Process>) -> u64 {
    let (path, _daemon) = daemon_with_rules(name, vec![rule]);
    let mut bystander = bystander(&path, 0);
    wait_until("all programs are assigned", || {
        let status = census(&path);
        programs
            .iter()
            .all(|program| assigned(&status, program.pid()).is_some())
    });
    let end = deadline_after(ATTACK_TIME);
    bystander.run_until(end);
    programs
        .iter_mut()
        .for_each(|process| process.run_until(end));
    let (bystander_us, longest_gap_us) = (bystander.number("used "), bystander.number("longest "));
    let programs_us = programs
        .iter_mut()
        .map(|process| process.number("used "))
        .sum();
    let status = census(&path);
    let alarms = &status["alarms"];
    println!(
        "{name}: programs {programs_us} us, bystander {bystander_us} us of {}, longest gap {longest_gap_us} us, {alarms} alarms",
        us()
    );
    programs_us
}

#[test]
fn threads_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let program_us = race_copies("thread-churner", "thread-churner", 1, &[]);
    assert!(uses_at_most(MAX_PERCENT_OF_SHORT_LIVED, program_us, us()));
}

#[test]
fn processes_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let program_us = race_copies("forker", "forker", 1, &[]);
    assert!(uses_at_most(MAX_PERCENT, program_us, us()));
}

#[test]
fn sibling_processes_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let extra_settings = settings(&[("ROLE", "sibling")]);
    let program_us = race_copies("siblings", "forker", 1, &extra_settings);
    assert!(uses_at_most(MAX_PERCENT, program_us, us()));
}

#[test]
fn a_process_that_changes_its_name_does_not_evade_its_budget() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let rule = Assign {
        comm: Some("matching".into()),
        ..crate::assign::rule(MALLORY, 8)
    };
    let path = socket("renamer");
    let program_us = race(
        "renamer",
        rule,
        vec![start_child("renamer", &path, MALLORY, (0, 0), &[])],
    );
    assert!(uses_at_most(MAX_PERCENT, program_us, us()));
}

#[test]
fn several_assigned_programs_leave_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let programs_us = race_copies("four-programs", "gap-meter", 4, &[]);
    // Four budgets of 80 % could occupy the CPU together. Other threads must get a share of 5 %.
    // In each period in which they would get less, the daemon moves the programs to SCHED_IDLE for
    // a while. The programs may use the other 95 %, and 2 % are a margin.
    assert!(uses_at_most(97, programs_us, us()));
}

#[test]
fn a_process_that_repeatedly_executes_itself_does_not_evade_its_budget() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("self-executor", vec![rule(ALICE, 8)]);
    let mut bystander = bystander(&path, 0);
    let mut self_executor = start_child("self-executor", &path, ALICE, (0, 0), &[]);
    wait_until("the program is assigned", || {
        assigned(&census(&path), self_executor.pid()).is_some()
    });
    let used = || process_time(self_executor.pid()).unwrap() / 1000;
    let (end, before) = (deadline_after(ATTACK_TIME), used());
    bystander.run_until(end);
    self_executor.run_until(end);
    let bystander_us = bystander.number("used ");
    let attacker_us = process_time(self_executor.pid()).unwrap() / 1000 - before;
    let executions = self_executor.number("executions ");
    println!(
        "{executions} executions, {attacker_us} us; bystander {bystander_us} us of {}",
        us()
    );
    assert!(executions > 10);
    assert!(uses_at_most(MAX_PERCENT, attacker_us, us()));
}

/// Starts thousands of processes per second that match a rule. The processes must leave a bystander
/// its share, and a later program that matches a rule must still be assigned.
#[test]
fn a_flood_of_processes_that_match_a_rule_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    for (spin_us, parallel) in [("300", "1"), ("4000", "1"), ("4000", "20")] {
        let (path, _daemon) = daemon_with_rules("storm", vec![rule(MALLORY, 8), rule(ALICE, 8)]);
        let mut bystander = bystander(&path, 0);
        let extra_settings = settings(&[("SPIN_US", spin_us), ("PARALLEL", parallel)]);
        let mut process_flood =
            start_child("process-flood", &path, MALLORY, (0, 0), &extra_settings);
        let end = deadline_after(ATTACK_TIME);
        bystander.run_until(end);
        process_flood.run_until(end);
        let began = Instant::now();
        let later = start_child("spinners", &path, ALICE, (0, 0), &[]);
        wait_until("a later program is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        let time_to_assign = began.elapsed();
        let (bystander_us, longest_gap_us) =
            (bystander.number("used "), bystander.number("longest "));
        let (processes_us, started) = (
            process_flood.number("used "),
            process_flood.number("started "),
        );
        println!(
            "{started} processes of {spin_us} us, {parallel} in parallel: {processes_us} us, bystander {bystander_us} us of {}, longest gap {longest_gap_us} us; a later program is assigned after {time_to_assign:?}",
            us()
        );
        assert!(uses_at_most(MAX_PERCENT_OF_SHORT_LIVED, processes_us, us()));
    }
}

#[test]
fn a_program_with_a_limit_on_real_time_stays_ordinary_and_is_not_killed() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("limit", vec![rule(ALICE, 8)]);
    let limit = settings(&[("LIMIT", "200000")]);
    let mut limited = start_child("gap-meter", &path, ALICE, (0, 0), &limit);
    let other = start_child("gap-meter", &path, ALICE, (0, 0), &[]);
    wait_until("a program without a limit is assigned", || {
        assigned(&census(&path), other.pid()).is_some()
    });
    limited.run_until(deadline_after(ATTACK_TIME));
    // The kernel kills a process that is elevated for longer than its RLIMIT_RTTIME. This program
    // still reports its CPU time, so it was never elevated for that long.
    let used = limited.number("used ");
    println!("the program has used {used} us, with a limit of 200000 in SCHED_FIFO");
    assert_eq!(assigned(&census(&path), limited.pid()), None);
}
