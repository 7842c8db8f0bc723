//! Attackers and a program that is not registered, side by side on one CPU.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use upshift_daemon::Daemon;

use crate::attacks::{MALLORY, TRUDY, from_now, open_config, villain};
use crate::hostile::census;
use crate::process::{Process, monotonic};
use crate::socket;

/// For so long.
pub(crate) const TIME: Duration = Duration::from_millis(1500);

/// The same in µs.
pub(crate) fn us() -> u64 {
    TIME.as_micros() as u64
}

/// The users that are barred at some moment before `end`.
pub(crate) fn barred_until(end: u64, path: &Path) -> BTreeSet<u64> {
    let mut barred = BTreeSet::new();
    while monotonic() < end {
        let seen = census(path);
        let users = seen["barred"].as_array().unwrap().iter();
        barred.extend(users.filter_map(|it| it["uid"].as_u64()));
        std::thread::sleep(Duration::from_millis(20));
    }
    barred
}

/// A program that is not registered, on `cpu`.
pub(crate) fn bystander(path: &Path, cpu: usize) -> Process {
    let mut it = Process::start("gap", path, &[("CPU", cpu.to_string())]);
    it.line("ready").unwrap();
    it
}

/// Lets the attacker `role` and a bystander go on CPU 0, beside a less urgent process of another user: µs of the attacker.
pub(crate) fn beside(name: &str, role: &str, more: &[(&str, String)]) -> u64 {
    let path = socket(name);
    let _daemon = Daemon::start(open_config(name)).unwrap();
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut bystander = bystander(&path, 0);
    let mut attacker = villain(role, &path, MALLORY, (0, 40), more);
    contend(name, &path, &mut bystander, &mut attacker, TIME).0
}

/// Lets both go for so long: µs of the attacker, and how often a canary was silent.
pub(crate) fn contend(
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
        "{name}: attacker {burnt}, bystander {used} us of {}, longest gap {longest} us, {} alarms, barred {}",
        time.as_micros(),
        seen["alarms"],
        seen["barred"]
    );
    (burnt, seen["alarms"].as_u64().unwrap())
}
