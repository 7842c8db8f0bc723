//! Tests of how clients and programs that are not registered (*bystanders*) share a CPU.

use std::path::Path;
use std::time::Duration;

use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::process::{Process, elevated_threads, monotonic, thread_with_name, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{daemon, permitted, serial_test, skipped, socket};

/// Length of a race, ms.
const RACE_MS: u64 = 600;

fn burner(socket: &Path, level: u8) -> Process {
    let settings = [("CPU", "0".to_string()), ("LEVEL", level.to_string())];
    let mut process = Process::start("burner", socket, &settings);
    process.line("ready").unwrap();
    process
}

fn bystander(socket: &Path) -> Process {
    let settings = [("CPU", "0".to_string())];
    let mut process = Process::start("bystander", socket, &settings);
    process.line("ready").unwrap();
    process
}

/// Runs the processes for [`RACE_MS`]. Returns their CPU times, µs.
fn race(mut processes: Vec<Process>) -> Vec<u64> {
    let deadline = monotonic() + RACE_MS * 1_000_000;
    for process in &mut processes {
        process.run_until(deadline);
        // A client cannot publish its level while an elevated client occupies the CPU.
        std::thread::sleep(Duration::from_millis(20));
    }
    let used = processes
        .iter_mut()
        .map(|process| process.number("used"))
        .collect();
    wait_until("no thread is elevated", || {
        processes
            .iter()
            .all(|process| elevated_threads(process.pid()).is_empty())
    });
    used
}

#[test]
fn the_more_urgent_process_runs() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let _daemon = daemon("urgent");
    let path = socket("urgent");
    let used = race(vec![burner(&path, 40), burner(&path, 2)]);
    assert!(used[1] > 4 * used[0], "CPU times, us: {used:?}");
}

#[test]
fn clients_of_equal_level_share_the_cpu() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let _daemon = daemon("equals");
    let path = socket("equals");
    let race_repeatedly = |levels: &[u8]| {
        let mut used = vec![0; levels.len()];
        for _ in 0..4 {
            let round = race(levels.iter().map(|&level| burner(&path, level)).collect());
            println!("{levels:?} {round:?}");
            used.iter_mut().zip(round).for_each(|(all, us)| *all += us);
        }
        used
    };
    // In the first case, the clients are in the lowest class; in the second, they are elevated
    // above another client.
    let used = race_repeatedly(&[7, 7]);
    assert!(
        used[0] < 2 * used[1] && used[1] < 2 * used[0],
        "CPU times, us: {used:?}"
    );
    let used = race_repeatedly(&[7, 7, 50]);
    assert!(
        used[0] < 2 * used[1] && used[1] < 2 * used[0],
        "CPU times, us: {used:?}"
    );
    assert!(used[2] * 2 < used[0], "CPU times, us: {used:?}");
}

#[test]
fn a_bystander_keeps_its_share() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let _daemon = daemon("bystander");
    let path = socket("bystander");
    let used = race(vec![burner(&path, 2), burner(&path, 40), bystander(&path)]);
    println!("{used:?}");
    // The registered processes leave 5 % to this bystander and all other programs, except for the
    // debt that is still owed at the end.
    assert!(
        (used[0] + used[1]) * 100 <= 98 * RACE_MS * 1000,
        "CPU times, us: {used:?}"
    );
    assert!(
        used[2] > 0 && used[0] > 2 * used[2],
        "CPU times, us: {used:?}"
    );
}

/// The kernel also moves a scheduler to another CPU when its CPU is unplugged. The scheduler must
/// return to its own CPU.
#[test]
fn a_scheduler_that_was_moved_to_another_cpu_returns() {
    let _guard = serial_test();
    if std::thread::available_parallelism().unwrap().get() == 1 {
        return skipped("needs two CPUs");
    }
    let path = socket("returns");
    let _daemon = daemon("returns");
    let mut client = start_scripted_client(&path);
    let mut tid = None;
    wait_until("the scheduler runs", || {
        tid = thread_with_name("upshift-cpu0");
        tid.is_some()
    });
    let tid: i32 = tid.unwrap().parse().unwrap();
    let cpus = || Kernel.sched_getaffinity(tid).unwrap();
    Kernel
        .sched_setaffinity(tid, &CpuSet::only(1).unwrap())
        .unwrap();
    wait_until("the scheduler has returned", || {
        client.execute("ring 1");
        cpus() == CpuSet::only(0).unwrap()
    });
}
