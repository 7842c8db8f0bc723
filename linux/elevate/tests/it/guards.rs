//! Guards: refusals, restoring, and threads that a guard must not touch.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use upshift_elevate::sys::{CpuSet, Kernel, SchedAttr, Sys};
use upshift_elevate::testing::heartbeat_state;
use upshift_elevate::{
    Class, ElevateError, Elevated, Elevator, Policy, Priority, Restored, current_tid,
};

use crate::process::{Sleeper, Victim, until};
use crate::{permitted, root};

const FIVE: Priority = Priority::of::<5>();

#[test]
fn a_thread_gets_policy_and_cpus_back() {
    if !permitted() {
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

    let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
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
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let before = Policy::of(&Kernel, 0).unwrap();
    let panicked = std::panic::catch_unwind(|| {
        let _guard = elevator.elevate_current(FIVE).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    assert_eq!(Policy::of(&Kernel, 0).unwrap(), before);
}

#[test]
fn children_and_threads_of_an_elevated_thread_are_ordinary() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let _guard = elevator.elevate_current(FIVE).unwrap();
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
fn nothing_unrecorded_is_elevated_when_the_table_is_full() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::builder().capacity(1).build().unwrap();
    let (mut first, second) = (Sleeper::start(), Sleeper::start());
    let guard = elevator.elevate(first.tid, FIVE).unwrap();
    let error = elevator.elevate(second.tid, FIVE).unwrap_err();
    assert!(
        matches!(error, ElevateError::TableFull { capacity: 1 }),
        "{error}"
    );
    assert_eq!(second.policy().real_time(), 0);
    // A thread that has ended makes room, even while its guard lives; the guard then acts on no
    // thread.
    first.end();
    let other = elevator.elevate(second.tid, FIVE).unwrap();
    assert!(!guard.is_alive() && other.is_alive());
    assert_eq!(
        guard.set(FIVE).unwrap_err().raw_os_error(),
        Some(libc::ESRCH)
    );
    assert_eq!(guard.release().unwrap(), Restored::Gone);
    assert_eq!(second.policy().class(), Class::Fifo(5));
}

#[test]
fn a_thread_is_elevated_once_in_a_process() {
    if !permitted() {
        return;
    }
    let (one, two) = (Elevator::new().unwrap(), Elevator::new().unwrap());
    let sleeper = Sleeper::start();
    let _guard = one.elevate(sleeper.tid, FIVE).unwrap();
    for elevator in [&one, &two] {
        let error = elevator.elevate(sleeper.tid, FIVE).unwrap_err();
        assert!(matches!(error, ElevateError::AlreadyElevated(_)), "{error}");
    }
}

#[test]
fn a_thread_that_another_process_elevates_is_refused() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::with_guardian().unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let tid = child.id() as i32;
    let theirs = |policy, priority| {
        let policy = policy | libc::SCHED_RESET_ON_FORK;
        Kernel.sched_setscheduler(tid, policy, priority).unwrap();
        let error = elevator.elevate(tid, FIVE).unwrap_err();
        let by_others = matches!(error, ElevateError::ElevatedByOthers { .. });
        assert!(by_others, "{error}");
        assert!(error.to_string().contains("End that one"), "{error}");
    };
    theirs(libc::SCHED_FIFO, 12);
    // The policy that `upshift sched` leaves while the CPUs are open.
    theirs(libc::SCHED_IDLE, 0);
    assert!(elevator.is_empty());
    // A thread that is not elevated may be, whichever program chose its policy.
    Kernel.sched_setscheduler(tid, libc::SCHED_FIFO, 3).unwrap();
    drop(elevator.elevate(tid, FIVE).unwrap());
    let own = Policy::of(&Kernel, tid).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(own.to_string(), "SCHED_FIFO 3");
}

#[test]
fn threads_above_the_bands_are_left_alone() {
    if !permitted() {
        return;
    }
    let sleeper = Sleeper::start();
    Kernel
        .sched_setscheduler(sleeper.tid, libc::SCHED_FIFO, 60)
        .unwrap();
    let elevator = Elevator::new().unwrap();
    let error = elevator.elevate(sleeper.tid, FIVE).unwrap_err();
    assert!(matches!(error, ElevateError::AboveBands { .. }), "{error}");
    assert_eq!(sleeper.policy().class(), Class::Fifo(60));
    Kernel
        .sched_setscheduler(sleeper.tid, libc::SCHED_OTHER, 0)
        .unwrap();
}

#[test]
fn a_thread_that_ends_leaves_no_record_even_if_its_guard_leaks() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(elevator.elevate_current(FIVE).unwrap()));
    });
    assert!(elevator.is_empty());
}

#[test]
fn a_choice_made_from_outside_stands() {
    if !permitted() {
        return;
    }
    let sleeper = Sleeper::start();
    let all: Vec<usize> = Kernel
        .sched_getaffinity(sleeper.tid)
        .unwrap()
        .iter()
        .collect();
    let &[one, other, ..] = all.as_slice() else {
        crate::skipped("needs two CPUs");
        return;
    };
    let elevator = Elevator::new().unwrap();
    let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
    guard.pin(one).unwrap();
    // As `taskset` does.
    let chosen = CpuSet::only(other).unwrap();
    Kernel.sched_setaffinity(sleeper.tid, &chosen).unwrap();
    assert_eq!(guard.release().unwrap(), Restored::Exactly);
    assert_eq!(Kernel.sched_getaffinity(sleeper.tid).unwrap(), chosen);
    assert_eq!(sleeper.policy().real_time(), 0);
}

/// Sets a nice value as `renice` does.
fn renice(tid: i32, nice: i32) {
    // SAFETY: integers only.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as u32, nice) };
    assert_eq!(done, 0);
}

#[test]
fn a_nice_value_that_was_set_meanwhile_stays() {
    if !permitted() {
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
        let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
        step(&guard);
        renice(sleeper.tid, 19);
        assert_eq!(guard.release().unwrap(), Restored::Exactly);
        assert_eq!(sleeper.policy().class(), Class::Other { nice: 19 });
        assert!(!sleeper.policy().resets_on_fork());
        // The value that the guard has set itself is reverted.
        let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
        guard.set_nice(7).unwrap();
        guard.set(FIVE).unwrap();
        assert_eq!(guard.release().unwrap(), Restored::Exactly);
        assert_eq!(sleeper.policy().class(), Class::Other { nice: 19 });
    }
}

#[test]
fn a_policy_that_was_set_meanwhile_stays() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    for (policy, priority) in [(libc::SCHED_BATCH, 0), (libc::SCHED_RR, 1)] {
        let sleeper = Sleeper::start();
        let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
        // As `chrt` does.
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
fn a_policy_that_was_set_meanwhile_gets_the_former_nice_value() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let former = sleeper.policy();
    let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
    guard.set_nice(7).unwrap();
    // This call keeps the nice value.
    Kernel
        .sched_setscheduler(sleeper.tid, libc::SCHED_OTHER, 0)
        .unwrap();
    assert_eq!(sleeper.policy().class(), Class::Other { nice: 7 });
    assert_eq!(guard.release().unwrap(), Restored::Superseded);
    assert_eq!(sleeper.policy(), former);
}

#[test]
fn a_born_thread_is_restored_with_the_nice_value_of_its_parent() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let parent = Sleeper::start();
    renice(parent.tid, 4);
    let like = elevator.elevate(parent.tid, FIVE).unwrap();
    // The kernel gives nice 0 to the threads of a real-time thread.
    let born = Sleeper::start();
    let guard = elevator.elevate_inheriting(born.tid, FIVE, &like).unwrap();
    assert_eq!(guard.release().unwrap(), Restored::Exactly);
    assert_eq!(born.policy().class(), Class::Other { nice: 4 });
}

#[test]
fn cpus_that_do_not_exist_are_refused() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let cpus = Kernel.sched_getaffinity(sleeper.tid).unwrap();
    let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
    guard.pin(cpus.iter().next().unwrap()).unwrap();
    // A refused pin does not make the guard forget where the thread is.
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
fn threads_of_others_need_a_guardian_and_stay_below_it() {
    if !root() {
        return;
    }
    let victim = Victim::start("victim");
    let tid = victim.threads[0].0;
    let error = Elevator::new().unwrap().elevate(tid, FIVE).unwrap_err();
    assert!(matches!(error, ElevateError::GuardianNeeded(_)), "{error}");
    let elevator = Elevator::with_guardian().unwrap();
    let error = elevator.elevate(tid, Priority::MAX).unwrap_err();
    assert!(
        matches!(error, ElevateError::AboveGuardian { .. }),
        "{error}"
    );
    assert!(victim.changed().is_none());
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
    assert!(victim.changed().is_none());
    drop(elevator);
    assert!(
        Policy::of(&Kernel, guardian).is_err(),
        "the guardian ends with the set"
    );
}

#[test]
fn a_set_is_restored_at_its_end_even_if_another_thread_reads_it() {
    if !permitted() {
        return;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // An elevator reads every set of the process.
        scope.spawn(|| {
            let (elevator, sleeper) = (Elevator::new().unwrap(), Sleeper::start());
            while !stop.load(Relaxed) {
                drop(elevator.elevate(sleeper.tid, FIVE).unwrap());
            }
        });
        let late = (0..80).find(|_| {
            let elevator = Elevator::new().unwrap();
            let sleeper = Sleeper::start();
            let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
            drop(elevator);
            let guardian = Elevator::with_guardian().unwrap();
            let pid = guardian.guardian_pid().unwrap();
            drop(guardian);
            drop(guard);
            sleeper.policy().real_time() != 0 || Policy::of(&Kernel, pid).is_ok()
        });
        stop.store(true, Relaxed);
        assert_eq!(late, None);
    });
}

/// A thread that restores itself is ordinary before it has released the set's lock.
#[test]
fn a_thread_that_restores_itself_beside_a_busy_thread_delays_no_more_urgent_one() {
    if !permitted() {
        return;
    }
    let cpu = Kernel.sched_getaffinity(0).unwrap().iter().next().unwrap();
    let pin = || {
        Kernel
            .sched_setaffinity(0, &CpuSet::only(cpu).unwrap())
            .unwrap();
    };
    let elevator = Elevator::new().unwrap();
    let burning = Duration::from_millis(600);
    let (began, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    let longest = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin();
            let own = elevator.elevate_current(Priority::of::<30>()).unwrap();
            ready.store(true, Relaxed);
            until("the busy thread runs", || began.load(Relaxed));
            drop(own);
        });
        until("the thread is elevated", || ready.load(Relaxed));
        scope.spawn(|| {
            pin();
            let others = Elevator::new().unwrap();
            let _own = others.elevate_current(FIVE).unwrap();
            began.store(true, Relaxed);
            let start = std::time::Instant::now();
            while start.elapsed() < burning {
                std::hint::spin_loop();
            }
        });
        let asks = scope.spawn(|| {
            let others = Elevator::new().unwrap();
            let _own = others.elevate_current(Priority::of::<40>()).unwrap();
            let (mut longest, start) = (Duration::ZERO, std::time::Instant::now());
            while start.elapsed() < burning / 2 {
                let before = std::time::Instant::now();
                let _ = elevator.len();
                longest = longest.max(before.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            longest
        });
        asks.join().unwrap()
    });
    assert!(longest < burning / 3, "{longest:?}");
}

#[test]
fn the_guardian_is_invisible_to_wait_loops() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::with_guardian().unwrap();
    // Other tests have children too, so only the guardian is queried.
    let guardian = elevator.guardian_pid().unwrap();
    // SAFETY: no status is requested.
    let seen = unsafe { libc::waitpid(guardian, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(seen, -1);
    let descriptors = std::fs::read_dir(format!("/proc/{guardian}/fd")).unwrap();
    assert!(descriptors.count() <= 2, "socket and pidfd");
}

/// Tests report a guardian's pulse when it has not restored a thread.
#[test]
fn the_pulse_is_the_view_of_the_guardian() {
    if !root() {
        return;
    }
    let victim = Victim::start("victim");
    let second = Duration::from_secs(1);
    let builder = Elevator::builder().guardian(true).heartbeat(second);
    // `heartbeat_state` reads the largest table.
    let builder = builder.capacity(upshift_elevate::MAX_CAPACITY);
    let elevator = builder.build().unwrap();
    let guardian = elevator.guardian_pid().unwrap();
    let before = heartbeat_state(guardian).unwrap();
    assert_eq!((before.beats, before.demotions, before.foreign), (0, 0, 0));
    let guard = elevator.elevate(victim.threads[0].0, FIVE).unwrap();
    elevator.beat();
    let seen = heartbeat_state(guardian).unwrap();
    assert_eq!((seen.beats, seen.foreign), (1, 1));
    drop(guard);
    assert_eq!(heartbeat_state(guardian).unwrap().foreign, 0);
    assert!(heartbeat_state(std::process::id() as i32 + (1 << 22)).is_err());
}

#[test]
fn a_fork_of_the_owner_changes_nothing() {
    if !permitted() {
        return;
    }
    let elevator = Elevator::new().unwrap();
    let sleeper = Sleeper::start();
    let guard = elevator.elevate(sleeper.tid, FIVE).unwrap();
    // SAFETY: the child drops a guard, which allocates nothing there, and exits.
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
    if !root() {
        return;
    }
    let victim = Victim::start("victim");
    let elevator = Elevator::with_guardian().unwrap();
    let first = elevator.guardian_pid().unwrap();
    // SAFETY: the guardian is a child of this process that has not been waited for.
    unsafe { libc::kill(first, libc::SIGKILL) };
    until("its death is noticed", || elevator.guardian_pid().is_none());
    let guard = elevator.elevate(victim.threads[0].0, FIVE).unwrap();
    let second = elevator.guardian_pid().unwrap();
    assert_ne!(second, first);
    drop(guard);
}

#[test]
fn a_later_process_of_the_same_pid_is_not_touched() {
    if !root() {
        return;
    }
    let elevator = Elevator::with_guardian().unwrap();
    let mut first = std::process::Command::new("sleep")
        .arg("300")
        .spawn()
        .unwrap();
    let tid = first.id() as i32;
    let guard = elevator.elevate(tid, FIVE).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    // Start times count in ticks of 10 ms.
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

/// A sleeping process with a chosen pid.
struct SamePid(i32);

impl SamePid {
    fn start(pid: i32) -> Option<SamePid> {
        let chosen = [pid];
        // SAFETY: zeroes are valid arguments.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.exit_signal = libc::SIGCHLD as u64;
        arguments.set_tid = chosen.as_ptr() as u64;
        arguments.set_tid_size = 1;
        // SAFETY: a plain fork; the child only sleeps and exits.
        unsafe {
            let made = libc::syscall(
                libc::SYS_clone3,
                &raw const arguments,
                size_of::<libc::clone_args>(),
            );
            if made == 0 {
                libc::poll(std::ptr::null_mut(), 0, 300_000);
                libc::_exit(0);
            }
            (made == i64::from(pid)).then_some(SamePid(pid))
        }
    }
}

impl Drop for SamePid {
    fn drop(&mut self) {
        // SAFETY: a child of this process that has not been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn threads_that_do_not_exist_are_named() {
    let elevator = Elevator::new().unwrap();
    for tid in [0, -1, i32::MAX] {
        let error = elevator.elevate(tid, FIVE).unwrap_err();
        let named = matches!(
            error,
            ElevateError::NoSuchThread(_) | ElevateError::GuardianNeeded(_)
        );
        assert!(named, "{error}");
    }
    assert!(current_tid() > 0);
}

/// A reservation that leaks stays until the kernel rebuilds the scheduling domains.
#[test]
fn the_reservation_of_a_sleeping_thread_is_returned_however_it_leaves() {
    if !permitted() {
        return;
    }
    let (elevator, sleeper) = (Elevator::new().unwrap(), Sleeper::start());
    let ms = Duration::from_millis;
    let reserve = |guard: &upshift_elevate::Elevated| {
        let reserved = guard.set_deadline(ms(8), ms(20), ms(20));
        // First the kernel releases the runtime of the current period.
        std::thread::sleep(ms(60));
        reserved
    };
    let guard = elevator.record(sleeper.tid).unwrap();
    if let Err(error) = reserve(&guard) {
        return crate::skipped(format!("the kernel reserves nothing here: {error}"));
    }
    guard.set_fair().unwrap();
    drop(guard);
    let cpus = std::thread::available_parallelism().unwrap().get();
    // A leak in a single way of leaving would exceed the kernel's bound.
    for (name, leave) in [
        (
            "set",
            (|guard| guard.set(FIVE)) as fn(&upshift_elevate::Elevated) -> std::io::Result<()>,
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
