//! Children that use the kernel against what bounds them: threads and processes that end, locks in a chain, other CPUs, tracing.
//!
//! As in `villain.rs`, each is bounded by a deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::net::RecvFlags;
use upshift_board::os;
use upshift_board::wire::{Role, Thread};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys, process_time};

use crate::child::{cpu_time, number, pin, setting, shared, wait_for_go};
use crate::process::{elevated_threads, monotonic};
use crate::protocol::{connect, register};
use crate::villain::Foothold;

const MS: u64 = 1_000_000;

fn burn_until(end: u64) {
    while monotonic() < end {
        std::hint::spin_loop();
    }
}

/// ns that this process has used, with all threads.
fn own_time() -> u64 {
    process_time(std::process::id() as i32).unwrap()
}

/// As many threads as `THREADS` that burn until the deadline, on any CPU: how much all got.
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

/// Threads that burn for 20 ms on `CPU` and end, one after the other.
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

/// Processes that burn for 20 ms on `CPU` and end, each the child of the one before, or, as far as the kernel says, of what started the
/// first (`ROLE` is `sibling`).
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

/// Burns on `CPU`, and is called something else for a moment each 30 ms, so that its rule does not fit and then fits again.
pub(crate) fn renamer() {
    pin(number("CPU") as usize);
    // SAFETY: a plain call. A process that has changed its user does not own its files in `/proc` before.
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

fn futex(lock: &AtomicU32, operation: i32) {
    // SAFETY: a live word, and no time limit.
    unsafe {
        let none = std::ptr::null::<libc::timespec>();
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, lock.as_ptr(), operation, 0, none)
    };
}

/// The registered thread waits for a lock, whose holder waits for another lock, and so on; the last holder burns on `VICTIM`.
pub(crate) fn chain() {
    const LINKS: usize = 4;
    pin(number("CPU") as usize);
    let _it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let locks: [AtomicU32; LINKS] = std::array::from_fn(|_| AtomicU32::new(0));
    let locks = &locks;
    std::thread::scope(|scope| {
        for link in (0..LINKS).rev() {
            scope.spawn(move || {
                let cpu = CpuSet::only(number("VICTIM") as usize).unwrap();
                Kernel.sched_setaffinity(0, &cpu).unwrap();
                locks[link].store(current_tid() as u32, Release);
                if link + 1 < LINKS {
                    futex(&locks[link + 1], libc::FUTEX_LOCK_PI);
                    futex(&locks[link + 1], libc::FUTEX_UNLOCK_PI);
                } else {
                    let before = cpu_time();
                    burn_until(deadline);
                    println!("used {}", (cpu_time() - before) / 1000);
                }
                futex(&locks[link], libc::FUTEX_UNLOCK_PI);
            });
            while locks[link].load(Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        futex(&locks[0], libc::FUTEX_LOCK_PI);
        futex(&locks[0], libc::FUTEX_UNLOCK_PI);
    });
    wait_for_go();
}

/// Burns on `VICTIM`, to which it is not registered, and is back on `CPU` when the daemon looks: the scheduler's switches are there for
/// everybody to read.
pub(crate) fn roamer() {
    let (home, away) = (number("CPU") as usize, number("VICTIM") as usize);
    pin(home);
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let status = format!("/proc/{}/task/{}/status", number("DAEMON"), number("TID"));
    let looked = || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("voluntary"));
        line.map(str::to_string)
    };
    let mut elsewhere = 0;
    let move_to = |cpu| drop(Kernel.sched_setaffinity(0, &CpuSet::only(cpu).unwrap()));
    while monotonic() < deadline {
        if elevated_threads(std::process::id() as i32).is_empty() {
            // It was found out.
            move_to(home);
            it.run(number("LEVEL") as u8);
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let before = looked();
        while looked() == before && monotonic() < deadline {
            std::thread::sleep(Duration::from_micros(300));
        }
        // The next look is 36 ms away.
        move_to(away);
        let start = cpu_time();
        burn_until(deadline.min(monotonic() + 31 * MS));
        elsewhere += cpu_time() - start;
        move_to(home);
    }
    println!("used {}", elsewhere / 1000);
    wait_for_go();
}

/// Registers, is elevated, and is stopped by a tracer of its own as often as that goes.
pub(crate) fn traced() {
    pin(number("CPU") as usize);
    let _it = Foothold::new(&[(current_tid(), Role::Worker)]);
    let own = current_tid();
    // SAFETY: the child traces this thread and ends.
    let tracer = unsafe { libc::fork() };
    if tracer == 0 {
        // SAFETY: plain calls; the word for the status lives.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(20);
            let none = std::ptr::null_mut::<libc::c_void>();
            if libc::ptrace(libc::PTRACE_SEIZE, own, none, none) != 0 {
                libc::_exit(1);
            }
            loop {
                let mut status = 0;
                libc::ptrace(libc::PTRACE_INTERRUPT, own, none, none);
                libc::waitpid(own, &raw mut status, libc::__WALL);
                libc::usleep(2_000);
                libc::ptrace(libc::PTRACE_CONT, own, none, none);
                libc::usleep(2_000);
            }
        }
    }
    // SAFETY: a plain call: the tracer is a child, not an ancestor.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, tracer) };
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    burn_until(deadline);
    println!("used {}", (cpu_time() - before) / 1000);
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(tracer, libc::SIGKILL) };
    wait_for_go();
}

/// Hands its connection to another process of another user, which registers itself over it: what became of that.
pub(crate) fn messenger() {
    let connection: OwnedFd = connect(&PathBuf::from(setting("SOCKET")));
    // SAFETY: the child makes a few calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain calls of this thread; a child that inherits the descriptor has it, too.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(20);
        }
        pin(number("CPU") as usize);
        let (page, _lines) = os::local_page().unwrap();
        let own = Thread {
            tid: current_tid(),
            vcpu: 0,
            role: Role::Worker,
        };
        let verdict = register(&connection, &[number("CPU") as u32], &[own], &page);
        let foreign = verdict.map_or_else(|reason| format!("{reason:?}"), |_| "in".to_string());
        println!("verdict {foreign}");
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: a live word.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    println!("ready");
    let mut rest = [0u8; 64];
    let _ = os::receive(connection.as_fd(), &mut rest, RecvFlags::DONTWAIT);
    wait_for_go();
}
