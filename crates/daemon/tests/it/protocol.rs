//! The protocol against the daemon: what is refused, floods of registrations, random bytes, and pages that cannot be misused.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use upshift_board::layout::{GLOBAL_BYTES, SLOTS, VCPUS};
use upshift_board::os;
use upshift_board::wire::{self, Reason, Reply, Role, Thread};
use upshift_board::{Board, JoinError, ThreadSpec, VcpuSpec};
use upshift_daemon::{Config, Daemon, Limits, Rule, Subject};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::hostile::processes;
use crate::process::until;
use crate::{config, socket, turn};

/// Connects, without the client.
pub(crate) fn connect(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).unwrap();
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let patience = Some(Duration::from_secs(5));
    for which in [
        rustix::net::sockopt::Timeout::Recv,
        rustix::net::sockopt::Timeout::Send,
    ] {
        rustix::net::sockopt::set_socket_timeout(&socket, which, patience).unwrap();
    }
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// Sends a registration; the reason of the refusal, or the descriptors.
pub(crate) fn register(
    socket: &OwnedFd,
    cpus: &[u32],
    threads: &[Thread],
    page: &OwnedFd,
) -> Result<Vec<OwnedFd>, Reason> {
    let mut message = wire::buffer();
    let length = wire::encode_register(&mut message, cpus, threads).unwrap();
    os::send(socket.as_fd(), &message[..length], &[page.as_fd()]).unwrap();
    let mut answer = wire::buffer();
    let (length, fds) = os::receive(socket.as_fd(), &mut answer, RecvFlags::empty()).unwrap();
    match Reply::decode(&answer[..length]).unwrap() {
        Reply::Welcome { .. } => Ok(fds),
        Reply::Refused { reason, text } => {
            assert!(!text.is_empty());
            Err(reason)
        }
        other => panic!("{other:?}"),
    }
}

fn worker(tid: i32) -> Thread {
    Thread {
        tid,
        vcpu: 0,
        role: Role::Worker,
    }
}

/// Runs `body` on a thread that is pinned to CPU 0.
fn pinned(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            Kernel
                .sched_setaffinity(0, &CpuSet::only(0).unwrap())
                .unwrap();
            body();
        });
        thread.join().unwrap();
    });
}

pub(crate) fn cooperative(name: &str) -> Config {
    Config {
        cooperative: true,
        ..config(name)
    }
}

#[test]
fn threads_of_others_and_threads_that_roam_are_refused() {
    let _turn = turn();
    let path = socket("threads");
    let _daemon = Daemon::start(cooperative("threads")).unwrap();
    let (page, _view) = os::local_page().unwrap();
    let try_it = |cpus: &[u32], threads: &[Thread]| {
        register(&connect(&path), cpus, threads, &page).map(drop)
    };
    // SAFETY: cannot fail.
    let parent = unsafe { libc::getppid() };
    for foreign in [1, parent, i32::MAX] {
        assert_eq!(
            try_it(&[0], &[worker(foreign)]),
            Err(Reason::Thread),
            "{foreign}"
        );
    }
    assert_eq!(try_it(&[100_000], &[]), Err(Reason::Cpu));
    if std::thread::available_parallelism().unwrap().get() > 1 {
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(try_it(&[0], &[worker(current_tid())]), Err(Reason::Thread)));
        });
    }
    pinned(|| {
        let own = worker(current_tid());
        assert_eq!(try_it(&[0], &[own, own]), Err(Reason::Thread), "twice");
        let first = connect(&path);
        register(&first, &[0], &[own], &page).unwrap();
        assert_eq!(
            try_it(&[0], &[own]),
            Err(Reason::Thread),
            "of another registration"
        );
        assert_eq!(
            register(&first, &[0], &[], &page).map(drop),
            Err(Reason::State)
        );
    });
}

#[test]
fn pages_that_could_be_cut_are_refused_and_sealed_ones_cannot_be() {
    let _turn = turn();
    let path = socket("pages");
    let _daemon = Daemon::start(cooperative("pages")).unwrap();
    let refused =
        |page: &OwnedFd| register(&connect(&path), &[0], &[], page).map(drop) == Err(Reason::Page);
    assert!(refused(&os::memory_file("unsealed", 4096).unwrap()));
    let short = os::memory_file("short", 100).unwrap();
    rustix::fs::fcntl_add_seals(&short, os::LOCAL_SEALS).unwrap();
    assert!(refused(&short));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(refused(&file.into()));
    let holes = os::memory_file("holes", 4096).unwrap();
    let length_only = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&holes, length_only).unwrap();
    assert!(refused(&holes));
    // What is no memory, or memory of which a page may not be there when it is read: huge pages of an empty pool.
    for path in ["/proc", "/dev/zero", "/proc/self/mem"] {
        assert!(refused(&std::fs::File::open(path).unwrap().into()));
    }
    assert!(refused(&os::doorbell().unwrap()));
    let huge = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING;
    if let Ok(huge) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&huge, 2 << 20).is_ok()
        && rustix::fs::fcntl_add_seals(&huge, os::LOCAL_SEALS).is_ok()
    {
        assert!(refused(&huge));
    }
    let (page, view) = os::local_page().unwrap();
    register(&connect(&path), &[0], &[], &page).unwrap();
    assert!(rustix::fs::ftruncate(&page, 0).is_err());
    assert!(rustix::fs::ftruncate(&page, 8192).is_err());
    assert!(rustix::fs::fcntl_add_seals(&page, SealFlags::WRITE).is_err());
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&page, hole, 0, 4096).is_err());
    // SAFETY: the mapping is live; the attempt to take its page away must fail.
    let removed = unsafe { libc::madvise(view.address(), 4096, libc::MADV_REMOVE) };
    assert_eq!(removed, -1);
}

#[test]
fn the_global_page_cannot_be_made_writable() {
    let _turn = turn();
    let path = socket("global");
    let _daemon = Daemon::start(cooperative("global")).unwrap();
    let connection = connect(&path);
    let fds = register(&connection, &[0], &[], &os::local_page().unwrap().0).unwrap();
    let global = &fds[0];
    let reopened = rustix::fs::open(
        format!("/proc/self/fd/{}", global.as_raw_fd()),
        OFlags::RDWR,
        Mode::empty(),
    );
    let write = ProtFlags::READ | ProtFlags::WRITE;
    for fd in std::iter::once(global).chain(&reopened) {
        // SAFETY: fresh mappings, of which nothing is read; the attempts must fail.
        unsafe {
            let null = std::ptr::null_mut();
            assert!(rustix::mm::mmap(null, GLOBAL_BYTES, write, MapFlags::SHARED, fd, 0).is_err());
            let shown =
                rustix::mm::mmap(null, GLOBAL_BYTES, ProtFlags::READ, MapFlags::SHARED, fd, 0)
                    .unwrap();
            let raise = MprotectFlags::READ | MprotectFlags::WRITE;
            assert!(rustix::mm::mprotect(shown, GLOBAL_BYTES, raise).is_err());
            rustix::mm::munmap(shown, GLOBAL_BYTES).unwrap();
        }
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(fd, hole, 0, 4096).is_err());
    }
}

#[test]
fn a_thousand_registrations_a_second_do_not_keep_others_out() {
    let _turn = turn();
    let path = socket("rate");
    // So few that a slow machine asks more often, too.
    let limits = Limits {
        registrations_per_second: 5,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..config("rate")
    })
    .unwrap();
    let (start, mut welcome, mut refused) = (Instant::now(), 0, 0);
    let (page, _view) = os::local_page().unwrap();
    let mut slowest = Duration::ZERO;
    for round in 0..1000u32 {
        match register(&connect(&path), &[0], &[], &page) {
            Ok(_) => welcome += 1,
            Err(Reason::Limit) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        if round % 50 == 0 {
            let asked = Instant::now();
            upshift_board::client::census(&path).unwrap();
            slowest = slowest.max(asked.elapsed());
        }
    }
    println!(
        "{welcome} let in, {refused} refused in {:?}; census at most {slowest:?}",
        start.elapsed()
    );
    assert!(refused > 0, "the rate is limited");
    until("nobody is registered", || processes(&path) == 0);
}

#[test]
fn users_that_a_rule_denies_stay_out_and_are_told_why() {
    let _turn = turn();
    let path = socket("denied");
    let rules = vec![Rule {
        subject: Subject::User(rustix::process::getuid().as_raw()),
        ceiling: None,
    }];
    let _daemon = Daemon::start(Config {
        rules,
        ..cooperative("denied")
    })
    .unwrap();
    let board = Board::new().unwrap();
    let spec = VcpuSpec {
        cpu: 0,
        threads: Vec::new(),
    };
    let error = board.join(&path, &[spec]).unwrap_err();
    assert!(
        matches!(
            &error,
            JoinError::Refused {
                reason: Reason::Forbidden,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("denies"), "{error}");
}

#[test]
fn threads_come_and_go_while_registered() {
    let _turn = turn();
    let path = socket("update");
    let _daemon = Daemon::start(cooperative("update")).unwrap();
    let board = Board::new().unwrap();
    pinned(|| {
        let own = ThreadSpec {
            tid: current_tid(),
            role: Role::Worker,
        };
        let spec = VcpuSpec {
            cpu: 0,
            threads: Vec::new(),
        };
        board.join(&path, &[spec]).unwrap();
        board.update(&[(0, own)], &[]).unwrap();
        assert!(board.update(&[(0, own)], &[]).is_err(), "twice");
        assert!(
            board
                .census()
                .unwrap()
                .json
                .contains(&current_tid().to_string())
        );
        board.update(&[], &[own.tid]).unwrap();
        board.update(&[(0, own)], &[]).unwrap();
        board.leave();
        assert!(!board.is_joined());
        assert!(board.rejoin().is_ok(), "with the threads it had");
        assert!(
            board
                .census()
                .unwrap()
                .json
                .contains(&current_tid().to_string())
        );
    });
}

#[test]
fn a_process_of_a_large_machine_registers_a_vcpu_for_each_cpu() {
    let _turn = turn();
    let limits = Limits {
        per_user: 1000,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..cooperative("many-vcpus")
    })
    .unwrap();
    let connection = connect(&socket("many-vcpus"));
    let (file, page) = os::local_page().unwrap();
    page.vcpu(VCPUS - 1).unwrap().set_running(7);
    let bells = register(&connection, &[0; VCPUS], &[], &file).unwrap();
    assert_eq!(bells.len(), 1 + VCPUS);
    let seen = crate::hostile::census(&socket("many-vcpus"));
    let vcpus = seen["processes"][0]["vcpus"].as_array().unwrap();
    assert_eq!(vcpus[VCPUS - 1]["running"], 7);
    // Enough for 250 such processes.
    const { assert!(SLOTS / VCPUS > 250) };
}
