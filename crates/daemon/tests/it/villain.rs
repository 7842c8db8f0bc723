//! What hostile children do, and the bystander that measures what they take.
//!
//! Each is bounded as every child is, and by a deadline of its own.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Barrier, Mutex};
use std::thread::Scope;

use rustix::net::RecvFlags;
use upshift_board::os::{self, Mapping};
use upshift_board::wire::{self, Reply, Role, Thread};
use upshift_board::{LocalPage, NOTHING};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::process::{Random, elevated_threads, monotonic};
use crate::protocol::{connect, register};

/// A registration made by hand.
pub(crate) struct Foothold {
    pub(crate) socket: OwnedFd,
    pub(crate) page: Mapping<LocalPage>,
    pub(crate) bells: Vec<OwnedFd>,
}

impl Foothold {
    /// Registers `threads` as those of vCPU 0 on `CPU`, running at `LEVEL`.
    pub(crate) fn new(threads: &[(i32, Role)]) -> Foothold {
        Foothold::try_new(threads).unwrap()
    }

    /// `None`: refused.
    pub(crate) fn try_new(threads: &[(i32, Role)]) -> Option<Foothold> {
        let socket = connect(&PathBuf::from(setting("SOCKET")));
        let (file, page) = os::local_page().unwrap();
        let threads: Vec<Thread> = threads
            .iter()
            .map(|&(tid, role)| Thread { tid, vcpu: 0, role })
            .collect();
        let cpu = number("CPU") as u32;
        let mut bells = register(&socket, &[cpu], &threads, &file).ok()?;
        bells.remove(0);
        let it = Foothold {
            socket,
            page,
            bells,
        };
        it.run(number("LEVEL") as u8);
        Some(it)
    }

    /// Adds the calling thread, whether or not that is allowed; one at a time.
    pub(crate) fn add_current(&self, role: Role) -> bool {
        let own = Thread {
            tid: current_tid(),
            vcpu: 0,
            role,
        };
        let mut message = wire::buffer();
        let length = wire::encode_update(&mut message, &[own], &[]).unwrap();
        os::send(self.socket.as_fd(), &message[..length], &[]).unwrap();
        let mut answer = wire::buffer();
        let (length, _) =
            os::receive(self.socket.as_fd(), &mut answer, RecvFlags::empty()).unwrap();
        let reply = Reply::decode(&answer[..length]).unwrap();
        !matches!(reply, Reply::Refused { .. })
    }

    /// Says that it runs something of `level`.
    pub(crate) fn run(&self, level: u8) {
        self.page.vcpu(0).unwrap().set_running(level);
        os::ring(&self.bells[0]).unwrap();
    }
}

/// So many threads, small ones, which sleep until `gate` is open, as workers.
pub(crate) fn sleepers_behind<'scope>(
    gate: &'scope Mutex<()>,
    scope: &'scope Scope<'scope, '_>,
    count: u64,
) -> Vec<(i32, Role)> {
    let (told, tids) = std::sync::mpsc::channel();
    for _ in 0..count {
        let told = told.clone();
        let small = std::thread::Builder::new().stack_size(64 * 1024);
        let body = move || {
            told.send(current_tid()).unwrap();
            drop(told);
            drop(gate.lock());
        };
        small.spawn_scoped(scope, body).unwrap();
    }
    drop(told);
    tids.iter().map(|tid| (tid, Role::Worker)).collect()
}

/// Burns on `CPU` until the deadline: how much of it it got, and the longest time without, both in µs.
pub(crate) fn gap() {
    pin(number("CPU") as usize);
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let (mut last, mut longest) = (monotonic(), 0);
    while last < deadline {
        let now = monotonic();
        longest = longest.max(now - last);
        last = now;
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("longest {}", longest / 1000);
    wait_for_go();
}

/// Claims to run at `LEVEL` on `CPU`, and sleeps; without a thread if `THREADS` is 0.
pub(crate) fn ghost() {
    pin(number("CPU") as usize);
    let own = [(current_tid(), Role::Worker)];
    let none = setting("THREADS") == "0";
    let it = Foothold::new(if none { &[] } else { &own });
    println!("ready");
    wait_for_go();
    it.run(NOTHING);
}

/// Registers its main thread, which then waits for a lock that a thread of its own holds and burns on `VICTIM` CPU, until the
/// deadline: the kernel lends the one's priority to the other.
pub(crate) fn lender() {
    pin(number("CPU") as usize);
    let role = match setting("ROLE").as_str() {
        "dispatcher" => Role::Dispatcher,
        _ => Role::Worker,
    };
    let _it = Foothold::new(&[(current_tid(), role)]);
    println!("ready");
    let deadline = wait_for_go();
    let lock = AtomicU32::new(0);
    let futex = |operation: i32| {
        // SAFETY: a live word, and no time limit.
        unsafe {
            let none = std::ptr::null::<libc::timespec>();
            libc::syscall(libc::SYS_futex, lock.as_ptr(), operation, 0, none)
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            Kernel
                .sched_setaffinity(0, &CpuSet::only(number("VICTIM") as usize).unwrap())
                .unwrap();
            lock.store(current_tid() as u32, Release);
            let before = cpu_time();
            while monotonic() < deadline {
                std::hint::spin_loop();
            }
            println!("used {}", (cpu_time() - before) / 1000);
            futex(libc::FUTEX_UNLOCK_PI | libc::FUTEX_PRIVATE_FLAG);
        });
        while lock.load(Acquire) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        futex(libc::FUTEX_LOCK_PI | libc::FUTEX_PRIVATE_FLAG);
    });
    wait_for_go();
}

/// As many dispatchers as `THREADS`, each of which burns on `CPU` until the deadline, for `DUTY` percent of each 10 ms.
pub(crate) fn dispatchers() {
    let count = number("THREADS") as usize;
    let cpu = number("CPU") as usize;
    let (tell, told) = std::sync::mpsc::channel();
    let go = Barrier::new(count + 1);
    let deadline = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let burn = || {
            pin(cpu);
            tell.send(current_tid()).unwrap();
            go.wait();
            let before = cpu_time();
            let (period, duty) = (10_000_000, number("DUTY"));
            let goes_on = || monotonic() < deadline.load(Relaxed);
            while goes_on() {
                let began = cpu_time();
                while cpu_time() - began < period * duty / 100 && goes_on() {
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
            .map(|_| (told.recv().unwrap(), Role::Dispatcher))
            .collect();
        let _it = Foothold::new(&tids);
        println!("ready");
        deadline.store(wait_for_go(), Relaxed);
        go.wait();
        let used: u64 = all.into_iter().map(|it| it.join().unwrap()).sum();
        println!("used {}", used / 1000);
        wait_for_go();
    });
}

/// Registers as many vCPUs without threads as it can, all on `CPU`, and rings for all of them until the deadline.
pub(crate) fn crowd() {
    let cpu = number("CPU") as u32;
    let path = PathBuf::from(setting("SOCKET"));
    let mut all = Vec::new();
    let mut count = 0;
    for per in [63, 8, 1] {
        loop {
            let connection = connect(&path);
            let (file, page) = os::local_page().unwrap();
            for vcpu in 0..per {
                let line = page.vcpu(vcpu).unwrap();
                line.set_running((16 + (count + vcpu) % 48) as u8);
            }
            let Ok(bells) = register(&connection, &vec![cpu; per], &[], &file) else {
                break;
            };
            count += per;
            all.push((connection, page, bells));
            if count > 2000 {
                break;
            }
        }
    }
    println!("ready {count}");
    let deadline = wait_for_go();
    while monotonic() < deadline {
        for (_, _, bells) in &all {
            for bell in &bells[1..] {
                os::ring(bell).unwrap();
            }
        }
    }
    println!("done");
    wait_for_go();
}

/// Asks for the census again and again without reading, then reads everything: how many answers hold anything.
pub(crate) fn hoarder() {
    let connections: Vec<OwnedFd> = (0..4)
        .map(|_| connect(&PathBuf::from(setting("SOCKET"))))
        .collect();
    let mut message = wire::buffer();
    let length = wire::encode_census(&mut message);
    let mut asked = 0;
    for _ in 0..100 {
        for connection in &connections {
            asked += u64::from(os::send(connection.as_fd(), &message[..length], &[]).is_ok());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("ready {asked}");
    wait_for_go();
    let mut answers = Vec::new();
    for connection in &connections {
        let mut answer = wire::buffer();
        while let Ok((1.., fds)) = os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT)
        {
            answers.extend(fds);
        }
    }
    let full = answers
        .iter()
        .filter(|it| rustix::fs::fstat(it).unwrap().st_size > 0);
    println!("full {}", full.count());
    let writable = answers.iter().filter(|it| {
        let again = format!("/proc/self/fd/{}", it.as_raw_fd());
        let write = rustix::fs::open(again, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        write.is_ok() || rustix::fs::ftruncate(it, 0).is_ok()
    });
    println!("writable {}", writable.count());
    wait_for_go();
}

/// What the daemon says to a registration of `tid` over `connection`.
pub(crate) fn verdict(connection: &OwnedFd, tid: i32) -> String {
    let worker = Thread {
        tid,
        vcpu: 0,
        role: Role::Worker,
    };
    let (file, _page) = os::local_page().unwrap();
    let outcome = register(connection, &[number("CPU") as u32], &[worker], &file);
    outcome.map_or_else(|reason| format!("{reason:?}"), |_| "in".to_string())
}

/// Becomes `PROGRAM`, and with it maybe another user, after it has connected (`WHEN` is `before`) or after it has registered; says
/// as which process, and what became of the registration.
pub(crate) fn changeling() {
    let path = PathBuf::from(setting("SOCKET"));
    let before = setting("WHEN") == "before";
    // SAFETY: the only other thread of this process waits for this one to end, so it holds no lock.
    let child = unsafe { libc::fork() };
    if child > 0 {
        println!("pid {child}");
        wait_for_go();
        // SAFETY: a child that has not been waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        return;
    }
    pin(number("CPU") as usize);
    let own = current_tid();
    let connection = connect(&path);
    if before {
        // SAFETY: as above.
        if unsafe { libc::fork() } == 0 {
            let status = format!("/proc/{own}/status");
            let changed = || {
                std::fs::read_to_string(&status)
                    .unwrap()
                    .contains("Uid:\t64001\t0\t")
            };
            for _ in 0..1000 {
                if changed() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            println!("changed {}", changed());
            println!("verdict {}", verdict(&connection, own));
            std::thread::sleep(std::time::Duration::from_secs(5));
            std::process::exit(0);
        }
    } else {
        let it = Foothold::new(&[(own, Role::Worker)]);
        std::mem::forget(it.page);
        // The connection outlives this program.
        rustix::io::fcntl_setfd(&it.socket, rustix::io::FdFlags::empty()).unwrap();
        std::mem::forget(it.socket);
        while elevated_threads(own).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        println!("elevated");
    }
    use std::os::unix::process::CommandExt;
    panic!(
        "{}",
        std::process::Command::new(setting("PROGRAM"))
            .arg("20")
            .exec()
    );
}

/// Connects once as each of `USERS` users, and stays.
pub(crate) fn legion() {
    let path = PathBuf::from(setting("SOCKET"));
    let (mut all, first) = (Vec::new(), number("FIRST") as u32);
    for user in 0..number("USERS") as u32 {
        // SAFETY: plain calls, of this thread only.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, first + user, -1) };
        all.push(connect(&path));
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, 0, -1) };
    }
    println!("ready {}", all.len());
    wait_for_go();
    let is_open = |it: &&OwnedFd| {
        let mut answer = wire::buffer();
        let received = os::receive(it.as_fd(), &mut answer, RecvFlags::DONTWAIT);
        received.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    println!("open {}", all.iter().filter(is_open).count());
    wait_for_go();
}

/// A member of 300 groups, the last of which is `GROUP`, tries to register.
pub(crate) fn joiner() {
    let mut groups: Vec<u32> = (90_000..90_299).collect();
    groups.push(number("GROUP") as u32);
    // SAFETY: plain calls with live arguments; the library makes them for every thread.
    let failed = unsafe {
        libc::setgroups(groups.len(), groups.as_ptr()) != 0
            || libc::setresgid(64_001, 64_001, 64_001) != 0
            || libc::setresuid(64_001, 64_001, 64_001) != 0
    };
    assert!(!failed);
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    println!("verdict {}", verdict(&connection, current_tid()));
    wait_for_go();
}

/// Writes random bits over the whole page, and rings now and then, until the deadline: how many words.
pub(crate) fn scribbler() {
    pin(number("CPU") as usize);
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let page = it.page.address().cast::<u64>();
    let mut random = Random(u64::from(number("USER") as u32) << 7 | 1);
    let (before, mut words) = (cpu_time(), 0u64);
    while monotonic() < deadline {
        for _ in 0..1000 {
            // SAFETY: 512 words of a live page, all of them atomics or unused, which others read as atomics.
            unsafe {
                let word = page.add(random.below(512) as usize);
                AtomicU64::from_ptr(word).store(random.below(u64::MAX), Relaxed);
            }
        }
        words += 1000;
        if random.below(4) == 0 {
            os::ring(&it.bells[0]).unwrap();
        }
    }
    println!("wrote {words}");
    println!("used {}", (cpu_time() - before) / 1000);
    wait_for_go();
}

/// Registers, and burns until the deadline in each second period of 37 ms: the even ones if `TURN` is 0.
pub(crate) fn alternator() {
    const PERIOD: u64 = 37_000_000;
    pin(number("CPU") as usize);
    let it = Foothold::new(&[(current_tid(), Role::Worker)]);
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
    it.run(NOTHING);
    wait_for_go();
}
