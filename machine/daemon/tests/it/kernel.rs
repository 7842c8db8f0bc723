//! Attacks by system calls outside of the protocol. The attackers are in `kernel/attackers.rs`.

pub(crate) mod attackers;

use std::time::Duration;

use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, TRUDY, bystander, deadline_after, open_daemon,
    serial_test_on_two_cpus, settings, start_child, us, uses_at_most,
};
use crate::client::census;
use crate::process::elevated_threads;
use crate::{permitted, serial_test};

/// Returns settings of a child that may occupy a CPU in SCHED_FIFO for 5 s.
pub(crate) fn long_fifo_limit() -> Vec<(&'static str, String)> {
    settings(&[("LIMIT", "5000000")])
}

#[test]
fn memory_calls_on_a_page_that_the_daemon_reads_leave_a_victim_its_cpu() {
    let Some((_guard, (first_cpu, last_cpu))) = serial_test_on_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("page-mover");
    let _rival = start_child("idle-claimant", &path, TRUDY, (first_cpu, 63), &[]);
    let mut bystander = bystander(&path, first_cpu);
    let mut victim = start_child("burner", &path, ALICE, (first_cpu, 0), &long_fifo_limit());
    let extra_settings = [("CALLER", last_cpu.to_string())];
    let mut attacker = start_child(
        "page-mover",
        &path,
        MALLORY,
        (first_cpu, 40),
        &extra_settings,
    );
    let end = deadline_after(2 * ATTACK_TIME);
    for process in [&mut bystander, &mut victim, &mut attacker] {
        process.run_until(end);
    }
    let longest = bystander.number("longest ");
    let used = victim.number("used ");
    let calls = attacker.line("calls ").unwrap();
    println!(
        "{calls}; victim {used} us of {}, longest gap of a bystander {longest} us",
        2 * us()
    );
    // The daemon has locked the page in memory, so it can only block while it maps the page. The
    // victim must get at least a quarter of the time.
    assert!(used * 2 > us(), "the victim used {used} us");
}

#[test]
fn threads_that_constantly_change_cpu_and_policy_leave_a_victim_its_cpu() {
    let Some((_guard, (first_cpu, last_cpu))) = serial_test_on_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("thread-mover");
    let _rival = start_child("idle-claimant", &path, TRUDY, (first_cpu, 63), &[]);
    let mut victim = start_child("burner", &path, ALICE, (first_cpu, 0), &[]);
    let extra_settings = [("CALLER", last_cpu.to_string())];
    let mut attacker = start_child(
        "thread-mover",
        &path,
        MALLORY,
        (first_cpu, 40),
        &extra_settings,
    );
    let end = deadline_after(ATTACK_TIME);
    victim.run_until(end);
    attacker.run_until(end);
    let (used, calls) = (victim.number("used "), attacker.line("calls ").unwrap());
    println!("{calls}; victim {used} us of {}", us());
    // The victim should get 94 %, but only half if elevated threads of another daemon also use the
    // CPU.
    assert!(used * 2 > us(), "the victim used {used} us");
}

#[test]
fn a_process_that_enters_other_namespaces_stays_its_users_process() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("namespace-switcher");
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut bystander = bystander(&path, 0);
    let mut attacker = start_child("namespace-switcher", &path, MALLORY, (0, 40), &[]);
    let pid: i32 = attacker.line("pid ").unwrap().parse().unwrap();
    let end = deadline_after(ATTACK_TIME);
    bystander.run_until(end);
    attacker.run_until(end);
    // The check is repeated because the process is not elevated during a pause.
    let elevated = (0..20).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        !elevated_threads(pid).is_empty()
    });
    let attacker_us = attacker.number("used ");
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let entered = attacker.line("entered ").unwrap();
    let ejected = &census(&path)["ejected"];
    println!(
        "entered {entered}, elevated {elevated}: {attacker_us}, bystander {used} us of {}, longest gap {longest} us, {ejected} ejected",
        us()
    );
    // Its user is the same for the kernel and the daemon, so the process is not ejected, and its
    // share is limited.
    assert!(uses_at_most(97, attacker_us, us()));
    assert_eq!(ejected, 0);
}
