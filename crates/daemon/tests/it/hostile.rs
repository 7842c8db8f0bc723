//! Processes that lie, flood, scribble, fork, run away and stop. `docs/threat-model.md` names these tests.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use upshift_daemon::{Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy};

use crate::process::{Process, elevated_threads, monotonic, until};
use crate::{config, daemon, permitted, socket, turn};

pub(crate) fn puppet(socket: &Path) -> Process {
    let mut puppet = Process::start("puppet", socket, &[("CPU", "0".to_string())]);
    puppet.line("ready").unwrap();
    puppet.obey("join");
    puppet
}

pub(crate) fn census(socket: &Path) -> Value {
    let census = upshift_board::client::census(socket).unwrap();
    serde_json::from_str(&census.json).unwrap()
}

pub(crate) fn processes(socket: &Path) -> usize {
    census(socket)["processes"].as_array().unwrap().len()
}

/// One number of the first vCPU of process `pid`.
fn of(census: &Value, pid: i32, what: &str) -> u64 {
    let all = census["processes"].as_array().unwrap();
    let process = all.iter().find(|it| it["pid"] == pid).unwrap();
    process["vcpus"][0][what].as_u64().unwrap()
}

fn ms_from_now(ms: u64) -> u64 {
    monotonic() + ms * 1_000_000
}

#[test]
fn who_claims_level_0_for_ever_gets_its_ceiling() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("ceiling");
    let config = Config {
        ceiling: 16,
        ..config("ceiling")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut liar = puppet(&path);
    liar.obey("level 0");
    liar.obey(format!("bits {}", u64::MAX));
    let mut honest = puppet(&path);
    honest.obey("level 16");
    let seen = census(&path);
    assert_eq!(of(&seen, liar.pid(), "potential"), 16);
    assert_eq!(of(&seen, liar.pid(), "bitmap").trailing_zeros(), 16);
    let end = ms_from_now(300);
    liar.say(format!("burn {end}"));
    honest.say(format!("burn {end}"));
    let (a, b) = (liar.number("burn="), honest.number("burn="));
    assert!(a < 2 * b && b < 2 * a, "equal after the ceiling: {a} {b}");
}

#[test]
fn a_flooded_doorbell_is_not_listened_to_for_a_while() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("flood");
    let _daemon = daemon("flood");
    let mut flooder = puppet(&path);
    let mut other = puppet(&path);
    flooder.obey("level 40");
    let rings: u64 = flooder.obey("ring 400").parse().unwrap();
    let seen = census(&path);
    let heard = of(&seen, flooder.pid(), "rings");
    println!("{rings} rings, {heard} heard");
    assert!(of(&seen, flooder.pid(), "floods") > 0);
    assert!(heard < 10_000, "{heard} of {rings}");
    other.obey("level 2");
    until("the other is heard", || {
        !elevated_threads(other.pid()).is_empty()
    });
}

#[test]
fn garbage_on_the_page_harms_its_writer_only() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("garbage");
    let _daemon = daemon("garbage");
    let mut vandal = puppet(&path);
    let mut other = puppet(&path);
    other.obey("level 40");
    vandal.obey("garbage 300");
    assert_eq!(processes(&path), 2);
    vandal.obey("leave");
    assert!(elevated_threads(vandal.pid()).is_empty());
    let mut third = puppet(&path);
    third.obey("level 2");
    until("the daemon goes on", || {
        !elevated_threads(third.pid()).is_empty()
    });
    assert_eq!(other.obey("outranked 40"), "true");
}

#[test]
fn forks_of_a_registered_process_are_ordinary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("forks");
    let _daemon = daemon("forks");
    let mut low = puppet(&path);
    low.obey("level 40");
    let mut forker = puppet(&path);
    forker.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(forker.pid()).is_empty()
    });
    assert_eq!(forker.obey("fork"), libc::SCHED_OTHER.to_string());
    assert_eq!(processes(&path), 2);
    forker.obey("leave");
    assert!(elevated_threads(forker.pid()).is_empty());
}

#[test]
fn who_execs_while_elevated_is_given_back() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("execs");
    let _daemon = daemon("execs");
    let mut low = puppet(&path);
    low.obey("level 40");
    let mut execs = puppet(&path);
    let before = execs.obey("own");
    execs.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(execs.pid()).is_empty()
    });
    execs.obey("exec");
    until("it is forgotten", || processes(&path) == 1);
    until("it is as it was", || {
        Policy::of(&Kernel, execs.pid()).is_ok_and(|now| now.to_string() == before)
    });
}

#[test]
fn who_moves_to_another_cpu_is_put_out() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return crate::skipped("needs two CPUs");
    }
    let path = socket("mover");
    let _daemon = daemon("mover");
    let mut low = puppet(&path);
    low.obey("level 40");
    let mut mover = puppet(&path);
    mover.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(mover.pid()).is_empty()
    });
    assert_eq!(mover.obey("affinity 1"), "true");
    until("it is put out", || elevated_threads(mover.pid()).is_empty());
    assert_eq!(census(&path)["ejected"], 1);
    // It chose its CPU itself, so it keeps it; its policy is what it was.
    let own = mover.obey("own");
    assert!(own.starts_with("SCHED_OTHER"), "{own}");
}

#[test]
fn who_changes_its_own_policy_harms_itself_only() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("policy");
    let _daemon = daemon("policy");
    let mut low = puppet(&path);
    low.obey("level 40");
    let mut changer = puppet(&path);
    let before = changer.obey("own");
    changer.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(changer.pid()).is_empty()
    });
    assert_eq!(changer.obey("policy"), "true");
    let end = ms_from_now(100);
    low.say(format!("burn {end}"));
    assert!(low.number("burn=") > 0);
    changer.obey("leave");
    assert_eq!(changer.obey("own"), before);
}

#[test]
fn a_stopped_winner_does_not_keep_the_cpu() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("stopped");
    let _daemon = daemon("stopped");
    let mut low = puppet(&path);
    low.obey("level 40");
    let mut winner = puppet(&path);
    winner.obey("level 2");
    until("it is elevated", || {
        !elevated_threads(winner.pid()).is_empty()
    });
    winner.signal(libc::SIGSTOP);
    low.say(format!("burn {}", ms_from_now(400)));
    assert!(low.number("burn=") > 1_000);
    winner.signal(libc::SIGKILL);
    until("it is forgotten", || processes(&path) == 1);
    until("nobody is elevated", || {
        elevated_threads(low.pid()).is_empty()
    });
}

#[test]
fn every_arrival_in_a_demoted_process_elevates_it_and_taking_it_in_demotes_it() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("arrivals");
    let _daemon = daemon("arrivals");
    let mut rival = puppet(&path);
    rival.obey("level 40");
    let mut demoted = puppet(&path);
    demoted.obey("level 50");
    for _ in 0..20 {
        until("the rival is above", || {
            elevated_threads(demoted.pid()).is_empty()
        });
        // Whether it rings depends on whether the daemon happens to look just then.
        demoted.obey("arrive 2");
        until("it is above", || {
            !elevated_threads(demoted.pid()).is_empty()
        });
        demoted.obey("taken");
    }
}

#[test]
fn who_says_that_it_sleeps_and_burns_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("sleepless");
    let _daemon = daemon("sleepless");
    let mut honest = puppet(&path);
    honest.obey("level 40");
    let mut liar = puppet(&path);
    liar.obey("await 0");
    until("it has its band", || {
        !elevated_threads(liar.pid()).is_empty()
    });
    let mut bystander = Process::start("bystander", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let end = ms_from_now(600);
    liar.say(format!("burn {end}"));
    honest.say(format!("burn {end}"));
    bystander.go_until(end);
    let used = (liar.number("burn="), honest.number("burn="));
    assert!(of(&census(&path), liar.pid(), "breaths") > 0, "{used:?}");
    assert!((used.0 + used.1) * 100 <= 97 * 600_000, "{used:?}");
}

#[test]
fn cooperative_processes_see_who_is_more_urgent() {
    let _turn = turn();
    let path = socket("cooperative");
    let _daemon = Daemon::start(Config {
        cooperative: true,
        ..config("cooperative")
    })
    .unwrap();
    let mut low = puppet(&path);
    let mut high = puppet(&path);
    low.obey("level 40");
    assert_eq!(low.obey("outranked 40"), "false");
    high.obey("level 2");
    until("the less urgent sees it", || {
        low.obey("outranked 40") == "true"
    });
    assert_eq!(high.obey("outranked 2"), "false");
    high.obey("level 64");
    high.obey("ring 1");
    until("and that it is over", || {
        low.obey("outranked 40") == "false"
    });
    assert!(elevated_threads(low.pid()).is_empty() && elevated_threads(high.pid()).is_empty());
}

#[test]
fn a_lone_burner_is_not_elevated_and_a_former_rival_is_given_back() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("lone");
    let _daemon = daemon("lone");
    let mut lone = puppet(&path);
    lone.obey("level 2");
    std::thread::sleep(Duration::from_millis(50));
    assert!(elevated_threads(lone.pid()).is_empty());
    let mut rival = puppet(&path);
    rival.obey("level 40");
    until("it is elevated", || {
        !elevated_threads(lone.pid()).is_empty()
    });
    rival.kill();
    until("it is not", || elevated_threads(lone.pid()).is_empty());
    // After a calm second nothing is left of it, reset-on-fork included.
    until("it is as it was", || {
        Policy::of(&Kernel, lone.pid()).is_ok_and(|policy| {
            !policy.resets_on_fork() && matches!(policy.class(), Class::Other { .. })
        })
    });
}
