//! Tests of changes to the machine while the daemon runs: a clock that is set, and a CPU that is
//! unplugged. These changes affect all programs of the machine, so only `cargo xtask soak` runs
//! these tests (`UPSHIFT_DAEMON_UPHEAVAL` is the number of rounds).

use std::time::{Duration, Instant};

use upshift_daemon::Daemon;
use upshift_elevate::{Elevator, Priority};
use upshift_testing::{UnpluggedCpu, can_unplug};

use crate::attack::{
    ALICE, MALLORY, TRUDY, deadline_after, open_config, open_daemon, start_child, uses_at_most,
};
use crate::client::{census, processes};
use crate::fuzz::parameter;
use crate::process::{
    Process, RESTORE_LIMIT, WAIT_LIMIT, elevated_threads, thread_with_name, wait_until, wait_within,
};
use crate::{permitted, serial_test, skipped, socket};

/// Returns the number of rounds; `None` if the test is skipped.
fn rounds() -> Option<u64> {
    let rounds = parameter("UPSHIFT_DAEMON_UPHEAVAL", 0);
    if rounds == 0 {
        skipped("this test disturbs the whole machine: `cargo xtask soak` runs it");
    }
    (rounds > 0 && permitted()).then_some(rounds)
}

/// CPU that the test unplugs.
const CPU: usize = 1;

fn is_elevated(process: &Process) -> bool {
    !elevated_threads(process.pid()).is_empty()
}

#[test]
fn a_process_on_an_unplugged_cpu_is_not_elevated_until_the_cpu_is_back() {
    let _guard = serial_test();
    let Some(rounds) = rounds() else { return };
    if !can_unplug(CPU) {
        return skipped("CPU 1 cannot be unplugged here");
    }
    let (path, _daemon) = open_daemon("unplugged");
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let elevator = Elevator::with_guardian().unwrap();
    for round in 0..rounds {
        // Both processes have a rival on their CPU. One of the CPUs is unplugged.
        let mut unaffected = start_child("burner", &path, ALICE, (0, 2), &[]);
        let rival = start_child("idle-claimant", &path, TRUDY, (CPU, 63), &[]);
        let mut affected = start_child("burner", &path, MALLORY, (CPU, 2), &[]);
        let mut bystander = Process::start("gap-meter", &path, &[("CPU", "0".to_string())]);
        bystander.line("ready").unwrap();
        let end = deadline_after(Duration::from_millis(1800));
        unaffected.run_until(end);
        affected.run_until(end);
        {
            // An ordinary thread would check only in the pauses of the elevated threads.
            let _checking = elevator.elevate_current(Priority::of::<48>()).unwrap();
            wait_until("both processes are elevated", || {
                is_elevated(&unaffected) && is_elevated(&affected)
            });
        }
        let began = Instant::now();
        let offline = match UnpluggedCpu::new(CPU) {
            Ok(offline) => offline,
            Err(error) => return skipped(format!("CPU 1 cannot be unplugged: {error}")),
        };
        println!("CPU 1 was unplugged in {:?}", began.elapsed());
        bystander.run_until(end);
        // The kernel has moved the thread to CPU 0, where it is not registered.
        let checking = elevator.elevate_current(Priority::of::<48>()).unwrap();
        let unplugged = Instant::now();
        wait_within(
            RESTORE_LIMIT,
            "a process that has lost its CPU is not elevated",
            || !is_elevated(&affected),
        );
        let time_to_restore = unplugged.elapsed();
        drop(checking);
        let (affected_us, unaffected_us) = (affected.number("used "), unaffected.number("used "));
        let (used, longest) = (bystander.number("used "), bystander.number("longest "));
        println!(
            "round {round}: not elevated after {time_to_restore:?}; unaffected {unaffected_us}, affected {affected_us}, bystander {used} us, longest gap {longest} us"
        );
        assert!(uses_at_most(97, unaffected_us, 1_800_000));
        let status = census(&path);
        // All processes are still registered, and other processes can register and leave.
        assert_eq!(processes(&path), 4, "{status}");
        drop(offline);
        drop((unaffected, affected));
        let mut later = start_child("burner", &path, ALICE, (CPU, 2), &[]);
        later.run_until(deadline_after(WAIT_LIMIT));
        wait_until("a later process is elevated on the CPU", || {
            is_elevated(&later)
        });
        let scheduler = thread_with_name(&format!("upshift-cpu{CPU}")).unwrap();
        let canary = thread_with_name(&format!("upshift-can{CPU}")).unwrap();
        for tid in [scheduler, canary] {
            let tid = tid.parse().unwrap();
            use upshift_elevate::sys::{CpuSet, Kernel, Sys};
            wait_until("the daemon's threads are back", || {
                Kernel.sched_getaffinity(tid).unwrap() == CpuSet::only(CPU).unwrap()
            });
        }
        drop((later, rival));
        wait_until("only the rival is registered", || processes(&path) == 1);
    }
}

/// The clock of the machine. Dropping this value corrects the clock, by the monotonic clock.
struct Clock {
    /// Correct difference to the monotonic clock, ns.
    offset: i128,
}

fn now(clock: libc::clockid_t) -> i128 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl Clock {
    fn new() -> Clock {
        Clock {
            offset: now(libc::CLOCK_REALTIME) - now(libc::CLOCK_MONOTONIC),
        }
    }

    /// Sets the clock to a time that is wrong by `error_s` seconds. Returns `false` if the kernel
    /// refuses the change.
    fn set(&self, error_s: i64) -> bool {
        let ns = now(libc::CLOCK_MONOTONIC) + self.offset + i128::from(error_s) * 1_000_000_000;
        let time = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        };
        // SAFETY: `time` is valid for the duration of the call.
        unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) == 0 }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[test]
fn setting_the_clock_changes_no_budget() {
    let _guard = serial_test();
    let Some(_rounds) = rounds() else { return };
    let path = socket("clock");
    let config = upshift_daemon::Config {
        assign: vec![crate::assign::rule(ALICE, 8)],
        ..open_config("clock")
    };
    let _daemon = Daemon::start(config).unwrap();
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut burner = start_child("burner", &path, MALLORY, (0, 2), &[]);
    let mut bystander = Process::start("gap-meter", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let mut program = start_child("gap-meter", &path, ALICE, (1, 0), &[]);
    let end = deadline_after(Duration::from_millis(1500));
    for process in [&mut burner, &mut bystander, &mut program] {
        process.run_until(end);
    }
    wait_until("the client is elevated", || is_elevated(&burner));
    let clock = Clock::new();
    for error_s in [3600, -3600, 86_400 * 365, 0] {
        if !clock.set(error_s) {
            return skipped("the clock cannot be set");
        }
        std::thread::sleep(Duration::from_millis(60));
    }
    drop(clock);
    let (attacker_us, used) = (burner.number("used "), bystander.number("used "));
    let longest = bystander.number("longest ");
    let program_us = program.number("used ");
    println!(
        "burner {attacker_us}, bystander {used} us, longest gap {longest} us; program {program_us} us"
    );
    assert!(uses_at_most(97, attacker_us, 1_500_000));
    let mut later = start_child("burner", &path, MALLORY, (0, 2), &[]);
    later.run_until(deadline_after(WAIT_LIMIT));
    wait_until("a later client is elevated", || is_elevated(&later));
}
