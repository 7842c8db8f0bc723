//! Child processes that lend their priority to the holder of a lock.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::budgets::attackers::spin_until;
use crate::child::{cpu_time, number, pin, setting, shared_memory, wait_for_parent};
use crate::client::Registration;
use crate::process::monotonic;

fn futex(lock: &AtomicU32, operation: i32) {
    // SAFETY: the lock is valid for the duration of the call; a null time means no limit.
    unsafe {
        let null = std::ptr::null::<libc::timespec>();
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, lock.as_ptr(), operation, 0, null)
    };
}

/// Runs an unregistered process, which holds the first of these locks and waits for the second. If
/// there is no second lock, it spins on CPU `VICTIM` as soon as another process waits for the
/// first.
fn hold_lock(locks: &[AtomicU32]) -> ! {
    pin(number("VICTIM") as usize);
    // SAFETY: the calls have only integer arguments.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::alarm(20);
    }
    locks[0].store(current_tid() as u32, Release);
    let wait_until_set = |lock: Option<&AtomicU32>, bits: u32| {
        while lock.is_some_and(|lock| lock.load(Acquire) & bits == 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_until_set(locks.get(1), u32::MAX);
    if let Some(next) = locks.get(1) {
        // SAFETY: the lock is valid for the duration of the call; a null time means no limit.
        unsafe { libc::syscall(libc::SYS_futex, next.as_ptr(), libc::FUTEX_LOCK_PI, 0, 0) };
    }
    wait_until_set(locks.first(), libc::FUTEX_WAITERS);
    loop {
        std::hint::spin_loop();
    }
}

/// Registers a thread, which waits for a lock of the first of `LINKS` unregistered processes. Each
/// process holds a lock and waits for the lock of the next process; the last one spins on CPU
/// `VICTIM`.
pub(crate) fn process_lender() {
    pin(number("CPU") as usize);
    // SAFETY: 0 is a valid atomic word.
    let locks = unsafe { shared_memory::<[AtomicU32; 8]>() };
    let locks = &locks[..number("LINKS") as usize];
    let children: Vec<libc::pid_t> = (0..locks.len())
        .map(|index| {
            // SAFETY: the other thread of this process only waits for this thread, so it holds no
            // lock.
            match unsafe { libc::fork() } {
                0 => hold_lock(&locks[index..]),
                child => child,
            }
        })
        .collect();
    while locks.iter().any(|lock| lock.load(Acquire) == 0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_parent();
    let ns = i64::try_from(deadline).unwrap();
    let until = libc::timespec {
        tv_sec: ns / 1_000_000_000,
        tv_nsec: ns % 1_000_000_000,
    };
    // SAFETY: the lock and the time are valid for the duration of the call.
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
    // SAFETY: the children have not been waited for; `used` is valid for writes.
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
    wait_for_parent();
}

/// Registers a thread, which waits for the first of `LINKS` locks. The holder of each lock waits
/// for the next lock; the holder of the last lock spins on CPU `VICTIM`.
pub(crate) fn lock_chain() {
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
                    spin_until(deadline.load(Acquire));
                    println!("used {}", (cpu_time() - before) / 1000);
                }
                futex(&locks[link], libc::FUTEX_UNLOCK_PI);
            };
            let builder = std::thread::Builder::new().stack_size(64 * 1024);
            builder.spawn_scoped(scope, body).unwrap();
            while locks[link].load(Acquire) == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
        println!("ready");
        deadline.store(wait_for_parent(), Release);
        futex(&locks[0], libc::FUTEX_LOCK_PI);
        futex(&locks[0], libc::FUTEX_UNLOCK_PI);
        wait_for_parent();
    });
}

/// Returns two words in the first 4 GiB, which 32-bit system calls can address.
fn low_words() -> &'static [AtomicU32; 2] {
    // SAFETY: the page is newly mapped, zeroed and never unmapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        #[cfg(target_arch = "x86_64")]
        let flags = flags | libc::MAP_32BIT;
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(std::ptr::null_mut(), 4096, read_write, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED);
        &*address.cast()
    }
}

/// Makes a futex call, as a 64-bit or a 32-bit program does.
fn futex_call(word: &AtomicU32, operation: i32, value: u32, other: Option<&AtomicU32>) -> i64 {
    let other = other.map_or(std::ptr::null_mut(), AtomicU32::as_ptr);
    #[cfg(target_arch = "x86_64")]
    if setting("CALL") == "32-bit" {
        let result: i64;
        // SAFETY: the 32-bit call 240 is `futex`, and all addresses are below 4 GiB. The null time
        // means no limit, and is also the second value.
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
    // SAFETY: the words are valid for the duration of the call. The null time means no limit, and
    // is also the second value.
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

/// Registers its main thread, which then waits for a lock, by the kind of futex call that `CALL`
/// names. The holder of the lock spins on CPU `VICTIM` until the deadline, at the priority of the
/// main thread.
pub(crate) fn lender() {
    pin(number("CPU") as usize);
    let role = match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    };
    let registration = Registration::new(&[(current_tid(), role)]);
    println!("ready");
    let deadline = wait_for_parent();
    let by_requeue = setting("CALL") == "requeue";
    let [lock, wait_word] = low_words();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(number("VICTIM") as usize);
            let before = cpu_time();
            lock.store(current_tid() as u32, Release);
            if by_requeue {
                let requeue_waiter =
                    || futex_call(wait_word, libc::FUTEX_CMP_REQUEUE_PI, 1, Some(lock));
                while requeue_waiter() < 1 && monotonic() < deadline {
                    std::thread::yield_now();
                }
            }
            spin_until(deadline);
            println!("used {}", (cpu_time() - before) / 1000);
            futex_call(lock, libc::FUTEX_UNLOCK_PI, 0, None);
        });
        while lock.load(Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if by_requeue {
            futex_call(wait_word, libc::FUTEX_WAIT_REQUEUE_PI, 0, Some(lock));
        } else {
            futex_call(lock, libc::FUTEX_LOCK_PI, 0, None);
        }
        futex_call(lock, libc::FUTEX_UNLOCK_PI, 0, None);
    });
    drop(registration);
    wait_for_parent();
}

/// A millisecond, in ns.
const MS: u64 = 1_000_000;

/// Spins with a worker that holds a lock. A dispatcher checks every 0.3 ms whether the worker runs.
/// If not, the dispatcher waits for the lock, so that the worker runs at the dispatcher's priority,
/// for `LENT` µs, which is too short to silence a canary.
pub(crate) fn pause_lender() {
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
        let own_thread = (current_tid(), Role::Worker);
        let registration = Registration::new(&[own_thread, (dispatcher, Role::Dispatcher)]);
        println!("ready");
        deadline.store(wait_for_parent(), Relaxed);
        let (before, loan_ns, mut loans) = (cpu_time(), number("LENT") * 1000, 0u64);
        let mut since = None;
        loop {
            let now = monotonic();
            if now >= deadline.load(Relaxed) {
                break;
            }
            beat.store(now, Relaxed);
            let _ = lock.compare_exchange(0, own_thread.0 as u32, AcqRel, Acquire);
            if lock.load(Acquire) & libc::FUTEX_WAITERS == 0 {
                since = None;
            } else if now - *since.get_or_insert(now) > loan_ns {
                futex(lock, libc::FUTEX_UNLOCK_PI);
                (since, loans) = (None, loans + 1);
            }
        }
        println!("used {}", (cpu_time() - before) / 1000);
        println!("lent {loans} times");
        if lock.load(Acquire) != 0 {
            futex(lock, libc::FUTEX_UNLOCK_PI);
        }
        registration.run(NO_LEVEL);
    });
    wait_for_parent();
}
