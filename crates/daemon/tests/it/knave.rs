//! Children that turn what the kernel offers everybody against the daemon: leases on files, forks, programs that become others.
//!
//! As in `villain.rs`, each is bounded by a deadline.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift_board::NOTHING;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::child::{cpu_time, number, pin, setting, shared, wait_for_go};
use crate::process::monotonic;
use crate::villain::Foothold;

const MS: u64 = 1_000_000;

/// Registers and burns on `CPU`, and takes a lease on whatever the daemon may read of it: before it registers (`WHEN` is `before`) or after.
/// A thread that opens such a file waits until the lease is broken, 45 s by default.
pub(crate) fn lessor() {
    pin(number("CPU") as usize);
    // SAFETY: plain calls. A process that has changed its user does not own its files in `/proc` before; SIGIO would end it.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    }
    let mut leases = Vec::new();
    if setting("WHEN") == "before" {
        leases.extend(lease_all());
    }
    let it = (setting("JOINS") != "false").then(|| Foothold::new(&[(current_tid(), Role::Worker)]));
    if setting("WHEN") != "before" {
        leases.extend(lease_all());
    }
    println!("leases {}", leases.len());
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    while monotonic() < deadline {
        let end = deadline.min(monotonic() + 20 * MS);
        while monotonic() < end {
            std::hint::spin_loop();
        }
        // Again and again: those that were broken meanwhile.
        for file in &leases {
            lease(file);
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    if let Some(it) = it {
        it.run(NOTHING);
    }
    wait_for_go();
}

fn lease(file: &File) -> bool {
    // SAFETY: a live descriptor and integers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// Leases on the files of this process and its thread.
fn lease_all() -> Vec<File> {
    let (pid, tid) = (std::process::id(), current_tid());
    let names = [
        "stat",
        "status",
        "cgroup",
        "comm",
        "syscall",
        "schedstat",
        "limits",
    ];
    let of = |name: &str| {
        [
            format!("/proc/{pid}/{name}"),
            format!("/proc/{tid}/{name}"),
            format!("/proc/{pid}/task/{tid}/{name}"),
        ]
    };
    let files = names.iter().flat_map(|name| of(name));
    let open = files.filter_map(|path| File::open(path).ok());
    open.filter(lease).collect()
}

/// Starts processes that burn for `EACH` µs on `CPU` and end, one after the other, as fast as it can with `AT_ONCE` at a time; the kernel
/// reaps them. It sleeps itself, so that it has a budget to pass on.
pub(crate) fn stormer() {
    pin(number("CPU") as usize);
    // SAFETY: a plain call: children that end are gone at once.
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
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    println!("used {}", used.load(Relaxed) / 1000);
    println!("born {}", born.load(Relaxed));
    wait_for_go();
}

/// Registers, is elevated, burns for 20 ms and becomes this program again, by `exec` from a thread that is not the main one (`HOW` is
/// `exec`); the connection stays. Or: burns in children that share its memory while it waits for them (`vfork`).
pub(crate) fn shifter() {
    pin(number("CPU") as usize);
    let own = [(current_tid(), Role::Worker)];
    if setting("HOW") == "vfork" {
        let it = Foothold::new(&own);
        println!("ready");
        let deadline = wait_for_go();
        let used = AtomicU64::new(0);
        while monotonic() < deadline {
            // SAFETY: the child computes in memory that is its parent's, which waits, and ends.
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
        it.run(NOTHING);
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
    // The rate of registrations is limited: in the meantime it has what the last life has left it.
    let it = Foothold::try_new(&own);
    let before = cpu_time();
    let end = deadline.min(monotonic() + 20 * MS);
    while monotonic() < end {
        std::hint::spin_loop();
    }
    used += cpu_time() - before;
    if let Some(it) = it {
        // The connection outlives this program.
        rustix::io::fcntl_setfd(&it.socket, rustix::io::FdFlags::empty()).unwrap();
        std::mem::forget(it);
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
/// `body` computes only.
unsafe fn vfork_and(body: impl FnOnce()) {
    let mut body = Some(body);
    let mut stack = vec![0u64; 8192];
    extern "C" fn run<F: FnOnce()>(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the caller's, which lives and waits.
        if let Some(body) = unsafe { (*body.cast::<Option<F>>()).take() } {
            body();
        }
        0
    }
    fn runs<F: FnOnce()>(_: &Option<F>) -> extern "C" fn(*mut libc::c_void) -> libc::c_int {
        run::<F>
    }
    // SAFETY: a stack of its own, and memory that stays as the parent waits.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len() - 2);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let entry = runs(&body);
        let child = libc::clone(entry, top.cast(), flags, (&raw mut body).cast());
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}
