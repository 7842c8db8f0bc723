//! Attacks of ordinary users, and what a bystander or a victim has left. `docs/threat-model.md` names these tests.

use std::path::Path;
use std::time::Duration;

use upshift_daemon::{Config, Daemon};

use crate::hostile::census;
use crate::process::{Process, monotonic};
use crate::{config, permitted, socket, turn};

/// Users without a name, a password or a process.
pub(crate) const MALLORY: u32 = 64_001;
pub(crate) const TRUDY: u32 = 64_002;

/// Everybody may connect.
pub(crate) fn open_config(name: &str) -> Config {
    Config {
        mode: 0o666,
        ..config(name)
    }
}

/// The child `role` of `user`, on CPU `cpu` at `level`, when it is ready.
pub(crate) fn villain(
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

/// The first and the last CPU; the same if there is one only.
fn two_cpus() -> (usize, usize) {
    let count = std::thread::available_parallelism().unwrap().get();
    (0, usize::from(count > 1))
}

#[test]
fn a_priority_lent_behind_the_daemons_back_is_taken_back_by_the_canary() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (here, there) = two_cpus();
    for role in ["worker", "dispatcher"] {
        let path = socket(role);
        let _daemon = Daemon::start(open_config(role)).unwrap();
        let _ghost = villain("ghost", &path, TRUDY, (here, 63), &[]);
        let mut bystander = Process::start("gap", &path, &[("CPU", there.to_string())]);
        bystander.line("ready").unwrap();
        let more = [("ROLE", role.to_string()), ("VICTIM", there.to_string())];
        let mut lender = villain("lender", &path, MALLORY, (here, 40), &more);
        let end = from_now(Duration::from_millis(1300));
        lender.go_until(end);
        bystander.go_until(end);
        let used = bystander.number("used ");
        let longest = bystander.number("longest ");
        let burnt = lender.number("used ");
        let seen = census(&path);
        println!("{role}: {burnt} us, bystander {used} us of 1300000, longest gap {longest} us");
        // Without a canary some 20 to 1. Each time the gap is at most 0.12 s, or as long as the machine stands still.
        assert!(burnt < 4 * used, "{burnt} us and {used} us");
        assert!(seen["alarms"].as_u64() > Some(0));
        let barred = seen["barred"].as_array().unwrap();
        assert!(barred.iter().any(|it| it["uid"] == MALLORY), "{barred:?}");
        assert!(barred.iter().all(|it| it["uid"] != TRUDY), "{barred:?}");
    }
}
