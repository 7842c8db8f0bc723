//! Tests of the guarantee that no thread stays elevated, and that the guardian ends, when any
//! process dies.

use std::time::{Duration, Instant};

use upshift_elevate::sys::Kernel;
use upshift_elevate::{Policy, Tid};

use crate::is_permitted_root;
use crate::process::{
    Process, RESTORE_BOUND, Random, Victim, WAIT_LIMIT, elevated_threads, processes_with_marker,
    wait_until,
};

/// The ways in which an owner dies.
const DEATHS: [&str; 10] = [
    "killed", "killed", "killed", "segv", "abort", "_exit", "term", "exit", "panic", "return",
];

/// Waits, after the death of `owner`, until the victims have their former state and no guardian or
/// elevated thread of the owner is left.
fn wait_until_restored(owner: &Process, victim: &Victim, case: &str) {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        let change = victim.first_change();
        let pids = processes_with_marker(&owner.marker);
        let guardians: Vec<_> = pids
            .iter()
            .filter(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|name| name.trim() == "upshift-guard")
            })
            .collect();
        let elevated: Vec<_> = pids.iter().flat_map(|&pid| elevated_threads(pid)).collect();
        if change.is_none() && guardians.is_empty() && elevated.is_empty() {
            for pid in pids {
                // SAFETY: the call takes only integers. The owner started this process, because its
                // environment has the owner's marker.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{WAIT_LIMIT:?} after {case}: {change:?}, guardians {guardians:?}, elevated {elevated:?}"
        );
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn no_thread_stays_elevated_over_hundreds_of_deaths() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("victim");
    let rounds: u64 = std::env::var("UPSHIFT_ELEVATE_DEATHS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(330);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let began = Instant::now();
    let mut durations = Vec::new();
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
            // In every third round the owner is killed at a random moment of its life, in the other
            // rounds while it works.
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(random.below(8000)));
            } else {
                owner.line("ready");
                std::thread::sleep(Duration::from_micros(random.below(5000)));
            }
            owner.child.kill().unwrap();
        }
        owner.child.wait().unwrap();
        let died_at = Instant::now();
        wait_until_restored(
            &owner,
            &victim,
            &format!("round {round}, {death}, seed {seed}"),
        );
        durations.push(died_at.elapsed());
        if began.elapsed() > Duration::from_secs(100) {
            println!("{round} of {rounds} rounds: the machine is slow");
            break;
        }
    }
    durations.sort_unstable();
    let (median, longest_time) = (
        durations[durations.len() / 2],
        durations[durations.len() - 1],
    );
    println!(
        "{} deaths in {:?}, longest restore {longest_time:?}",
        durations.len(),
        began.elapsed()
    );
    assert!(
        median < RESTORE_BOUND,
        "the median time to restore all threads is {median:?}"
    );
}

#[test]
fn the_guardian_preempts_elevated_threads_that_burn_every_cpu() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("spinner");
    let mut owner = Process::start("cpu-hog", &[("TIDS", victim.tids())]);
    assert!(owner.line("ready").is_some());
    assert!(owner.line("dead").is_some());
    owner.child.wait().unwrap();
    wait_until_restored(&owner, &victim, "the owner's death");
}

#[test]
fn a_second_guardian_takes_over_the_records_of_the_first() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("victim");
    let mut owner = Process::start("guardian-killer", &[("TIDS", victim.tids())]);
    assert_eq!(owner.line("ready").as_deref(), Some("7"));
    assert!(victim.first_change().is_some());
    owner.kill();
    wait_until_restored(&owner, &victim, "the owner's death");
}

#[test]
fn a_process_image_does_not_inherit_an_elevation() {
    if !is_permitted_root() {
        return;
    }
    for (thread, expected) in [("main", "true"), ("elsewhere", "false")] {
        let mut owner = Process::start("exec", &[("WHERE", thread.to_string())]);
        let ready = owner.line("ready").unwrap();
        let (pid, is_main) = ready.split_once(' ').unwrap();
        assert_eq!(
            is_main, expected,
            "whether the {thread} thread is the main thread"
        );
        let pid: Tid = pid.parse().unwrap();
        wait_until("the new image runs", || {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "sleep")
        });
        wait_until("the new image is not elevated", || {
            Policy::of(&Kernel, pid).is_ok_and(|policy| policy.real_time() == 0)
        });
        wait_until("the guardian is gone", || {
            processes_with_marker(&owner.marker)
                .iter()
                .all(|&other| other == pid || other == owner.pid())
        });
        // SAFETY: the sleeping process is the owner after `exec`, or the owner's child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        owner.kill();
    }
}

#[test]
fn a_stopped_owner_keeps_no_thread_elevated() {
    if !is_permitted_root() {
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
        wait_until("the threads are elevated", elevated);
        // SAFETY: the call takes only integers. The child has not been waited for, so its pid is
        // still valid.
        unsafe { libc::kill(owner.pid(), libc::SIGSTOP) };
        wait_until("the threads are demoted", || !elevated());
        // SAFETY: as above.
        unsafe { libc::kill(owner.pid(), libc::SIGCONT) };
    }
    wait_until("the threads are elevated again", elevated);
    owner.kill();
    wait_until_restored(&owner, &victim, "the owner's death");
}
