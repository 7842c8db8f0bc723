//! Common parts of tests of attacks: users, a daemon open to them, children that compete for a CPU,
//! and assertions on their CPU time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use upshift_daemon::{Assign, Config, Daemon};

use crate::client::census;
use crate::process::{PATIENCE, Process, elevated_threads, monotonic, until};
use crate::{Turn, config, permitted, skipped, socket, turn};

/// Users without a name, a password or a process.
pub(crate) const MALLORY: u32 = 64_001;

pub(crate) const TRUDY: u32 = 64_002;

pub(crate) const ALICE: u32 = 64_003;

/// Returns a configuration that lets every user connect.
pub(crate) fn open_config(name: &str) -> Config {
    Config {
        mode: 0o666,
        ..config(name)
    }
}

/// Starts a daemon with that configuration. Returns its socket, too.
pub(crate) fn open_daemon(name: &str) -> (PathBuf, Daemon) {
    daemon_with_rules(name, Vec::new())
}

/// Starts it with rules that give programs a level.
pub(crate) fn daemon_with_rules(name: &str, assign: Vec<Assign>) -> (PathBuf, Daemon) {
    let config = Config {
        assign,
        ..open_config(name)
    };
    (socket(name), Daemon::start(config).unwrap())
}

/// Starts the child `role` of `user`, on CPU `cpu` at `level`, and waits until it is ready.
pub(crate) fn start_child(
    role: &str,
    path: &Path,
    user: u32,
    (cpu, level): (usize, u8),
    more: &[(&str, String)],
) -> Process {
    let mut settings = vec![
        ("USER", user.to_string()),
        ("CPU", cpu.to_string()),
        ("LEVEL", level.to_string()),
    ];
    settings.extend_from_slice(more);
    let mut child = Process::start(role, path, &settings);
    child.line("ready").unwrap();
    child
}

pub(crate) fn from_now(time: Duration) -> u64 {
    monotonic() + time.as_nanos() as u64
}

/// Whether the attackers, which had `burnt` µs of a CPU in `time` µs, had at most `percent`. Other
/// programs of the machine only take time from them, so the check holds on a loaded machine if it
/// does on a quiet one; the time of a single bystander would not.
pub(crate) fn takes_at_most(percent: u64, burnt: u64, time: u64) -> bool {
    println!("{burnt} of {time} us are taken: {percent} % may be");
    burnt * 100 <= percent * time
}

/// Returns the first and the last CPU; the same if there is only one.
pub(crate) fn two_cpus() -> (usize, usize) {
    let count = std::thread::available_parallelism().unwrap().get();
    (0, usize::from(count > 1))
}

/// Returns a turn, and two different CPUs; `None`, with a report, if there is only one.
pub(crate) fn turn_with_two_cpus() -> Option<(Turn, (usize, usize))> {
    let turn = turn();
    if !permitted() {
        return None;
    }
    let (here, there) = two_cpus();
    if here == there {
        skipped("needs two CPUs");
        return None;
    }
    Some((turn, (here, there)))
}

/// Duration of an attack.
pub(crate) const TIME: Duration = Duration::from_millis(1500);

/// Duration of an attack, µs.
pub(crate) fn us() -> u64 {
    TIME.as_micros() as u64
}

/// Starts a program that is not registered, on `cpu`.
pub(crate) fn bystander(path: &Path, cpu: usize) -> Process {
    let mut process = Process::start("gap", path, &[("CPU", cpu.to_string())]);
    process.line("ready").unwrap();
    process
}

/// Lets the attacker `role` and a bystander run on CPU 0, beside a less urgent process of another
/// user. Returns µs of the attacker.
pub(crate) fn compete(name: &str, role: &str, more: &[(&str, String)]) -> u64 {
    let (path, _daemon) = open_daemon(name);
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut bystander = bystander(&path, 0);
    let mut attacker = start_child(role, &path, MALLORY, (0, 40), more);
    race_bystander(name, &path, &mut bystander, &mut attacker, TIME).0
}

/// Lets both run for `time`. Returns µs of the attacker, and the number of silences of a canary.
pub(crate) fn race_bystander(
    name: &str,
    path: &Path,
    bystander: &mut Process,
    attacker: &mut Process,
    time: Duration,
) -> (u64, u64) {
    let end = from_now(time);
    bystander.go_until(end);
    attacker.go_until(end);
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let burnt = attacker.number("used ");
    let seen = census(path);
    println!(
        "{name}: attacker {burnt}, bystander {used} us of {}, longest gap {longest} us, {} alarms",
        time.as_micros(),
        seen["alarms"],
    );
    (burnt, seen["alarms"].as_u64().unwrap())
}

pub(crate) fn settings<'a>(all: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    all.iter()
        .map(|&(name, value)| (name, value.to_string()))
        .collect()
}

/// Returns the time until a newcomer of another user is registered and elevated.
pub(crate) fn newcomer(path: &std::path::Path) -> Duration {
    let began = Instant::now();
    let mut burner = start_child("burner", path, ALICE, (0, 2), &[]);
    burner.go_until(from_now(PATIENCE));
    until("the newcomer is elevated", || {
        !elevated_threads(burner.pid()).is_empty()
    });
    began.elapsed()
}

/// Asserts that the attacker left 5 % to programs that are not registered.
pub(crate) fn leaves_their_share(burnt: u64) {
    assert!(takes_at_most(97, burnt, us()));
}
