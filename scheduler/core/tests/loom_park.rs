//! Models wakes, spawns and parking in the whole scheduler, with the calls that its hosts make. See
//! `loom_state.rs` for the command, and `models` for the bounds.
//!
//! A vCPU that is parked at the end of a model and has not been kicked would wait for ever, so it
//! must have no work. Every other vCPU picks until no coroutine is ready, and all work must be done
//! then.

#![cfg(loom)]

mod models;

use loom::thread;
use models::{
    AFTER, ModelHost, Work, check, domain, interrupting, level, poll_next, polling, run, serving,
};
use upshift_core::{Domain, Executor, Kind};

/// Values of `long_poll_after`. With 0, no vCPU watches the others for long polls; with `AFTER`,
/// idle vCPUs do.
const LONG_POLL_AFTER: [u64; 2] = [0, AFTER];

/// Runs one iteration of a runtime's loop: polls until no coroutine is ready, and prepares to park.
/// Returns true if the runtime would wait now, without a time limit.
fn runs_and_parks(vcpu: &Executor<ModelHost>) -> bool {
    run(vcpu);
    serving(vcpu, || vcpu.prepare_park() && vcpu.sleep_limit().is_none())
}

/// Runs a vCPU that is awake. Invariant 5: the bitmap of a parked vCPU is exact.
fn run_if_awake(domain: &Domain<ModelHost>, vcpu: &Executor<ModelHost>) {
    if vcpu.is_parked() && domain.host().kicks(vcpu.index()) == 0 {
        assert_eq!(vcpu.bitmap(), 0);
        return;
    }
    vcpu.unpark();
    run(vcpu);
}

#[test]
fn invariant_2_a_wake_while_its_vcpu_parks_is_taken_or_ends_the_wait() {
    for after in LONG_POLL_AFTER {
        check(3, move || {
            let domain = domain(after);
            let vcpu = domain.add_vcpu().unwrap();
            let (work, id) = Work::blocked(&domain, &vcpu, 20);
            let waker = work.wake_elsewhere(&domain, id);
            runs_and_parks(&vcpu);
            waker.join().unwrap();
            run_if_awake(&domain, &vcpu);
            assert_eq!(work.polls(), 2);
            assert!(work.has_seen());
            assert_eq!(domain.bitmap(), 0);
            vcpu.unpark();
            assert_eq!(domain.idle_vcpus(), 0);
        });
    }
}

/// The loop of a host that waits as often as it has to. The checker finds a wait that does not end.
#[test]
fn invariant_2_every_wait_for_a_wake_ends() {
    check(3, || {
        let domain = domain(0);
        let vcpu = domain.add_vcpu().unwrap();
        let (work, id) = Work::blocked(&domain, &vcpu, 20);
        let waker = work.wake_elsewhere(&domain, id);
        run(&vcpu);
        while work.polls() < 2 {
            if vcpu.prepare_park() {
                domain.host().wait(vcpu.index());
            }
            vcpu.unpark();
            run(&vcpu);
        }
        waker.join().unwrap();
        assert_eq!(work.polls(), 2);
        assert!(work.has_seen());
    });
}

#[test]
fn two_wakes_of_a_parked_vcpu_kick_it_once() {
    check(3, || {
        let domain = domain(0);
        let vcpu = domain.add_vcpu().unwrap();
        let (first, second) = (
            Work::blocked(&domain, &vcpu, 20),
            Work::blocked(&domain, &vcpu, 20),
        );
        assert!(vcpu.prepare_park());
        let waker = thread::spawn({
            let (domain, (work, id)) = (domain.clone(), first.clone());
            move || work.wake(&domain, id)
        });
        second.0.wake(&domain, second.1);
        waker.join().unwrap();
        assert_eq!(domain.host().kicks(0), 1);
        assert_eq!(domain.idle_vcpus(), 0);
        run_if_awake(&domain, &vcpu);
        assert_eq!((first.0.polls(), second.0.polls()), (2, 2));
    });
}

/// The bitmap stays exact (invariant 5) even if one bit stands for two coroutines that are taken at
/// different times.
#[test]
fn a_coroutine_in_the_inbox_has_its_bit() {
    check(3, || {
        let domain = domain(0);
        let vcpu = domain.add_vcpu().unwrap();
        let (first, second) = (
            Work::blocked(&domain, &vcpu, 20),
            Work::blocked(&domain, &vcpu, 20),
        );
        first.0.wake(&domain, first.1);
        let waker = thread::spawn({
            let (domain, (work, id)) = (domain.clone(), second.clone());
            move || work.wake(&domain, id)
        });
        assert!(poll_next(&vcpu));
        waker.join().unwrap();
        assert_eq!(vcpu.bitmap(), level(20).bit());
        run(&vcpu);
        assert_eq!((first.0.polls(), second.0.polls()), (2, 2));
        assert_eq!(vcpu.bitmap(), 0);
    });
}

#[test]
fn a_more_urgent_wake_is_taken_by_the_pick_or_asks_its_poll_to_yield() {
    check(3, || {
        let domain = domain(0);
        let vcpu = domain.add_vcpu().unwrap();
        let (work, id) = Work::blocked(&domain, &vcpu, 20);
        serving(&vcpu, || Work::new().spawn(&domain, 40));
        let waker = work.wake_elsewhere(&domain, id);
        polling(&vcpu, || {
            waker.join().unwrap();
            assert!(vcpu.running_level() == Some(level(20)) || vcpu.need_preempt());
        });
        run(&vcpu);
        assert_eq!(work.polls(), 2);
    });
}

/// The wake comes from outside. A vCPU that does not watch the others takes the work at once. A
/// vCPU that watches them leaves the work to the poll's own vCPU until the poll is long.
#[test]
fn work_woken_behind_a_poll_while_another_vcpu_parks_is_taken_or_watched() {
    for after in LONG_POLL_AFTER {
        check(2, move || {
            let domain = domain(after);
            let (busy, idle) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
            let (work, id) = Work::blocked(&domain, &busy, 20);
            Work::new().spawn_pinned(&busy, 20, Kind::Task);
            polling(&busy, || {
                let waker = work.wake_elsewhere(&domain, id);
                let parker = thread::spawn(move || (runs_and_parks(&idle), idle));
                waker.join().unwrap();
                let (sleeps, idle) = parker.join().unwrap();
                run_if_awake(&domain, &idle);
                if after == 0 || sleeps {
                    assert_eq!(work.polls(), 2);
                    assert!(work.has_seen());
                }
            });
        });
    }
}

/// The poll itself makes the wake. Its vCPU does not know how long the poll will take, but a vCPU
/// that parks looks at the poll again.
#[test]
fn work_that_a_poll_wakes_while_another_vcpu_parks_is_taken_or_watched() {
    check(3, || {
        let domain = domain(AFTER);
        let (busy, idle) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (work, id) = Work::blocked(&domain, &busy, 20);
        Work::new().spawn_pinned(&busy, 20, Kind::Task);
        let parker = thread::spawn(move || (runs_and_parks(&idle), idle));
        polling(&busy, || {
            work.wake(&domain, id);
            let (sleeps, idle) = parker.join().unwrap();
            if sleeps {
                run_if_awake(&domain, &idle);
                assert_eq!(work.polls(), 2);
            }
        });
    });
}

/// The pick takes work out of the inbox and leaves it in the queue, behind a poll that does not
/// end. No vCPU watches the others for long polls.
#[test]
fn work_that_a_pick_leaves_while_another_vcpu_parks_is_taken() {
    check(3, || {
        let domain = domain(0);
        let (busy, idle) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (work, id) = Work::blocked(&domain, &busy, 20);
        Work::new().spawn_pinned(&busy, 10, Kind::Task);
        work.wake(&domain, id);
        let parker = thread::spawn(move || {
            runs_and_parks(&idle);
            idle
        });
        polling(&busy, || {
            let idle = parker.join().unwrap();
            run_if_awake(&domain, &idle);
            assert_eq!(work.polls(), 2, "work waits for the end of the poll");
        });
    });
}

#[test]
fn work_that_arrives_while_all_vcpus_park_ends_the_wait_of_one() {
    for (after, spawns) in [(0, true), (0, false), (AFTER, true), (AFTER, false)] {
        check(2, move || {
            let domain = domain(after);
            let (one, other) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
            let work = Work::new();
            let id = (!spawns).then(|| {
                let id = serving(&one, || work.spawn(&domain, 20));
                run(&one);
                id
            });
            let before = work.polls();
            let waker = thread::spawn({
                let (domain, work) = (domain.clone(), work.clone());
                move || match id {
                    None => drop(work.spawn(&domain, 20)),
                    Some(id) => work.wake(&domain, id),
                }
            });
            let parker = thread::spawn(move || {
                runs_and_parks(&other);
                other
            });
            runs_and_parks(&one);
            waker.join().unwrap();
            let other = parker.join().unwrap();
            run_if_awake(&domain, &one);
            run_if_awake(&domain, &other);
            assert_eq!(work.polls(), before + 1);
            one.unpark();
            other.unpark();
            assert_eq!(domain.idle_vcpus(), 0);
        });
    }
}

/// Creates the vCPU of a hart (a CPU that runs a kernel), with a switching coroutine, which is
/// ready again after every poll. As in a kernel, the vCPU parks in the middle of the poll of that
/// coroutine, with interrupts masked.
fn hart(domain: &Domain<ModelHost>) -> Executor<ModelHost> {
    let hart = domain.add_vcpu().unwrap();
    Work::new().spawn_pinned(&hart, 63, Kind::Switching);
    hart
}

fn run_hart(hart: &Executor<ModelHost>) {
    if !hart.is_parked() {
        hart.unpark();
        poll_next(hart);
    }
}

#[test]
fn a_wake_while_a_hart_begins_to_wait_is_seen_or_interrupts_it() {
    check(3, || {
        let domain = domain(0);
        let hart = hart(&domain);
        let work = Work::new();
        let id = serving(&hart, || work.spawn(&domain, 20));
        assert!(poll_next(&hart));
        let waker = work.wake_elsewhere(&domain, id);
        if work.polls() == 1 {
            polling(&hart, || {
                // The pick may have returned the work, whose poll is then under way.
                if hart.running_level() == Some(level(63)) && hart.prepare_park() {
                    // The hart's wait instruction ends if an interrupt is pending, or becomes
                    // pending.
                    waker.join().unwrap();
                    assert_eq!(domain.host().kicks(0), 1);
                } else {
                    waker.join().unwrap();
                }
                hart.unpark();
            });
        }
        poll_next(&hart);
        assert_eq!(work.polls(), 2);
        assert!(work.has_seen());
    });
}

/// The work is woken by the poll of the busy hart, or by an interrupt handler there, which serves
/// no vCPU. Before the hart enters user mode, it announces its work, and the other hart takes it.
#[test]
fn work_of_a_hart_that_enters_user_mode_is_taken_by_one_that_begins_to_wait() {
    for in_handler in [false, true] {
        check(3, move || {
            let domain = domain(0);
            let (busy, idle) = (hart(&domain), hart(&domain));
            let work = Work::new();
            let id = serving(&busy, || work.spawn(&domain, 20));
            assert!(poll_next(&busy));
            let parker = thread::spawn(move || {
                polling(&idle, || idle.prepare_park());
                idle
            });
            polling(&busy, || {
                if in_handler {
                    interrupting(|| work.wake(&domain, id));
                } else {
                    work.wake(&domain, id);
                }
                // Passes a fence, and then reads the number of parked vCPUs and the work left here.
                busy.announce();
                let idle = parker.join().unwrap();
                run_hart(&idle);
                assert_eq!(work.polls(), 2);
            });
        });
    }
}
