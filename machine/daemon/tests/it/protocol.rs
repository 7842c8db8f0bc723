//! Tests of the protocol: refused registrations, and updates of threads.

use upshift_board::layout::{SLOTS, VCPUS};
use upshift_board::wire::{Reason, Role, Thread};
use upshift_board::{Board, JoinError, ThreadSpec, VcpuSpec, os};
use upshift_daemon::{Config, Daemon, Limits, Rule, Subject};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::client::{connect, register, worker};
use crate::{config, serial_test, socket};

fn run_pinned(body: impl FnOnce() + Send) {
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
fn invalid_registrations_are_refused_with_the_reason() {
    let _guard = serial_test();
    let path = socket("threads");
    let _daemon = Daemon::start(cooperative("threads")).unwrap();
    let (page, _view) = os::local_page().unwrap();
    let try_register = |cpus: &[u32], threads: &[Thread]| {
        register(&connect(&path), cpus, threads, &page).map(drop)
    };
    // SAFETY: the call has no arguments and cannot fail.
    let parent = unsafe { libc::getppid() };
    for tid in [1, parent, i32::MAX] {
        assert_eq!(
            try_register(&[0], &[worker(tid)]),
            Err(Reason::Thread),
            "{tid}"
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
    run_pinned(|| {
        let own_thread = worker(current_tid());
        assert_eq!(
            try_register(&[0], &[own_thread, own_thread]),
            Err(Reason::Thread),
            "a thread was added twice"
        );
        let first = connect(&path);
        register(&first, &[0], &[own_thread], &page).unwrap();
        assert_eq!(
            try_register(&[0], &[own_thread]),
            Err(Reason::Thread),
            "a thread of another registration was added"
        );
        assert_eq!(
            register(&first, &[0], &[], &page).map(drop),
            Err(Reason::State)
        );
    });
}

#[test]
fn users_that_a_rule_denies_are_refused_with_the_reason() {
    let _guard = serial_test();
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
fn a_client_adds_and_removes_threads() {
    let _guard = serial_test();
    let path = socket("update");
    let _daemon = Daemon::start(cooperative("update")).unwrap();
    let board = Board::new().unwrap();
    run_pinned(|| {
        let own_thread = ThreadSpec {
            tid: current_tid(),
            role: Role::Worker,
        };
        let spec = VcpuSpec {
            cpu: 0,
            threads: Vec::new(),
        };
        board.join(&path, &[spec]).unwrap();
        board.update(&[(0, own_thread)], &[]).unwrap();
        assert!(
            board.update(&[(0, own_thread)], &[]).is_err(),
            "a thread was added twice"
        );
        assert!(
            board
                .census()
                .unwrap()
                .json
                .contains(&current_tid().to_string())
        );
        board.update(&[], &[own_thread.tid]).unwrap();
        board.update(&[(0, own_thread)], &[]).unwrap();
        board.leave();
        assert!(!board.is_joined());
        assert!(board.rejoin().is_ok(), "the board cannot join again");
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
    let _guard = serial_test();
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
    let doorbells = register(&connection, &[0; VCPUS], &[], &file).unwrap();
    assert_eq!(doorbells.len(), 1 + VCPUS);
    let status = crate::client::census(&socket("many-vcpus"));
    let vcpus = status["processes"][0]["vcpus"].as_array().unwrap();
    assert_eq!(vcpus[VCPUS - 1]["running"], 7);
    // The global page has space for more than 250 such processes.
    const { assert!(SLOTS / VCPUS > 250) };
}
