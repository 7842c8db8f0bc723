//! The property test: whichever process dies, no thread stays elevated, and the guardian ends too.

use std::time::{Duration, Instant};

use upshift_elevate::sys::Kernel;
use upshift_elevate::{Policy, Tid};

use crate::process::{PATIENCE, PROMISE, Process, Random, Victim, elevated_threads, marked, until};
use crate::root;

const DEATHS: [&str; 10] = [
    "killed", "killed", "killed", "segv", "abort", "_exit", "term", "exit", "panic", "return",
];

/// Waits, after the death of `owner`, until the victims are unchanged and the owner has left only
/// ordinary processes.
fn assert_all_restored(owner: &Process, victim: &Victim, case: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let changed = victim.changed();
        let left = marked(&owner.marker);
        let guardians: Vec<_> = left
            .iter()
            .filter(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|name| name.trim() == "upshift-guard")
            })
            .collect();
        let elevated: Vec<_> = left.iter().flat_map(|&pid| elevated_threads(pid)).collect();
        if changed.is_none() && guardians.is_empty() && elevated.is_empty() {
            for pid in left {
                // SAFETY: a child that the owner has spawned and left; it carries the owner's
                // marker.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{PATIENCE:?} after {case}: {changed:?}, guardians {guardians:?}, elevated {elevated:?}"
        );
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn no_thread_stays_elevated_over_hundreds_of_deaths() {
    if !root() {
        return;
    }
    let victim = Victim::start("victim");
    let rounds: u64 = std::env::var("UPSHIFT_ELEVATE_DEATHS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(330);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let began = Instant::now();
    let mut restore_times = Vec::new();
    for round in 0..rounds {
        let death = DEATHS[(round % DEATHS.len() as u64) as usize];
        let seed = random.below(u64::MAX) | 1;
        let settings = [
            ("SEED", seed.to_string()),
            ("MANNER", death.to_string()),
            ("TIDS", victim.tids()),
        ];
        let mut owner = Process::start("owner", &settings);
        if death == "killed" {
            // Every third time at any moment of its life, else at any moment of its work.
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(random.below(8000)));
            } else {
                owner.line("ready");
                std::thread::sleep(Duration::from_micros(random.below(5000)));
            }
            owner.child.kill().unwrap();
        }
        owner.child.wait().unwrap();
        let dead = Instant::now();
        assert_all_restored(
            &owner,
            &victim,
            &format!("round {round}, {death}, seed {seed}"),
        );
        restore_times.push(dead.elapsed());
        if began.elapsed() > Duration::from_secs(100) {
            println!("{round} of {rounds} rounds: the machine is slow");
            break;
        }
    }
    restore_times.sort_unstable();
    let (median, longest) = (
        restore_times[restore_times.len() / 2],
        restore_times[restore_times.len() - 1],
    );
    println!(
        "{} deaths in {:?}, longest restore {longest:?}",
        restore_times.len(),
        began.elapsed()
    );
    assert!(median < PROMISE, "{median:?} until everything was restored");
}

#[test]
fn the_guardian_runs_over_elevated_threads_that_burn_every_cpu() {
    if !root() {
        return;
    }
    let victim = Victim::start("spinner");
    let mut tyrant = Process::start("tyrant", &[("TIDS", victim.tids())]);
    assert!(tyrant.line("ready").is_some());
    assert!(tyrant.line("dead").is_some());
    tyrant.child.wait().unwrap();
    assert_all_restored(&tyrant, &victim, "the tyrant's death");
}

#[test]
fn a_second_guardian_takes_over_the_records_of_the_first() {
    if !root() {
        return;
    }
    let victim = Victim::start("victim");
    let mut owner = Process::start("successor", &[("TIDS", victim.tids())]);
    assert_eq!(owner.line("ready").as_deref(), Some("7"));
    assert!(victim.changed().is_some());
    owner.child.wait().unwrap();
    assert_all_restored(&owner, &victim, "the owner's death");
}

#[test]
fn a_process_image_does_not_inherit_an_elevation() {
    if !root() {
        return;
    }
    for (thread, is_main) in [("main", "true"), ("elsewhere", "false")] {
        let mut owner = Process::start("exec", &[("WHERE", thread.to_string())]);
        let ready = owner.line("ready").unwrap();
        let (pid, main) = ready.split_once(' ').unwrap();
        assert_eq!(main, is_main);
        let pid: Tid = pid.parse().unwrap();
        until("the new image runs", || {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "sleep")
        });
        until("the new image is not elevated", || {
            Policy::of(&Kernel, pid).is_ok_and(|policy| policy.real_time() == 0)
        });
        until("the guardian is gone", || {
            marked(&owner.marker)
                .iter()
                .all(|&left| left == pid || left == owner.pid())
        });
        // SAFETY: the sleeping process that the owner has become, or its child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        owner.kill();
    }
}

#[test]
fn a_stopped_owner_keeps_no_thread_elevated() {
    if !root() {
        return;
    }
    let victim = Victim::start("spinner");
    let mut owner = Process::start("heartbeat", &[("TIDS", victim.tids())]);
    assert!(owner.line("ready").is_some());
    let elevated = || {
        let real_time = |tid| Policy::of(&Kernel, tid).unwrap().real_time() > 0;
        let mut threads = victim.threads.iter();
        threads.any(|&(tid, ..)| real_time(tid))
    };
    for _ in 0..3 {
        until("the threads are elevated", elevated);
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(owner.pid(), libc::SIGSTOP) };
        until("the threads are demoted", || !elevated());
        // SAFETY: as above.
        unsafe { libc::kill(owner.pid(), libc::SIGCONT) };
    }
    until("the threads are elevated again", elevated);
    owner.kill();
    assert_all_restored(&owner, &victim, "the owner's death");
}
