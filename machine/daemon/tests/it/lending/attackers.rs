//! Children that lend their priority by a lock.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::budgets::attackers::burn_until;
use crate::child::{cpu_time, number, pin, setting, shared, wait_for_go};
use crate::client::Registration;
use crate::process::monotonic;

fn futex(lock: &AtomicU32, operation: i32) {
    // SAFETY: a live word, and no time limit.
    unsafe {
        let none = std::ptr::null::<libc::timespec>();
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, lock.as_ptr(), operation, 0, none)
    };
}

/// Runs a process that is not registered: it holds the first of these locks, and waits for the next
/// one; with the last one, it spins on CPU `VICTIM` as soon as another process waits for it.
fn link(locks: &[AtomicU32]) -> ! {
    pin(number("VICTIM") as usize);
    // SAFETY: plain calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(20);
    }
    locks[0].store(current_tid() as u32, Release);
    let waits_for = |lock: Option<&AtomicU32>, bits: u32| {
        while lock.is_some_and(|lock| lock.load(Acquire) & bits == 0) {
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

/// Registers a thread, which waits for a lock in memory that it shares with `LINKS` unregistered
/// processes: the first holds it and waits for one of the second, and so on; the last spins on CPU
/// `VICTIM`.
pub(crate) fn patron() {
    pin(number("CPU") as usize);
    // SAFETY: words.
    let locks = unsafe { shared::<[AtomicU32; 8]>() };
    let locks = &locks[..number("LINKS") as usize];
    let children: Vec<libc::pid_t> = (0..locks.len())
        .map(|index| {
            // SAFETY: the child locks, spins and ends; the other thread of this process only waits
            // for this one.
            match unsafe { libc::fork() } {
                0 => link(&locks[index..]),
                child => child,
            }
        })
        .collect();
    while locks.iter().any(|lock| lock.load(Acquire) == 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
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
    // SAFETY: children that have not been waited for; a live structure.
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

/// Registers a thread, which waits for a lock whose holder waits for another lock, and so on,
/// `LINKS` in all; the last holder spins on `VICTIM`.
pub(crate) fn chain() {
    let links = setting("LINKS").parse().unwrap_or(4);
    pin(number("CPU") as usize);
    let locks: Vec<AtomicU32> = (0..links).map(|_| AtomicU32::new(0)).collect();
    let (locks, deadline) = (&locks, &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for link in (0..links).rev() {
            let body = move || {
                pin(number("VICTIM") as usize);
                locks[link].store(current_tid() as u32, Release);
                if link + 1 < links {
                    futex(&locks[link + 1], libc::FUTEX_LOCK_PI);
                    futex(&locks[link + 1], libc::FUTEX_UNLOCK_PI);
                } else {
                    while deadline.load(Acquire) == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let before = cpu_time();
                    burn_until(deadline.load(Acquire));
                    println!("used {}", (cpu_time() - before) / 1000);
                }
                futex(&locks[link], libc::FUTEX_UNLOCK_PI);
            };
            let small = std::thread::Builder::new().stack_size(64 * 1024);
            small.spawn_scoped(scope, body).unwrap();
            while locks[link].load(Acquire) == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
        println!("ready");
        deadline.store(wait_for_go(), Release);
        futex(&locks[0], libc::FUTEX_LOCK_PI);
        futex(&locks[0], libc::FUTEX_UNLOCK_PI);
        wait_for_go();
    });
}

/// Returns two words in the first 4 GiB, where calls of 32 bits reach them.
fn low_words() -> &'static [AtomicU32; 2] {
    // SAFETY: a fresh anonymous mapping of a page, which stays.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        #[cfg(target_arch = "x86_64")]
        let flags = flags | libc::MAP_32BIT;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(std::ptr::null_mut(), 4096, both, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED);
        &*address.cast()
    }
}

/// Makes a call of a lock, as programs of 64 or of 32 bits do.
fn futex_call(word: &AtomicU32, operation: i32, value: u32, other: Option<&AtomicU32>) -> i64 {
    let other = other.map_or(std::ptr::null_mut(), AtomicU32::as_ptr);
    #[cfg(target_arch = "x86_64")]
    if setting("CALL") == "of 32 bits" {
        let result: i64;
        // SAFETY: call 240 of 32 bits is futex; all addresses are low. No time limit, which is also
        // the second value.
        unsafe {
            std::arch::asm!(
                "push rbx", "mov ebx, {word:e}", "int 0x80", "pop rbx",
                word = in(reg) word.as_ptr() as usize as u32,
                inlateout("rax") 240i64 => result,
                in("ecx") operation, in("edx") value, in("esi") 0, in("edi") other as usize as u32,
            );
        }
        return result;
    }
    // SAFETY: live words, and no time limit, which is also the second value.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            0,
            other,
            0,
        )
    }
}

/// Registers its main thread, which then waits for a lock of a thread that spins on `VICTIM` until
/// the deadline, by the calls that `CALL` names: the kernel lends the priority of the former to the
/// latter.
pub(crate) fn lender() {
    pin(number("CPU") as usize);
    let role = match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    };
    let registration = Registration::new(&[(current_tid(), role)]);
    println!("ready");
    let deadline = wait_for_go();
    let requeued = setting("CALL") == "requeued";
    let [lock, gate] = low_words();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(number("VICTIM") as usize);
            let before = cpu_time();
            lock.store(current_tid() as u32, Release);
            if requeued {
                let requeue = || futex_call(gate, libc::FUTEX_CMP_REQUEUE_PI, 1, Some(lock));
                while requeue() < 1 && monotonic() < deadline {
                    std::thread::yield_now();
                }
            }
            burn_until(deadline);
            println!("used {}", (cpu_time() - before) / 1000);
            futex_call(lock, libc::FUTEX_UNLOCK_PI, 0, None);
        });
        while lock.load(Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if requeued {
            futex_call(gate, libc::FUTEX_WAIT_REQUEUE_PI, 0, Some(lock));
        } else {
            futex_call(lock, libc::FUTEX_LOCK_PI, 0, None);
        }
        futex_call(lock, libc::FUTEX_UNLOCK_PI, 0, None);
    });
    drop(registration);
    wait_for_go();
}

/// Holds a lock and spins on `VICTIM`, without a rule; its child, which the rule for `donor` gives
/// a deadline, waits for that lock.
pub(crate) fn donor() {
    // SAFETY: all 0 is a valid word.
    let lock: &'static AtomicU32 = unsafe { crate::child::shared() };
    // SAFETY: plain calls; the child has one thread and ends with its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above, with a live text.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::prctl(libc::PR_SET_NAME, c"donor".as_ptr());
            while libc::sched_getscheduler(0) & 0xff != libc::SCHED_DEADLINE {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        while lock.load(Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        futex_call(lock, libc::FUTEX_LOCK_PI, 0, None);
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    println!("ready");
    let deadline = wait_for_go();
    pin(number("VICTIM") as usize);
    lock.store(current_tid() as u32, Release);
    while lock.load(Acquire) & libc::FUTEX_WAITERS == 0 && monotonic() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let waits = lock.load(Acquire) & libc::FUTEX_WAITERS != 0;
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("lent {waits}");
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait_for_go();
}

const MS: u64 = 1_000_000;

/// Spins with a worker that holds a lock. When the worker stands still, a dispatcher, which checks
/// each 0.3 ms, waits for the lock, so that the worker continues with its priority; for `LENT` µs,
/// so that no canary is silent.
pub(crate) fn whisperer() {
    pin(number("CPU") as usize);
    let [beat, deadline] = [0, u64::MAX].map(AtomicU64::new);
    let lock = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (lock, beat, deadline) = (&lock, &beat, &deadline);
        scope.spawn(move || {
            sender.send(current_tid()).unwrap();
            while monotonic() < deadline.load(Relaxed) {
                std::thread::sleep(Duration::from_micros(300));
                let last = beat.load(Relaxed);
                if last > 0 && monotonic().saturating_sub(last) > MS / 4 {
                    futex(lock, libc::FUTEX_LOCK_PI);
                    futex(lock, libc::FUTEX_UNLOCK_PI);
                }
            }
        });
        let dispatcher = receiver.recv().unwrap();
        let own = (current_tid(), Role::Worker);
        let registration = Registration::new(&[own, (dispatcher, Role::Dispatcher)]);
        println!("ready");
        deadline.store(wait_for_go(), Relaxed);
        let (before, lent, mut times) = (cpu_time(), number("LENT") * 1000, 0u64);
        let mut since = None;
        loop {
            let now = monotonic();
            if now >= deadline.load(Relaxed) {
                break;
            }
            beat.store(now, Relaxed);
            let _ = lock.compare_exchange(0, own.0 as u32, AcqRel, Acquire);
            if lock.load(Acquire) & libc::FUTEX_WAITERS == 0 {
                since = None;
            } else if now - *since.get_or_insert(now) > lent {
                futex(lock, libc::FUTEX_UNLOCK_PI);
                (since, times) = (None, times + 1);
            }
        }
        println!("used {}", (cpu_time() - before) / 1000);
        println!("lent {times} times");
        if lock.load(Acquire) != 0 {
            futex(lock, libc::FUTEX_UNLOCK_PI);
        }
        registration.run(NO_LEVEL);
    });
    wait_for_go();
}
