//! Tests in which each system call fails, once or from then on, with each errno of [`ERRORS`]. No
//! thread may stay elevated.

use std::sync::Arc;

use upshift_elevate::testing::{Call, Faulty};
use upshift_elevate::{ElevateError, Elevator, Priority};

use crate::process::{Sleeper, Victim};
use crate::{is_permitted, is_permitted_root};

const ERRORS: [i32; 6] = [
    libc::EPERM,
    libc::ESRCH,
    libc::EINVAL,
    libc::EINTR,
    libc::ENOMEM,
    libc::EBUSY,
];

/// Upper bound for the number of system calls in one round of the test below.
const MAX_CALLS: u64 = 24;

#[test]
fn any_call_may_fail_and_no_thread_stays_elevated() {
    if !is_permitted() {
        return;
    }
    let sleeper = Sleeper::start();
    let former = sleeper.policy();
    for errno in ERRORS {
        for skipped_calls in 0..MAX_CALLS {
            for times in [1, u64::MAX] {
                let faulty = Arc::new(Faulty::new());
                let elevator = Elevator::builder().sys(faulty.clone()).build().unwrap();
                faulty.fail(Call::Any, skipped_calls, times, errno);
                let case = format!("after {skipped_calls} calls, {times} times, errno {errno}");
                match elevator.elevate(sleeper.tid, Priority::of::<5>()) {
                    Ok(guard) => {
                        let _ = guard.set(Priority::of::<6>());
                        let _ = guard.pin(0);
                        let _ = guard.set(Priority::of::<4>());
                        drop(guard);
                        if times == 1 && errno != libc::ESRCH {
                            assert_eq!(sleeper.policy().real_time(), 0, "guard dropped, {case}");
                        }
                    }
                    Err(_) => {
                        assert_eq!(sleeper.policy(), former, "elevation failed, {case}");
                        assert!(elevator.is_empty(), "elevation failed, {case}");
                    }
                }
                faulty.clear_faults();
                drop(elevator);
                if errno != libc::ESRCH {
                    assert_eq!(sleeper.policy().real_time(), 0, "elevator dropped, {case}");
                    assert_eq!(sleeper.policy().class(), former.class(), "{case}");
                }
                // Reset the thread for the next round. The injected error may have kept the
                // elevator from clearing the reset-on-fork flag or, with ESRCH, from restoring the
                // thread.
                let _ = upshift_elevate::sys::Sys::sched_setattr(
                    &upshift_elevate::sys::Kernel,
                    sleeper.tid,
                    former.attr(),
                );
            }
        }
    }
}

#[test]
fn a_thread_that_could_not_be_restored_can_be_elevated_again() {
    if !is_permitted() {
        return;
    }
    let faulty = Arc::new(Faulty::new());
    let elevator = Elevator::builder().sys(faulty.clone()).build().unwrap();
    let sleeper = Sleeper::start();
    let former = sleeper.policy();
    let guard = elevator.elevate(sleeper.tid, Priority::of::<5>()).unwrap();
    faulty.fail(Call::Any, 0, u64::MAX, libc::EPERM);
    let error = guard.release().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    faulty.clear_faults();
    assert_eq!(elevator.len(), 1, "the thread stays recorded");
    let guard = elevator.elevate(sleeper.tid, Priority::of::<6>()).unwrap();
    assert_eq!(guard.former(), Some(former));
    assert_eq!(elevator.len(), 1);
    drop(guard);
    assert_eq!(sleeper.policy(), former);
    assert!(elevator.is_empty());
}

#[test]
fn build_fails_if_the_guardian_cannot_be_forked() {
    for errno in [libc::EAGAIN, libc::ENOMEM] {
        let faulty = Arc::new(Faulty::new());
        faulty.fail(Call::Fork, 0, 1, errno);
        let error = Elevator::builder()
            .guardian(true)
            .sys(faulty)
            .build()
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno));
    }
}

#[test]
fn no_other_process_is_elevated_if_the_lost_guardian_cannot_be_replaced() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("victim");
    let faulty = Arc::new(Faulty::new());
    let elevator = Elevator::builder()
        .guardian(true)
        .sys(faulty.clone())
        .build()
        .unwrap();
    // SAFETY: the pid is valid, because this child has not been waited for.
    unsafe { libc::kill(elevator.guardian_pid().unwrap(), libc::SIGKILL) };
    crate::process::wait_until("the guardian's death is noticed", || {
        elevator.guardian_pid().is_none()
    });
    faulty.fail(Call::Fork, 0, 1, libc::EAGAIN);
    let error = elevator
        .elevate(victim.threads[0].0, Priority::MIN)
        .unwrap_err();
    assert!(matches!(error, ElevateError::GuardianLost(_)), "{error}");
    assert!(victim.first_change().is_none());
}
