//! Attacks on the files of `/proc` that the daemon reads: leases, with which their owner makes a
//! reader wait.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::assign::{assigned, rule};
use crate::attack::{
    MALLORY, TIME, TRUDY, daemon_with_rules, from_now, newcomer, settings, start_child,
};
use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::client::{Registration, census};
use crate::process::{Process, elevated_threads, monotonic, until};
use crate::{permitted, skipped, turn};

/// Starts a process of `MALLORY` that holds leases on its files in `/proc`; `None` if the kernel
/// grants none.
fn start_lessor(path: &std::path::Path, more: &[(&str, &str)]) -> Option<Process> {
    let mut all = settings(&[("CPU", "0"), ("LEVEL", "40")]);
    all.push(("USER", MALLORY.to_string()));
    all.extend(settings(more));
    let mut lessor = Process::start("lessor", path, &all);
    let leases = lessor.number("leases ");
    lessor.line("ready")?;
    if leases == 0 {
        skipped("the kernel gives no leases on files of /proc");
        return None;
    }
    println!("{leases} leases");
    Some(lessor)
}

#[test]
fn leases_on_files_in_proc_delay_no_client() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    // A process that registers, one that would be elevated and takes them afterwards, one that a
    // rule may name.
    for more in [
        [("WHEN", "before"), ("JOINS", "false")],
        [("WHEN", "after"), ("JOINS", "true")],
    ] {
        let (path, daemon) = daemon_with_rules("leases", vec![rule(TRUDY, 8)]);
        let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
        let Some(mut lessor) = start_lessor(&path, &more) else {
            return;
        };
        lessor.go_until(from_now(TIME));
        // Longer than a cgroup is cached.
        std::thread::sleep(Duration::from_millis(1200));
        until("a process with unknown quotas is not elevated", || {
            elevated_threads(lessor.pid()).is_empty()
        });
        let waited = newcomer(&path);
        let mut later = Process::start("spinners", &path, &[("USER", TRUDY.to_string())]);
        later.line("ready").unwrap();
        until("a later program is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        println!("{more:?}: a newcomer is elevated after {waited:?}");
        let began = Instant::now();
        daemon.stop();
        let stopped = began.elapsed();
        assert!(elevated_threads(lessor.pid()).is_empty());
        // Opening such a file takes 45 s, or until the lessor ends.
        let held_up = Duration::from_secs(10);
        assert!(
            waited < held_up && stopped < held_up,
            "{waited:?} {stopped:?}"
        );
    }
}

const MS: u64 = 1_000_000;

/// Registers and spins on `CPU`, and takes a lease on every file of it that the daemon may read:
/// before it registers (`WHEN` is `before`) or after. A thread that opens such a file waits until
/// the lease is broken, 45 s by default.
pub(crate) fn lease_holder() {
    pin(number("CPU") as usize);
    // SAFETY: plain calls. Without the first one a process that has changed its user does not own
    // its files in `/proc`; SIGIO would end it.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    }
    let mut leases = Vec::new();
    if setting("WHEN") == "before" {
        leases.extend(lease_all());
    }
    let registration =
        (setting("JOINS") != "false").then(|| Registration::new(&[(current_tid(), Role::Worker)]));
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
        // Takes leases again that were broken meanwhile.
        for file in &leases {
            lease(file);
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    if let Some(registration) = registration {
        registration.run(NO_LEVEL);
    }
    wait_for_go();
}

fn lease(file: &File) -> bool {
    // SAFETY: a live descriptor and integers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// Takes leases on the files of this process and its thread.
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
    let paths = |name: &str| {
        [
            format!("/proc/{pid}/{name}"),
            format!("/proc/{tid}/{name}"),
            format!("/proc/{pid}/task/{tid}/{name}"),
        ]
    };
    let files = names.iter().flat_map(|name| paths(name));
    let open = files.filter_map(|path| File::open(path).ok());
    open.filter(lease).collect()
}
