//! Child processes that change their user or program, or enter new namespaces.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::RecvFlags;
use upshift_board::os;
use upshift_board::wire::{Role, Thread};
use upshift_elevate::current_tid;

use crate::attack::MALLORY;
use crate::child::{number, pin, setting, wait_for_parent};
use crate::client::{Registration, connect, register, registration_outcome};
use crate::process::{elevated_threads, monotonic};

/// Executes `PROGRAM`, whose set-user-id bit may change the user. If `WHEN` is `before`, this
/// happens after connecting and before registering, otherwise after registering. In the first case
/// a child of the process then registers the thread of its parent over the inherited connection,
/// and prints the outcome of the registration. Prints the pid of the process whose user changes.
pub(crate) fn user_changer() {
    let path = PathBuf::from(setting("SOCKET"));
    let connects_first = setting("WHEN") == "before";
    // SAFETY: the only other thread of this process waits for this thread, so it holds no lock.
    let child = unsafe { libc::fork() };
    if child > 0 {
        println!("pid {child}");
        wait_for_parent();
        // SAFETY: the child has not been waited for, so its pid is not reused.
        unsafe { libc::kill(child, libc::SIGKILL) };
        return;
    }
    pin(number("CPU") as usize);
    let own_tid = current_tid();
    let connection = connect(&path);
    if connects_first {
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } == 0 {
            let status = format!("/proc/{own_tid}/status");
            // The real user is unchanged, and the effective user is root.
            let has_changed = || {
                std::fs::read_to_string(&status)
                    .unwrap()
                    .contains("Uid:\t64001\t0\t")
            };
            for _ in 0..1000 {
                if has_changed() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            println!("changed {}", has_changed());
            println!("verdict {}", registration_outcome(&connection, own_tid));
            std::thread::sleep(std::time::Duration::from_secs(5));
            std::process::exit(0);
        }
    } else {
        let registration = Registration::new(&[(own_tid, Role::Worker)]);
        std::mem::forget(registration.page);
        // The connection stays open when another program is executed.
        rustix::io::fcntl_setfd(&registration.socket, rustix::io::FdFlags::empty()).unwrap();
        std::mem::forget(registration.socket);
        while elevated_threads(own_tid).is_empty() {
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

/// Registers as a member of 300 groups, the last of which is `GROUP`.
pub(crate) fn group_member() {
    let mut groups: Vec<u32> = (90_000..90_299).collect();
    groups.push(number("GROUP") as u32);
    // SAFETY: `groups` is valid for the duration of the call. libc changes all threads.
    let failed = unsafe {
        libc::setgroups(groups.len(), groups.as_ptr()) != 0
            || libc::setresgid(64_001, 64_001, 64_001) != 0
            || libc::setresuid(64_001, 64_001, 64_001) != 0
    };
    assert!(!failed);
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    println!(
        "verdict {}",
        registration_outcome(&connection, current_tid())
    );
    wait_for_parent();
}

/// Changes to `MALLORY` in group `GROUP`, enters a user namespace, leaves all groups, and tries to
/// register. The test writes the maps of the namespace, as `newuidmap` and `newgidmap` would.
pub(crate) fn group_leaver() {
    let group = number("GROUP") as u32;
    // SAFETY: `group` is valid for the duration of the call. The child has one thread, as `unshare`
    // requires.
    unsafe {
        let child = libc::fork();
        if child != 0 {
            libc::waitpid(child, std::ptr::null_mut(), 0);
            return;
        }
        let failed = libc::setgroups(1, &raw const group) != 0
            || libc::setresgid(MALLORY, MALLORY, MALLORY) != 0
            || libc::setresuid(MALLORY, MALLORY, MALLORY) != 0;
        assert!(!failed);
        let entered = libc::unshare(libc::CLONE_NEWUSER) == 0;
        println!("namespace {}", if entered { libc::getpid() } else { 0 });
        wait_for_parent();
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
    }
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    println!(
        "verdict {}",
        registration_outcome(&connection, current_tid())
    );
    wait_for_parent();
    std::process::exit(0);
}

/// A millisecond, in ns.
const MS: u64 = 1_000_000;

/// Registers its thread from a new pid namespace, by the TID in that namespace, and prints whether
/// the thread is elevated. Then tries to register other TIDs, and prints how many registrations
/// succeed.
pub(crate) fn pid_namespace_client() {
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    let (page, lines) = os::local_page().unwrap();
    lines.vcpu(0).unwrap().set_running(number("LEVEL") as u8);
    let own_thread = Thread {
        tid: current_tid(),
        vcpu: 0,
        role: Role::Worker,
    };
    let outcome = register(&connection, &[number("CPU") as u32], &[own_thread], &page);
    println!(
        "verdict {}",
        match &outcome {
            Ok(_) => "accepted".to_string(),
            Err(reason) => format!("{reason:?}"),
        }
    );
    if let Ok(doorbells) = &outcome {
        os::ring(&doorbells[1]).unwrap();
    }
    let end = monotonic() + 3_000 * MS;
    let mut elevated = false;
    while !elevated && monotonic() < end {
        // SAFETY: the call has only integer arguments.
        elevated = unsafe { libc::sched_getscheduler(0) } & libc::SCHED_FIFO != 0;
    }
    println!("elevated {elevated}");
    // Registrations of the TIDs of other threads are refused.
    let foreign_tids = [1, 2, 3].map(|tid| {
        let connection = connect(&PathBuf::from(setting("SOCKET")));
        let (page, _lines) = os::local_page().unwrap();
        let thread = Thread { tid, ..own_thread };
        register(&connection, &[number("CPU") as u32], &[thread], &page).is_ok()
    });
    println!(
        "foreign {}",
        foreign_tids
            .iter()
            .filter(|registered| **registered)
            .count()
    );
}

/// Passes its connection to a child, which registers itself over it. Prints the outcome.
pub(crate) fn connection_passer() {
    let connection: OwnedFd = connect(&PathBuf::from(setting("SOCKET")));
    // SAFETY: the only other thread of this process waits for this thread, so it holds no lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the calls have only integer arguments.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(20);
        }
        pin(number("CPU") as usize);
        let (page, _lines) = os::local_page().unwrap();
        let own_thread = Thread {
            tid: current_tid(),
            vcpu: 0,
            role: Role::Worker,
        };
        let result = register(&connection, &[number("CPU") as u32], &[own_thread], &page);
        let outcome =
            result.map_or_else(|reason| format!("{reason:?}"), |_| "accepted".to_string());
        println!("verdict {outcome}");
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: the word is valid for writes for the duration of the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    println!("ready");
    let mut buffer = [0u8; 64];
    let _ = os::receive(connection.as_fd(), &mut buffer, RecvFlags::DONTWAIT);
    wait_for_parent();
}
