//! Children that evade what watches them: they come and go, change places, or hide behind others.
//!
//! As in `villain.rs`, each is bounded by a deadline.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use upshift_board::wire::{Role, Thread};
use upshift_board::{NOTHING, os};
use upshift_elevate::current_tid;

use crate::child::{cpu_time, number, pin, setting, shared, wait_for_go};
use crate::process::monotonic;
use crate::protocol::{connect, register};
use crate::villain::Foothold;

const MS: u64 = 1_000_000;

fn role() -> Role {
    match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    }
}

/// Burns; each 21 ms it leaves and registers again, so that each look finds no use of it on record.
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

/// Threads that burn for `EACH` µs and end, one after the other; each registers its successor before.
pub(crate) fn relay() {
    let (cpu, each) = (number("CPU") as usize, number("EACH") * 1000);
    pin(cpu);
    let it = Arc::new(Foothold::new(&[]));
    println!("ready");
    let deadline = wait_for_go();
    let used = Arc::new(AtomicU64::new(0));
    while monotonic() < deadline {
        let (it, used) = (Arc::clone(&it), Arc::clone(&used));
        let burn = move || {
            if !it.add_current(role()) {
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

/// One thread burns. While it has to leave the CPU to others, eight that have used next to nothing so far take it in turns, each
/// for less than is noticed.
pub(crate) fn understudies() {
    const COUNT: u64 = 8;
    let cpu = number("CPU") as usize;
    pin(cpu);
    let beat = Arc::new(AtomicU64::new(0));
    let deadline = Arc::new(AtomicU64::new(u64::MAX));
    let used = Arc::new(AtomicU64::new(0));
    let (tell, told) = std::sync::mpsc::channel();
    let started = Arc::new(AtomicBool::new(false));
    let all: Vec<_> = (0..COUNT)
        .map(|index| {
            let (beat, deadline, used) =
                (Arc::clone(&beat), Arc::clone(&deadline), Arc::clone(&used));
            let (tell, started) = (tell.clone(), Arc::clone(&started));
            std::thread::spawn(move || {
                tell.send(current_tid()).unwrap();
                while !started.load(Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                while monotonic() < deadline.load(Relaxed) {
                    // Each has its part of the time in which the first one stands still.
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
    threads.extend((0..COUNT).map(|_| (told.recv().unwrap(), Role::Worker)));
    let it = Foothold::new(&threads);
    println!("ready");
    deadline.store(wait_for_go(), Relaxed);
    beat.store(monotonic(), Relaxed);
    started.store(true, Release);
    let before = cpu_time();
    while monotonic() < deadline.load(Relaxed) {
        beat.store(monotonic(), Relaxed);
    }
    used.fetch_add(cpu_time() - before, Relaxed);
    it.run(NOTHING);
    for thread in all {
        thread.join().unwrap();
    }
    println!("used {}", used.load(Relaxed) / 1000);
    wait_for_go();
}

/// A process that is not registered: holds the first of these locks, and waits for the next one; or, with the last one, burns on `VICTIM`
/// CPU as soon as another one waits for it.
fn link(locks: &[AtomicU32]) -> ! {
    pin(number("VICTIM") as usize);
    // SAFETY: plain calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(20);
    }
    locks[0].store(current_tid() as u32, Release);
    let waits_for = |lock: Option<&AtomicU32>, bits: u32| {
        while lock.is_some_and(|it| it.load(Acquire) & bits == 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    waits_for(locks.get(1), u32::MAX);
    if let Some(next) = locks.get(1) {
        // SAFETY: a live word, and no time limit.
        unsafe { libc::syscall(libc::SYS_futex, next.as_ptr(), libc::FUTEX_LOCK_PI, 0, 0) };
    }
    waits_for(locks.first(), libc::FUTEX_WAITERS);
    loop {
        std::hint::spin_loop();
    }
}

/// Its registered thread waits for a lock in memory that it shares with `LINKS` unregistered processes: the first holds it and waits
/// for one of the second, and so on; the last burns on `VICTIM` CPU.
pub(crate) fn patron() {
    pin(number("CPU") as usize);
    // SAFETY: words.
    let locks = unsafe { shared::<[AtomicU32; 8]>() };
    let locks = &locks[..number("LINKS") as usize];
    let children: Vec<libc::pid_t> = (0..locks.len())
        .map(|index| {
            // SAFETY: the child locks, burns and ends; the other thread of this process only waits for this one.
            match unsafe { libc::fork() } {
                0 => link(&locks[index..]),
                child => child,
            }
        })
        .collect();
    while locks.iter().any(|lock| lock.load(Acquire) == 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let ns = i64::try_from(deadline).unwrap();
    let until = libc::timespec {
        tv_sec: ns / 1_000_000_000,
        tv_nsec: ns % 1_000_000_000,
    };
    // SAFETY: a live word and a live time.
    unsafe {
        const LOCK_PI2: i32 = 13;
        libc::syscall(
            libc::SYS_futex,
            locks[0].as_ptr(),
            LOCK_PI2,
            0,
            &raw const until,
        )
    };
    // SAFETY: all the children, which have not been waited for; a live structure.
    let used = unsafe {
        for child in children {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        let mut used = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut used);
        used.ru_utime
    };
    println!("used {}", used.tv_sec * 1_000_000 + used.tv_usec);
    wait_for_go();
}

/// Burns, and again and again puts itself to the priority of the canary, which it may.
pub(crate) fn sinker() {
    pin(number("CPU") as usize);
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
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
        // Only what is in SCHED_FIFO already may.
        let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
        // SAFETY: a live structure.
        sunk += u64::from(unsafe { libc::sched_setscheduler(0, policy, &raw const param) } == 0);
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("sunk {sunk}");
    it.run(NOTHING);
    wait_for_go();
}

/// Once it is elevated, it has the kernel start threads for it: of io_uring, which poll and which work.
pub(crate) fn summoner() {
    pin(number("CPU") as usize);
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    while crate::process::elevated_threads(std::process::id() as i32).is_empty()
        && monotonic() < deadline
    {
        std::hint::spin_loop();
    }
    // `struct io_uring_params`: two lengths, flags, CPU and idle time of the polling thread.
    let mut parameters = [0u32; 30];
    const SQPOLL: u32 = 2;
    parameters[2] = SQPOLL;
    parameters[4] = 10_000;
    // SAFETY: a live structure of the kernel's length.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()) };
    println!("ring {}", i32::from(ring >= 0));
    it.run(NOTHING);
    wait_for_go();
}

/// In a pid namespace of its own: registers the number that its thread has there, and says whether that was elevated.
pub(crate) fn hermit() {
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    let (page, lines) = os::local_page().unwrap();
    lines.vcpu(0).unwrap().set_running(number("LEVEL") as u8);
    let own = Thread {
        tid: current_tid(),
        vcpu: 0,
        role: Role::Worker,
    };
    let outcome = register(&connection, &[number("CPU") as u32], &[own], &page);
    println!(
        "verdict {}",
        match &outcome {
            Ok(_) => "in".to_string(),
            Err(reason) => format!("{reason:?}"),
        }
    );
    if let Ok(bells) = &outcome {
        os::ring(&bells[1]).unwrap();
    }
    let end = monotonic() + 3_000 * MS;
    let mut elevated = false;
    while !elevated && monotonic() < end {
        // SAFETY: plain call.
        elevated = unsafe { libc::sched_getscheduler(0) } & libc::SCHED_FIFO != 0;
    }
    println!("elevated {elevated}");
    // Of others: no number that is not its own.
    let foreign = [1, 2, 3].map(|tid| {
        let connection = connect(&PathBuf::from(setting("SOCKET")));
        let (page, _lines) = os::local_page().unwrap();
        let thread = Thread { tid, ..own };
        register(&connection, &[number("CPU") as u32], &[thread], &page).is_ok()
    });
    println!("foreign {}", foreign.iter().filter(|it| **it).count());
}

/// Changes its level at full speed, between `LEVEL` and a less urgent one, and rings each time.
pub(crate) fn flapper() {
    pin(number("CPU") as usize);
    if setting("POLICY") == "batch" {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: a live structure.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) };
    }
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let listeners = if setting("ROLE") == "listeners" {
        300
    } else {
        0
    };
    let _listeners: Vec<_> = (0..listeners).map(|_| listen_to(&it.bells[0])).collect();
    let level = number("LEVEL") as u8;
    let (before, mut changes) = (cpu_time(), 0);
    while monotonic() < deadline {
        it.run(level + changes as u8 % 8);
        changes += 1;
    }
    println!("changes {changes}");
    println!("used {}", (cpu_time() - before) / 1000);
    it.run(NOTHING);
    wait_for_go();
}

/// Makes the doorbell block for everybody who shares it, and has the kernel tell one epoll more of each ring.
fn listen_to(bell: &std::os::fd::OwnedFd) -> std::os::fd::OwnedFd {
    use rustix::event::epoll;
    rustix::fs::fcntl_setfl(bell, rustix::fs::OFlags::empty()).unwrap();
    let listener = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let all = epoll::EventFlags::IN | epoll::EventFlags::OUT;
    epoll::add(&listener, bell, epoll::EventData::new_u64(0), all).unwrap();
    listener
}

/// As many threads as `THREADS`, all asleep; says when they are there.
pub(crate) fn sleepers() {
    for _ in 0..number("THREADS") {
        let small = std::thread::Builder::new().stack_size(32 * 1024);
        small
            .spawn(|| std::thread::sleep(Duration::from_secs(100)))
            .unwrap();
    }
    println!("ready");
    wait_for_go();
}
