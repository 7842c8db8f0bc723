//! Tests of processes whose main thread has ended, so that their files in `/proc` are empty. Their
//! quota, level and budget must still apply.

use std::path::Path;
use std::time::Duration;

use upshift_board::wire::Role;
use upshift_daemon::{Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy, current_tid};

use crate::assign::{assigned, periodic_rule, rule};
use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, TRUDY, bystander, daemon_with_rules, deadline_after, open_config,
    start_child, us, uses_at_most,
};
use crate::cgroup::QuotaCgroup;
use crate::child::{cpu_time, number, pin, setting, wait_for_parent};
use crate::client::{Registration, census};
use crate::process::{Process, monotonic, wait_until};
use crate::quotas::assert_quota_holds;
use crate::{permitted, serial_test, skipped, socket};

/// Ends the main thread of this process only.
fn end_main_thread() {
    extern "C" fn end(_: libc::c_int) {
        // SAFETY: the call ends the calling thread, the receiver of the signal.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let own_pid = std::process::id() as i32;
    assert_ne!(own_pid, current_tid());
    // SAFETY: the handler makes one system call, and the receiver is a thread of this process.
    unsafe {
        let end: extern "C" fn(libc::c_int) = end;
        libc::signal(libc::SIGUSR1, end as libc::sighandler_t);
        libc::syscall(libc::SYS_tgkill, own_pid, own_pid, libc::SIGUSR1);
    }
    let stat = format!("/proc/{own_pid}/stat");
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends its main thread after a line from the parent, registers if `JOINS` is set, and spins until
/// the deadline.
pub(crate) fn main_thread_ender() {
    pin(number("CPU") as usize);
    println!("ready");
    wait_for_parent();
    end_main_thread();
    let registration =
        (setting("JOINS") == "1").then(|| Registration::new(&[(current_tid(), Role::Worker)]));
    println!("main thread ended");
    let deadline = wait_for_parent();
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    drop(registration);
    wait_for_parent();
}

/// Starts a child whose main thread ends. `prepare` is called before the end of the main thread.
fn start_without_main_thread(
    path: &Path,
    user: u32,
    registers: bool,
    prepare: impl FnOnce(&Process),
) -> Process {
    let registers = [("JOINS", u8::from(registers).to_string())];
    let mut process = start_child("main-thread-ender", path, user, (0, 2), &registers);
    prepare(&process);
    process.send("0");
    process.line("main thread ended").unwrap();
    process
}

#[test]
fn a_process_that_ends_its_main_thread_keeps_the_quota_of_its_cgroup() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    for registers in [true, false] {
        let (path, _daemon) = daemon_with_rules("main-thread-ender", vec![rule(ALICE, 8)]);
        let Some(cgroup) = QuotaCgroup::new() else {
            return skipped("no cgroup with a CPU quota can be created");
        };
        let mut is_in_cgroup = false;
        let user = if registers { MALLORY } else { ALICE };
        let burner = start_without_main_thread(&path, user, registers, |process| {
            is_in_cgroup = cgroup.add(process)
        });
        if !is_in_cgroup {
            return skipped("a process cannot be moved to a cgroup");
        }
        let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
        std::thread::sleep(Duration::from_millis(1100));
        assert_quota_holds(burner);
    }
}

#[test]
fn a_process_that_ends_its_main_thread_keeps_the_level_of_its_rule() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = daemon_with_rules("rule", vec![rule(MALLORY, 40)]);
    let _client = start_without_main_thread(&path, MALLORY, true, |_| {});
    let status = census(&path);
    assert_eq!(status["processes"][0]["ceiling"], 40, "{status}");
    let program = start_without_main_thread(&path, MALLORY, false, |_| {});
    // The daemon finds the process in its next sweep at the latest.
    wait_until("the program is assigned", || {
        assigned(&census(&path), program.pid()).is_some()
    });
}

#[test]
fn a_process_that_ends_its_main_thread_keeps_its_budget() {
    let _guard = serial_test();
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
    let mut burner = start_without_main_thread(&path, ALICE, false, |process| {
        wait_until("the main thread is elevated", || {
            Policy::of(&Kernel, process.pid())
                .is_ok_and(|policy| matches!(policy.class(), Class::Fifo(_)))
        });
    });
    let end = deadline_after(ATTACK_TIME);
    bystander.run_until(end);
    burner.run_until(end);
    let (used, attacker_us) = (bystander.number("used "), burner.number("used "));
    println!("bystander {used} us, burner {attacker_us} us with 6 of 20 ms");
    // The program may use 6 ms of every 20 ms, and half of the remaining time. This is 65 %, and
    // the bound leaves a margin of 10 %.
    assert!(uses_at_most(75, attacker_us, us()));
}
