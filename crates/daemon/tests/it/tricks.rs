//! Ten more ways to take more than the rules give: by threads and processes that end, locks, other CPUs, tracing, namespaces, handed
//! descriptors. `docs/threat-model.md` names these tests; the children are in `trickster.rs`. One of the ten is in `assign_rules.rs`.

use std::process::Command;

use upshift_daemon::{Assign, Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attacks::{
    ALICE, Fifth, MALLORY, TRUDY, from_now, gets_a_fifth, open_config, takes_at_most, two_cpus,
    villain,
};
use crate::beside::{TIME, bystander, contend, us};
use crate::hostile::census;
use crate::process::{Process, ROLE, thread_named, until};
use crate::{permitted, skipped, socket, turn};

/// As [`race`], of `count` programs of role `role`, which a rule for their user names.
fn assigned_beside(name: &str, role: &str, count: usize) -> u64 {
    let path = socket(name);
    let more = [("THREADS", "1".to_string())];
    let start = |_| villain(role, &path, MALLORY, (0, 0), &more);
    race(name, rule(MALLORY, 8), (0..count).map(start).collect())
}

/// The same of one with settings of its own.
fn assigned_as(name: &str, role: &str, more: &[(&str, String)]) -> u64 {
    let program = villain(role, &socket(name), MALLORY, (0, 0), more);
    race(name, rule(MALLORY, 8), vec![program])
}

/// Lets programs that `rule` names and a bystander go on CPU 0: µs of the programs together, on a machine that may do other work
/// with the rest. None is barred for it.
fn race(name: &str, rule: Assign, mut all: Vec<Process>) -> u64 {
    let path = socket(name);
    let config = Config {
        assign: vec![rule],
        ..open_config(name)
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut bystander = bystander(&path, 0);
    until("all are assigned", || {
        let seen = census(&path);
        all.iter().all(|it| assigned(&seen, it.pid()).is_some())
    });
    let end = from_now(TIME);
    bystander.go_until(end);
    all.iter_mut().for_each(|it| it.go_until(end));
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let taken = all.iter_mut().map(|it| it.number("used ")).sum();
    let seen = census(&path);
    let alarms = &seen["alarms"];
    println!(
        "{name}: {taken}, bystander {used} us of {}, longest gap {longest} us, {alarms} alarms",
        us()
    );
    // A canary that something else keeps silent bars none.
    assert!(seen["barred"].as_array().unwrap().is_empty());
    taken
}

#[test]
fn threads_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_beside("churner", "churner", 1);
    // A budget of 80 %, and half of the rest.
    assert!(takes_at_most(96, taken, us()));
}

#[test]
fn processes_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_beside("forker", "forker", 1);
    assert!(takes_at_most(93, taken, us()));
}

#[test]
fn siblings_that_end_do_not_evade_the_budget_of_an_assigned_program() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_as("siblings", "forker", &[("ROLE", "sibling".to_string())]);
    assert!(takes_at_most(93, taken, us()));
}

#[test]
fn who_changes_its_name_does_not_evade_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let fits = Assign {
        comm: Some("fits".into()),
        ..rule(MALLORY, 8)
    };
    let path = socket("renamer");
    let taken = race(
        "renamer",
        fits,
        vec![villain("renamer", &path, MALLORY, (0, 0), &[])],
    );
    assert!(takes_at_most(93, taken, us()));
}

#[test]
fn assigned_programs_within_their_budgets_leave_bystanders_their_share_together() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let taken = assigned_beside("legion", "gap", 4);
    // Without breaths 98.7 %, beside one that has all of the rest.
    assert!(takes_at_most(97, taken, us()));
}

#[test]
fn an_assigned_program_is_not_elevated_beyond_the_quota_of_its_cgroup() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let Some(fifth) = Fifth::new() else {
        return skipped("no cgroup with a CPU quota can be made");
    };
    let path = socket("assigned-quota");
    let burner = villain("gap", &path, MALLORY, (0, 0), &[]);
    if !fifth.take(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    let config = Config {
        assign: vec![rule(MALLORY, 8)],
        ..open_config("assigned-quota")
    };
    let _daemon = Daemon::start(config).unwrap();
    until("it is assigned", || {
        assigned(&census(&path), burner.pid()).is_some()
    });
    gets_a_fifth(burner);
}

#[test]
fn a_priority_lent_along_a_chain_of_locks_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    let path = socket("chain");
    let _daemon = Daemon::start(open_config("chain")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (here, 63), &[]);
    let mut bystander = bystander(&path, there);
    let victim = [("VICTIM", there.to_string())];
    let mut attacker = villain("chain", &path, MALLORY, (here, 40), &victim);
    let (burnt, alarms) = contend("chain", &path, &mut bystander, &mut attacker, TIME);
    // 0.12 s, and an equal part of the rest.
    assert!(takes_at_most(75, burnt, us()));
    assert!(alarms > 0);
}

#[test]
fn a_thread_that_comes_back_for_each_look_takes_little_of_another_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    if here == there {
        return skipped("needs two CPUs");
    }
    let path = socket("roamer");
    let _daemon = Daemon::start(open_config("roamer")).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (here, 63), &[]);
    let mut tid = None;
    until("the scheduler has its name", || {
        tid = thread_named(&format!("upshift-cpu{here}"));
        tid.is_some()
    });
    let tid = tid.unwrap();
    let more = [
        ("VICTIM", there.to_string()),
        ("DAEMON", std::process::id().to_string()),
        ("TID", tid),
    ];
    let mut bystander = bystander(&path, there);
    let mut attacker = villain("roamer", &path, MALLORY, (here, 40), &more);
    let (burnt, _) = contend("roamer", &path, &mut bystander, &mut attacker, 2 * TIME);
    // 1 %, and without glances 84.
    assert!(takes_at_most(20, burnt, 2 * us()));
}

#[test]
fn a_winner_that_is_traced_leaves_a_victim_its_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("traced");
    let _daemon = Daemon::start(open_config("traced")).unwrap();
    let mut victim = villain("burner", &path, ALICE, (0, 0), &[]);
    let mut attacker = villain("traced", &path, MALLORY, (0, 40), &[]);
    let end = from_now(TIME);
    victim.go_until(end);
    attacker.go_until(end);
    let (used, burnt) = (victim.number("used "), attacker.number("used "));
    println!("victim {used}, traced {burnt} us of {}", us());
    // It is stopped for half of the time.
    assert!(takes_at_most(25, burnt, us()));
}

#[test]
fn root_of_a_user_namespace_has_the_ceiling_of_its_user() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("namespace");
    let config = Config {
        ceiling: 40,
        ..open_config("namespace")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--user", "--map-root-user"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child::plays_a_role", "--nocapture", "--quiet"])
        .envs([("CPU", "0"), ("LEVEL", "3")])
        .env("SOCKET", &path)
        .env(ROLE, "ghost");
    use std::os::unix::process::CommandExt;
    unshare.uid(MALLORY).gid(MALLORY);
    unshare.stdin(std::process::Stdio::piped());
    unshare.stdout(std::process::Stdio::piped());
    unshare.stderr(std::process::Stdio::piped());
    let Ok(mut child) = unshare.spawn() else {
        return skipped("unshare is not installed");
    };
    let mut seen = serde_json::Value::Null;
    let mut ended = false;
    until("it has registered, or cannot", || {
        seen = census(&path);
        ended = child.try_wait().unwrap().is_some();
        ended || !seen["processes"].as_array().unwrap().is_empty()
    });
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    if ended {
        return skipped(String::from_utf8_lossy(&output.stderr).trim());
    }
    let process = &seen["processes"][0];
    println!("uid {}, ceiling {}", process["uid"], process["ceiling"]);
    assert_eq!(process["uid"], MALLORY);
    assert_eq!(process["ceiling"], 40);
}

#[test]
fn a_connection_that_is_handed_on_registers_no_thread_of_the_other_process() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("messenger");
    let _daemon = Daemon::start(open_config("messenger")).unwrap();
    let settings = [("USER", MALLORY.to_string()), ("CPU", "0".to_string())];
    let mut messenger = Process::start("messenger", &path, &settings);
    let verdict = messenger.line("verdict ").unwrap();
    println!("verdict {verdict}");
    assert_ne!(verdict, "in");
}
