//! Attacks on the CPU quota of a cgroup.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use upshift_daemon::{Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attack::{
    MALLORY, TRUDY, from_now, open_config, open_daemon, start_child, takes_at_most,
};
use crate::cgroup::{Cgroup, Fifth};
use crate::client::census;
use crate::process::{Process, until};
use crate::{permitted, skipped, socket, turn};

/// Asserts that a program with a quota of a fifth of a CPU gets little more in a second.
#[track_caller]
pub(crate) fn gets_a_fifth(mut burner: Process) {
    burner.go_until(from_now(Duration::from_millis(1000)));
    let used = burner.number("used ");
    println!("{used} us of 1000000 with a quota of 200000");
    burner.kill();
    assert!(takes_at_most(45, used, 1_000_000));
}

#[test]
fn no_process_is_elevated_beyond_the_quota_of_its_cgroup() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("quota");
    let Some(fifth) = Fifth::new() else {
        return skipped("no cgroup with a CPU quota can be made");
    };
    let burner = start_child("burner", &path, MALLORY, (0, 2), &[]);
    if !fifth.take(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    // The rival makes the daemon look the quota up.
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    std::thread::sleep(Duration::from_millis(1100));
    gets_a_fifth(burner);
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
    let burner = start_child("gap", &path, MALLORY, (0, 0), &[]);
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
fn a_cgroup_whose_name_is_not_utf8_does_not_hide_the_quota_above_it() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("nameless");
    let Some(fifth) = Fifth::new() else {
        return skipped("no cgroup with a CPU quota can be made");
    };
    // The user that the cgroup is delegated to could create such a name.
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    let Some(below) = Cgroup::below(fifth.path(), name) else {
        return skipped("no cgroup can be made below");
    };
    let _ = std::fs::write(below.path().join("cpu.rt_runtime_us"), "400000");
    let burner = start_child("burner", &path, MALLORY, (0, 2), &[]);
    if !below.take(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    std::thread::sleep(Duration::from_millis(1100));
    gets_a_fifth(burner);
}
