//! Roles of the child processes.

use std::io::Write;
use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{Elevator, Policy};
use upshift_sched::policies::RoundRobin;

use crate::world::{ROLE, attach_all};

/// Longest life of a child; longer than a slow machine takes for any test.
const LIFE: Duration = Duration::from_secs(100);

/// Is not a test of its own: other tests start this program as their child.
#[test]
fn plays_a_role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    // SAFETY: plain calls.
    unsafe {
        libc::alarm(LIFE.as_secs() as u32 + 5);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    say("ready");
    match role.as_str() {
        "spin" => spin(LIFE),
        "spin briefly" => {
            wait_until_scheduled();
            spin(Duration::from_millis(300));
        }
        "bear threads" => {
            wait_until_scheduled();
            std::thread::sleep(Duration::from_millis(100));
            let threads: Vec<_> = (0..3).map(|_| std::thread::spawn(|| spin(LIFE))).collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        }
        "replace threads" => replace(Instant::now() + LIFE),
        "fork" => fork(),
        "end the main thread" => end_the_main_thread(),
        "exec" => {
            use std::os::unix::process::CommandExt;
            wait_until_scheduled();
            // This thread is not the main thread, but becomes it.
            panic!("{}", std::process::Command::new("sleep").arg("100").exec());
        }
        "escape" => escape(),
        "crowd" => crowd(),
        "lock" => lock(false),
        "lock and leave" => lock(true),
        "migrate" => migrate(),
        "lend" => lend(),
        "gap" => gap(),
        "swap a thread" => swap(),
        "serve by threads" => serve_by_threads(),
        "schedule" => schedule(),
        other => panic!("no role {other}"),
    }
}

/// Waits until a scheduler has elevated this thread.
fn wait_until_scheduled() {
    let elevated = || Policy::of(&Kernel, 0).is_ok_and(|policy| policy.looks_elevated());
    while !elevated() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().unwrap();
}

/// Runs one thread at a time beside the first one: it starts its successor and ends.
fn replace(end: Instant) {
    fn next(end: Instant) {
        spin(Duration::from_millis(300));
        if Instant::now() < end {
            std::thread::spawn(move || next(end));
        }
    }
    std::thread::spawn(move || next(end));
    std::thread::sleep(LIFE);
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Forks a child that spins, and waits for it.
fn fork() {
    wait_until_scheduled();
    // SAFETY: the child only spins and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain calls.
        unsafe {
            libc::alarm(LIFE.as_secs() as u32);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        spin(LIFE);
        // SAFETY: ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits only.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// Forks a child whose main thread ends while another one spins; prints its pid.
fn end_the_main_thread() {
    // SAFETY: the child starts a thread, and its first thread ends without running exit handlers of
    // the parent.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain calls.
        unsafe { libc::alarm(LIFE.as_secs() as u32) };
        std::thread::spawn(|| {
            spin(LIFE);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        });
        // SAFETY: ends this thread only; nothing is borrowed from it.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    say(&format!("child {pid}"));
    // SAFETY: waits only.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

/// Starts two thousand threads that wake now and then, as soon as it is scheduled.
fn crowd() {
    wait_until_scheduled();
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..2000 {
        let idle = || {
            let end = Instant::now() + LIFE;
            while Instant::now() < end {
                std::thread::sleep(Duration::from_millis(500));
            }
        };
        let small = std::thread::Builder::new().stack_size(64 * 1024);
        small.spawn(idle).unwrap();
    }
    std::thread::sleep(LIFE);
}

/// Returns the first CPU, on which no scheduler of the tests runs.
fn elsewhere() -> CpuSet {
    CpuSet::only(0).unwrap()
}

/// Runs, as an ordinary user, threads one after the other that spin on another CPU as soon as they
/// are elevated.
fn migrate() {
    become_nobody();
    println!("takes {}", std::process::id());
    say("");
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        let burn = || {
            wait_until_scheduled();
            let _ = Kernel.sched_setaffinity(0, &elsewhere());
            spin(Duration::from_millis(300));
        };
        std::thread::spawn(burn).join().unwrap();
    }
}

/// Waits, as an ordinary user, for a lock of a child that is not scheduled and spins on another
/// CPU.
fn lend() {
    become_nobody();
    // SAFETY: a fresh anonymous mapping, which the child shares.
    let lock: &std::sync::atomic::AtomicU32 = unsafe {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        &*libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0).cast()
    };
    use std::sync::atomic::Ordering::SeqCst;
    // SAFETY: the child only locks and burns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain calls.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(30);
        }
        Kernel.sched_setaffinity(0, &elsewhere()).unwrap();
        lock.store(upshift_elevate::current_tid() as u32, SeqCst);
        spin(LIFE);
    }
    while lock.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("takes {child}");
    say("");
    wait_until_scheduled();
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: a live word, and no time limit.
    unsafe { libc::syscall(libc::SYS_futex, lock.as_ptr(), libc::FUTEX_LOCK_PI, 0, none) };
}

/// Spins on another CPU.
fn gap() {
    // SAFETY: a plain call; programs of other sessions are the case under test.
    unsafe { libc::setsid() };
    // Printed first, since on the other CPU this process may have to wait.
    say("burns");
    Kernel.sched_setaffinity(0, &elsewhere()).unwrap();
    spin(LIFE);
}

/// Becomes an ordinary user for good.
fn become_nobody() {
    // SAFETY: plain calls; the library makes them for every thread.
    let failed = unsafe {
        libc::setresgid(64_001, 64_001, 64_001) | libc::setresuid(64_001, 64_001, 64_001)
    };
    assert_eq!(failed, 0);
}

/// Ends a thread that has long been scheduled and starts another one in its place, within a scan;
/// prints its number.
fn swap() {
    wait_until_scheduled();
    let (sender, receiver) = std::sync::mpsc::channel();
    let first = std::thread::spawn(move || {
        sender.send(upshift_elevate::current_tid()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        std::thread::spawn(|| std::thread::sleep(LIFE));
    });
    let tid = receiver.recv().unwrap();
    first.join().unwrap();
    println!("swapped {tid}");
    say("");
    std::thread::sleep(LIFE);
}

/// Starts a thread for each piece of work, one after the other, as a server with a thread per
/// request.
fn serve_by_threads() {
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        let work = std::thread::spawn(|| spin(Duration::from_micros(500)));
        work.join().unwrap();
    }
}

/// Becomes an ordinary user and takes the lock that a scheduler of the process `PIDS` would take.
/// `leaves`: a child then holds the lock, and the process that took it has ended.
fn lock(leaves: bool) {
    become_nobody();
    let pid = std::env::var("PIDS").unwrap();
    let tasks = std::fs::File::open(format!("/proc/{pid}/task")).unwrap();
    tasks.try_lock().unwrap();
    if leaves {
        // SAFETY: the child only sleeps.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            println!("holder {pid}");
            say("locked");
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: a plain call.
        unsafe { libc::alarm(LIFE.as_secs() as u32) };
    } else {
        say("locked");
    }
    std::thread::sleep(LIFE);
}

/// Leaves SCHED_FIFO and its CPU again and again.
fn escape() {
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        let _ = Kernel.sched_setaffinity(0, &CpuSet::all());
        let _ = Kernel.sched_setscheduler(0, libc::SCHED_OTHER, 0);
        spin(Duration::from_millis(20));
    }
}

/// Schedules the processes of `PIDS` until it is killed.
fn schedule() {
    let pids = std::env::var("PIDS").unwrap();
    let pids: Vec<i32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    let builder = Elevator::builder().guardian(true);
    let elevator = builder
        .heartbeat(Duration::from_millis(200))
        .build()
        .unwrap();
    let policy = RoundRobin::new(300_000);
    let scheduler = attach_all(&elevator, &pids, Box::new(policy), |_| {}, false);
    say("scheduling");
    std::thread::sleep(LIFE);
    drop(scheduler);
}
