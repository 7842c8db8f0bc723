//! Attacks of assigned programs on the budget of their rule. The attackers are in
//! `budgets/attackers.rs`.

pub(crate) mod attackers;

use std::time::Instant;

use upshift_daemon::Assign;
use upshift_elevate::sys::process_time;

use crate::assign::{assigned, rule};
use crate::attack::{
    ALICE, MALLORY, TIME, bystander, daemon_with_rules, from_now, settings, start_child,
    takes_at_most, us,
};
use crate::client::census;
use crate::process::{Process, until};
use crate::{permitted, socket, turn};

/// Runs [`race`] with `count` programs of role `role`, which a rule for their user names.
fn assigned_beside(name: &str, role: &str, count: usize) -> u64 {
    let path = socket(name);
    let more = [("THREADS", "1".to_string())];
    let start = |_| start_child(role, &path, MALLORY, (0, 0), &more);
    race(name, rule(MALLORY, 8), (0..count).map(start).collect())
}

/// The same for one program with settings of its own.
fn assigned_as(name: &str, role: &str, more: &[(&str, String)]) -> u64 {
    let program = start_child(role, &socket(name), MALLORY, (0, 0), more);
    race(name, rule(MALLORY, 8), vec![program])
}

/// Lets programs that `rule` names and a bystander run on CPU 0. Returns µs of the programs
/// together, on a machine that may do other work with the rest.
fn race(name: &str, rule: Assign, mut all: Vec<Process>) -> u64 {
    let (path, _daemon) = daemon_with_rules(name, vec![rule]);
    let mut bystander = bystander(&path, 0);
    until("all are assigned", || {
        let seen = census(&path);
        all.iter()
            .all(|program| assigned(&seen, program.pid()).is_some())
    });
    let end = from_now(TIME);
    bystander.go_until(end);
    all.iter_mut().for_each(|process| process.go_until(end));
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let taken = all.iter_mut().map(|process| process.number("used ")).sum();
    let seen = census(&path);
    let alarms = &seen["alarms"];
    println!(
        "{name}: {taken}, bystander {used} us of {}, longest gap {longest} us, {alarms} alarms",
        us()
    );
    taken
}

#[test]
fn threads_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_beside("churner", "churner", 1);
    // A budget of 80 %, and half of the rest.
    assert!(takes_at_most(96, taken, us()));
}

#[test]
fn processes_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_beside("forker", "forker", 1);
    assert!(takes_at_most(93, taken, us()));
}

#[test]
fn siblings_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_as("siblings", "forker", &[("ROLE", "sibling".to_string())]);
    assert!(takes_at_most(93, taken, us()));
}

#[test]
fn a_process_that_changes_its_name_does_not_evade_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let fits = Assign {
        comm: Some("fits".into()),
        ..rule(MALLORY, 8)
    };
    let path = socket("renamer");
    let taken = race(
        "renamer",
        fits,
        vec![start_child("renamer", &path, MALLORY, (0, 0), &[])],
    );
    assert!(takes_at_most(93, taken, us()));
}

#[test]
fn assigned_programs_within_their_budgets_leave_bystanders_their_share_together() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_beside("legion", "gap", 4);
    // Without pauses 98.7 %, beside a program that has all of the rest.
    assert!(takes_at_most(97, taken, us()));
}

#[test]
fn a_process_that_executes_itself_again_and_again_does_not_evade_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("renewer", vec![rule(ALICE, 8)]);
    let mut bystander = bystander(&path, 0);
    let mut renewer = start_child("renewer", &path, ALICE, (0, 0), &[]);
    until("it is assigned", || {
        assigned(&census(&path), renewer.pid()).is_some()
    });
    let used = || process_time(renewer.pid()).unwrap() / 1000;
    let (end, before) = (from_now(TIME), used());
    bystander.go_until(end);
    renewer.go_until(end);
    let others = bystander.number("used ");
    let burnt = process_time(renewer.pid()).unwrap() / 1000 - before;
    let lives = renewer.number("lives ");
    println!(
        "{lives} lives, {burnt} us; bystander {others} us of {}",
        us()
    );
    assert!(lives > 10);
    // A budget of 80 %, and half of the rest.
    assert!(takes_at_most(93, burnt, us()));
}

/// Thousands of processes a second fit a rule, beside a bystander; another program that fits a rule
/// is still found and elevated.
#[test]
fn a_storm_of_processes_that_a_rule_fits_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for (each, at_once) in [("300", "1"), ("4000", "1"), ("4000", "20")] {
        let (path, _daemon) = daemon_with_rules("storm", vec![rule(MALLORY, 8), rule(ALICE, 8)]);
        let mut bystander = bystander(&path, 0);
        let more = settings(&[("EACH", each), ("AT_ONCE", at_once)]);
        let mut storm = start_child("stormer", &path, MALLORY, (0, 0), &more);
        let end = from_now(TIME);
        bystander.go_until(end);
        storm.go_until(end);
        let began = Instant::now();
        let later = start_child("spinners", &path, ALICE, (0, 0), &[]);
        until("a later program is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        let found = began.elapsed();
        let (used, longest) = (bystander.number("used "), bystander.number("longest "));
        let (taken, born) = (storm.number("used "), storm.number("born "));
        println!(
            "{born} processes of {each} us, {at_once} at once: {taken}, bystander {used} us of {}, longest gap {longest} us; another is assigned after {found:?}",
            us()
        );
        // A budget of 80 %, half of the rest, and the time of each process until it is found.
        assert!(takes_at_most(96, taken, us()));
    }
}

#[test]
fn a_program_with_a_limit_on_real_time_stays_ordinary_and_lives() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("limit", vec![rule(ALICE, 8)]);
    let limit = settings(&[("LIMIT", "200000")]);
    let mut limited = start_child("gap", &path, ALICE, (0, 0), &limit);
    let other = start_child("gap", &path, ALICE, (0, 0), &[]);
    until("a program without a limit is assigned", || {
        assigned(&census(&path), other.pid()).is_some()
    });
    limited.go_until(from_now(TIME));
    // Its policy is the one before it was elevated for longer than its limit, if it was.
    let used = limited.number("used ");
    println!("it has used {used} us, with a limit of 200000 in SCHED_FIFO");
    assert_eq!(assigned(&census(&path), limited.pid()), None);
}
