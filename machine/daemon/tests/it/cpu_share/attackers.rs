//! Registered children that evade limits on their CPU time: they come and go, take turns, change
//! CPUs, programs or levels.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use upshift_board::NO_LEVEL;
use upshift_board::os::{self};
use upshift_board::wire::{Role, Thread};
use upshift_elevate::current_tid;

use crate::budgets::attackers::burn_until;
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::client::{Registration, connect, register};
use crate::process::monotonic;

const MS: u64 = 1_000_000;

fn role() -> Role {
    match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    }
}

/// Spins; each 21 ms it leaves and registers again, so that each check finds no usage on record.
pub(crate) fn returner() {
    pin(number("CPU") as usize);
    let path = PathBuf::from(setting("SOCKET"));
    let (page, lines) = os::local_page().unwrap();
    lines.vcpu(0).unwrap().set_running(number("LEVEL") as u8);
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let own = Thread {
        tid: current_tid(),
        vcpu: 0,
        role: role(),
    };
    while monotonic() < deadline {
        let connection = connect(&path);
        let Ok(bells) = register(&connection, &[number("CPU") as u32], &[own], &page) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        os::ring(&bells[1]).unwrap();
        let end = deadline.min(monotonic() + 21 * MS);
        while monotonic() < end {
            std::hint::spin_loop();
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_go();
}

/// Runs threads that spin for `EACH` µs and end, one after the other; each registers its successor
/// first.
pub(crate) fn relay() {
    let (cpu, each) = (number("CPU") as usize, number("EACH") * 1000);
    pin(cpu);
    let registration = Arc::new(Registration::new(&[]));
    println!("ready");
    let deadline = wait_for_go();
    let used = Arc::new(AtomicU64::new(0));
    while monotonic() < deadline {
        let (registration, used) = (Arc::clone(&registration), Arc::clone(&used));
        let burn = move || {
            if !registration.add_current(role()) {
                std::thread::sleep(Duration::from_millis(1));
                return;
            }
            let end = deadline.min(monotonic() + each);
            while monotonic() < end {
                std::hint::spin_loop();
            }
            used.fetch_add(cpu_time(), Relaxed);
        };
        std::thread::spawn(burn).join().unwrap();
    }
    println!("used {}", used.load(Relaxed) / 1000);
    wait_for_go();
}

/// Spins with one thread. In its pauses, eight threads with next to no usage so far run by turns,
/// each for less than is noticed.
pub(crate) fn understudies() {
    const COUNT: u64 = 8;
    let cpu = number("CPU") as usize;
    pin(cpu);
    let beat = Arc::new(AtomicU64::new(0));
    let deadline = Arc::new(AtomicU64::new(u64::MAX));
    let used = Arc::new(AtomicU64::new(0));
    let (sender, receiver) = std::sync::mpsc::channel();
    let started = Arc::new(AtomicBool::new(false));
    let all: Vec<_> = (0..COUNT)
        .map(|index| {
            let (beat, deadline, used) =
                (Arc::clone(&beat), Arc::clone(&deadline), Arc::clone(&used));
            let (sender, started) = (sender.clone(), Arc::clone(&started));
            std::thread::spawn(move || {
                sender.send(current_tid()).unwrap();
                while !started.load(Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                while monotonic() < deadline.load(Relaxed) {
                    // Each thread has its part of the time in which the first one stands still.
                    let still = monotonic().saturating_sub(beat.load(Relaxed));
                    let part = still / (MS * 4 / 10) % COUNT;
                    if still > MS / 5 && part == index {
                        let end = monotonic() + MS * 4 / 10;
                        while monotonic() < end {
                            std::hint::spin_loop();
                        }
                    }
                    std::thread::sleep(Duration::from_micros(300));
                }
                used.fetch_add(cpu_time(), Relaxed);
            })
        })
        .collect();
    let mut threads = vec![(current_tid(), Role::Worker)];
    threads.extend((0..COUNT).map(|_| (receiver.recv().unwrap(), Role::Worker)));
    let registration = Registration::new(&threads);
    println!("ready");
    deadline.store(wait_for_go(), Relaxed);
    beat.store(monotonic(), Relaxed);
    started.store(true, Release);
    let before = cpu_time();
    while monotonic() < deadline.load(Relaxed) {
        beat.store(monotonic(), Relaxed);
    }
    used.fetch_add(cpu_time() - before, Relaxed);
    registration.run(NO_LEVEL);
    for thread in all {
        thread.join().unwrap();
    }
    println!("used {}", used.load(Relaxed) / 1000);
    wait_for_go();
}

/// Spins, and repeatedly lowers itself to the priority of the canary, which it may.
pub(crate) fn sinker() {
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let param = libc::sched_param { sched_priority: 1 };
    let mut sunk = 0u64;
    while monotonic() < deadline {
        let end = monotonic() + MS / 2;
        while monotonic() < end {
            std::hint::spin_loop();
        }
        // Only a thread in SCHED_FIFO may.
        let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        // SAFETY: a live structure.
        sunk += u64::from(unsafe { libc::sched_setscheduler(0, policy, &raw const param) } == 0);
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("sunk {sunk}");
    registration.run(NO_LEVEL);
    wait_for_go();
}

/// Runs `THREADS` dispatchers, each of which spins on `CPU` until the deadline, for `DUTY` percent
/// of each 10 ms.
pub(crate) fn dispatchers() {
    let count = number("THREADS") as usize;
    let cpu = number("CPU") as usize;
    let (sender, receiver) = std::sync::mpsc::channel();
    let go = Barrier::new(count + 1);
    let deadline = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let burn = || {
            pin(cpu);
            sender.send(current_tid()).unwrap();
            go.wait();
            let before = cpu_time();
            let (period, duty) = (10_000_000, number("DUTY"));
            let is_running = || monotonic() < deadline.load(Relaxed);
            while is_running() {
                let began = cpu_time();
                while cpu_time() - began < period * duty / 100 && is_running() {
                    std::hint::spin_loop();
                }
                if duty < 100 {
                    let rest = period - monotonic() % period;
                    std::thread::sleep(std::time::Duration::from_nanos(rest));
                }
            }
            cpu_time() - before
        };
        let all: Vec<_> = (0..count).map(|_| scope.spawn(burn)).collect();
        let tids: Vec<_> = (0..count)
            .map(|_| (receiver.recv().unwrap(), Role::Dispatcher))
            .collect();
        let _registration = Registration::new(&tids);
        println!("ready");
        deadline.store(wait_for_go(), Relaxed);
        go.wait();
        let used: u64 = all.into_iter().map(|thread| thread.join().unwrap()).sum();
        println!("used {}", used / 1000);
        wait_for_go();
    });
}

/// Registers, and spins until the deadline in every other period of 37 ms: the even ones if `TURN`
/// is 0.
pub(crate) fn alternator() {
    const PERIOD: u64 = 37_000_000;
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let (deadline, turn) = (wait_for_go(), number("TURN"));
    let before = cpu_time();
    loop {
        let now = monotonic();
        if now >= deadline {
            break;
        }
        if now / PERIOD % 2 != turn {
            let rest = PERIOD - now % PERIOD;
            std::thread::sleep(std::time::Duration::from_nanos(rest));
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    registration.run(NO_LEVEL);
    wait_for_go();
}

/// Registers, is elevated, and is stopped by a tracer of its own as often as possible.
pub(crate) fn traced() {
    pin(number("CPU") as usize);
    let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
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

/// Registers, is elevated, spins for 20 ms and executes this program again, from a thread that is
/// not the main one (`HOW` is `exec`); the connection stays. Or spins in children that share its
/// memory while it waits for them (`vfork`).
pub(crate) fn shifter() {
    pin(number("CPU") as usize);
    let own = [(current_tid(), Role::Worker)];
    if setting("HOW") == "vfork" {
        let registration = Registration::new(&own);
        println!("ready");
        let deadline = wait_for_go();
        let used = AtomicU64::new(0);
        while monotonic() < deadline {
            // SAFETY: the child computes in the memory of its parent, which waits, and ends.
            unsafe {
                vfork_and(|| {
                    let before = cpu_time();
                    let end = deadline.min(monotonic() + 20 * MS);
                    while monotonic() < end {
                        std::hint::spin_loop();
                    }
                    used.fetch_add(cpu_time() - before, Relaxed);
                })
            };
        }
        println!("used {}", used.load(Relaxed) / 1000);
        registration.run(NO_LEVEL);
        wait_for_go();
        return;
    }
    let deadline = match setting("DEADLINE").parse() {
        Ok(deadline) => deadline,
        Err(_) => {
            println!("ready");
            wait_for_go()
        }
    };
    let mut used: u64 = setting("USED").parse().unwrap_or(0);
    if monotonic() >= deadline {
        println!("used {}", used / 1000);
        println!("lives {}", setting("LIVES"));
        wait_for_go();
        return;
    }
    // The rate of registrations is limited: until the next one, the last life's registration is in
    // effect.
    let registration = Registration::try_new(&own);
    let before = cpu_time();
    let end = deadline.min(monotonic() + 20 * MS);
    while monotonic() < end {
        std::hint::spin_loop();
    }
    used += cpu_time() - before;
    if let Some(registration) = registration {
        // The connection outlives this program.
        rustix::io::fcntl_setfd(&registration.socket, rustix::io::FdFlags::empty()).unwrap();
        std::mem::forget(registration);
    }
    use std::os::unix::process::CommandExt;
    let lives = setting("LIVES").parse().unwrap_or(0) + 1;
    let error = std::process::Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env("DEADLINE", deadline.to_string())
        .env("USED", used.to_string())
        .env("LIVES", lives.to_string())
        .env_remove("USER")
        .exec();
    panic!("{error}");
}

/// Runs `body` in a child that has this process's memory, while this thread waits.
///
/// # Safety
/// `body` must only compute.
unsafe fn vfork_and(body: impl FnOnce()) {
    let mut body = Some(body);
    let mut stack = vec![0u64; 8192];
    extern "C" fn run<F: FnOnce()>(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the caller's body, which lives while the caller waits.
        if let Some(body) = unsafe { (*body.cast::<Option<F>>()).take() } {
            body();
        }
        0
    }
    fn runs<F: FnOnce()>(_: &Option<F>) -> extern "C" fn(*mut libc::c_void) -> libc::c_int {
        run::<F>
    }
    // SAFETY: a stack of its own, and memory that stays while the parent waits.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len() - 2);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let entry = runs(&body);
        let child = libc::clone(entry, top.cast(), flags, (&raw mut body).cast());
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}
