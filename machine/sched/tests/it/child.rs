//! The entry point of the child processes of these tests. The environment variable [`ROLE`] selects
//! the behaviour of a child.

use std::io::Write;
use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{Elevator, Policy};
use upshift_sched::policies::RoundRobin;

use crate::support::{ROLE, start_scheduler};

/// Maximum lifetime of a child process, which is longer than any test takes on a slow machine.
const MAX_LIFETIME: Duration = Duration::from_secs(100);

/// Runs the role of a child process. Returns at once if no role is set, because this function then
/// runs as one of the tests.
#[test]
fn entry_point() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    // SAFETY: the calls have only integer arguments.
    unsafe {
        libc::alarm(MAX_LIFETIME.as_secs() as u32 + 5);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    print_line("ready");
    match role.as_str() {
        "spin" => spin(MAX_LIFETIME),
        "spin-briefly" => {
            wait_until_scheduled();
            spin(Duration::from_millis(300));
        }
        "start-threads" => {
            wait_until_scheduled();
            std::thread::sleep(Duration::from_millis(100));
            let threads: Vec<_> = (0..3)
                .map(|_| std::thread::spawn(|| spin(MAX_LIFETIME)))
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        }
        "replace-threads" => replace_threads(Instant::now() + MAX_LIFETIME),
        "fork-spinner" => fork_spinner(),
        "end-main-thread" => end_main_thread(),
        "exec" => {
            use std::os::unix::process::CommandExt;
            wait_until_scheduled();
            // Tests run on other threads than the main thread; `exec` makes this one the main
            // thread.
            panic!("{}", std::process::Command::new("sleep").arg("100").exec());
        }
        "leave-cpu-and-class" => leave_cpu_and_class(),
        "many-threads" => many_threads(),
        "lock" => lock(false),
        "lock-and-exit" => lock(true),
        "migrate-threads" => migrate_threads(),
        "lend-priority" => lend_priority(),
        "spin-on-first-cpu" => spin_on_first_cpu(),
        "swap-thread" => swap_thread(),
        "thread-per-request" => thread_per_request(),
        "schedule" => schedule(),
        other => panic!("no role {other}"),
    }
}

fn wait_until_scheduled() {
    let elevated = || Policy::of(&Kernel, 0).is_ok_and(|policy| policy.looks_elevated());
    while !elevated() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn print_line(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

/// Each thread spins, starts its successor and ends.
fn replace_threads(end: Instant) {
    fn next(end: Instant) {
        spin(Duration::from_millis(300));
        if Instant::now() < end {
            std::thread::spawn(move || next(end));
        }
    }
    std::thread::spawn(move || next(end));
    std::thread::sleep(MAX_LIFETIME);
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Forks a child that spins, and waits for it.
fn fork_spinner() {
    wait_until_scheduled();
    // SAFETY: the child only makes system calls and spins, and takes no lock.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the calls have only integer arguments.
        unsafe {
            libc::alarm(MAX_LIFETIME.as_secs() as u32);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        spin(MAX_LIFETIME);
        // SAFETY: `_exit` ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the null pointer means that the status is not stored.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// Forks a child whose main thread ends while another thread spins. Prints the child's pid.
fn end_main_thread() {
    // SAFETY: this process has no other thread that holds a lock. The child's main thread ends
    // without running exit handlers of the parent.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the calls have only integer arguments.
        unsafe { libc::alarm(MAX_LIFETIME.as_secs() as u32) };
        std::thread::spawn(|| {
            spin(MAX_LIFETIME);
            // SAFETY: the call has only integer arguments, and ends the process.
            unsafe { libc::_exit(0) };
        });
        // SAFETY: the call ends the calling thread, from which no other thread borrows.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    print_line(&format!("child {pid}"));
    // SAFETY: the null pointer means that the status is not stored.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// Waits until it is scheduled, and starts two thousand threads that wake every 500 ms.
fn many_threads() {
    wait_until_scheduled();
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..2000 {
        let idle = || {
            let end = Instant::now() + MAX_LIFETIME;
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(500));
            }
        };
        let builder = std::thread::Builder::new().stack_size(64 * 1024);
        builder.spawn(idle).unwrap();
    }
    std::thread::sleep(MAX_LIFETIME);
}

fn first_cpu() -> CpuSet {
    CpuSet::only(0).unwrap()
}

/// As an ordinary user, runs threads one after the other. Each moves to another CPU as soon as it
/// is elevated, and spins there.
fn migrate_threads() {
    become_nobody();
    println!("attacker {}", std::process::id());
    print_line("");
    let end = Instant::now() + MAX_LIFETIME;
    while Instant::now() < end {
        let migrate_and_spin = || {
            wait_until_scheduled();
            let _ = Kernel.sched_setaffinity(0, &first_cpu());
            spin(Duration::from_millis(300));
        };
        std::thread::spawn(migrate_and_spin).join().unwrap();
    }
}

/// As an ordinary user, waits for a lock of a child that is not scheduled and spins on another CPU.
fn lend_priority() {
    become_nobody();
    // SAFETY: the page is newly mapped, zeroed and never unmapped.
    let lock: &std::sync::atomic::AtomicU32 = unsafe {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        &*libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0).cast()
    };
    use std::sync::atomic::Ordering::SeqCst;
    // SAFETY: the child only makes system calls and spins, and takes no lock of libc.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the calls have only integer arguments.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(30);
        }
        Kernel.sched_setaffinity(0, &first_cpu()).unwrap();
        lock.store(upshift_elevate::current_tid() as u32, SeqCst);
        spin(MAX_LIFETIME);
    }
    while lock.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("attacker {child}");
    print_line("");
    wait_until_scheduled();
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word is valid for the duration of the call; a null time means no limit.
    unsafe { libc::syscall(libc::SYS_futex, lock.as_ptr(), libc::FUTEX_LOCK_PI, 0, none) };
}

/// Spins on the first CPU, in a session of its own.
fn spin_on_first_cpu() {
    // The test is about a program of another session.
    // SAFETY: the call has no arguments.
    unsafe { libc::setsid() };
    // Printed first, since this process may have to wait for the other CPU.
    print_line("spinning");
    Kernel.sched_setaffinity(0, &first_cpu()).unwrap();
    spin(MAX_LIFETIME);
}

fn become_nobody() {
    // SAFETY: the calls have only integer arguments. libc changes all threads.
    let failed = unsafe {
        libc::setresgid(64_001, 64_001, 64_001) | libc::setresuid(64_001, 64_001, 64_001)
    };
    assert_eq!(failed, 0);
}

/// Ends a thread that has been scheduled for 300 ms, and starts another thread before the next scan
/// of the scheduler. Prints the TID of the thread that has ended.
fn swap_thread() {
    wait_until_scheduled();
    let (sender, receiver) = std::sync::mpsc::channel();
    let first = std::thread::spawn(move || {
        sender.send(upshift_elevate::current_tid()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        std::thread::spawn(|| std::thread::sleep(MAX_LIFETIME));
    });
    let tid = receiver.recv().unwrap();
    first.join().unwrap();
    println!("swapped {tid}");
    print_line("");
    std::thread::sleep(MAX_LIFETIME);
}

/// Starts threads one after the other, like a server with a thread for each request. Each thread
/// spins for 0.5 ms and ends.
fn thread_per_request() {
    let end = Instant::now() + MAX_LIFETIME;
    while Instant::now() < end {
        let work = std::thread::spawn(|| spin(Duration::from_micros(500)));
        work.join().unwrap();
    }
}

/// As an ordinary user, takes the lock that a scheduler of the process `PIDS` would take. If
/// `exits`, this process ends, and a child holds the lock.
fn lock(exits: bool) {
    become_nobody();
    let pid = std::env::var("PIDS").unwrap();
    let tasks = std::fs::File::open(format!("/proc/{pid}/task")).unwrap();
    tasks.try_lock().unwrap();
    if exits {
        // SAFETY: the child makes only system calls.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            println!("holder {pid}");
            print_line("locked");
            // SAFETY: the call has only integer arguments, and ends the process.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: the call has only integer arguments.
        unsafe { libc::alarm(MAX_LIFETIME.as_secs() as u32) };
    } else {
        print_line("locked");
    }
    std::thread::sleep(MAX_LIFETIME);
}

/// Repeatedly leaves SCHED_FIFO and its CPU.
fn leave_cpu_and_class() {
    let end = Instant::now() + MAX_LIFETIME;
    while Instant::now() < end {
        let _ = Kernel.sched_setaffinity(0, &CpuSet::all());
        let _ = Kernel.sched_setscheduler(0, libc::SCHED_OTHER, 0);
        spin(Duration::from_millis(20));
    }
}

/// Schedules the processes `PIDS` until it is killed.
fn schedule() {
    let pids = std::env::var("PIDS").unwrap();
    let pids: Vec<i32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    let builder = Elevator::builder().guardian(true);
    let elevator = builder
        .heartbeat(Duration::from_millis(200))
        .build()
        .unwrap();
    let policy = RoundRobin::new(300_000);
    let scheduler = start_scheduler(&elevator, &pids, Box::new(policy), |_| {}, false);
    print_line("scheduling");
    std::thread::sleep(MAX_LIFETIME);
    drop(scheduler);
}
