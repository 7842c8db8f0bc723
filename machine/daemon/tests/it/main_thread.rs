//! Processes whose main thread has ended, so that their files in `/proc` are empty: quota, level
//! and bounds stay.

use std::path::Path;
use std::time::Duration;

use upshift_board::wire::Role;
use upshift_daemon::{Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy, current_tid};

use crate::assign::{assigned, periodic_rule, rule};
use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, bystander, daemon_with_rules, from_now, open_config, start_child,
    takes_at_most, us,
};
use crate::cgroup::Fifth;
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::client::{Registration, census};
use crate::process::{Process, monotonic, until};
use crate::quotas::gets_a_fifth;
use crate::{permitted, skipped, socket, turn};

/// Ends the main thread of this process, and no other.
fn end_main_thread() {
    extern "C" fn end(_: libc::c_int) {
        // SAFETY: ends the thread that the signal was sent to.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let own = std::process::id() as i32;
    assert_ne!(own, current_tid());
    // SAFETY: a handler that makes one call; a signal to a thread of this process.
    unsafe {
        let end: extern "C" fn(libc::c_int) = end;
        libc::signal(libc::SIGUSR1, end as libc::sighandler_t);
        libc::syscall(libc::SYS_tgkill, own, own, libc::SIGUSR1);
    }
    let stat = format!("/proc/{own}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends its main thread on demand, registers if `JOINS` is set, and spins until the deadline.
pub(crate) fn headless() {
    pin(number("CPU") as usize);
    println!("ready");
    wait_for_go();
    end_main_thread();
    let registration =
        (setting("JOINS") == "1").then(|| Registration::new(&[(current_tid(), Role::Worker)]));
    println!("headless");
    let deadline = wait_for_go();
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    drop(registration);
    wait_for_go();
}

/// Starts such a child, and calls `prepare` before it ends its main thread.
fn without_main_thread(
    path: &Path,
    user: u32,
    joins: bool,
    prepare: impl FnOnce(&Process),
) -> Process {
    let joins = [("JOINS", u8::from(joins).to_string())];
    let mut process = start_child("headless", path, user, (0, 2), &joins);
    prepare(&process);
    process.say("0");
    process.line("headless").unwrap();
    process
}

#[test]
fn a_process_that_ends_its_main_thread_keeps_the_quota_of_its_cgroup() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for joins in [true, false] {
        let (path, _daemon) = daemon_with_rules("headless", vec![rule(ALICE, 8)]);
        let Some(fifth) = Fifth::new() else {
            return skipped("no cgroup with a CPU quota can be made");
        };
        let mut taken = false;
        let user = if joins { MALLORY } else { ALICE };
        let burner = without_main_thread(&path, user, joins, |process| taken = fifth.take(process));
        if !taken {
            return skipped("a process cannot be moved to a cgroup");
        }
        let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
        std::thread::sleep(Duration::from_millis(1100));
        gets_a_fifth(burner);
    }
}

#[test]
fn a_process_that_ends_its_main_thread_keeps_the_level_of_its_rule() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("rule", vec![rule(MALLORY, 40)]);
    let _it = without_main_thread(&path, MALLORY, true, |_| {});
    let seen = census(&path);
    assert_eq!(seen["processes"][0]["ceiling"], 40, "{seen}");
    let program = without_main_thread(&path, MALLORY, false, |_| {});
    // Takes a sweep at the latest.
    until("it is assigned", || {
        assigned(&census(&path), program.pid()).is_some()
    });
}

#[test]
fn a_process_that_ends_its_main_thread_keeps_its_bounds() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("headless-period");
    let config = Config {
        assign: vec![periodic_rule()],
        ..open_config("headless-period")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut bystander = bystander(&path, 0);
    let mut burner = without_main_thread(&path, ALICE, false, |process| {
        until("its main thread is elevated", || {
            Policy::of(&Kernel, process.pid())
                .is_ok_and(|policy| matches!(policy.class(), Class::Fifo(_)))
        });
    });
    let end = from_now(TIME);
    bystander.go_until(end);
    burner.go_until(end);
    let (used, burnt) = (bystander.number("used "), burner.number("used "));
    println!("bystander {used} us, burner {burnt} us with 6 of 20 ms");
    // 6 of 20 ms, and half of the rest.
    assert!(takes_at_most(75, burnt, us()));
}
