//! Ways that the kernel offers everybody: leases on files, the freezer, forks, programs that become others, limits. `docs/threat-model.md`
//! names these tests; the children are in `knave.rs`.

use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attacks::{ALICE, MALLORY, TRUDY, from_now, open_config, takes_at_most, villain};
use crate::hostile::census;
use crate::process::{PATIENCE, Process, elevated_threads, until};
use crate::{permitted, skipped, socket, turn};

const TIME: Duration = Duration::from_millis(1500);

fn us() -> u64 {
    TIME.as_micros() as u64
}

fn settings<'a>(all: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    all.iter()
        .map(|&(name, value)| (name, value.to_string()))
        .collect()
}

/// A process of `MALLORY` that holds leases on its files in `/proc`; `None` where the kernel gives none.
fn lessor(path: &std::path::Path, more: &[(&str, &str)]) -> Option<Process> {
    let mut all = settings(&[("CPU", "0"), ("LEVEL", "40")]);
    all.push(("USER", MALLORY.to_string()));
    all.extend(settings(more));
    let mut lessor = Process::start("lessor", path, &all);
    let leases = lessor.number("leases ");
    lessor.line("ready")?;
    if leases == 0 {
        skipped("the kernel gives no leases on files of /proc");
        return None;
    }
    println!("{leases} leases");
    Some(lessor)
}

/// How long a newcomer of another user waits until it is registered and elevated.
fn newcomer(path: &std::path::Path) -> Duration {
    let began = Instant::now();
    let mut burner = villain("burner", path, ALICE, (0, 2), &[]);
    burner.go_until(from_now(PATIENCE));
    until("the newcomer is elevated", || {
        !elevated_threads(burner.pid()).is_empty()
    });
    began.elapsed()
}

#[test]
fn leases_on_files_in_proc_hold_up_nobody() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    // One that registers, one that would be elevated and takes them afterwards, one that a rule may name.
    for more in [
        [("WHEN", "before"), ("JOINS", "false")],
        [("WHEN", "after"), ("JOINS", "true")],
    ] {
        let path = socket("leases");
        let config = Config {
            assign: vec![rule(TRUDY, 8)],
            ..open_config("leases")
        };
        let daemon = Daemon::start(config).unwrap();
        let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
        let Some(mut lessor) = lessor(&path, &more) else {
            return;
        };
        lessor.go_until(from_now(TIME));
        // Longer than a cgroup is remembered.
        std::thread::sleep(Duration::from_millis(1200));
        until("whose quotas cannot be read is not elevated", || {
            elevated_threads(lessor.pid()).is_empty()
        });
        let waited = newcomer(&path);
        let mut later = Process::start("spinners", &path, &[("USER", TRUDY.to_string())]);
        later.line("ready").unwrap();
        until("what starts later is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        println!("{more:?}: a newcomer is elevated after {waited:?}");
        let began = Instant::now();
        daemon.stop();
        let stopped = began.elapsed();
        assert!(elevated_threads(lessor.pid()).is_empty());
        // Opening one such file takes 45 s, or until the lessor ends.
        let held_up = Duration::from_secs(10);
        assert!(
            waited < held_up && stopped < held_up,
            "{waited:?} {stopped:?}"
        );
    }
}

fn bystander(path: &std::path::Path, cpu: usize) -> Process {
    let mut it = Process::start("gap", path, &[("CPU", cpu.to_string())]);
    it.line("ready").unwrap();
    it
}

/// Thousands of processes a second that a rule fits, beside a bystander; another program that a rule fits is still found and elevated.
#[test]
fn a_storm_of_processes_that_a_rule_fits_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for (each, at_once) in [("300", "1"), ("4000", "1"), ("4000", "20")] {
        let path = socket("storm");
        let config = Config {
            assign: vec![rule(MALLORY, 8), rule(ALICE, 8)],
            ..open_config("storm")
        };
        let _daemon = Daemon::start(config).unwrap();
        let mut bystander = bystander(&path, 0);
        let more = settings(&[("EACH", each), ("AT_ONCE", at_once)]);
        let mut storm = villain("stormer", &path, MALLORY, (0, 0), &more);
        let end = from_now(TIME);
        bystander.go_until(end);
        storm.go_until(end);
        let began = Instant::now();
        let later = villain("spinners", &path, ALICE, (0, 0), &[]);
        until("what starts later is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        let found = began.elapsed();
        let (used, longest) = (bystander.number("used "), bystander.number("longest "));
        let (taken, born) = (storm.number("used "), storm.number("born "));
        println!(
            "{born} processes of {each} us, {at_once} at once: {taken}, bystander {used} us of {}, longest gap {longest} us; another is assigned after {found:?}",
            us()
        );
        // As suspects all would be, those who keep their budgets included.
        assert!(census(&path)["barred"].as_array().unwrap().is_empty());
        // A budget of 80 %, half of the rest, and what each has before it is seen.
        assert!(takes_at_most(96, taken, us()));
    }
}

/// Lets the attacker `role` and a bystander go on CPU 0, beside a less urgent process of another user: µs of the attacker.
fn beside(name: &str, role: &str, more: &[(&str, String)]) -> u64 {
    let path = socket(name);
    let _daemon = Daemon::start(open_config(name)).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut bystander = bystander(&path, 0);
    let mut attacker = villain(role, &path, MALLORY, (0, 40), more);
    let end = from_now(TIME);
    bystander.go_until(end);
    attacker.go_until(end);
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let burnt = attacker.number("used ");
    println!(
        "{name}: attacker {burnt}, bystander {used} us of {}, longest gap {longest} us, {} alarms",
        us(),
        census(&path)["alarms"]
    );
    burnt
}

#[test]
fn who_becomes_another_program_again_and_again_leaves_bystanders_their_share() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    for how in ["exec", "vfork"] {
        let burnt = beside(how, "shifter", &settings(&[("HOW", how)]));
        assert!(takes_at_most(97, burnt, us()));
    }
}
