//! Schedulers that are killed at any moment: nothing stays elevated.

use std::time::{Duration, Instant};

use upshift_elevate::Elevator;
use upshift_elevate::testing::elevated_threads;
use upshift_sched::policies::RoundRobin;

use crate::world::{Process, attach_all, class, turn, until};

/// Number of kills; most of the time goes into starting schedulers.
const KILLS: u64 = 100;

#[test]
fn a_scheduler_killed_at_any_moment_leaves_no_thread_elevated() {
    let Some(_turn) = turn() else { return };
    let began = Instant::now();
    let (mut took, mut elevated) = (Vec::new(), 0);
    let mut spinners = Vec::new();
    for round in 0..KILLS {
        // The children's life is bounded.
        if round % 20 == 0 {
            spinners = vec![Process::start("spin"), Process::start("spin")];
        }
        let pids = [spinners[0].pid(), spinners[1].pid()];
        let before = pids.map(class);
        let words = format!("{} {}", pids[0], pids[1]);
        // Half of the schedulers are killed while they start, the others after they have elevated a
        // thread.
        let mut scheduler = Process::start_with("schedule", &words);
        let is_elevated = || pids.iter().any(|&pid| !elevated_threads(pid).is_empty());
        if round % 2 == 0 {
            scheduler.wait_for("scheduling");
            until("a thread is elevated", is_elevated);
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 13_000));
        elevated += u64::from(is_elevated());
        scheduler.child.kill().unwrap();
        let dead = Instant::now();
        until("everything is as it was", || pids.map(class) == before);
        took.push(dead.elapsed());
        let _ = scheduler.child.wait();
    }
    took.sort_unstable();
    let (most, longest) = (took[took.len() * 98 / 100], took[took.len() - 1]);
    println!(
        "{KILLS} kills in {:?}, {elevated} of them while a task was elevated; longest time to restore all {longest:?}, 98 % {most:?}",
        began.elapsed()
    );
    // All restores are within the patience of `until`, and nearly all within the promised second: a
    // stall of the machine itself may delay the rest.
    assert!(most < Duration::from_secs(1), "{most:?}");
    assert!(elevated * 10 > KILLS, "{elevated}");
}

#[test]
fn a_scheduler_that_is_stopped_keeps_no_thread_elevated() {
    let Some(_turn) = turn() else { return };
    let spinner = Process::start("spin");
    let mut scheduler = Process::start_with("schedule", &spinner.pid().to_string());
    scheduler.wait_for("scheduling");
    let elevated = || !elevated_threads(spinner.pid()).is_empty();
    until("it is elevated", elevated);
    let signal = |signal: i32| {
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(scheduler.pid(), signal) };
    };
    signal(libc::SIGSTOP);
    // In an open piece the spinner is not elevated either, so the absence has to last.
    let mut since = Instant::now();
    until("it is demoted for good", || {
        if elevated() {
            since = Instant::now();
        }
        since.elapsed() > Duration::from_millis(100)
    });
    signal(libc::SIGCONT);
    until("it is elevated again", elevated);
}

#[test]
fn a_guardian_that_is_killed_is_replaced() {
    let Some(_turn) = turn() else { return };
    let spinner = Process::start("spin");
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    let scheduler = attach_all(&elevator, &[spinner.pid()], policy, |_| {}, false).unwrap();
    let guardian = elevator.guardian_pid().unwrap();
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(guardian, libc::SIGKILL) };
    until("there is another one", || {
        elevator.guardian_pid().is_some_and(|pid| pid != guardian)
    });
    drop(scheduler);
}
