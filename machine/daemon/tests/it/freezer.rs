//! A test with a cgroup that is frozen while one of its threads is elevated.

use std::time::Duration;

use crate::attack::{
    ALICE, ATTACK_TIME, MALLORY, TRUDY, deadline_after, open_daemon, start_child,
    time_to_elevate_newcomer, us,
};
use crate::process::{Process, elevated_threads, wait_until};
use crate::{permitted, serial_test, skipped};

/// A cgroup that can be frozen. All its processes must have ended before it is dropped.
struct Freezer {
    directory: std::path::PathBuf,
    file: &'static str,
    /// Contents of `file` for the thawed and the frozen state.
    states: [&'static str; 2],
}

impl Freezer {
    fn new() -> Option<Freezer> {
        let name = format!("upshift-test-{}", std::process::id());
        let kinds = [
            (
                "/sys/fs/cgroup/freezer",
                "freezer.state",
                ["THAWED", "FROZEN"],
            ),
            ("/sys/fs/cgroup", "cgroup.freeze", ["0", "1"]),
        ];
        kinds.into_iter().find_map(|(root, file, states)| {
            let directory = std::path::Path::new(root).join(&name);
            std::fs::create_dir(&directory).ok()?;
            let freezer = Freezer {
                directory,
                file,
                states,
            };
            freezer.directory.join(file).exists().then_some(freezer)
        })
    }

    fn add(&self, process: &Process) {
        let procs = self.directory.join("cgroup.procs");
        std::fs::write(procs, process.pid().to_string()).unwrap();
    }

    fn freeze(&self, frozen: bool) {
        let state = self.states[usize::from(frozen)];
        std::fs::write(self.directory.join(self.file), state).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.freeze(false);
        for _ in 0..500 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_process_that_is_frozen_while_elevated_delays_no_client() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let Some(freezer) = Freezer::new() else {
        return skipped("a cgroup that can be frozen cannot be created");
    };
    let (path, daemon) = open_daemon("frozen");
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut frozen = start_child("burner", &path, MALLORY, (0, 0), &[]);
    freezer.add(&frozen);
    let mut victim = start_child("burner", &path, ALICE, (0, 40), &[]);
    let end = deadline_after(2 * ATTACK_TIME);
    frozen.run_until(end);
    wait_until("the process is elevated", || {
        !elevated_threads(frozen.pid()).is_empty()
    });
    freezer.freeze(true);
    victim.run_until(deadline_after(ATTACK_TIME));
    let used = victim.number("used ");
    // The state alternates, so that checks of the daemon find both states.
    for round in 0..100 {
        freezer.freeze(round % 2 == 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    freezer.freeze(true);
    println!(
        "beside a process that is frozen at level 0 the victim has {used} us of {}",
        us()
    );
    assert!(used * 4 > us(), "the victim used {used} us");
    // Meanwhile, another process registers, and a frozen process is restored.
    let waited = time_to_elevate_newcomer(&path);
    daemon.stop();
    assert!(elevated_threads(frozen.pid()).is_empty());
    freezer.freeze(false);
    assert!(elevated_threads(frozen.pid()).is_empty());
    println!("a new client is elevated after {waited:?}");
    frozen.kill();
}
