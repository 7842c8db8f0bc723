//! Programs that do not register, and use as much CPU time as they can.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift_elevate::sys::process_time;

use crate::child::{cpu_time, number, pin, setting, shared_memory, wait_for_parent};
use crate::process::monotonic;

/// A millisecond, in ns.
const MS: u64 = 1_000_000;

pub(crate) fn spin_until(end: u64) {
    while monotonic() < end {
        std::hint::spin_loop();
    }
}

fn own_time() -> u64 {
    process_time(std::process::id() as i32).unwrap()
}

/// Runs `THREADS` threads that spin until the deadline, on any CPU, and prints the CPU time.
pub(crate) fn spinners() {
    println!("ready");
    let deadline = wait_for_parent();
    let before = own_time();
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| spin_until(deadline));
        }
    });
    println!("used {}", (own_time() - before) / 1000);
    wait_for_parent();
}

/// Starts threads one after the other. Each spins on `CPU` for 20 ms and ends.
pub(crate) fn thread_churner() {
    pin(number("CPU") as usize);
    println!("ready");
    let deadline = wait_for_parent();
    let before = own_time();
    while monotonic() < deadline {
        let end = deadline.min(monotonic() + 20 * MS);
        std::thread::spawn(move || spin_until(end)).join().unwrap();
    }
    println!("used {}", (own_time() - before) / 1000);
    wait_for_parent();
}

/// Starts processes one after the other. Each spins on `CPU` for 20 ms, forks its successor and
/// ends. If `ROLE` is `sibling`, all of them are children of one process.
pub(crate) fn forker() {
    let parent_flag = match setting("ROLE").as_str() {
        "sibling" => libc::CLONE_PARENT,
        _ => 0,
    };
    pin(number("CPU") as usize);
    // SAFETY: 0 is a valid atomic word.
    let used = unsafe { shared_memory::<AtomicU64>() };
    println!("ready");
    let deadline = wait_for_parent();
    // SAFETY: the children only compute, fork and end, and take no lock.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: the call has only integer arguments.
        unsafe { libc::alarm(20) };
        loop {
            let before = cpu_time();
            spin_until(deadline.min(monotonic() + 20 * MS));
            used.fetch_add(cpu_time() - before, Relaxed);
            // SAFETY: `clone` without a stack continues this child in a copy, like `fork`.
            unsafe {
                let flags = libc::SIGCHLD | parent_flag;
                if monotonic() >= deadline || libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) != 0
                {
                    libc::_exit(0);
                }
            }
        }
    }
    while monotonic() < deadline + 50 * MS {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("used {}", used.load(Relaxed) / 1000);
    wait_for_parent();
}

/// Spins on `CPU`, and changes its name for a moment every 30 ms, so that the rule does not match
/// and then matches again.
pub(crate) fn renamer() {
    pin(number("CPU") as usize);
    // After a change of user, the files of a process in `/proc` belong to root until the process is
    // dumpable again.
    // SAFETY: the call has only integer arguments.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    let name = format!("/proc/{}/comm", std::process::id());
    std::fs::write(&name, "matching").unwrap();
    println!("ready");
    let deadline = wait_for_parent();
    let before = cpu_time();
    while monotonic() < deadline {
        spin_until(deadline.min(monotonic() + 30 * MS));
        std::fs::write(&name, "another").unwrap();
        std::fs::write(&name, "matching").unwrap();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_parent();
}

/// Spins for 3 ms and executes itself again, until the deadline. Prints the number of executions.
pub(crate) fn self_executor() {
    pin(number("CPU") as usize);
    let executions: u64 = setting("LIVES").parse().unwrap_or(0);
    let deadline = match setting("DEADLINE").parse() {
        Ok(deadline) => deadline,
        Err(_) => {
            println!("ready");
            wait_for_parent()
        }
    };
    if monotonic() >= deadline {
        println!("executions {executions}");
        wait_for_parent();
        return;
    }
    let end = monotonic() + 3_000_000;
    while monotonic() < end {
        std::hint::spin_loop();
    }
    let error = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env("DEADLINE", deadline.to_string())
        .env("LIVES", (executions + 1).to_string())
        .env_remove("USER")
        .exec();
    panic!("{error}");
}

/// Starts processes as fast as possible, of which at most `PARALLEL` run at a time. Each spins on
/// `CPU` for `SPIN_US` and ends, and the kernel reaps it. The parent sleeps, so that its children
/// inherit an unused budget.
pub(crate) fn process_flood() {
    pin(number("CPU") as usize);
    // SAFETY: `SIG_IGN` is a valid handler. The kernel then reaps children that end.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let (spin_ns, parallel) = (number("SPIN_US") * 1000, number("PARALLEL"));
    // SAFETY: 0 is a valid atomic word.
    let [used, started, ended] = unsafe { shared_memory::<[AtomicU64; 3]>() };
    println!("ready");
    let deadline = wait_for_parent();
    while monotonic() < deadline {
        if started.load(Relaxed) >= ended.load(Relaxed) + parallel {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        started.fetch_add(1, Relaxed);
        // SAFETY: the child only computes and ends, and takes no lock.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: the calls have only integer arguments.
            unsafe { libc::alarm(20) };
            let before = cpu_time();
            let end = deadline.min(monotonic() + spin_ns);
            while monotonic() < end {
                std::hint::spin_loop();
            }
            used.fetch_add(cpu_time() - before, Relaxed);
            ended.fetch_add(1, Relaxed);
            // SAFETY: ends the child without running exit handlers of the parent.
            unsafe { libc::_exit(0) };
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    println!("used {}", used.load(Relaxed) / 1000);
    println!("started {}", started.load(Relaxed));
    wait_for_parent();
}
