//! Ordinary users who evade what watches them, alone or together, and what a bystander or a victim has left. `docs/threat-model.md` names
//! these tests; the children are in `rogue.rs`.

use std::process::Command;
use std::time::Duration;

use upshift_daemon::{Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attacks::{
    ALICE, MALLORY, TRUDY, from_now, open_config, takes_at_most, two_cpus, villain,
};
use crate::beside::{TIME, barred_until, beside, bystander, contend, us};
use crate::hostile::census;
use crate::process::{PATIENCE, Process, ROLE, elevated_threads, until};
use crate::quiet::used_by_the_scheduler;
use crate::{permitted, skipped, socket, turn};

/// The rules leave 5 % to programs that are not registered.
fn leaves_their_share(burnt: u64) {
    assert!(takes_at_most(97, burnt, us()));
}

#[test]
fn who_leaves_and_registers_again_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        leaves_their_share(beside("returner", "returner", &[]));
    }
}

#[test]
fn threads_that_end_before_anybody_looks_leave_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        for each in ["1500", "25000"] {
            leaves_their_share(beside("relay", "relay", &[("EACH", each.to_string())]));
        }
    }
}

#[test]
fn dispatchers_that_end_before_anybody_looks_leave_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("relay-dispatchers");
    let _daemon = Daemon::start(open_config("relay-dispatchers")).unwrap();
    let mut victim = villain("burner", &path, ALICE, (0, 0), &[]);
    let more = [
        ("EACH", "25000".to_string()),
        ("ROLE", "dispatcher".to_string()),
    ];
    let mut attacker = villain("relay", &path, MALLORY, (0, 63), &more);
    let end = from_now(TIME);
    victim.go_until(end);
    attacker.go_until(end);
    let barred = barred_until(end, &path);
    let used = (victim.number("used "), attacker.number("used "));
    println!(
        "victim {}, attacker {} us, barred {barred:?}",
        used.0, used.1
    );
    // Before: now and then the victim was barred, for what had used the CPU was in no account.
    assert!(used.0 > 2 * used.1, "{used:?}");
}

#[test]
fn understudies_leave_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        leaves_their_share(beside("understudies", "understudies", &[]));
    }
}

#[test]
fn a_priority_lent_to_a_process_of_nobody_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    for links in ["1", "3"] {
        let path = socket("patron");
        let _daemon = Daemon::start(open_config("patron")).unwrap();
        let _rival = villain("ghost", &path, TRUDY, (here, 63), &[]);
        let mut bystander = bystander(&path, there);
        let more = [("VICTIM", there.to_string()), ("LINKS", links.to_string())];
        let mut attacker = villain("patron", &path, MALLORY, (here, 40), &more);
        let (burnt, alarms) = contend("patron", &path, &mut bystander, &mut attacker, TIME);
        // 0.12 s in a second, and an equal part of the rest.
        assert!(takes_at_most(75, burnt, us()));
        assert!(alarms > 0, "it was lent along {links}");
    }
}

#[test]
fn who_sinks_to_the_priority_of_the_canary_leaves_bystanders_their_share() {
    let _turn = turn();
    if permitted() {
        leaves_their_share(beside("sinker", "sinker", &[]));
    }
}

#[test]
fn threads_that_the_kernel_makes_for_an_elevated_one_are_ordinary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("summoner");
    let _daemon = Daemon::start(open_config("summoner")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut summoner = villain("summoner", &path, MALLORY, (0, 40), &[]);
    summoner.go_until(from_now(PATIENCE));
    if summoner.number("ring ") == 0 {
        return skipped("ordinary users may not use io_uring here");
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", summoner.pid())).unwrap();
    assert!(threads.count() > 2, "there is a thread of the kernel's");
    // The main thread of the role, if anything.
    assert!(elevated_threads(summoner.pid()).len() <= 1);
}

#[test]
fn a_process_in_a_pid_namespace_registers_its_own_threads_and_no_others() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("hermit");
    let _daemon = Daemon::start(open_config("hermit")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child::plays_a_role", "--nocapture", "--quiet"])
        .envs([("CPU", "0"), ("LEVEL", "3")])
        .env("USER", MALLORY.to_string())
        .env("SOCKET", &path)
        .env(ROLE, "hermit");
    let Ok(output) = unshare.output() else {
        return skipped("unshare is not installed");
    };
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("unshare") {
        return skipped(error.trim());
    }
    assert!(out.contains("verdict in"), "{out}{error}");
    assert!(out.contains("elevated true"), "{out}");
    assert!(out.contains("foreign 0"), "{out}");
}

#[test]
fn two_who_change_their_levels_at_full_speed_leave_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (_, there) = two_cpus();
    // A thread with a policy of its own is recorded anew each time that it rises.
    for policy in ["fair", "batch"] {
        let path = socket("flapper");
        let _daemon = Daemon::start(open_config("flapper")).unwrap();
        let mut victim = villain("burner", &path, ALICE, (0, 0), &[]);
        let more = [("POLICY", policy.to_string())];
        let mut pair = [MALLORY, TRUDY].map(|user| villain("flapper", &path, user, (0, 30), &more));
        // They need the CPU to flap; one more rings from the other one.
        let mut other = villain("flapper", &path, MALLORY, (there, 30), &more);
        let (end, before) = (from_now(TIME), used_by_the_scheduler());
        victim.go_until(end);
        for it in pair.iter_mut().chain([&mut other]) {
            it.go_until(end);
        }
        let used = victim.number("used ");
        let burnt: u64 = pair.iter_mut().map(|it| it.number("used ")).sum();
        let daemon = (used_by_the_scheduler() - before) / 1000;
        println!("{policy}: victim {used} us, the pair {burnt}, the daemon {daemon}");
        // A fifth for the daemon, and breaths that the pair has where no bystander is. Where another scheduler of this machine keeps the canary
        // silent, all are ordinary for a while and have a third each.
        assert!(takes_at_most(60, burnt + daemon, us()));
    }
}

#[test]
fn a_doorbell_that_blocks_and_has_many_listeners_holds_up_nobody() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("listeners");
    let _daemon = Daemon::start(open_config("listeners")).unwrap();
    let (_, there) = two_cpus();
    let mut victim = villain("burner", &path, ALICE, (0, 0), &[]);
    let more = [("ROLE", "listeners".to_string())];
    let mut here = villain("flapper", &path, MALLORY, (0, 30), &more);
    let mut other = villain("flapper", &path, TRUDY, (there, 30), &more);
    let (end, before) = (from_now(TIME), used_by_the_scheduler());
    for it in [&mut victim, &mut here, &mut other] {
        it.go_until(end);
    }
    let (used, burnt) = (victim.number("used "), here.number("used "));
    let daemon = (used_by_the_scheduler() - before) / 1000;
    println!("victim {used} us, the attacker {burnt}, the daemon {daemon}");
    assert!(takes_at_most(60, burnt + daemon, us()));
}

#[test]
fn threads_of_an_assigned_program_leave_others_their_places() {
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
    let crowd = [0, 1, 2].map(|_| villain("sleepers", &path, MALLORY, (0, 0), &threads));
    let count = || {
        let seen = census(&path);
        let of = |it: &Process| {
            assigned(&seen, it.pid()).map_or(0, |it| it["threads"].as_u64().unwrap())
        };
        crowd.iter().map(of).sum::<u64>()
    };
    until("as many as may be are assigned", || {
        count() >= limit as u64 * 9 / 10
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(count() <= limit as u64, "{}", count());
    // Others are still elevated, and in time.
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut victim = villain("burner", &path, ALICE, (0, 2), &[]);
    victim.go_until(from_now(PATIENCE));
    until("the victim is elevated", || {
        !elevated_threads(victim.pid()).is_empty()
    });
}
