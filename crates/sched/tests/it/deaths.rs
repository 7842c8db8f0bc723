//! Schedulers that are killed at any moment: within a second nobody is elevated.

use std::time::{Duration, Instant};

use crate::world::{Process, sleep, standing, turn, until};

/// Kills; the rest of the time goes into starting schedulers.
const KILLS: u64 = 100;

#[test]
fn a_scheduler_killed_at_any_moment_leaves_nobody_elevated() {
    let Some(_turn) = turn() else { return };
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = spinners.each_ref().map(Process::pid);
    let before = pids.map(standing);
    let words = format!("{} {}", pids[0], pids[1]);
    let began = Instant::now();
    let mut kills = 0;
    for round in 0..KILLS {
        // Half are killed while they begin, the others while they schedule.
        let mut scheduler = Process::start_with("schedule", &words);
        if round % 2 == 0 {
            scheduler.wait_for("scheduling");
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 13_000));
        scheduler.child.kill().unwrap();
        kills += 1;
        until("everything is as it was", Duration::from_secs(1), || {
            pids.map(standing) == before
        });
        let _ = scheduler.child.wait();
        // The spinners live for 20 s.
        if began.elapsed() > Duration::from_secs(15) {
            break;
        }
    }
    println!("{kills} kills in {:?}", began.elapsed());
    assert!(kills >= 20, "the machine is far too slow: {kills}");
    sleep(1);
}
