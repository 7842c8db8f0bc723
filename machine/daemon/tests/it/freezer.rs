//! A cgroup that is frozen while a thread of it is elevated.

use std::time::Duration;

use crate::attack::{
    ALICE, MALLORY, TIME, TRUDY, from_now, newcomer, open_daemon, start_child, us,
};
use crate::process::{Process, elevated_threads, until};
use crate::{permitted, skipped, turn};

/// A cgroup that stops all its processes, which have to end before it is dropped.
struct Freezer {
    directory: std::path::PathBuf,
    file: &'static str,
    words: [&'static str; 2],
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
        kinds.into_iter().find_map(|(root, file, words)| {
            let directory = std::path::Path::new(root).join(&name);
            std::fs::create_dir(&directory).ok()?;
            let freezer = Freezer {
                directory,
                file,
                words,
            };
            freezer.directory.join(file).exists().then_some(freezer)
        })
    }

    fn take(&self, process: &Process) {
        let procs = self.directory.join("cgroup.procs");
        std::fs::write(procs, process.pid().to_string()).unwrap();
    }

    fn freeze(&self, frozen: bool) {
        let word = self.words[usize::from(frozen)];
        std::fs::write(self.directory.join(self.file), word).unwrap();
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
    let _turn = turn();
    if !permitted() {
        return;
    }
    let Some(freezer) = Freezer::new() else {
        return skipped("no cgroup that freezes can be made");
    };
    let (path, daemon) = open_daemon("frozen");
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut frozen = start_child("burner", &path, MALLORY, (0, 0), &[]);
    freezer.take(&frozen);
    let mut victim = start_child("burner", &path, ALICE, (0, 40), &[]);
    let end = from_now(2 * TIME);
    frozen.go_until(end);
    until("it is elevated", || {
        !elevated_threads(frozen.pid()).is_empty()
    });
    freezer.freeze(true);
    victim.go_until(from_now(TIME));
    let used = victim.number("used ");
    // Both states in turn, so that checks find both.
    for turn in 0..100 {
        freezer.freeze(turn % 2 == 0);
        std::thread::sleep(Duration::from_millis(5));
    }
    freezer.freeze(true);
    println!(
        "beside one that is frozen at level 0 the victim has {used} us of {}",
        us()
    );
    assert!(used * 4 > us(), "{used}");
    // Other processes come and go meanwhile, and it is restored while frozen.
    let waited = newcomer(&path);
    daemon.stop();
    assert!(elevated_threads(frozen.pid()).is_empty());
    freezer.freeze(false);
    assert!(elevated_threads(frozen.pid()).is_empty());
    println!("a newcomer is elevated after {waited:?}");
    frozen.kill();
}
