//! Programs that do not register and spin.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift_elevate::sys::process_time;

use crate::child::{cpu_time, number, pin, setting, shared, wait_for_go};
use crate::process::monotonic;

const MS: u64 = 1_000_000;

pub(crate) fn burn_until(end: u64) {
    while monotonic() < end {
        std::hint::spin_loop();
    }
}

/// Returns the CPU time of this process, with all threads, ns.
fn own_time() -> u64 {
    process_time(std::process::id() as i32).unwrap()
}

/// Runs `THREADS` threads that spin until the deadline, on any CPU; prints their CPU time.
pub(crate) fn spinners() {
    println!("ready");
    let deadline = wait_for_go();
    let before = own_time();
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| burn_until(deadline));
        }
    });
    println!("used {}", (own_time() - before) / 1000);
    wait_for_go();
}

/// Runs threads that spin for 20 ms on `CPU` and end, one after the other.
pub(crate) fn churner() {
    pin(number("CPU") as usize);
    println!("ready");
    let deadline = wait_for_go();
    let before = own_time();
    while monotonic() < deadline {
        let end = deadline.min(monotonic() + 20 * MS);
        std::thread::spawn(move || burn_until(end)).join().unwrap();
    }
    println!("used {}", (own_time() - before) / 1000);
    wait_for_go();
}

/// Runs processes that spin for 20 ms on `CPU` and end, each the child of the last one, or, if
/// `ROLE` is `sibling`, of the parent of the first one.
pub(crate) fn forker() {
    let parent = match setting("ROLE").as_str() {
        "sibling" => libc::CLONE_PARENT,
        _ => 0,
    };
    pin(number("CPU") as usize);
    // SAFETY: a word.
    let used = unsafe { shared::<AtomicU64>() };
    println!("ready");
    let deadline = wait_for_go();
    // SAFETY: the children only compute, fork and end.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: a plain call.
        unsafe { libc::alarm(20) };
        loop {
            let before = cpu_time();
            burn_until(deadline.min(monotonic() + 20 * MS));
            used.fetch_add(cpu_time() - before, Relaxed);
            // SAFETY: as above.
            unsafe {
                let flags = libc::SIGCHLD | parent;
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
    wait_for_go();
}

/// Spins on `CPU`, and has another name for a moment each 30 ms, so that its rule does not fit and
/// then fits again.
pub(crate) fn renamer() {
    pin(number("CPU") as usize);
    // SAFETY: a plain call. Without it a process that has changed its user does not own its files
    // in `/proc`.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    let name = format!("/proc/{}/comm", std::process::id());
    std::fs::write(&name, "fits").unwrap();
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    while monotonic() < deadline {
        burn_until(deadline.min(monotonic() + 30 * MS));
        std::fs::write(&name, "another").unwrap();
        std::fs::write(&name, "fits").unwrap();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_go();
}

/// Spins for 3 ms and executes itself again, until the deadline; prints the number of lives.
pub(crate) fn renewer() {
    pin(number("CPU") as usize);
    let lives: u64 = setting("LIVES").parse().unwrap_or(0);
    let deadline = match setting("DEADLINE").parse() {
        Ok(deadline) => deadline,
        Err(_) => {
            println!("ready");
            wait_for_go()
        }
    };
    if monotonic() >= deadline {
        println!("lives {lives}");
        wait_for_go();
        return;
    }
    let end = monotonic() + 3_000_000;
    while monotonic() < end {
        std::hint::spin_loop();
    }
    let error = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env("DEADLINE", deadline.to_string())
        .env("LIVES", (lives + 1).to_string())
        .env_remove("USER")
        .exec();
    panic!("{error}");
}

/// Starts processes that spin for `EACH` µs on `CPU` and end, one after the other, as fast as
/// possible with `AT_ONCE` at a time; the kernel reaps them. It sleeps itself, so that it has a
/// budget to pass on.
pub(crate) fn stormer() {
    pin(number("CPU") as usize);
    // SAFETY: a plain call; children that end are reaped at once.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let (each, at_once) = (number("EACH") * 1000, number("AT_ONCE"));
    // SAFETY: words.
    let [used, born, ended] = unsafe { shared::<[AtomicU64; 3]>() };
    println!("ready");
    let deadline = wait_for_go();
    while monotonic() < deadline {
        if born.load(Relaxed) >= ended.load(Relaxed) + at_once {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        born.fetch_add(1, Relaxed);
        // SAFETY: the child computes and ends.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: plain calls.
            unsafe { libc::alarm(20) };
            let before = cpu_time();
            let end = deadline.min(monotonic() + each);
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
    println!("born {}", born.load(Relaxed));
    wait_for_go();
}
