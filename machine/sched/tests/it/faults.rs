//! Tests with failing system calls. The engine must continue, or report the reason and end, and all
//! threads must be restored.

use std::sync::Arc;

use upshift_elevate::sys::Kernel;
use upshift_elevate::testing::{Call, Faulty};
use upshift_elevate::{Elevator, Policy};
use upshift_sched::policies::RoundRobin;
use upshift_sched::{SchedError, Scheduler};

use crate::support::{Process, scheduling_of, serial_test, sleep, start_scheduler, wait_until};

/// Runs a scheduler of two spinning processes. The scheduler's system calls fail as `plan`
/// specifies. Asserts that all threads are restored after `end`.
fn run(plan: impl FnOnce(&Faulty), end: impl FnOnce(Scheduler, &Faulty)) {
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = spinners.each_ref().map(Process::pid);
    let before = pids.map(scheduling_of);
    let faulty = Arc::new(Faulty::new());
    let builder = Elevator::builder().guardian(true).sys(faulty.clone());
    let elevator = builder.build().unwrap();
    let policy = Box::new(RoundRobin::new(1_000_000));
    let scheduler = start_scheduler(&elevator, &pids, policy, |_| {}, false).unwrap();
    plan(&faulty);
    sleep(100);
    end(scheduler, &faulty);
    assert_eq!(pids.map(scheduling_of), before);
}

#[test]
fn an_interrupted_call_is_repeated() {
    let Some(_guard) = serial_test() else { return };
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
    let Some(_guard) = serial_test() else { return };
    let plan = |faulty: &Faulty| faulty.fail(Call::SetScheduler, 9, 1, libc::EPERM);
    run(plan, |scheduler, _| {
        wait_until("the scheduler ends", || scheduler.is_finished());
        let error = scheduler.wait().unwrap_err();
        assert!(matches!(error, SchedError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("SCHED_FIFO"), "{error}");
    });
}

#[test]
fn the_loss_of_the_last_cpu_ends_the_scheduler_with_the_reason() {
    let Some(_guard) = serial_test() else { return };
    let (leaver, spinner) = (
        Process::start("leave-cpu-and-class"),
        Process::start("spin"),
    );
    let faulty = Arc::new(Faulty::new());
    let builder = Elevator::builder().guardian(true).sys(faulty.clone());
    let elevator = builder.build().unwrap();
    let policy = Box::new(RoundRobin::new(1_000_000));
    let pids = [leaver.pid(), spinner.pid()];
    let scheduler = start_scheduler(&elevator, &pids, policy, |_| {}, false).unwrap();
    // The last CPU appears to be offline, because the kernel has moved the thread, and the thread
    // cannot be moved back.
    faulty.fail(Call::SetAffinity, 0, 1, libc::EINVAL);
    wait_until("the scheduler ends", || scheduler.is_finished());
    let error = scheduler.wait().unwrap_err();
    assert!(matches!(error, SchedError::Cpu { .. }), "{error}");
    assert!(error.to_string().contains("choose another"), "{error}");
    let elevated = |pid| Policy::of(&Kernel, pid).is_ok_and(|policy| policy.looks_elevated());
    assert!(!pids.into_iter().any(elevated));
}

#[test]
fn a_thread_that_seems_to_have_ended_is_elevated_again() {
    let Some(_guard) = serial_test() else { return };
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
    let Some(_guard) = serial_test() else { return };
    for errno in [libc::EPERM, libc::ENOMEM, libc::EINVAL] {
        for skip in 0..12 {
            // Each round starts a new child, since the lifetime of a child is limited, and all
            // rounds may take longer on a slow machine.
            let spinner = Process::start("spin");
            let before = scheduling_of(spinner.pid());
            let faulty = Arc::new(Faulty::new());
            let builder = Elevator::builder().guardian(true).sys(faulty.clone());
            let elevator = builder.build().unwrap();
            faulty.fail(Call::Any, skip, 1, errno);
            let policy = Box::new(RoundRobin::new(1_000_000));
            let pids = [spinner.pid()];
            // The result is not checked, because attaching succeeds without some of the calls.
            drop(start_scheduler(&elevator, &pids, policy, |_| {}, false));
            faulty.clear_faults();
            drop(elevator);
            assert_eq!(
                scheduling_of(spinner.pid()),
                before,
                "call {skip}, errno {errno}"
            );
        }
    }
}
