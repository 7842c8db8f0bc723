//! Attacks through the files of `/proc` that the daemon reads. The owner of such a file can take a
//! lease on the file, which blocks readers.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::assign::{assigned, rule};
use crate::attack::{
    ATTACK_TIME, MALLORY, TRUDY, daemon_with_rules, deadline_after, settings, start_child,
    time_to_elevate_newcomer,
};
use crate::child::{cpu_time, number, pin, setting, wait_for_parent};
use crate::client::{Registration, census};
use crate::process::{Process, elevated_threads, monotonic, wait_until};
use crate::{permitted, serial_test, skipped};

/// Starts a process of [`MALLORY`] that holds leases on its files in `/proc`; `None` if the kernel
/// grants no leases.
fn start_lease_holder(path: &std::path::Path, extra_settings: &[(&str, &str)]) -> Option<Process> {
    let mut child_settings = settings(&[("CPU", "0"), ("LEVEL", "40")]);
    child_settings.push(("USER", MALLORY.to_string()));
    child_settings.extend(settings(extra_settings));
    let mut lease_holder = Process::start("lease-holder", path, &child_settings);
    let leases = lease_holder.number("leases ");
    lease_holder.line("ready")?;
    if leases == 0 {
        skipped("the kernel grants no leases on files of /proc");
        return None;
    }
    println!("{leases} leases");
    Some(lease_holder)
}

#[test]
fn leases_on_files_in_proc_delay_no_client() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    // In the first case a process that never registers takes the leases when it starts. In the
    // second case a client takes them after it has registered.
    for extra_settings in [
        [("WHEN", "before"), ("JOINS", "false")],
        [("WHEN", "after"), ("JOINS", "true")],
    ] {
        let (path, daemon) = daemon_with_rules("leases", vec![rule(TRUDY, 8)]);
        let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
        let Some(mut lease_holder) = start_lease_holder(&path, &extra_settings) else {
            return;
        };
        lease_holder.run_until(deadline_after(ATTACK_TIME));
        // The daemon looks up the cgroup of a process every second.
        std::thread::sleep(Duration::from_millis(1200));
        wait_until(
            "a process whose cgroup cannot be read is not elevated",
            || elevated_threads(lease_holder.pid()).is_empty(),
        );
        let time_to_elevate = time_to_elevate_newcomer(&path);
        let mut later = Process::start("spinners", &path, &[("USER", TRUDY.to_string())]);
        later.line("ready").unwrap();
        wait_until("a later program is assigned", || {
            assigned(&census(&path), later.pid()).is_some()
        });
        println!("{extra_settings:?}: a new client is elevated after {time_to_elevate:?}");
        let began = Instant::now();
        daemon.stop();
        let time_to_stop = began.elapsed();
        assert!(elevated_threads(lease_holder.pid()).is_empty());
        // A reader of the files would wait for 45 s, or until the lease holder ends.
        let limit = Duration::from_secs(10);
        assert!(
            time_to_elevate < limit && time_to_stop < limit,
            "a client was elevated after {time_to_elevate:?}, the daemon stopped after {time_to_stop:?}"
        );
    }
}

/// A millisecond, in ns.
const MS: u64 = 1_000_000;

/// Registers unless `JOINS` is `false`, spins on `CPU`, and takes a lease on each of its files in
/// `/proc` that the daemon may read. If `WHEN` is `before`, it takes the leases before it
/// registers, otherwise afterwards. A thread that opens such a file waits until the lease is
/// broken, which takes 45 s by default.
pub(crate) fn lease_holder() {
    pin(number("CPU") as usize);
    // After a change of user, the files of a process in `/proc` belong to root until the process is
    // dumpable again. SIGIO, which a broken lease causes, must not end the process.
    // SAFETY: the calls have only integer arguments and a valid handler.
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
    let deadline = wait_for_parent();
    let before = cpu_time();
    while monotonic() < deadline {
        let end = deadline.min(monotonic() + 20 * MS);
        while monotonic() < end {
            std::hint::spin_loop();
        }
        // Renews leases that were broken meanwhile.
        for file in &leases {
            lease(file);
        }
    }
    println!("used {}", (cpu_time() - before) / 1000);
    if let Some(registration) = registration {
        registration.run(NO_LEVEL);
    }
    wait_for_parent();
}

fn lease(file: &File) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// Takes all leases that the kernel grants on the files of this process and of the calling thread.
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
