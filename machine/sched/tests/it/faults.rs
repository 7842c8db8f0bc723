//! System calls that fail: the engine continues or ends with the reason, and all threads are
//! restored.

use std::sync::Arc;

use upshift_elevate::sys::Kernel;
use upshift_elevate::testing::{Call, Faulty};
use upshift_elevate::{Elevator, Policy};
use upshift_sched::policies::RoundRobin;
use upshift_sched::{SchedError, Scheduler};

use crate::world::{Process, attach_all, class, sleep, turn, until};

/// Runs a scheduler of two spinning processes whose system calls fail as `plan` says.
fn run(plan: impl FnOnce(&Faulty), end: impl FnOnce(Scheduler, &Faulty)) {
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = spinners.each_ref().map(Process::pid);
    let before = pids.map(class);
    let faulty = Arc::new(Faulty::new());
    let builder = Elevator::builder().guardian(true).sys(faulty.clone());
    let elevator = builder.build().unwrap();
    let policy = Box::new(RoundRobin::new(1_000_000));
    let scheduler = attach_all(&elevator, &pids, policy, |_| {}, false).unwrap();
    plan(&faulty);
    sleep(100);
    end(scheduler, &faulty);
    assert_eq!(pids.map(class), before);
}

#[test]
fn an_interrupted_call_is_repeated() {
    let Some(_turn) = turn() else { return };
    let plan = |faulty: &Faulty| {
        for skip in [0, 5, 11, 30] {
            faulty.fail(Call::SetScheduler, skip, 3, libc::EINTR);
            faulty.fail(Call::SetAttr, skip / 4, 3, libc::EINTR);
        }
    };
    run(plan, |scheduler, faulty| {
        assert!(!scheduler.is_finished());
        faulty.clear_faults();
        let (report, _) = scheduler.stop().unwrap();
        assert!(report.switches > 20);
    });
}

#[test]
fn a_lost_right_ends_the_scheduler_with_the_reason() {
    let Some(_turn) = turn() else { return };
    let plan = |faulty: &Faulty| faulty.fail(Call::SetScheduler, 9, 1, libc::EPERM);
    run(plan, |scheduler, _| {
        until("it ends", || scheduler.is_finished());
        let error = scheduler.wait().unwrap_err();
        assert!(matches!(error, SchedError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("SCHED_FIFO"), "{error}");
    });
}

#[test]
fn a_cpu_that_is_taken_away_ends_the_scheduler_with_the_reason() {
    let Some(_turn) = turn() else { return };
    let (escaper, spinner) = (Process::start("escape"), Process::start("spin"));
    let faulty = Arc::new(Faulty::new());
    let builder = Elevator::builder().guardian(true).sys(faulty.clone());
    let elevator = builder.build().unwrap();
    let policy = Box::new(RoundRobin::new(1_000_000));
    let pids = [escaper.pid(), spinner.pid()];
    let scheduler = attach_all(&elevator, &pids, policy, |_| {}, false).unwrap();
    // The last CPU seems offline: the kernel has moved the thread, and it cannot be moved back.
    faulty.fail(Call::SetAffinity, 0, 1, libc::EINVAL);
    until("it ends", || scheduler.is_finished());
    let error = scheduler.wait().unwrap_err();
    assert!(matches!(error, SchedError::Cpu { .. }), "{error}");
    assert!(error.to_string().contains("choose another"), "{error}");
    let elevated = |pid| Policy::of(&Kernel, pid).is_ok_and(|policy| policy.looks_elevated());
    assert!(!pids.into_iter().any(elevated));
}

#[test]
fn a_thread_that_seems_to_have_ended_is_elevated_again() {
    let Some(_turn) = turn() else { return };
    let plan = |faulty: &Faulty| faulty.fail(Call::SetScheduler, 3, 2, libc::ESRCH);
    run(plan, |scheduler, _| {
        sleep(300);
        let (report, _) = scheduler.stop().unwrap();
        assert!(
            report.tasks.iter().all(|task| task.threads >= 1),
            "{report:#?}"
        );
        assert!(
            report.tasks.iter().all(|task| task.share > 0.1),
            "{report:#?}"
        );
    });
}

#[test]
fn faults_while_attaching_restore_every_thread() {
    let Some(_turn) = turn() else { return };
    for errno in [libc::EPERM, libc::ENOMEM, libc::EINVAL] {
        for skip in 0..12 {
            // A new child each time: its life is bounded, and a slow machine may take longer for
            // all rounds.
            let spinner = Process::start("spin");
            let before = class(spinner.pid());
            let faulty = Arc::new(Faulty::new());
            let builder = Elevator::builder().guardian(true).sys(faulty.clone());
            let elevator = builder.build().unwrap();
            faulty.fail(Call::Any, skip, 1, errno);
            let policy = Box::new(RoundRobin::new(1_000_000));
            let pids = [spinner.pid()];
            // Some calls may fail without harm.
            drop(attach_all(&elevator, &pids, policy, |_| {}, false));
            faulty.clear_faults();
            drop(elevator);
            assert_eq!(class(spinner.pid()), before, "call {skip}, errno {errno}");
        }
    }
}
