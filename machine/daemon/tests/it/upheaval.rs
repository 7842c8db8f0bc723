//! Changes of the machine below the daemon: its clock is set, a CPU is unplugged. All programs of
//! the machine notice, so only `cargo xtask soak` does this (`UPSHIFT_DAEMON_UPHEAVAL`: number of
//! rounds).

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use upshift_daemon::Daemon;
use upshift_elevate::{Elevator, Priority};

use crate::attack::{
    ALICE, MALLORY, TRUDY, from_now, open_config, open_daemon, start_child, takes_at_most,
};
use crate::client::{census, processes};
use crate::fuzz::drawn;
use crate::process::{PATIENCE, PROMISE, Process, elevated_threads, thread_named, until, within};
use crate::{permitted, skipped, socket, turn};

/// Returns the number of rounds; `None`, with a report, if there are none.
fn rounds() -> Option<u64> {
    let rounds = drawn("UPSHIFT_DAEMON_UPHEAVAL", 0);
    if rounds == 0 {
        skipped("it disturbs the whole machine: cargo xtask soak does it");
    }
    (rounds > 0 && permitted()).then_some(rounds)
}

const CPU: usize = 1;

const SWITCH: &str = "/sys/devices/system/cpu/cpu1/online";

/// The CPU is unplugged until this is dropped, and for at most 15 s: a shell plugs it back in when
/// its input ends, so also when this process is killed.
struct Unplugged(Child);

impl Unplugged {
    fn new() -> std::io::Result<Unplugged> {
        let back = format!("timeout 15 cat > /dev/null; echo 1 > {SWITCH}");
        let shell = Command::new("setsid")
            .args(["sh", "-c", &back])
            .stdin(Stdio::piped())
            .spawn()?;
        let unplugged = Unplugged(shell);
        std::fs::write(SWITCH, "0")?;
        Ok(unplugged)
    }
}

impl Drop for Unplugged {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
        let online = std::fs::read_to_string(SWITCH).unwrap_or_default();
        assert_eq!(
            online.trim(),
            "1",
            "CPU {CPU} does not come back: echo 1 > {SWITCH}"
        );
    }
}

fn elevated(process: &Process) -> bool {
    !elevated_threads(process.pid()).is_empty()
}

#[test]
fn a_cpu_is_unplugged_and_comes_back_under_registered_processes() {
    let _turn = turn();
    let Some(rounds) = rounds() else { return };
    if !std::path::Path::new(SWITCH).exists() {
        return skipped("CPU 1 cannot be unplugged here");
    }
    let (path, _daemon) = open_daemon("unplugged");
    let _here = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let elevator = Elevator::with_guardian().unwrap();
    for round in 0..rounds {
        // Each process has a rival on its CPU: the one that stays, and the one that loses its CPU.
        let mut stays = start_child("burner", &path, ALICE, (0, 2), &[]);
        let there = start_child("ghost", &path, TRUDY, (CPU, 63), &[]);
        let mut loses = start_child("burner", &path, MALLORY, (CPU, 2), &[]);
        let mut bystander = Process::start("gap", &path, &[("CPU", "0".to_string())]);
        bystander.line("ready").unwrap();
        let end = from_now(Duration::from_millis(1800));
        stays.go_until(end);
        loses.go_until(end);
        {
            // An ordinary thread would check only while a CPU is left to others for a moment.
            let _checking = elevator.elevate_current(Priority::of::<48>()).unwrap();
            until("both are elevated", || elevated(&stays) && elevated(&loses));
        }
        let began = Instant::now();
        let away = match Unplugged::new() {
            Ok(away) => away,
            Err(error) => return skipped(format!("CPU 1 is not unplugged: {error}")),
        };
        println!("CPU 1 was unplugged in {:?}", began.elapsed());
        bystander.go_until(end);
        // The kernel has moved the thread to CPU 0, where it is not registered.
        let checking = elevator.elevate_current(Priority::of::<48>()).unwrap();
        let unplugged = Instant::now();
        within(
            PROMISE,
            "a process that has lost its CPU is not elevated",
            || !elevated(&loses),
        );
        let took = unplugged.elapsed();
        drop(checking);
        let (lost, kept) = (loses.number("used "), stays.number("used "));
        let (used, longest) = (bystander.number("used "), bystander.number("longest "));
        println!(
            "round {round}: not elevated after {took:?}; kept {kept}, lost {lost}, bystander {used} us, longest gap {longest} us"
        );
        assert!(takes_at_most(97, kept, 1_800_000));
        let seen = census(&path);
        // No process is lost: those on the other CPU continue, and others come and go.
        assert_eq!(processes(&path), 4, "{seen}");
        drop(away);
        drop((stays, loses));
        let mut again = start_child("burner", &path, ALICE, (CPU, 2), &[]);
        again.go_until(from_now(PATIENCE));
        until("a later process is elevated there", || elevated(&again));
        let tid = thread_named(&format!("upshift-cpu{CPU}")).unwrap();
        let canary = thread_named(&format!("upshift-can{CPU}")).unwrap();
        for tid in [tid, canary] {
            let tid = tid.parse().unwrap();
            use upshift_elevate::sys::{CpuSet, Kernel, Sys};
            until("the daemon's threads are back", || {
                Kernel.sched_getaffinity(tid).unwrap() == CpuSet::only(CPU).unwrap()
            });
        }
        drop((again, there));
        until("nobody else is there", || processes(&path) == 1);
    }
}

/// The machine's clock, which is set right when dropped, by the monotonic clock.
struct Clock {
    offset: i128,
}

fn now(clock: libc::clockid_t) -> i128 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live structure of the type the call writes.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl Clock {
    fn new() -> Clock {
        Clock {
            offset: now(libc::CLOCK_REALTIME) - now(libc::CLOCK_MONOTONIC),
        }
    }

    /// Sets the clock wrong by this number of seconds.
    fn set(&self, wrong: i64) -> bool {
        let ns = now(libc::CLOCK_MONOTONIC) + self.offset + i128::from(wrong) * 1_000_000_000;
        let time = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        };
        // SAFETY: a live structure.
        unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) == 0 }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[test]
fn a_clock_that_is_set_changes_no_budget() {
    let _turn = turn();
    let Some(_rounds) = rounds() else { return };
    let path = socket("clock");
    let config = upshift_daemon::Config {
        assign: vec![crate::assign::rule(ALICE, 8)],
        ..open_config("clock")
    };
    let _daemon = Daemon::start(config).unwrap();
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut burner = start_child("burner", &path, MALLORY, (0, 2), &[]);
    let mut bystander = Process::start("gap", &path, &[("CPU", "0".to_string())]);
    bystander.line("ready").unwrap();
    let mut program = start_child("gap", &path, ALICE, (1, 0), &[]);
    let end = from_now(Duration::from_millis(1500));
    for it in [&mut burner, &mut bystander, &mut program] {
        it.go_until(end);
    }
    until("it is elevated", || elevated(&burner));
    let clock = Clock::new();
    for wrong in [3600, -3600, 86_400 * 365, 0] {
        if !clock.set(wrong) {
            return skipped("the clock cannot be set");
        }
        std::thread::sleep(Duration::from_millis(60));
    }
    drop(clock);
    let (burnt, used) = (burner.number("used "), bystander.number("used "));
    let longest = bystander.number("longest ");
    let assigned = program.number("used ");
    println!(
        "burner {burnt}, bystander {used} us, longest gap {longest} us; program {assigned} us"
    );
    assert!(takes_at_most(97, burnt, 1_500_000));
    let mut again = start_child("burner", &path, MALLORY, (0, 2), &[]);
    again.go_until(from_now(PATIENCE));
    until("it is elevated afterwards", || elevated(&again));
}
