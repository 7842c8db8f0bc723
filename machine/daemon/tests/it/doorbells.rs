//! Attacks through the doorbells, which are eventfds that wake the daemon.

use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, TRUDY, deadline_after, open_daemon, start_child, two_cpus, us,
    uses_at_most,
};
use crate::client::{census, vcpu_counter};
use crate::process::{elevated_threads, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::steady_state::scheduler_cpu_time;
use crate::{daemon, permitted, serial_test, socket};

#[test]
fn a_flooded_doorbell_is_ignored_for_a_while() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("flood");
    let _daemon = daemon("flood");
    let mut flooder = start_scripted_client(&path);
    let mut other = start_scripted_client(&path);
    flooder.execute("level 40");
    let rings: u64 = flooder.execute("ring 400").parse().unwrap();
    let status = census(&path);
    let answered = vcpu_counter(&status, flooder.pid(), "rings");
    println!("{rings} rings, {answered} answered");
    assert!(vcpu_counter(&status, flooder.pid(), "floods") > 0);
    // At most 10,000 rings are answered in a second, and these took 400 ms.
    assert!(answered < 10_000, "{answered} of {rings} rings answered");
    other.execute("level 2");
    wait_until("the other client is elevated", || {
        !elevated_threads(other.pid()).is_empty()
    });
}

#[test]
fn a_blocking_doorbell_with_many_listeners_delays_no_client() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("listeners");
    let (_, other_cpu) = two_cpus();
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let extra_settings = [("ROLE", "listeners".to_string())];
    let mut attacker = start_child("level-flapper", &path, MALLORY, (0, 30), &extra_settings);
    let mut other = start_child(
        "level-flapper",
        &path,
        TRUDY,
        (other_cpu, 30),
        &extra_settings,
    );
    let (end, before) = (deadline_after(ATTACK_TIME), scheduler_cpu_time());
    for process in [&mut victim, &mut attacker, &mut other] {
        process.run_until(end);
    }
    let (used, attacker_us) = (victim.number("used "), attacker.number("used "));
    let daemon_us = (scheduler_cpu_time() - before) / 1000;
    println!("victim {used}, the attacker {attacker_us}, the daemon {daemon_us} us");
    // The daemon may use a fifth of the CPU, and the attacker the pauses of the victim. The bound
    // leaves a wide margin.
    assert!(uses_at_most(60, attacker_us + daemon_us, us()));
}
