//! The protocol against the daemon: refusals, floods of registrations, random bytes, and pages that
//! cannot be misused.

use upshift_board::layout::{SLOTS, VCPUS};
use upshift_board::wire::{Reason, Role, Thread};
use upshift_board::{Board, JoinError, ThreadSpec, VcpuSpec, os};
use upshift_daemon::{Config, Daemon, Limits, Rule, Subject};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::client::{connect, register, worker};
use crate::{config, socket, turn};

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
    let try_register = |cpus: &[u32], threads: &[Thread]| {
        register(&connect(&path), cpus, threads, &page).map(drop)
    };
    // SAFETY: a plain call that cannot fail.
    let parent = unsafe { libc::getppid() };
    for foreign in [1, parent, i32::MAX] {
        assert_eq!(
            try_register(&[0], &[worker(foreign)]),
            Err(Reason::Thread),
            "{foreign}"
        );
    }
    assert_eq!(try_register(&[100_000], &[]), Err(Reason::Cpu));
    if std::thread::available_parallelism().unwrap().get() > 1 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(
                    try_register(&[0], &[worker(current_tid())]),
                    Err(Reason::Thread)
                )
            });
        });
    }
    pinned(|| {
        let own = worker(current_tid());
        assert_eq!(
            try_register(&[0], &[own, own]),
            Err(Reason::Thread),
            "twice"
        );
        let first = connect(&path);
        register(&first, &[0], &[own], &page).unwrap();
        assert_eq!(
            try_register(&[0], &[own]),
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
fn users_that_a_rule_denies_are_refused_with_the_reason() {
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
    let seen = crate::client::census(&socket("many-vcpus"));
    let vcpus = seen["processes"][0]["vcpus"].as_array().unwrap();
    assert_eq!(vcpus[VCPUS - 1]["running"], 7);
    // Enough for 250 such processes.
    const { assert!(SLOTS / VCPUS > 250) };
}
