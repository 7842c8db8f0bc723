//! Attacks on the thread that applies the rules: programs with many threads, and processes that
//! constantly change their names.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, TRUDY, daemon_with_rules, deadline_after, open_config, start_child,
};
use crate::child::{number, wait_for_parent};
use crate::client::census;
use crate::process::{
    Process, WAIT_LIMIT, cpu_time_of_threads, elevated_threads, monotonic, wait_until,
};
use crate::{permitted, serial_test, socket};

#[test]
fn threads_of_assigned_programs_of_one_user_are_limited() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("sleeping-threads");
    let config = Config {
        assign: vec![rule(MALLORY, 8)],
        ..open_config("sleeping-threads")
    };
    let limit = config.limits.threads_per_user;
    let _daemon = Daemon::start(config).unwrap();
    let threads = [("THREADS", (limit / 2).to_string())];
    let programs =
        [0, 1, 2].map(|_| start_child("sleeping-threads", &path, MALLORY, (0, 0), &threads));
    let count = || {
        let status = census(&path);
        let threads = |program: &Process| {
            assigned(&status, program.pid()).map_or(0, |found| found["threads"].as_u64().unwrap())
        };
        programs.iter().map(threads).sum::<u64>()
    };
    wait_until("most of the allowed threads are assigned", || {
        count() >= limit as u64 * 9 / 10
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        count() <= limit as u64,
        "{} of {limit} allowed threads are assigned",
        count()
    );
    // Clients of other users are still elevated.
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut victim = start_child("burner", &path, ALICE, (0, 2), &[]);
    victim.run_until(deadline_after(WAIT_LIMIT));
    wait_until("the victim is elevated", || {
        !elevated_threads(victim.pid()).is_empty()
    });
}

/// Starts `THREADS` threads that sleep.
pub(crate) fn sleeping_threads() {
    for _ in 0..number("THREADS") {
        let builder = std::thread::Builder::new().stack_size(32 * 1024);
        builder
            .spawn(|| std::thread::sleep(Duration::from_secs(100)))
            .unwrap();
    }
    println!("ready");
    wait_for_parent();
}

#[test]
fn the_rules_thread_stays_within_its_budget_beside_a_program_of_thousands_of_threads() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("thousands", vec![rule(MALLORY, 8)]);
    let threads = [("THREADS", "14000".to_string())];
    let _program = start_child("sleeping-threads", &path, MALLORY, (0, 0), &threads);
    std::thread::sleep(Duration::from_secs(1));
    let (began, before) = (monotonic(), cpu_time_of_threads("upshift-assign"));
    std::thread::sleep(Duration::from_secs(2));
    let used_ns = cpu_time_of_threads("upshift-assign") - before;
    let elapsed_ns = monotonic() - began;
    println!("the thread used {used_ns} of {elapsed_ns} ns");
    // The budget is a fifth of the time, and the bound leaves a margin.
    assert!(
        used_ns * 10 < elapsed_ns * 3,
        "the thread used {used_ns} of {elapsed_ns} ns"
    );
}

/// Changes its name as fast as possible in `THREADS` threads until the deadline. Prints the number
/// of changes.
pub(crate) fn name_changer() {
    println!("ready");
    let deadline = wait_for_parent();
    let changes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| {
                while monotonic() < deadline {
                    for name in [c"one", c"another"] {
                        // SAFETY: the text is a valid C string.
                        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                    }
                    changes.fetch_add(2, Relaxed);
                }
            });
        }
    });
    println!("changes {}", changes.load(Relaxed));
    wait_for_parent();
}

#[test]
fn a_process_that_constantly_changes_its_name_delays_no_rule() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("name-changer", vec![rule(ALICE, 8)]);
    let threads = [("THREADS", "4".to_string())];
    let mut name_changer = start_child("name-changer", &path, MALLORY, (0, 0), &threads);
    let daemon_ns = || upshift_elevate::sys::process_time(std::process::id() as i32).unwrap();
    name_changer.run_until(deadline_after(ATTACK_TIME * 2));
    std::thread::sleep(Duration::from_millis(200));
    let (began, before) = (Instant::now(), daemon_ns());
    let times_to_assign: Vec<Duration> = (0..3)
        .map(|_| {
            let began = Instant::now();
            let later = start_child("spinners", &path, ALICE, (0, 0), &[]);
            wait_until("a later program is assigned", || {
                assigned(&census(&path), later.pid()).is_some()
            });
            began.elapsed()
        })
        .collect();
    let elapsed = began.elapsed();
    let used = Duration::from_nanos(daemon_ns() - before);
    println!(
        "{} changes; programs are assigned after {times_to_assign:?}; the daemon used {used:?} of {elapsed:?}",
        name_changer.number("changes ")
    );
    assert!(
        times_to_assign
            .iter()
            .all(|time| *time < Duration::from_secs(4)),
        "programs are assigned after {times_to_assign:?}"
    );
}
