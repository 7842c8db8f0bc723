//! Tests of rules that assign a level to programs that do not register with the daemon.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use upshift_board::Role;
use upshift_daemon::{Assign, Bound, Config, Daemon};
use upshift_elevate::sys::{Kernel, Sys};
use upshift_elevate::{Class, Elevator, Policy, Priority, current_tid};

use crate::attack::{ALICE, MALLORY, deadline_after, open_config, start_child};
use crate::child::{pin, wait_for_parent};
use crate::client::{Registration, census};
use crate::process::{Process, WAIT_LIMIT, elevated_threads, wait_until};
use crate::{permitted, serial_test, socket};

pub(crate) fn rule(user: u32, level: u8) -> Assign {
    Assign {
        user: Some(user),
        level,
        ..Assign::default()
    }
}

/// Returns a rule that gives programs of [`ALICE`] 6 ms of CPU time in every 20 ms.
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

fn start_spinner(path: &Path, user: u32) -> Process {
    let cpu = ("CPU", "0".to_string());
    let mut process = Process::start("gap-meter", path, &[("USER", user.to_string()), cpu]);
    process.line("ready").unwrap();
    process
}

/// Runs both processes for a second. Returns their CPU times, µs.
fn race(mut a: Process, mut b: Process) -> (u64, u64) {
    let end = deadline_after(Duration::from_millis(1000));
    a.run_until(end);
    b.run_until(end);
    (a.number("used "), b.number("used "))
}

pub(crate) fn assigned(census: &Value, pid: i32) -> Option<&Value> {
    let processes = census["assigned"].as_array().unwrap();
    processes.iter().find(|process| process["pid"] == pid)
}

#[test]
fn an_assigned_program_is_urgent_within_its_budget() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("assigned");
    let running = start_spinner(&path, ALICE);
    let _daemon = daemon("assigned", vec![rule(ALICE, 8)]);
    wait_until("a running program is assigned", || {
        assigned(&census(&path), running.pid()).is_some()
    });
    let (urgent_us, other_us) = race(running, start_spinner(&path, MALLORY));
    let times = format!("urgent {urgent_us}, other {other_us} us of 1000000");
    println!("{times}");
    assert!(urgent_us > 2 * other_us, "{times}");
    // After its 80 % the program is ordinary and gets half of the remaining time, so it should get
    // about 90 % in total. The bound leaves a margin of 7 %.
    assert!(urgent_us < 970_000, "{times}");
    assert_eq!(census(&path)["alarms"], 0);
    let later = start_spinner(&path, ALICE);
    wait_until("a later program is assigned", || {
        assigned(&census(&path), later.pid()).is_some()
    });
    let (urgent_us, other_us) = race(later, start_spinner(&path, MALLORY));
    let times = format!("urgent {urgent_us}, other {other_us} us of 1000000");
    println!("{times}");
    assert!(urgent_us > 2 * other_us, "{times}");
}

#[test]
fn a_thread_that_an_administrator_makes_ordinary_is_not_reported_as_elevated() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("chrt");
    let process = start_spinner(&path, ALICE);
    let _daemon = daemon("chrt", vec![rule(ALICE, 8)]);
    let elevated = || {
        let census = census(&path);
        assigned(&census, process.pid()).map(|process| process["elevated"].clone())
    };
    wait_until("the program is elevated", || {
        elevated() == Some(Value::Bool(true))
    });
    for thread in elevated_threads(process.pid()) {
        Kernel
            .sched_setscheduler(thread, libc::SCHED_OTHER, 0)
            .unwrap();
    }
    assert_eq!(elevated(), Some(Value::Bool(false)));
}

#[test]
fn a_program_of_several_threads_has_its_budget_on_each_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return crate::skipped("needs two CPUs");
    }
    // Returns the share of the time in which the program is elevated, percent. With 80 % of one
    // CPU, each of the two threads gets 40 %.
    let elevated_percent = |bound: Bound| {
        let assign = Assign {
            bound,
            ..rule(ALICE, 8)
        };
        let path = socket("each");
        let _daemon = daemon("each", vec![assign]);
        let two_threads = [("USER", ALICE.to_string()), ("THREADS", "2".to_string())];
        let mut process = Process::start("spinners", &path, &two_threads);
        process.line("ready").unwrap();
        wait_until("the program is elevated", || {
            !elevated_threads(process.pid()).is_empty()
        });
        // This thread must be more urgent than the program, or it would run only while the program
        // is not elevated.
        let elevator = Elevator::new().unwrap();
        let _elevated = elevator.elevate_current(Priority::of::<40>()).unwrap();
        process.run_until(deadline_after(Duration::from_millis(2500)));
        std::thread::sleep(Duration::from_millis(300));
        let checks = 500;
        let check = |_: &i32| {
            std::thread::sleep(Duration::from_millis(2));
            !elevated_threads(process.pid()).is_empty()
        };
        (0..checks).filter(check).count() * 100 / checks as usize
    };
    let shared_budget = elevated_percent(Bound::Budget(80));
    let budget_per_cpu = elevated_percent(Bound::default());
    let percents = format!(
        "elevated {shared_budget} % of the time with 80 % of one CPU, {budget_per_cpu} % with 80 % of each"
    );
    println!("{percents}");
    assert!(budget_per_cpu > shared_budget + 10, "{percents}");
}

#[test]
fn children_of_an_assigned_program_are_assigned_and_all_are_restored() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("given-back");
    let daemon = daemon("given-back", vec![rule(ALICE, 0)]);
    let mut parent = Process::start("sleeping-parent", &path, &[("USER", ALICE.to_string())]);
    let child = parent.number("child ") as i32;
    let pids = [parent.pid(), child];
    wait_until("all threads of parent and child are elevated", || {
        pids.iter().all(|&pid| !elevated_threads(pid).is_empty())
            && elevated_threads(parent.pid()).len() >= 3
    });
    daemon.stop();
    for pid in pids {
        assert!(elevated_threads(pid).is_empty());
    }
}

/// Starts a process of [`ALICE`] with a child that outlives it. Returns the process, and the pid of
/// the child.
fn parent_and_child(path: &Path) -> (Process, i32) {
    let settings = [("USER", ALICE.to_string()), ("ORPHAN", "1".to_string())];
    let mut parent = Process::start("sleeping-parent", path, &settings);
    let child = parent.number("child ") as i32;
    (parent, child)
}

fn class(pid: i32) -> Option<Class> {
    Some(Policy::of(&Kernel, pid).ok()?.class())
}

/// Kills a child that has outlived its parent.
fn kill_orphan(pid: i32) {
    // SAFETY: this test has started the process, which is asleep, so its pid is not reused.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn preemptions(pid: i32) -> u64 {
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
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("slices");
    let daemon = daemon("slices", vec![rule(ALICE, 8)]);
    let mut programs = [0, 1].map(|_| start_spinner(&path, ALICE));
    wait_until("both programs are elevated", || {
        programs
            .iter()
            .all(|process| !elevated_threads(process.pid()).is_empty())
    });
    let before = programs
        .each_ref()
        .map(|process| preemptions(process.pid()));
    let end = deadline_after(Duration::from_millis(2000));
    programs
        .iter_mut()
        .for_each(|process| process.run_until(end));
    let used = programs.each_mut().map(|process| process.number("used "));
    let longest = programs
        .each_mut()
        .map(|process| process.number("longest "));
    let after = programs
        .each_ref()
        .map(|process| preemptions(process.pid()));
    let counts = [0, 1].map(|index| after[index] - before[index]);
    println!("used {used:?} us, longest without {longest:?} us, preempted {counts:?} times");
    // Without slices, the budgets and pauses cause about 130 preemptions.
    assert!(
        counts.iter().all(|&count| count > 200),
        "preempted {counts:?} times"
    );
    daemon.stop();
}

#[test]
fn children_are_one_priority_below_their_parent() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("children");
    let (first_parent, first_child) = parent_and_child(&path);
    let daemon = daemon("children", vec![rule(ALICE, 8)]);
    let (second_parent, second_child) = parent_and_child(&path);
    // The priority of level 8 is 9.
    for (parent, child) in [(&first_parent, first_child), (&second_parent, second_child)] {
        wait_until("the parent is above its child", || {
            class(parent.pid()) == Some(Class::Fifo(9)) && class(child) == Some(Class::Fifo(8))
        });
    }
    drop((first_parent, second_parent));
    for child in [first_child, second_child] {
        wait_until("the orphaned child has the priority of its rule", || {
            class(child) == Some(Class::Fifo(9))
        });
        kill_orphan(child);
    }
    daemon.stop();
}

#[test]
fn children_stay_ordinary_if_the_rule_leaves_children() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("no-children");
    let assign = Assign {
        leaves_children: true,
        ..rule(ALICE, 8)
    };
    let (first_parent, first_child) = parent_and_child(&path);
    let daemon = daemon("no-children", vec![assign]);
    let (second_parent, second_child) = parent_and_child(&path);
    // The priority of level 8 is 9.
    for parent in [&first_parent, &second_parent] {
        wait_until("the parent is elevated", || {
            class(parent.pid()) == Some(Class::Fifo(9))
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    for child in [first_child, second_child] {
        assert_eq!(class(child), Some(Class::Other { nice: 0 }));
        assert_eq!(assigned(&census(&path), child), None);
    }
    drop((first_parent, second_parent));
    for child in [first_child, second_child] {
        wait_until("the orphaned child is elevated", || {
            class(child) == Some(Class::Fifo(9))
        });
        kill_orphan(child);
    }
    daemon.stop();
}

#[test]
fn a_registered_process_has_at_most_the_level_of_its_rule() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("registers");
    let _daemon = daemon("registers", vec![rule(ALICE, 20)]);
    let claimant = start_child("idle-claimant", &path, ALICE, (0, 3), &[]);
    let status = census(&path);
    let process = &status["processes"][0];
    assert_eq!(
        (&process["pid"], &process["ceiling"]),
        (&claimant.pid().into(), &20.into())
    );
    assert_eq!(assigned(&status, claimant.pid()), None);
    assert!(elevated_threads(claimant.pid()).is_empty());
}

/// Registers two threads over two connections, and closes one connection.
pub(crate) fn double_registration() {
    let register = || {
        pin(0);
        Registration::new(&[(current_tid(), Role::Worker)])
    };
    let first = register();
    std::thread::spawn(move || {
        drop(register());
        println!("ready");
        std::thread::sleep(WAIT_LIMIT);
    });
    wait_for_parent();
    drop(first);
}

#[test]
fn a_process_with_one_of_two_registrations_left_is_not_assigned() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("double-registration");
    let _daemon = daemon("double-registration", vec![rule(ALICE, 20)]);
    let process = start_child("double-registration", &path, ALICE, (0, 3), &[]);
    wait_until("one registration is left", || {
        census(&path)["processes"].as_array().unwrap().len() == 1
    });
    assert_not_assigned(&path, &process);
}

#[test]
fn a_process_that_was_registered_before_there_were_rules_is_not_assigned() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("before-rules");
    let daemon = daemon("before-rules", vec![]);
    let process = start_child("double-registration", &path, ALICE, (0, 3), &[]);
    let config = open_config("before-rules");
    let assign = vec![rule(ALICE, 20)];
    daemon.reload(Config { assign, ..config });
    assert_not_assigned(&path, &process);
}

/// Asserts that a process is not assigned, although another process of [`ALICE`] that starts later
/// is assigned.
fn assert_not_assigned(path: &Path, process: &Process) {
    let other = start_spinner(path, ALICE);
    wait_until("the other process is assigned", || {
        assigned(&census(path), other.pid()).is_some()
    });
    // The daemon needs time to act on the kernel's events about the process.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(assigned(&census(path), process.pid()), None);
}
