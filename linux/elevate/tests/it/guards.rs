//! Tests of guards: refused elevations, restoring, and changes by other programs that a guard must
//! not undo.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
use upshift_elevate::testing::heartbeat_state;
use upshift_elevate::{
    Class, ElevateError, Elevated, Elevator, Policy, Priority, Restored, current_tid,
};

use crate::process::{Sleeper, Victim, wait_until};
use crate::{is_permitted, is_permitted_root};

const PRIORITY_5: Priority = Priority::of::<5>();

#[test]
fn a_thread_gets_policy_and_cpus_back() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let attr = SchedAttr {
        nice: 3,
        ..SchedAttr::normal()
    };
    Kernel.sched_setattr(sleeper.tid, &attr).unwrap();
    let former = sleeper.policy();
    let cpus = Kernel.sched_getaffinity(sleeper.tid).unwrap();

    let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
    assert_eq!(guard.former(), Some(former));
    assert_eq!(sleeper.policy().class(), Class::Fifo(5));
    assert!(sleeper.policy().resets_on_fork());
    guard.set(Priority::of::<7>()).unwrap();
    assert_eq!(sleeper.policy().class(), Class::Fifo(7));
    let cpu = cpus.iter().last().unwrap();
    guard.pin(cpu).unwrap();
    assert_eq!(
        Kernel.sched_getaffinity(sleeper.tid).unwrap(),
        CpuSet::only(cpu).unwrap()
    );
    assert_eq!(elevator.len(), 1);

    assert_eq!(guard.release().unwrap(), Restored::Exactly);
    assert_eq!(sleeper.policy(), former);
    assert_eq!(Kernel.sched_getaffinity(sleeper.tid).unwrap(), cpus);
    assert!(elevator.is_empty());
}

#[test]
fn a_panic_restores_the_thread_while_it_unwinds() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let before = Policy::of(&Kernel, 0).unwrap();
    let panicked = std::panic::catch_unwind(|| {
        let _guard = elevator.elevate_current(PRIORITY_5).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    assert_eq!(Policy::of(&Kernel, 0).unwrap(), before);
}

#[test]
fn children_and_new_threads_of_an_elevated_thread_are_not_elevated() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let _guard = elevator.elevate_current(PRIORITY_5).unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("300")
        .spawn()
        .unwrap();
    let policy = Policy::of(&Kernel, child.id() as i32).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(policy.class(), Class::Other { nice: 0 });
    let thread = std::thread::spawn(|| Policy::of(&Kernel, 0).unwrap());
    assert_eq!(thread.join().unwrap().class(), Class::Other { nice: 0 });
}

#[test]
fn with_a_full_table_no_further_thread_is_elevated() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::builder().capacity(1).build().unwrap();
    let (mut first, second) = (Sleeper::start(), Sleeper::start());
    let guard = elevator.elevate(first.tid, PRIORITY_5).unwrap();
    let error = elevator.elevate(second.tid, PRIORITY_5).unwrap_err();
    assert!(
        matches!(error, ElevateError::TableFull { capacity: 1 }),
        "{error}"
    );
    assert_eq!(second.policy().real_time(), 0);
    // The entry of a thread that has ended is free, even while its guard lives. The guard then acts
    // on no thread.
    first.end();
    let other = elevator.elevate(second.tid, PRIORITY_5).unwrap();
    assert!(!guard.is_alive() && other.is_alive());
    assert_eq!(
        guard.set(PRIORITY_5).unwrap_err().raw_os_error(),
        Some(libc::ESRCH)
    );
    assert_eq!(guard.release().unwrap(), Restored::Gone);
    assert_eq!(second.policy().class(), Class::Fifo(5));
}

#[test]
fn a_thread_is_elevated_at_most_once_in_a_process() {
    if !is_permitted() {
        return;
    }
    let (first, second) = (Elevator::new().unwrap(), Elevator::new().unwrap());
    let sleeper = Sleeper::start();
    let _guard = first.elevate(sleeper.tid, PRIORITY_5).unwrap();
    for elevator in [&first, &second] {
        let error = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap_err();
        assert!(matches!(error, ElevateError::AlreadyElevated(_)), "{error}");
    }
}

#[test]
fn a_thread_that_another_process_elevates_is_refused() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::with_guardian().unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let tid = child.id() as i32;
    let assert_refused = |policy, priority| {
        let policy = policy | libc::SCHED_RESET_ON_FORK;
        Kernel.sched_setscheduler(tid, policy, priority).unwrap();
        let error = elevator.elevate(tid, PRIORITY_5).unwrap_err();
        let by_others = matches!(error, ElevateError::ElevatedByOthers { .. });
        assert!(by_others, "{error}");
        assert!(error.to_string().contains("Stop that scheduler"), "{error}");
    };
    assert_refused(libc::SCHED_FIFO, 12);
    // `upshift sched` leaves this policy while the CPUs have no scheduler.
    assert_refused(libc::SCHED_IDLE, 0);
    assert!(elevator.is_empty());
    // A thread that is not elevated may be elevated, whichever program chose its policy.
    Kernel.sched_setscheduler(tid, libc::SCHED_FIFO, 3).unwrap();
    drop(elevator.elevate(tid, PRIORITY_5).unwrap());
    let restored = Policy::of(&Kernel, tid).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(restored.to_string(), "SCHED_FIFO 3");
}

#[test]
fn threads_above_the_bands_are_refused() {
    if !is_permitted() {
        return;
    }
    let sleeper = Sleeper::start();
    Kernel
        .sched_setscheduler(sleeper.tid, libc::SCHED_FIFO, 60)
        .unwrap();
    let elevator = Elevator::new().unwrap();
    let error = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap_err();
    assert!(matches!(error, ElevateError::AboveBands { .. }), "{error}");
    assert_eq!(sleeper.policy().class(), Class::Fifo(60));
    Kernel
        .sched_setscheduler(sleeper.tid, libc::SCHED_OTHER, 0)
        .unwrap();
}

#[test]
fn a_thread_that_ends_leaves_no_record_even_if_its_guard_leaks() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(elevator.elevate_current(PRIORITY_5).unwrap()));
    });
    assert!(elevator.is_empty());
}

#[test]
fn cpus_that_another_program_has_chosen_are_kept() {
    if !is_permitted() {
        return;
    }
    let sleeper = Sleeper::start();
    let all: Vec<usize> = Kernel
        .sched_getaffinity(sleeper.tid)
        .unwrap()
        .iter()
        .collect();
    let &[pinned, other, ..] = all.as_slice() else {
        crate::skipped("needs two CPUs");
        return;
    };
    let elevator = Elevator::new().unwrap();
    let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
    guard.pin(pinned).unwrap();
    // `taskset` makes this call.
    let chosen = CpuSet::only(other).unwrap();
    Kernel.sched_setaffinity(sleeper.tid, &chosen).unwrap();
    assert_eq!(guard.release().unwrap(), Restored::Exactly);
    assert_eq!(Kernel.sched_getaffinity(sleeper.tid).unwrap(), chosen);
    assert_eq!(sleeper.policy().real_time(), 0);
}

/// Sets a nice value with the system call that `renice` uses.
fn renice(tid: i32, nice: i32) {
    // SAFETY: the call takes no pointers, so it has no preconditions.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as u32, nice) };
    assert_eq!(result, 0);
}

#[test]
fn a_nice_value_that_another_program_has_set_is_kept() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    type Step = fn(&Elevated);
    let steps: [Step; 4] = [
        |_| {},
        |guard| guard.set_fair().unwrap(),
        |guard| guard.set_idle().unwrap(),
        |guard| guard.set_nice(3).unwrap(),
    ];
    for step in steps {
        let sleeper = Sleeper::start();
        let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
        step(&guard);
        renice(sleeper.tid, 19);
        assert_eq!(guard.release().unwrap(), Restored::Exactly);
        assert_eq!(sleeper.policy().class(), Class::Other { nice: 19 });
        assert!(!sleeper.policy().resets_on_fork());
        // The value that the guard has set itself is reverted.
        let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
        guard.set_nice(7).unwrap();
        guard.set(PRIORITY_5).unwrap();
        assert_eq!(guard.release().unwrap(), Restored::Exactly);
        assert_eq!(sleeper.policy().class(), Class::Other { nice: 19 });
    }
}

#[test]
fn a_policy_that_another_program_has_set_is_kept() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    for (policy, priority) in [(libc::SCHED_BATCH, 0), (libc::SCHED_RR, 1)] {
        let sleeper = Sleeper::start();
        let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
        // `chrt` makes this call.
        let attr = SchedAttr {
            policy: policy as u32,
            priority,
            nice: 0,
            ..SchedAttr::normal()
        };
        Kernel.sched_setattr(sleeper.tid, &attr).unwrap();
        let chosen = sleeper.policy();
        assert_eq!(guard.release().unwrap(), Restored::Superseded);
        assert_eq!(sleeper.policy(), chosen);
    }
    assert!(elevator.is_empty());
}

#[test]
fn a_policy_that_another_program_has_set_gets_the_former_nice_value() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let former = sleeper.policy();
    let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
    guard.set_nice(7).unwrap();
    // `sched_setscheduler` leaves the nice value unchanged.
    Kernel
        .sched_setscheduler(sleeper.tid, libc::SCHED_OTHER, 0)
        .unwrap();
    assert_eq!(sleeper.policy().class(), Class::Other { nice: 7 });
    assert_eq!(guard.release().unwrap(), Restored::Superseded);
    assert_eq!(sleeper.policy(), former);
}

#[test]
fn a_new_thread_is_restored_with_the_nice_value_of_its_parent() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let parent = Sleeper::start();
    renice(parent.tid, 4);
    let parent_guard = elevator.elevate(parent.tid, PRIORITY_5).unwrap();
    // The kernel gives nice 0 to the threads of a real-time thread.
    let new_thread = Sleeper::start();
    let guard = elevator
        .elevate_inheriting(new_thread.tid, PRIORITY_5, &parent_guard)
        .unwrap();
    assert_eq!(guard.release().unwrap(), Restored::Exactly);
    assert_eq!(new_thread.policy().class(), Class::Other { nice: 4 });
}

#[test]
fn cpus_that_do_not_exist_are_refused() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let cpus = Kernel.sched_getaffinity(sleeper.tid).unwrap();
    let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
    guard.pin(cpus.iter().next().unwrap()).unwrap();
    // After a refused pin, the guard still restores the CPUs.
    for cpu in [CpuSet::MAX - 1, CpuSet::MAX - 2, CpuSet::MAX, usize::MAX] {
        assert_eq!(
            guard.pin(cpu).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
    }
    drop(guard);
    assert_eq!(Kernel.sched_getaffinity(sleeper.tid).unwrap(), cpus);
}

#[test]
fn threads_of_other_processes_need_a_guardian_and_stay_below_it() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("victim");
    let tid = victim.threads[0].0;
    let error = Elevator::new()
        .unwrap()
        .elevate(tid, PRIORITY_5)
        .unwrap_err();
    assert!(matches!(error, ElevateError::GuardianNeeded(_)), "{error}");
    let elevator = Elevator::with_guardian().unwrap();
    let error = elevator.elevate(tid, Priority::MAX).unwrap_err();
    assert!(
        matches!(error, ElevateError::AboveGuardian { .. }),
        "{error}"
    );
    assert!(victim.first_change().is_none());
    let guard = elevator.elevate(tid, Priority::FOREIGN_MAX).unwrap();
    assert_eq!(
        guard.set(Priority::MAX).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    let guardian = elevator.guardian_pid().unwrap();
    assert_eq!(
        Policy::of(&Kernel, guardian).unwrap().class(),
        Class::Fifo(49)
    );
    drop(guard);
    assert!(victim.first_change().is_none());
    drop(elevator);
    assert!(
        Policy::of(&Kernel, guardian).is_err(),
        "the guardian outlived the elevator"
    );
}

#[test]
fn an_elevator_restores_its_threads_when_dropped_even_if_another_thread_reads_its_table() {
    if !is_permitted() {
        return;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // An elevator reads the tables of all elevators of the process.
        scope.spawn(|| {
            let (elevator, sleeper) = (Elevator::new().unwrap(), Sleeper::start());
            while !stop.load(Relaxed) {
                drop(elevator.elevate(sleeper.tid, PRIORITY_5).unwrap());
            }
        });
        let failed_round = (0..80).find(|_| {
            let elevator = Elevator::new().unwrap();
            let sleeper = Sleeper::start();
            let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
            drop(elevator);
            let guardian = Elevator::with_guardian().unwrap();
            let pid = guardian.guardian_pid().unwrap();
            drop(guardian);
            drop(guard);
            sleeper.policy().real_time() != 0 || Policy::of(&Kernel, pid).is_ok()
        });
        stop.store(true, Relaxed);
        assert_eq!(failed_round, None);
    });
}

/// A thread that restores itself leaves SCHED_FIFO before it has released the table's lock. A busy
/// thread may then preempt it while it holds the lock. A more urgent thread that waits for the lock
/// must still get it in time.
#[test]
fn a_thread_that_restores_itself_does_not_delay_a_more_urgent_thread() {
    if !is_permitted() {
        return;
    }
    let cpu = Kernel.sched_getaffinity(0).unwrap().iter().next().unwrap();
    let pin = || {
        Kernel
            .sched_setaffinity(0, &CpuSet::only(cpu).unwrap())
            .unwrap();
    };
    let elevator = Elevator::new().unwrap();
    let duration = Duration::from_millis(600);
    let (is_busy, is_elevated) = (AtomicBool::new(false), AtomicBool::new(false));
    let longest_wait = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin();
            let guard = elevator.elevate_current(Priority::of::<30>()).unwrap();
            is_elevated.store(true, Relaxed);
            wait_until("the busy thread runs", || is_busy.load(Relaxed));
            drop(guard);
        });
        wait_until("the thread is elevated", || is_elevated.load(Relaxed));
        scope.spawn(|| {
            pin();
            let other = Elevator::new().unwrap();
            let _guard = other.elevate_current(PRIORITY_5).unwrap();
            is_busy.store(true, Relaxed);
            let start = std::time::Instant::now();
            while start.elapsed() < duration {
                std::hint::spin_loop();
            }
        });
        let reader = scope.spawn(|| {
            let other = Elevator::new().unwrap();
            let _guard = other.elevate_current(Priority::of::<40>()).unwrap();
            let (mut longest_wait, start) = (Duration::ZERO, std::time::Instant::now());
            while start.elapsed() < duration / 2 {
                let before = std::time::Instant::now();
                let _ = elevator.len();
                longest_wait = longest_wait.max(before.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest_wait
        });
        reader.join().unwrap()
    });
    // Without the lent priority, the wait would last until the busy thread ends.
    assert!(
        longest_wait < duration / 3,
        "a more urgent thread waited for {longest_wait:?}"
    );
}

#[test]
fn the_guardian_is_invisible_to_wait_loops() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::with_guardian().unwrap();
    // Other tests have children, too, so the call names the guardian.
    let guardian = elevator.guardian_pid().unwrap();
    // SAFETY: the pointer is null, so the call writes no status.
    let result = unsafe { libc::waitpid(guardian, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(result, -1, "`waitpid` found the guardian");
    let descriptors = std::fs::read_dir(format!("/proc/{guardian}/fd")).unwrap();
    assert!(
        descriptors.count() <= 2,
        "the guardian has more descriptors than a socket and a pidfd"
    );
}

/// The daemon's tests print this state if a guardian has not restored a thread in time. It must
/// show the beats and the recorded threads of other processes.
#[test]
fn the_heartbeat_state_shows_the_counters_of_the_guardian() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("victim");
    let interval = Duration::from_secs(1);
    let builder = Elevator::builder().guardian(true).heartbeat(interval);
    // `heartbeat_state` expects a table of the largest capacity.
    let builder = builder.capacity(upshift_elevate::MAX_CAPACITY);
    let elevator = builder.build().unwrap();
    let guardian = elevator.guardian_pid().unwrap();
    let before = heartbeat_state(guardian).unwrap();
    assert_eq!((before.beats, before.demotions, before.foreign), (0, 0, 0));
    let guard = elevator.elevate(victim.threads[0].0, PRIORITY_5).unwrap();
    elevator.beat();
    let after = heartbeat_state(guardian).unwrap();
    assert_eq!((after.beats, after.foreign), (1, 1));
    drop(guard);
    assert_eq!(heartbeat_state(guardian).unwrap().foreign, 0);
    assert!(heartbeat_state(std::process::id() as i32 + (1 << 22)).is_err());
}

#[test]
fn a_forked_child_that_drops_a_guard_restores_no_thread() {
    if !is_permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let guard = elevator.elevate(sleeper.tid, PRIORITY_5).unwrap();
    // SAFETY: the child drops a guard, which does not allocate in a forked child, and exits.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            drop(guard);
            libc::_exit(0);
        }
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    assert_eq!(sleeper.policy().class(), Class::Fifo(5));
    drop(guard);
    assert_eq!(sleeper.policy().real_time(), 0);
}

#[test]
fn a_dead_guardian_is_replaced_before_another_thread_is_elevated() {
    if !is_permitted_root() {
        return;
    }
    let victim = Victim::start("victim");
    let elevator = Elevator::with_guardian().unwrap();
    let first = elevator.guardian_pid().unwrap();
    // SAFETY: the pid is valid, because this child has not been waited for.
    unsafe { libc::kill(first, libc::SIGKILL) };
    wait_until("the death of the guardian is noticed", || {
        elevator.guardian_pid().is_none()
    });
    let guard = elevator.elevate(victim.threads[0].0, PRIORITY_5).unwrap();
    let second = elevator.guardian_pid().unwrap();
    assert_ne!(second, first);
    drop(guard);
}

#[test]
fn a_later_process_of_the_same_pid_is_not_touched() {
    if !is_permitted_root() {
        return;
    }
    let elevator = Elevator::with_guardian().unwrap();
    let mut first = std::process::Command::new("sleep")
        .arg("300")
        .spawn()
        .unwrap();
    let tid = first.id() as i32;
    let guard = elevator.elevate(tid, PRIORITY_5).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    // Start times have a resolution of 10 ms, and must differ.
    std::thread::sleep(Duration::from_millis(30));
    let Some(second) = SamePid::start(tid) else {
        crate::skipped(format_args!(
            "the kernel does not let a process choose pid {tid}"
        ));
        return;
    };
    Kernel.sched_setscheduler(tid, libc::SCHED_FIFO, 4).unwrap();
    assert!(!guard.is_alive());
    assert_eq!(guard.release().unwrap(), Restored::Gone);
    assert_eq!(Policy::of(&Kernel, tid).unwrap().class(), Class::Fifo(4));
    drop(second);
}

/// A sleeping process with a chosen PID.
struct SamePid(i32);

impl SamePid {
    fn start(pid: i32) -> Option<SamePid> {
        let chosen = [pid];
        // SAFETY: zeroes are a valid `clone_args`.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.exit_signal = libc::SIGCHLD as u64;
        arguments.set_tid = chosen.as_ptr() as u64;
        arguments.set_tid_size = 1;
        // SAFETY: the arguments are valid and request a `fork` with a given PID. The child only
        // makes system calls, so it is safe after the fork.
        unsafe {
            let child = libc::syscall(
                libc::SYS_clone3,
                &raw const arguments,
                size_of::<libc::clone_args>(),
            );
            if child == 0 {
                libc::poll(std::ptr::null_mut(), 0, 300_000);
                libc::_exit(0);
            }
            (child == i64::from(pid)).then_some(SamePid(pid))
        }
    }
}

impl Drop for SamePid {
    fn drop(&mut self) {
        // SAFETY: the pid is valid, because the child has not been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn errors_for_threads_that_do_not_exist_name_the_reason() {
    let elevator = Elevator::new().unwrap();
    for tid in [0, -1, i32::MAX] {
        let error = elevator.elevate(tid, PRIORITY_5).unwrap_err();
        let is_named = matches!(
            error,
            ElevateError::NoSuchThread(_) | ElevateError::GuardianNeeded(_)
        );
        assert!(is_named, "{error}");
    }
    assert!(current_tid() > 0);
}

/// No call that takes a sleeping thread out of `SCHED_DEADLINE` may leak the thread's reservation,
/// because a leaked reservation lasts until the kernel rebuilds the scheduling domains.
#[test]
fn the_reservation_of_a_sleeping_thread_is_returned_whichever_call_ends_it() {
    if !is_permitted() {
        return;
    }
    let (elevator, sleeper) = (Elevator::new().unwrap(), Sleeper::start());
    let ms = Duration::from_millis;
    let reserve = |guard: &upshift_elevate::Elevated| {
        let reserved = guard.set_deadline(ms(8), ms(20), ms(20));
        // The kernel returns a reservation only after the current period has ended.
        std::thread::sleep(ms(60));
        reserved
    };
    let guard = elevator.record(sleeper.tid).unwrap();
    if let Err(error) = reserve(&guard) {
        return crate::skipped(format!("this kernel grants no reservation: {error}"));
    }
    guard.set_fair().unwrap();
    drop(guard);
    let cpus = std::thread::available_parallelism().unwrap().get();
    // Each reservation takes 40 % of a CPU. If one of these calls leaked, the reservations of all
    // rounds would together exceed all CPUs, and thus the kernel's bound.
    for (name, leave) in [
        (
            "set",
            (|guard| guard.set(PRIORITY_5))
                as fn(&upshift_elevate::Elevated) -> std::io::Result<()>,
        ),
        ("set_fair", |guard| guard.set_fair()),
        ("set_idle", |guard| guard.set_idle()),
        ("set_nice", |guard| guard.set_nice(3)),
        ("restore", |guard| guard.restore().map(drop)),
    ] {
        for round in 0..cpus * 5 / 2 + 1 {
            let guard = elevator.record(sleeper.tid).unwrap();
            let reserved = reserve(&guard);
            assert!(reserved.is_ok(), "{name}, round {round}: {reserved:?}");
            assert_eq!(sleeper.policy().class(), Class::Deadline);
            leave(&guard).unwrap();
            assert_ne!(sleeper.policy().class(), Class::Deadline);
        }
    }
}
