//! Attacks on the CPU time that the daemon guarantees to programs that are not registered, and to
//! more urgent clients. The attackers are in `cpu_share/attackers.rs` and `cpu_share/floods.rs`.

pub(crate) mod attackers;
pub(crate) mod floods;

use std::time::Duration;

use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, TRUDY, assert_leaves_share, attack_beside_bystander,
    deadline_after, open_daemon, settings, start_child, two_cpus, us, uses_at_most,
};
use crate::client::{census, vcpu_counter};
use crate::process::Process;
use crate::steady_state::scheduler_cpu_time;
use crate::{permitted, serial_test};

#[test]
fn dispatchers_together_leave_a_victim_of_level_0_its_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    // In the second case, each of the dispatchers alone stays within the budget.
    for (threads, duty) in [("30", "100"), ("6", "17")] {
        let (path, _daemon) = open_daemon("dispatchers");
        let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
        let extra_settings = [("THREADS", threads.to_string()), ("DUTY", duty.to_string())];
        let mut attacker = start_child("dispatchers", &path, MALLORY, (0, 63), &extra_settings);
        let end = deadline_after(ATTACK_TIME);
        victim.run_until(end);
        attacker.run_until(end);
        let used = (victim.number("used "), attacker.number("used "));
        let overdrafts = vcpu_counter(&census(&path), attacker.pid(), "overdrafts");
        println!(
            "{threads} at {duty} %: victim {}, attacker {} us of {}, {overdrafts} overdrafts",
            used.0,
            used.1,
            us()
        );
        // The dispatchers may use their budget (20 %), its burst, and the time of pauses.
        assert!(uses_at_most(50, used.1, us()));
        assert!(overdrafts > 0);
    }
}

#[test]
fn two_alternating_clients_leave_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("turns");
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut bystander = Process::start("gap-meter", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    // The two alternate every 37 ms, so the thread that a check finds to have used CPU time sleeps
    // in the pause that follows.
    let mut pair = [0, 1].map(|phase| {
        let phase = [("PHASE", phase.to_string())];
        start_child("alternating-spinner", &path, MALLORY, (0, 40), &phase)
    });
    let end = deadline_after(Duration::from_millis(1200));
    bystander.run_until(end);
    for process in &mut pair {
        process.run_until(end);
    }
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let attacker_us: u64 = pair.iter_mut().map(|process| process.number("used ")).sum();
    println!("the pair {attacker_us}, bystander {used} us of 1200000, longest gap {longest} us");
    assert!(uses_at_most(97, attacker_us, 1_200_000));
}

#[test]
fn a_process_that_repeatedly_leaves_and_registers_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if permitted() {
        assert_leaves_share(attack_beside_bystander(
            "reregistering-spinner",
            "reregistering-spinner",
            &[],
        ));
    }
}

#[test]
fn threads_that_end_before_a_check_leave_bystanders_their_share() {
    let _guard = serial_test();
    if permitted() {
        for spin_us in ["1500", "25000"] {
            assert_leaves_share(attack_beside_bystander(
                "successive-threads",
                "successive-threads",
                &[("SPIN_US", spin_us.to_string())],
            ));
        }
    }
}

#[test]
fn dispatchers_that_end_before_a_check_leave_a_victim_its_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("relay-dispatchers");
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let extra_settings = [
        ("SPIN_US", "25000".to_string()),
        ("ROLE", "dispatcher".to_string()),
    ];
    let mut attacker = start_child(
        "successive-threads",
        &path,
        MALLORY,
        (0, 63),
        &extra_settings,
    );
    let end = deadline_after(ATTACK_TIME);
    victim.run_until(end);
    attacker.run_until(end);
    let used = (victim.number("used "), attacker.number("used "));
    println!("victim {}, attacker {} us", used.0, used.1);
    assert!(
        used.0 > 2 * used.1,
        "CPU times of the victim and the attacker, us: {used:?}"
    );
}

#[test]
fn threads_that_run_only_in_pauses_leave_bystanders_their_share() {
    let _guard = serial_test();
    if permitted() {
        assert_leaves_share(attack_beside_bystander(
            "pause-spinners",
            "pause-spinners",
            &[],
        ));
    }
}

#[test]
fn a_process_that_lowers_itself_to_the_priority_of_the_canary_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if permitted() {
        assert_leaves_share(attack_beside_bystander("self-demoter", "self-demoter", &[]));
    }
}

#[test]
fn two_clients_that_constantly_change_their_levels_leave_a_victim_its_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (_, last_cpu) = two_cpus();
    // The case "batch" is more work for the daemon, because it records a thread with another policy
    // than SCHED_OTHER again for each elevation.
    for policy in ["fair", "batch"] {
        let (path, _daemon) = open_daemon("level-flapper");
        let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
        let extra_settings = [("POLICY", policy.to_string())];
        let mut pair = [MALLORY, TRUDY]
            .map(|user| start_child("level-flapper", &path, user, (0, 30), &extra_settings));
        // The pair needs the victim's CPU to change its levels; a third client rings from the other
        // CPU.
        let mut third_client = start_child(
            "level-flapper",
            &path,
            MALLORY,
            (last_cpu, 30),
            &extra_settings,
        );
        let (end, before) = (deadline_after(ATTACK_TIME), scheduler_cpu_time());
        victim.run_until(end);
        for process in pair.iter_mut().chain([&mut third_client]) {
            process.run_until(end);
        }
        let used = victim.number("used ");
        let attacker_us: u64 = pair.iter_mut().map(|process| process.number("used ")).sum();
        let daemon_us = (scheduler_cpu_time() - before) / 1000;
        println!("{policy}: victim {used}, the pair {attacker_us}, the daemon {daemon_us} us");
        // The daemon may use a fifth, and the pair the pauses, since there is no bystander. If a
        // canary is silent, the victim and the pair are ordinary for a second and get a third each.
        assert!(uses_at_most(85, attacker_us + daemon_us, us()));
    }
}

#[test]
fn a_process_that_repeatedly_executes_a_program_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    for how in ["exec", "vfork"] {
        let attacker_us =
            attack_beside_bystander(how, "program-changer", &settings(&[("HOW", how)]));
        assert!(uses_at_most(97, attacker_us, us()));
    }
}

#[test]
fn a_traced_winner_leaves_a_victim_its_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("traced");
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let mut attacker = start_child("traced", &path, MALLORY, (0, 40), &[]);
    let end = deadline_after(ATTACK_TIME);
    victim.run_until(end);
    attacker.run_until(end);
    let (used, attacker_us) = (victim.number("used "), attacker.number("used "));
    println!("victim {used}, traced {attacker_us} us of {}", us());
    // The victim is elevated after two checks. An attacker that kept its rank while it is stopped
    // would have all time but the pauses; if a canary is silent, the attacker has half for a while.
    assert!(uses_at_most(70, attacker_us, us()));
}

#[test]
fn a_process_that_floods_the_kernel_with_packets_leaves_bystanders_their_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let attacker_us = attack_beside_bystander("packet-flood", "packet-flood", &[]);
    assert!(uses_at_most(97, attacker_us, us()));
}

#[test]
fn level_changes_of_a_thousand_threads_do_not_keep_the_scheduler_busy() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("mass-level-changer");
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut attacker = start_child("mass-level-changer", &path, MALLORY, (0, 40), &[]);
    let end = deadline_after(ATTACK_TIME);
    let before = scheduler_cpu_time();
    victim.run_until(end);
    attacker.run_until(end);
    let (used, changes) = (victim.number("used "), attacker.line("changes "));
    let scheduler_us = (scheduler_cpu_time() - before) / 1000;
    println!(
        "victim {used} of {} us, {changes:?} vCPUs, the scheduler {scheduler_us} us",
        us()
    );
    // The scheduler may use a fifth of the CPU, and one iteration may exceed this budget.
    assert!(
        scheduler_us < us() / 2,
        "the scheduler used {scheduler_us} us"
    );
}
