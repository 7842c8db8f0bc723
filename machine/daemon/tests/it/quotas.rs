//! Attacks by processes that try to exceed the CPU quota of their cgroup.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use upshift_daemon::{Config, Daemon};

use crate::assign::{assigned, rule};
use crate::attack::{
    MALLORY, TRUDY, deadline_after, open_config, open_daemon, start_child, uses_at_most,
};
use crate::cgroup::{Cgroup, QuotaCgroup};
use crate::client::census;
use crate::process::{Process, wait_until};
use crate::{permitted, serial_test, skipped, socket};

/// Asserts that a process with a quota of a fifth of a CPU gets little more than twice its quota in
/// a second. The kernel does not count time in SCHED_FIFO, so the process may use its quota once in
/// SCHED_FIFO and once as an ordinary process.
#[track_caller]
pub(crate) fn assert_quota_holds(mut burner: Process) {
    burner.run_until(deadline_after(Duration::from_millis(1000)));
    let used = burner.number("used ");
    println!("{used} us of 1000000 with a quota of 200000");
    burner.kill();
    assert!(uses_at_most(45, used, 1_000_000));
}

#[test]
fn no_process_is_elevated_beyond_the_quota_of_its_cgroup() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("quota");
    let Some(cgroup) = QuotaCgroup::new() else {
        return skipped("no cgroup with a CPU quota can be created");
    };
    let burner = start_child("burner", &path, MALLORY, (0, 2), &[]);
    if !cgroup.add(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    // The daemon looks the quota up when the process has a rival.
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    std::thread::sleep(Duration::from_millis(1100));
    assert_quota_holds(burner);
}

#[test]
fn an_assigned_program_is_not_elevated_beyond_the_quota_of_its_cgroup() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let Some(cgroup) = QuotaCgroup::new() else {
        return skipped("no cgroup with a CPU quota can be created");
    };
    let path = socket("assigned-quota");
    let burner = start_child("gap-meter", &path, MALLORY, (0, 0), &[]);
    if !cgroup.add(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    let config = Config {
        assign: vec![rule(MALLORY, 8)],
        ..open_config("assigned-quota")
    };
    let _daemon = Daemon::start(config).unwrap();
    wait_until("the program is assigned", || {
        assigned(&census(&path), burner.pid()).is_some()
    });
    assert_quota_holds(burner);
}

#[test]
fn a_cgroup_whose_name_is_not_utf8_does_not_hide_the_quota_above_it() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("nameless");
    let Some(cgroup) = QuotaCgroup::new() else {
        return skipped("no cgroup with a CPU quota can be created");
    };
    // A user to whom the cgroup is delegated could create this name.
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    let Some(child_cgroup) = Cgroup::below(cgroup.path(), name) else {
        return skipped("no cgroup can be created in another");
    };
    let _ = std::fs::write(child_cgroup.path().join("cpu.rt_runtime_us"), "400000");
    let burner = start_child("burner", &path, MALLORY, (0, 2), &[]);
    if !child_cgroup.add(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    std::thread::sleep(Duration::from_millis(1100));
    assert_quota_holds(burner);
}
