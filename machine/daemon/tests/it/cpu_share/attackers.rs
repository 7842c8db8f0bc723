//! Registered child processes that try to evade the limits on their CPU time. They register again,
//! alternate, or change their threads, programs or priorities.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use upshift_board::NO_LEVEL;
use upshift_board::os::{self};
use upshift_board::wire::{Role, Thread};
use upshift_elevate::current_tid;

use crate::budgets::attackers::spin_until;
use crate::child::{cpu_time, number, pin, setting, wait_for_parent};
use crate::client::{Registration, connect, register};
use crate::process::monotonic;

/// A millisecond, in ns.
const MS: u64 = 1_000_000;

fn role() -> Role {
    match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    }
}

/// Spins, and leaves and registers again every 21 ms, so that no check finds CPU time of its
/// thread.
pub(crate) fn reregistering_spinner() {
    pin(number("CPU") as usize);
    let path = PathBuf::from(setting("SOCKET"));
    let (page, lines) = os::local_page().unwrap();
    lines.vcpu(0).unwrap().set_running(number("LEVEL") as u8);
    println!("ready");
    let deadline = wait_for_parent();
    let before = cpu_time();
    let own_thread = Thread {
        tid: current_tid(),
        vcpu: 0,
        role: role(),
    };
    while monotonic() < deadline {
        let connection = connect(&path);
        let Ok(doorbells) = register(&connection, &[number("CPU") as u32], &[own_thread], &page)
        else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        os::ring(&doorbells[1]).unwrap();
        let end = deadline.min(monotonic() + 21 * MS);
        while monotonic() < end {
            std::hint::spin_loop();
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_parent();
}

/// Starts threads one after the other. Each registers itself, spins for `SPIN_US` and ends.
pub(crate) fn successive_threads() {
    let (cpu, spin_ns) = (number("CPU") as usize, number("SPIN_US") * 1000);
    pin(cpu);
    let registration = Arc::new(Registration::new(&[]));
    println!("ready");
    let deadline = wait_for_parent();
    let used = Arc::new(AtomicU64::new(0));
    while monotonic() < deadline {
        let (registration, used) = (Arc::clone(&registration), Arc::clone(&used));
        let spin = move || {
            if !registration.add_current(role()) {
                std::thread::sleep(Duration::from_millis(1));
                return;
            }
            let end = deadline.min(monotonic() + spin_ns);
            while monotonic() < end {
                std::hint::spin_loop();
            }
            used.fetch_add(cpu_time(), Relaxed);
        };
        std::thread::spawn(spin).join().unwrap();
    }
    println!("used {}", used.load(Relaxed) / 1000);
    wait_for_parent();
}

/// Spins with one thread. In the pauses of that thread, eight threads that have used almost no CPU
/// time alternate, each for too short a time to be paused.
pub(crate) fn pause_spinners() {
    const COUNT: u64 = 8;
    let cpu = number("CPU") as usize;
    pin(cpu);
    let heartbeat = Arc::new(AtomicU64::new(0));
    let deadline = Arc::new(AtomicU64::new(u64::MAX));
    let used = Arc::new(AtomicU64::new(0));
    let (sender, receiver) = std::sync::mpsc::channel();
    let started = Arc::new(AtomicBool::new(false));
    let pause_threads: Vec<_> = (0..COUNT)
        .map(|index| {
            let (heartbeat, deadline, used) = (
                Arc::clone(&heartbeat),
                Arc::clone(&deadline),
                Arc::clone(&used),
            );
            let (sender, started) = (sender.clone(), Arc::clone(&started));
            std::thread::spawn(move || {
                sender.send(current_tid()).unwrap();
                while !started.load(Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                while monotonic() < deadline.load(Relaxed) {
                    // Each thread runs in its part of the time in which the first thread is paused.
                    let paused_ns = monotonic().saturating_sub(heartbeat.load(Relaxed));
                    let part = paused_ns / (MS * 4 / 10) % COUNT;
                    if paused_ns > MS / 5 && part == index {
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
    deadline.store(wait_for_parent(), Relaxed);
    heartbeat.store(monotonic(), Relaxed);
    started.store(true, Release);
    let before = cpu_time();
    while monotonic() < deadline.load(Relaxed) {
        heartbeat.store(monotonic(), Relaxed);
    }
    used.fetch_add(cpu_time() - before, Relaxed);
    registration.run(NO_LEVEL);
    for thread in pause_threads {
        thread.join().unwrap();
    }
    println!("used {}", used.load(Relaxed) / 1000);
    wait_for_parent();
}

/// Spins, and repeatedly lowers itself to the priority of the canary.
pub(crate) fn self_demoter() {
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_parent();
    let before = cpu_time();
    let param = libc::sched_param { sched_priority: 1 };
    let mut demotions = 0u64;
    while monotonic() < deadline {
        let end = monotonic() + MS / 2;
        while monotonic() < end {
            std::hint::spin_loop();
        }
        // The kernel allows this to a thread in SCHED_FIFO only.
        let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        // SAFETY: `param` is valid for the duration of the call.
        demotions +=
            u64::from(unsafe { libc::sched_setscheduler(0, policy, &raw const param) } == 0);
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("demotions {demotions}");
    registration.run(NO_LEVEL);
    wait_for_parent();
}

/// Runs `THREADS` dispatchers until the deadline. Each spins on `CPU` for `DUTY` percent of each 10
/// ms.
pub(crate) fn dispatchers() {
    let count = number("THREADS") as usize;
    let cpu = number("CPU") as usize;
    let (sender, receiver) = std::sync::mpsc::channel();
    let go = Barrier::new(count + 1);
    let deadline = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let spin = || {
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
                    let remaining = period - monotonic() % period;
                    std::thread::sleep(std::time::Duration::from_nanos(remaining));
                }
            }
            cpu_time() - before
        };
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(spin)).collect();
        let tids: Vec<_> = (0..count)
            .map(|_| (receiver.recv().unwrap(), Role::Dispatcher))
            .collect();
        let _registration = Registration::new(&tids);
        println!("ready");
        deadline.store(wait_for_parent(), Relaxed);
        go.wait();
        let used: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        println!("used {}", used / 1000);
        wait_for_parent();
    });
}

/// Registers, and spins until the deadline in every other period of 37 ms. `PHASE` is 0 for periods
/// with an even number, and 1 for periods with an odd number.
pub(crate) fn alternating_spinner() {
    const PERIOD: u64 = 37_000_000;
    pin(number("CPU") as usize);
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let (deadline, phase) = (wait_for_parent(), number("PHASE"));
    let before = cpu_time();
    loop {
        let now = monotonic();
        if now >= deadline {
            break;
        }
        if now / PERIOD % 2 != phase {
            let remaining = PERIOD - now % PERIOD;
            std::thread::sleep(std::time::Duration::from_nanos(remaining));
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    registration.run(NO_LEVEL);
    wait_for_parent();
}

/// Registers and spins, while its own tracer stops it as often as possible.
pub(crate) fn traced() {
    pin(number("CPU") as usize);
    let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
    let own_tid = current_tid();
    // SAFETY: the child makes only system calls until it is killed.
    let tracer = unsafe { libc::fork() };
    if tracer == 0 {
        // SAFETY: `status` is valid for writes, and `ptrace` gets no other address.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(20);
            let null = std::ptr::null_mut::<libc::c_void>();
            if libc::ptrace(libc::PTRACE_SEIZE, own_tid, null, null) != 0 {
                libc::_exit(1);
            }
            loop {
                let mut status = 0;
                libc::ptrace(libc::PTRACE_INTERRUPT, own_tid, null, null);
                libc::waitpid(own_tid, &raw mut status, libc::__WALL);
                libc::usleep(2_000);
                libc::ptrace(libc::PTRACE_CONT, own_tid, null, null);
                libc::usleep(2_000);
            }
        }
    }
    // Allows the tracer, which is a child, to trace this process.
    // SAFETY: the call has only integer arguments.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, tracer) };
    println!("ready");
    let deadline = wait_for_parent();
    let before = cpu_time();
    spin_until(deadline);
    println!("used {}", (cpu_time() - before) / 1000);
    // SAFETY: the child has not been waited for, so its pid is not reused.
    unsafe { libc::kill(tracer, libc::SIGKILL) };
    wait_for_parent();
}

/// If `HOW` is `exec`, registers, spins for 20 ms and executes this program again, from a thread
/// that is not the main thread; the connection stays open. If `HOW` is `vfork`, registers, and
/// spins in children that share its memory while it waits for them.
pub(crate) fn program_changer() {
    pin(number("CPU") as usize);
    let own_thread = [(current_tid(), Role::Worker)];
    if setting("HOW") == "vfork" {
        let registration = Registration::new(&own_thread);
        println!("ready");
        let deadline = wait_for_parent();
        let used = AtomicU64::new(0);
        while monotonic() < deadline {
            // SAFETY: the closure only computes.
            unsafe {
                run_in_vfork(|| {
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
        wait_for_parent();
        return;
    }
    let deadline = match setting("DEADLINE").parse() {
        Ok(deadline) => deadline,
        Err(_) => {
            println!("ready");
            wait_for_parent()
        }
    };
    let mut used: u64 = setting("USED").parse().unwrap_or(0);
    if monotonic() >= deadline {
        println!("used {}", used / 1000);
        println!("executions {}", setting("LIVES"));
        wait_for_parent();
        return;
    }
    // The rate of registrations is limited. If this registration is refused, that of the last
    // execution is still in effect.
    let registration = Registration::try_new(&own_thread);
    let before = cpu_time();
    let end = deadline.min(monotonic() + 20 * MS);
    while monotonic() < end {
        std::hint::spin_loop();
    }
    used += cpu_time() - before;
    if let Some(registration) = registration {
        // The connection stays open when the program is executed again.
        rustix::io::fcntl_setfd(&registration.socket, rustix::io::FdFlags::empty()).unwrap();
        std::mem::forget(registration);
    }
    use std::os::unix::process::CommandExt;
    let executions = setting("LIVES").parse().unwrap_or(0) + 1;
    let error = std::process::Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env("DEADLINE", deadline.to_string())
        .env("USED", used.to_string())
        .env("LIVES", executions.to_string())
        .env_remove("USER")
        .exec();
    panic!("{error}");
}

/// Runs `body` in a child that shares the memory of this process, while the calling thread waits.
///
/// # Safety
/// `body` must only compute.
unsafe fn run_in_vfork(body: impl FnOnce()) {
    let mut body = Some(body);
    let mut stack = vec![0u64; 8192];
    extern "C" fn run<F: FnOnce()>(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is to the caller's `body`, which is valid while the caller waits.
        if let Some(body) = unsafe { (*body.cast::<Option<F>>()).take() } {
            body();
        }
        0
    }
    fn entry_of<F: FnOnce()>(_: &Option<F>) -> extern "C" fn(*mut libc::c_void) -> libc::c_int {
        run::<F>
    }
    // SAFETY: the child has a stack of its own, and `body` is valid, since this thread waits.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len() - 2);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let entry = entry_of(&body);
        let child = libc::clone(entry, top.cast(), flags, (&raw mut body).cast());
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}
