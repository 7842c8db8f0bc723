//! Programs that do not register and have a level by the configuration.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use upshift_board::Role;
use upshift_daemon::{Assign, Bound, Config, Daemon};
use upshift_elevate::sys::{Kernel, Sys};
use upshift_elevate::{Class, Elevator, Policy, Priority, current_tid};

use crate::attack::{ALICE, MALLORY, from_now, open_config, start_child};
use crate::child::{pin, wait_for_go};
use crate::client::{Registration, census};
use crate::process::{PATIENCE, Process, elevated_threads, until};
use crate::{permitted, socket, turn};

pub(crate) fn rule(user: u32, level: u8) -> Assign {
    Assign {
        user: Some(user),
        level,
        ..Assign::default()
    }
}

/// Returns a rule that gives programs of `ALICE` 6 ms in every 20.
pub(crate) fn periodic_rule() -> Assign {
    let (runtime, period) = (Duration::from_millis(6), Duration::from_millis(20));
    Assign {
        bound: Bound::Periodic { runtime, period },
        ..rule(ALICE, 8)
    }
}

fn daemon(name: &str, assign: Vec<Assign>) -> Daemon {
    let config = open_config(name);
    Daemon::start(Config { assign, ..config }).unwrap()
}

fn burner(path: &Path, user: u32) -> Process {
    let cpu = ("CPU", "0".to_string());
    let mut process = Process::start("gap", path, &[("USER", user.to_string()), cpu]);
    process.line("ready").unwrap();
    process
}

/// Lets both spin for a second; returns µs of each.
fn race(mut a: Process, mut b: Process) -> (u64, u64) {
    let end = from_now(Duration::from_millis(1000));
    a.go_until(end);
    b.go_until(end);
    (a.number("used "), b.number("used "))
}

pub(crate) fn assigned(census: &Value, pid: i32) -> Option<&Value> {
    let all = census["assigned"].as_array().unwrap();
    all.iter().find(|process| process["pid"] == pid)
}

#[test]
fn an_assigned_program_is_urgent_within_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("assigned");
    let before = burner(&path, ALICE);
    let _daemon = daemon("assigned", vec![rule(ALICE, 8)]);
    until("a running program is assigned", || {
        assigned(&census(&path), before.pid()).is_some()
    });
    let (urgent, other) = race(before, burner(&path, MALLORY));
    println!("urgent {urgent}, other {other} us of 1000000");
    assert!(urgent > 2 * other, "{urgent} {other}");
    // Beyond its 80 % the program is ordinary, and shares the rest: at most some 90 % in all.
    assert!(urgent < 970_000, "{urgent} {other}");
    assert_eq!(census(&path)["alarms"], 0);
    let after = burner(&path, ALICE);
    until("a later program is assigned", || {
        assigned(&census(&path), after.pid()).is_some()
    });
    let (urgent, other) = race(after, burner(&path, MALLORY));
    println!("urgent {urgent}, other {other} us of 1000000");
    assert!(urgent > 2 * other, "{urgent} {other}");
}

#[test]
fn a_thread_that_an_administrator_makes_ordinary_is_not_reported_as_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("chrt");
    let process = burner(&path, ALICE);
    let _daemon = daemon("chrt", vec![rule(ALICE, 8)]);
    let elevated = || {
        let census = census(&path);
        assigned(&census, process.pid()).map(|process| process["elevated"].clone())
    };
    until("it is elevated", || elevated() == Some(Value::Bool(true)));
    for thread in elevated_threads(process.pid()) {
        Kernel
            .sched_setscheduler(thread, libc::SCHED_OTHER, 0)
            .unwrap();
    }
    assert_eq!(elevated(), Some(Value::Bool(false)));
}

#[test]
fn a_program_of_several_threads_has_its_budget_on_each_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return crate::skipped("needs two CPUs");
    }
    // Returns the part of a second in which the program is elevated, percent: 40 if 80 % of one CPU
    // is for both threads.
    let elevated = |bound: Bound| {
        let assign = Assign {
            bound,
            ..rule(ALICE, 8)
        };
        let path = socket("each");
        let _daemon = daemon("each", vec![assign]);
        let two = [("USER", ALICE.to_string()), ("THREADS", "2".to_string())];
        let mut process = Process::start("spinners", &path, &two);
        process.line("ready").unwrap();
        until("it is elevated", || {
            !elevated_threads(process.pid()).is_empty()
        });
        // This thread is above the program, or it would only check while that is not elevated.
        let elevator = Elevator::new().unwrap();
        let _above = elevator.elevate_current(Priority::of::<40>()).unwrap();
        process.go_until(from_now(Duration::from_millis(2500)));
        std::thread::sleep(Duration::from_millis(300));
        let checks = 500;
        let check = |_: &i32| {
            std::thread::sleep(Duration::from_millis(2));
            !elevated_threads(process.pid()).is_empty()
        };
        (0..checks).filter(check).count() * 100 / checks as usize
    };
    let (one, each) = (elevated(Bound::Budget(80)), elevated(Bound::default()));
    println!("elevated {one} % of the time with 80 % of one CPU, {each} % with 80 % of each");
    assert!(each > one + 10, "{one} {each}");
}

#[test]
fn an_assigned_program_is_restored_and_its_children_are_assigned_too() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("given-back");
    let daemon = daemon("given-back", vec![rule(ALICE, 0)]);
    let mut parent = Process::start("sleeping parent", &path, &[("USER", ALICE.to_string())]);
    let child = parent.number("child ") as i32;
    let both = [parent.pid(), child];
    until("both are elevated, with all threads", || {
        both.iter().all(|&pid| !elevated_threads(pid).is_empty())
            && elevated_threads(parent.pid()).len() >= 3
    });
    daemon.stop();
    for pid in both {
        assert!(elevated_threads(pid).is_empty());
    }
}

/// Starts a parent of `ALICE`, with a child that outlives it. Returns both.
fn parent_and_child(path: &Path) -> (Process, i32) {
    let settings = [("USER", ALICE.to_string()), ("ORPHAN", "1".to_string())];
    let mut parent = Process::start("sleeping parent", path, &settings);
    let child = parent.number("child ") as i32;
    (parent, child)
}

fn class(pid: i32) -> Option<Class> {
    Some(Policy::of(&Kernel, pid).ok()?.class())
}

/// Ends a child that outlived its parent.
fn end(pid: i32) {
    // SAFETY: a process that this test has started, and that sleeps.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Returns the number of times that the threads of a process were preempted.
fn interruptions(pid: i32) -> u64 {
    let mut count = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status"));
        let status = status.unwrap_or_default();
        let mut lines = status.lines();
        let found = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        count += found.map_or(0, |text| text.trim().parse::<u64>().unwrap());
    }
    count
}

#[test]
fn programs_of_one_rule_share_a_cpu_by_slices() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("slices");
    let daemon = daemon("slices", vec![rule(ALICE, 8)]);
    let mut both = [0, 1].map(|_| burner(&path, ALICE));
    until("both are elevated", || {
        both.iter()
            .all(|process| !elevated_threads(process.pid()).is_empty())
    });
    let before = both.each_ref().map(|process| interruptions(process.pid()));
    let end = from_now(Duration::from_millis(2000));
    both.iter_mut().for_each(|process| process.go_until(end));
    let used = both.each_mut().map(|process| process.number("used "));
    let longest = both.each_mut().map(|process| process.number("longest "));
    let after = both.each_ref().map(|process| interruptions(process.pid()));
    let often = [0, 1].map(|at| after[at] - before[at]);
    println!("used {used:?} us, longest without {longest:?} us, interrupted {often:?} times");
    // Without slices, budgets of 40 ms and pauses make 130.
    assert!(often.iter().all(|&often| often > 200), "{often:?}");
    daemon.stop();
}

#[test]
fn children_are_a_step_below_the_process_that_has_forked_them() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("children");
    let (before, older) = parent_and_child(&path);
    let daemon = daemon("children", vec![rule(ALICE, 8)]);
    let (after, younger) = parent_and_child(&path);
    for (parent, child) in [(&before, older), (&after, younger)] {
        until("the parent is above its child", || {
            class(parent.pid()) == Some(Class::Fifo(9)) && class(child) == Some(Class::Fifo(8))
        });
    }
    drop((before, after));
    for child in [older, younger] {
        until("a child that is left alone is a program of its own", || {
            class(child) == Some(Class::Fifo(9))
        });
        end(child);
    }
    daemon.stop();
}

#[test]
fn children_stay_ordinary_if_the_rule_says_so() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("no-children");
    let assign = Assign {
        leaves_children: true,
        ..rule(ALICE, 8)
    };
    let (before, older) = parent_and_child(&path);
    let daemon = daemon("no-children", vec![assign]);
    let (after, younger) = parent_and_child(&path);
    for parent in [&before, &after] {
        until("the parent is elevated", || {
            class(parent.pid()) == Some(Class::Fifo(9))
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    for child in [older, younger] {
        assert_eq!(class(child), Some(Class::Other { nice: 0 }));
        assert_eq!(assigned(&census(&path), child), None);
    }
    drop((before, after));
    for child in [older, younger] {
        until("a child that is left alone is elevated", || {
            class(child) == Some(Class::Fifo(9))
        });
        end(child);
    }
    daemon.stop();
}

#[test]
fn a_process_that_registers_gets_no_more_than_its_rule() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("registers");
    let _daemon = daemon("registers", vec![rule(ALICE, 20)]);
    let ghost = start_child("ghost", &path, ALICE, (0, 3), &[]);
    let seen = census(&path);
    let process = &seen["processes"][0];
    assert_eq!(
        (&process["pid"], &process["ceiling"]),
        (&ghost.pid().into(), &20.into())
    );
    assert_eq!(assigned(&seen, ghost.pid()), None);
    assert!(elevated_threads(ghost.pid()).is_empty());
}

/// Registers two threads over two connections, and leaves by one of them.
pub(crate) fn twice() {
    let register = || {
        pin(0);
        Registration::new(&[(current_tid(), Role::Worker)])
    };
    let first = register();
    std::thread::spawn(move || {
        drop(register());
        println!("ready");
        std::thread::sleep(PATIENCE);
    });
    wait_for_go();
    drop(first);
}

#[test]
fn a_process_that_registers_twice_and_leaves_once_is_not_assigned() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("twice");
    let _daemon = daemon("twice", vec![rule(ALICE, 20)]);
    let process = start_child("twice", &path, ALICE, (0, 3), &[]);
    until("one registration is left", || {
        census(&path)["processes"].as_array().unwrap().len() == 1
    });
    is_not_assigned(&path, &process);
}

#[test]
fn a_process_that_was_registered_before_there_were_rules_is_not_assigned() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("before-rules");
    let daemon = daemon("before-rules", vec![]);
    let process = start_child("twice", &path, ALICE, (0, 3), &[]);
    let config = open_config("before-rules");
    let assign = vec![rule(ALICE, 20)];
    daemon.reload(Config { assign, ..config });
    is_not_assigned(&path, &process);
}

/// Asserts that a process is not assigned, while another process of `ALICE`, which starts later,
/// is.
fn is_not_assigned(path: &Path, process: &Process) {
    let other = burner(path, ALICE);
    until("the other one is assigned", || {
        assigned(&census(path), other.pid()).is_some()
    });
    // A new thread is reported at once, and a sweep comes within ten seconds.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(assigned(&census(path), process.pid()), None);
}
