//! Helpers for the attack tests: users, a daemon that accepts all users, child processes that
//! compete for a CPU, and assertions on their CPU time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use upshift_daemon::{Assign, Config, Daemon};

use crate::client::census;
use crate::process::{Process, WAIT_LIMIT, elevated_threads, monotonic, wait_until};
use crate::{SerialTest, config, permitted, serial_test, skipped, socket};

/// User of the attackers. No account, and no process of the machine, has this user id.
pub(crate) const MALLORY: u32 = 64_001;

/// User of a second attacker, or of a *rival*, which is a process whose presence causes elevation.
pub(crate) const TRUDY: u32 = 64_002;

/// User of victims, and of other programs that do not attack.
pub(crate) const ALICE: u32 = 64_003;

pub(crate) fn open_config(name: &str) -> Config {
    Config {
        mode: 0o666,
        ..config(name)
    }
}

/// Starts a daemon that accepts every user. Returns the path of its socket, too.
pub(crate) fn open_daemon(name: &str) -> (PathBuf, Daemon) {
    daemon_with_rules(name, Vec::new())
}

/// Starts a daemon that accepts every user, with `[[assign]]` rules. Returns the path of its
/// socket, too.
pub(crate) fn daemon_with_rules(name: &str, assign: Vec<Assign>) -> (PathBuf, Daemon) {
    let config = Config {
        assign,
        ..open_config(name)
    };
    (socket(name), Daemon::start(config).unwrap())
}

/// Starts a child in `role` as `user`, on CPU `cpu` at `level`, and waits until it is ready.
pub(crate) fn start_child(
    role: &str,
    path: &Path,
    user: u32,
    (cpu, level): (usize, u8),
    extra_settings: &[(&str, String)],
) -> Process {
    let mut settings = vec![
        ("USER", user.to_string()),
        ("CPU", cpu.to_string()),
        ("LEVEL", level.to_string()),
    ];
    settings.extend_from_slice(extra_settings);
    let mut child = Process::start(role, path, &settings);
    child.line("ready").unwrap();
    child
}

pub(crate) fn deadline_after(time: Duration) -> u64 {
    monotonic() + time.as_nanos() as u64
}

/// Returns whether attackers that used `attacker_us` of a CPU in `time_us` used at most `percent`.
/// Other programs of the machine only reduce the attackers' time, so a check that passes on an idle
/// machine passes on a loaded machine. A check of a bystander's time would not.
pub(crate) fn uses_at_most(percent: u64, attacker_us: u64, time_us: u64) -> bool {
    println!("the attackers used {attacker_us} of {time_us} us, of which {percent} % are allowed");
    attacker_us * 100 <= percent * time_us
}

/// Returns two CPUs, which are the same if the machine has only one.
pub(crate) fn two_cpus() -> (usize, usize) {
    let count = std::thread::available_parallelism().unwrap().get();
    (0, usize::from(count > 1))
}

/// Like [`serial_test`], with two different CPUs. Returns `None`, and reports the reason, if a
/// right or a CPU is missing.
pub(crate) fn serial_test_on_two_cpus() -> Option<(SerialTest, (usize, usize))> {
    let guard = serial_test();
    if !permitted() {
        return None;
    }
    let (first_cpu, last_cpu) = two_cpus();
    if first_cpu == last_cpu {
        skipped("needs two CPUs");
        return None;
    }
    Some((guard, (first_cpu, last_cpu)))
}

/// Time for which most attacks run.
pub(crate) const ATTACK_TIME: Duration = Duration::from_millis(1500);

/// Returns [`ATTACK_TIME`] in µs.
pub(crate) fn us() -> u64 {
    ATTACK_TIME.as_micros() as u64
}

/// Starts an unregistered program on `cpu`, which measures for how long it does not have the CPU.
pub(crate) fn bystander(path: &Path, cpu: usize) -> Process {
    let mut process = Process::start("gap-meter", path, &[("CPU", cpu.to_string())]);
    process.line("ready").unwrap();
    process
}

/// Runs an attacker in `role` and a bystander on CPU 0, beside a less urgent process of another
/// user. Returns the CPU time of the attacker, µs.
pub(crate) fn attack_beside_bystander(
    name: &str,
    role: &str,
    extra_settings: &[(&str, String)],
) -> u64 {
    let (path, _daemon) = open_daemon(name);
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut bystander = bystander(&path, 0);
    let mut attacker = start_child(role, &path, MALLORY, (0, 40), extra_settings);
    run_beside_bystander(name, &path, &mut bystander, &mut attacker, ATTACK_TIME).0
}

/// Runs an attacker and a bystander for `time`. Returns the CPU time of the attacker, µs, and the
/// number of the canaries' alarms.
pub(crate) fn run_beside_bystander(
    name: &str,
    path: &Path,
    bystander: &mut Process,
    attacker: &mut Process,
    time: Duration,
) -> (u64, u64) {
    let end = deadline_after(time);
    bystander.run_until(end);
    attacker.run_until(end);
    let (used, longest) = (bystander.number("used "), bystander.number("longest "));
    let attacker_us = attacker.number("used ");
    let status = census(path);
    println!(
        "{name}: attacker {attacker_us}, bystander {used} us of {}, longest gap {longest} us, {} alarms",
        time.as_micros(),
        status["alarms"],
    );
    (attacker_us, status["alarms"].as_u64().unwrap())
}

pub(crate) fn settings<'a>(all: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    all.iter()
        .map(|&(name, value)| (name, value.to_string()))
        .collect()
}

/// Starts a client of [`ALICE`]. Returns the time until the client is registered and elevated.
pub(crate) fn time_to_elevate_newcomer(path: &std::path::Path) -> Duration {
    let began = Instant::now();
    let mut burner = start_child("burner", path, ALICE, (0, 2), &[]);
    burner.run_until(deadline_after(WAIT_LIMIT));
    wait_until("the newcomer is elevated", || {
        !elevated_threads(burner.pid()).is_empty()
    });
    began.elapsed()
}

/// Asserts that attackers leave bystanders their share of 5 %, with a margin of 2 %.
pub(crate) fn assert_leaves_share(attacker_us: u64) {
    assert!(uses_at_most(97, attacker_us, us()));
}
