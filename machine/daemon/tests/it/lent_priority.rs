//! Tests of priority inheritance. A registered thread waits for a lock, so the kernel lends the
//! thread's priority to the holder of the lock, which is not registered. The *canary* of each CPU
//! is a thread of the daemon that has the lowest real-time priority. If a canary is silent,
//! elevated threads occupy its CPU. The attackers are in `lent_priority/attackers.rs`.

pub(crate) mod attackers;

use crate::attack::{
    ATTACK_TIME, MALLORY, TRUDY, attack_beside_bystander, bystander, open_daemon,
    run_beside_bystander, serial_test_on_two_cpus, settings, start_child, two_cpus, us,
    uses_at_most,
};
use crate::{permitted, serial_test};

/// Lets a child in `role` lend a priority to a thread that spins on the other CPU, beside a
/// bystander. Asserts that the canary of that CPU ends the loan. The canary is silent, so after
/// 0.12 s the daemon demotes all threads for 1 s, and later for 2 s.
fn assert_canary_ends_loan(name: &str, role: &str, extra_settings: &[(&str, &str)]) {
    let (first_cpu, last_cpu) = two_cpus();
    let (path, _daemon) = open_daemon(name);
    let _rival = start_child("idle-claimant", &path, TRUDY, (first_cpu, 63), &[]);
    let mut bystander = bystander(&path, last_cpu);
    let extra_settings = [
        settings(extra_settings),
        vec![("VICTIM", last_cpu.to_string())],
    ]
    .concat();
    let mut lender = start_child(role, &path, MALLORY, (first_cpu, 40), &extra_settings);
    let (attacker_us, alarms) =
        run_beside_bystander(name, &path, &mut bystander, &mut lender, ATTACK_TIME);
    // The attacker may have the CPU for 0.12 s before each of the two alarms, and for half of the
    // remaining time. This is 58 % of the time, and the bound leaves a margin.
    assert!(
        uses_at_most(75, attacker_us, us()),
        "{role} {extra_settings:?}"
    );
    assert!(alarms > 0, "{role} {extra_settings:?}");
}

#[test]
fn the_canary_ends_a_loan_to_another_thread() {
    let _guard = serial_test();
    if permitted() {
        for role in ["worker", "dispatcher"] {
            assert_canary_ends_loan(role, "lender", &[("ROLE", role)]);
        }
    }
}

#[test]
fn the_canary_ends_a_loan_to_an_unregistered_process() {
    let _guard = serial_test();
    if permitted() {
        for links in ["1", "3"] {
            assert_canary_ends_loan("process-lender", "process-lender", &[("LINKS", links)]);
        }
    }
}

#[test]
fn the_canary_ends_a_loan_along_a_chain_of_locks() {
    let _guard = serial_test();
    if permitted() {
        for links in ["4", "900"] {
            assert_canary_ends_loan("lock-chain", "lock-chain", &[("LINKS", links)]);
        }
    }
}

#[test]
fn the_canary_ends_a_loan_by_any_kind_of_futex_call() {
    let _guard = serial_test();
    if permitted() {
        for call in ["plain", "requeue", "32-bit"] {
            assert_canary_ends_loan("futex-calls", "lender", &[("CALL", call)]);
        }
    }
}

/// The threads of the process lend again as soon as a demotion ends. Each demotion is twice as long
/// as the last, which limits both the attacker's CPU time and the number of alarms.
#[test]
fn demotions_grow_if_a_process_lends_again() {
    let Some((_guard, (first_cpu, last_cpu))) = serial_test_on_two_cpus() else {
        return;
    };
    let (path, _daemon) = open_daemon("again");
    let _rival = start_child("idle-claimant", &path, TRUDY, (first_cpu, 63), &[]);
    let mut bystander = bystander(&path, last_cpu);
    let extra_settings = settings(&[("VICTIM", &last_cpu.to_string())]);
    let mut lender = start_child("lender", &path, MALLORY, (first_cpu, 40), &extra_settings);
    let time = 4 * ATTACK_TIME;
    let (attacker_us, alarms) =
        run_beside_bystander("again", &path, &mut bystander, &mut lender, time);
    // The demotions last 1, 2 and 4 s. So in 6 s the attacker may have the CPU for 0.12 s before
    // each of three alarms, and for half of the remaining time. This is 53 % of the time, and the
    // bound leaves a margin.
    assert!(uses_at_most(65, attacker_us, time.as_micros() as u64));
    assert!((2..=3).contains(&alarms), "{alarms} alarms");
}

#[test]
fn lending_only_during_pauses_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if permitted() {
        let attacker_us = attack_beside_bystander(
            "pause-lender",
            "pause-lender",
            &[("LENT", "600".to_string())],
        );
        // The share of bystanders is 5 %, and the bound leaves a margin of 2 %.
        assert!(uses_at_most(97, attacker_us, us()));
    }
}
