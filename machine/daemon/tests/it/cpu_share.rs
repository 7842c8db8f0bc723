//! Attacks on the share of the CPU that the rules leave to programs that are not registered, or to
//! a more urgent client. The attackers are in `cpu_share/attackers.rs`.

pub(crate) mod attackers;
pub(crate) mod floods;

use std::time::Duration;

use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, compete, from_now, leaves_their_share, open_daemon, settings,
    start_child, takes_at_most, two_cpus, us,
};
use crate::client::{census, of_vcpu};
use crate::process::Process;
use crate::quiet::used_by_the_scheduler;
use crate::{permitted, turn};

#[test]
fn dispatchers_together_leave_a_victim_of_level_0_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    // Many dispatchers that spin all the time, and a few within the budget of a single one.
    for (threads, duty) in [("30", "100"), ("6", "17")] {
        let (path, _daemon) = open_daemon("dispatchers");
        let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
        let more = [("THREADS", threads.to_string()), ("DUTY", duty.to_string())];
        let mut attacker = start_child("dispatchers", &path, MALLORY, (0, 63), &more);
        let end = from_now(TIME);
        victim.go_until(end);
        attacker.go_until(end);
        let used = (victim.number("used "), attacker.number("used "));
        let overdrafts = of_vcpu(&census(&path), attacker.pid(), "overdrafts");
        println!(
            "{threads} at {duty} %: victim {}, attacker {} us of {}, {overdrafts} overdrafts",
            used.0,
            used.1,
            us()
        );
        // The budget of dispatchers (20 %), its burst, and pauses.
        assert!(takes_at_most(50, used.1, us()));
        assert!(overdrafts > 0);
    }
}

#[test]
fn two_that_take_turns_leave_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("turns");
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut bystander = Process::start("gap", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    // They change each 37 ms: the thread that a check finds to have used its time sleeps in the
    // pause.
    let mut pair = [0, 1].map(|turn| {
        let turn = [("TURN", turn.to_string())];
        start_child("alternator", &path, MALLORY, (0, 40), &turn)
    });
    let end = from_now(Duration::from_millis(1200));
    bystander.go_until(end);
    for process in &mut pair {
        process.go_until(end);
    }
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let burnt: u64 = pair.iter_mut().map(|process| process.number("used ")).sum();
    println!("the pair {burnt}, bystander {used} us of 1200000, longest gap {longest} us");
    assert!(takes_at_most(97, burnt, 1_200_000));
}

#[test]
fn a_process_that_leaves_and_registers_again_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        leaves_their_share(compete("returner", "returner", &[]));
    }
}

#[test]
fn threads_that_end_before_a_check_leave_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        for each in ["1500", "25000"] {
            leaves_their_share(compete("relay", "relay", &[("EACH", each.to_string())]));
        }
    }
}

#[test]
fn dispatchers_that_end_before_a_check_leave_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("relay-dispatchers");
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let more = [
        ("EACH", "25000".to_string()),
        ("ROLE", "dispatcher".to_string()),
    ];
    let mut attacker = start_child("relay", &path, MALLORY, (0, 63), &more);
    let end = from_now(TIME);
    victim.go_until(end);
    attacker.go_until(end);
    let used = (victim.number("used "), attacker.number("used "));
    println!("victim {}, attacker {} us", used.0, used.1);
    assert!(used.0 > 2 * used.1, "{used:?}");
}

#[test]
fn understudies_leave_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        leaves_their_share(compete("understudies", "understudies", &[]));
    }
}

#[test]
fn a_process_that_sinks_to_the_priority_of_the_canary_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        leaves_their_share(compete("sinker", "sinker", &[]));
    }
}

#[test]
fn two_that_change_their_levels_at_full_speed_leave_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (_, there) = two_cpus();
    // A thread with a policy of its own is recorded again each time that it is elevated.
    for policy in ["fair", "batch"] {
        let (path, _daemon) = open_daemon("flapper");
        let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
        let more = [("POLICY", policy.to_string())];
        let mut pair =
            [MALLORY, TRUDY].map(|user| start_child("flapper", &path, user, (0, 30), &more));
        // They need the CPU to change their levels; a third one rings from the other CPU.
        let mut other = start_child("flapper", &path, MALLORY, (there, 30), &more);
        let (end, before) = (from_now(TIME), used_by_the_scheduler());
        victim.go_until(end);
        for process in pair.iter_mut().chain([&mut other]) {
            process.go_until(end);
        }
        let used = victim.number("used ");
        let burnt: u64 = pair.iter_mut().map(|process| process.number("used ")).sum();
        let daemon = (used_by_the_scheduler() - before) / 1000;
        println!("{policy}: victim {used} us, the pair {burnt}, the daemon {daemon}");
        // A fifth for the daemon, and pauses that the pair has where no bystander is. If a canary
        // is silent meanwhile, all three are ordinary for a second and have a third each.
        assert!(takes_at_most(85, burnt + daemon, us()));
    }
}

#[test]
fn a_process_that_becomes_another_program_again_and_again_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for how in ["exec", "vfork"] {
        let burnt = compete(how, "shifter", &settings(&[("HOW", how)]));
        assert!(takes_at_most(97, burnt, us()));
    }
}

#[test]
fn a_winner_that_is_traced_leaves_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("traced");
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let mut attacker = start_child("traced", &path, MALLORY, (0, 40), &[]);
    let end = from_now(TIME);
    victim.go_until(end);
    attacker.go_until(end);
    let (used, burnt) = (victim.number("used "), attacker.number("used "));
    println!("victim {used}, traced {burnt} us of {}", us());
    // Two checks until the victim is elevated, and then pauses. A winner that kept its rank while
    // it is traced would have all but the pauses; during a rest it has half.
    assert!(takes_at_most(70, burnt, us()));
}

#[test]
fn a_process_that_has_the_kernel_move_packets_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let burnt = compete("torrent", "torrent", &[]);
    assert!(takes_at_most(97, burnt, us()));
}

#[test]
fn a_process_that_changes_levels_with_a_thousand_threads_leaves_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("switcher");
    let mut victim = start_child("burner", &path, ALICE, (0, 0), &[]);
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut switcher = start_child("switcher", &path, MALLORY, (0, 40), &[]);
    let end = from_now(TIME);
    let before = used_by_the_scheduler();
    victim.go_until(end);
    switcher.go_until(end);
    let (used, changes) = (victim.number("used "), switcher.line("changes "));
    let own = used_by_the_scheduler() - before;
    println!(
        "victim {used} of {} us, {changes:?} vCPUs, the scheduler {own:?}",
        us()
    );
    // A fifth is the scheduler's budget; a turn under way is not cut short.
    assert!(own / 1000 < us() / 2, "{own}");
}
