//! Attacks on the thread that applies the rules: programs of many threads, and names that change
//! all the time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, daemon_with_rules, from_now, open_config, start_child,
};
use crate::child::{number, wait_for_go};
use crate::client::census;
use crate::process::{PATIENCE, Process, elevated_threads, monotonic, until, used_by_threads};
use crate::{permitted, socket, turn};

#[test]
fn threads_of_an_assigned_program_leave_others_their_room() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("sleepers");
    let config = Config {
        assign: vec![rule(MALLORY, 8)],
        ..open_config("sleepers")
    };
    let limit = config.limits.threads_per_user;
    let _daemon = Daemon::start(config).unwrap();
    let threads = [("THREADS", (limit / 2).to_string())];
    let crowd = [0, 1, 2].map(|_| start_child("sleepers", &path, MALLORY, (0, 0), &threads));
    let count = || {
        let seen = census(&path);
        let threads = |program: &Process| {
            assigned(&seen, program.pid()).map_or(0, |found| found["threads"].as_u64().unwrap())
        };
        crowd.iter().map(threads).sum::<u64>()
    };
    until("as many as may be are assigned", || {
        count() >= limit as u64 * 9 / 10
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(count() <= limit as u64, "{}", count());
    // Others are still elevated, and in time.
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut victim = start_child("burner", &path, ALICE, (0, 2), &[]);
    victim.go_until(from_now(PATIENCE));
    until("the victim is elevated", || {
        !elevated_threads(victim.pid()).is_empty()
    });
}

/// Starts `THREADS` threads, all asleep; reports when they are there.
pub(crate) fn sleepers() {
    for _ in 0..number("THREADS") {
        let small = std::thread::Builder::new().stack_size(32 * 1024);
        small
            .spawn(|| std::thread::sleep(Duration::from_secs(100)))
            .unwrap();
    }
    println!("ready");
    wait_for_go();
}

#[test]
fn a_program_of_thousands_of_threads_keeps_the_thread_of_the_rules_within_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("thousands", vec![rule(MALLORY, 8)]);
    let threads = [("THREADS", "14000".to_string())];
    let _crowd = start_child("sleepers", &path, MALLORY, (0, 0), &threads);
    std::thread::sleep(Duration::from_secs(1));
    let (began, before) = (monotonic(), used_by_threads("upshift-assign"));
    std::thread::sleep(Duration::from_secs(2));
    let (used, time) = (
        used_by_threads("upshift-assign") - before,
        monotonic() - began,
    );
    println!("{used} of {time} ns");
    assert!(used * 10 < time * 3, "{used} of {time} ns");
}

/// Changes its name as fast as possible until the deadline, in `THREADS` threads; prints the number
/// of changes.
pub(crate) fn namer() {
    println!("ready");
    let deadline = wait_for_go();
    let changes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| {
                while monotonic() < deadline {
                    for name in [c"one", c"another"] {
                        // SAFETY: a live text.
                        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                    }
                    changes.fetch_add(2, Relaxed);
                }
            });
        }
    });
    println!("changes {}", changes.load(Relaxed));
    wait_for_go();
}

#[test]
fn a_process_that_changes_its_name_without_end_holds_up_no_rule_and_little_of_a_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("namer", vec![rule(ALICE, 8)]);
    let threads = [("THREADS", "4".to_string())];
    let mut namer = start_child("namer", &path, MALLORY, (0, 0), &threads);
    let daemon = || upshift_elevate::sys::process_time(std::process::id() as i32).unwrap();
    namer.go_until(from_now(TIME * 2));
    std::thread::sleep(Duration::from_millis(200));
    let (began, before) = (Instant::now(), daemon());
    let found: Vec<Duration> = (0..3)
        .map(|_| {
            let began = Instant::now();
            let later = start_child("spinners", &path, ALICE, (0, 0), &[]);
            until("a later program is assigned", || {
                assigned(&census(&path), later.pid()).is_some()
            });
            began.elapsed()
        })
        .collect();
    let (took, used) = (began.elapsed(), Duration::from_nanos(daemon() - before));
    println!(
        "{} changes; programs are assigned after {found:?}; the daemon used {used:?} of {took:?}",
        namer.number("changes ")
    );
    assert!(
        found.iter().all(|took| *took < Duration::from_secs(4)),
        "{found:?}"
    );
}
