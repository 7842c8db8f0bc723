//! Models how idle vCPUs watch the others for long polls (`vcpu/search.rs`). A *look* is one
//! examination of the others. The models check which vCPU watches, and what a look finds, while
//! polls begin, end and make coroutines ready. See `loom_state.rs` for the command.

#![cfg(loom)]

mod models;

use loom::thread;
use models::{AFTER, ModelHost, PERIOD, Work, check, domain, polling, run, serving};
use upshift_core::{Domain, Executor, Kind};

/// Creates a vCPU that is to poll, and one that is to watch.
fn two_vcpus() -> (Domain<ModelHost>, Executor<ModelHost>, Executor<ModelHost>) {
    let domain = domain(AFTER);
    let (busy, idle) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    (domain, busy, idle)
}

/// Parks a vCPU. Returns true if it sleeps until it is kicked.
fn goes_to_sleep(idle: &Executor<ModelHost>) -> bool {
    serving(idle, || idle.prepare_park() && idle.sleep_limit().is_none())
}

/// Asserts that vCPU 1 will look at the poll that has begun on vCPU 0, that is, that vCPU 1 does
/// not sleep or was kicked.
fn assert_watched(domain: &Domain<ModelHost>, sleeps: bool) {
    assert!(
        !sleeps || domain.host().kicks(1) != 0,
        "a poll is under way, and no vCPU will look at it"
    );
}

/// An idle vCPU goes to sleep while a busy vCPU begins a poll. The idle vCPU must look at the poll,
/// or be kicked. The busy vCPU was parked for a long time before, and a coroutine that is pinned to
/// it has become ready, as if by a timer.
#[test]
fn a_vcpu_that_goes_to_sleep_watches_one_that_comes_back_from_its_wait_or_is_woken_by_it() {
    check(3, || {
        let (domain, busy, idle) = two_vcpus();
        let (work, id) = pinned_work(&busy);
        assert!(goes_to_sleep(&busy));
        domain.host().pass(3 * PERIOD);
        let sleeper = thread::spawn(move || (goes_to_sleep(&idle), idle));
        busy.unpark();
        serving(&busy, || work.wake(&domain, id));
        let idle = polling(&busy, || {
            let (sleeps, idle) = sleeper.join().unwrap();
            assert_watched(&domain, sleeps);
            idle
        });
        drop(idle);
    });
}

/// Like the last test, but the idle vCPU goes to sleep between two polls of the busy one. The first
/// poll took long, and a look may have marked it as long.
#[test]
fn a_vcpu_that_goes_to_sleep_watches_one_whose_next_poll_begins_or_is_woken_by_it() {
    for (is_marked, ticks) in [(true, AFTER), (true, 3 * PERIOD), (false, 3 * PERIOD)] {
        check(3, move || {
            let (domain, busy, idle) = two_vcpus();
            let (next, id) = pinned_work(&busy);
            Work::new().spawn_pinned(&busy, 40, Kind::Task);
            let sleeper = polling(&busy, || {
                domain.host().pass(ticks);
                next.wake(&domain, id);
                if is_marked {
                    assert!(!serving(&idle, || idle.look(|_| false)));
                    assert!(busy.is_long());
                }
                thread::spawn(move || (goes_to_sleep(&idle), idle))
            });
            let idle = polling(&busy, || {
                let (sleeps, idle) = sleeper.join().unwrap();
                assert_watched(&domain, sleeps);
                idle
            });
            drop(idle);
        });
    }
}

/// The vCPU that watches retires while a poll is under way or about to begin. The idle vCPU must be
/// woken.
#[test]
fn a_vcpu_that_retires_leaves_its_watch_to_one_that_sleeps() {
    check(3, || {
        let (domain, busy, idle) = two_vcpus();
        let watcher = domain.add_vcpu().unwrap();
        let (work, id) = pinned_work(&busy);
        domain.host().pass(3 * PERIOD);
        assert!(serving(&watcher, || watcher.prepare_park()));
        assert!(goes_to_sleep(&idle));
        let leaver = thread::spawn(move || {
            serving(&watcher, || watcher.retire());
            watcher
        });
        serving(&busy, || work.wake(&domain, id));
        polling(&busy, || {
            drop(leaver.join());
            assert_watched(&domain, idle.is_parked());
        });
    });
}

#[test]
fn work_that_becomes_ready_in_a_poll_marked_as_long_is_seen_by_the_look_or_announced() {
    check(3, || {
        let (domain, busy, idle) = two_vcpus();
        Work::new().spawn_pinned(&busy, 40, Kind::Task);
        polling(&busy, || {
            domain.host().pass(AFTER);
            assert!(serving(&idle, || idle.prepare_park()));
            let looker = thread::spawn(move || {
                let found = serving(&idle, || idle.look(|_| false));
                assert!(found || idle.sleep_limit().is_none() || !idle.is_parked());
                (found, idle)
            });
            let work = Work::new();
            work.spawn(&domain, 50);
            let (found, idle) = looker.join().unwrap();
            assert!(
                found || domain.host().kicks(1) != 0,
                "work waits for the end of a long poll while a vCPU sleeps"
            );
            idle.unpark();
            run(&idle);
            assert_eq!(work.polls(), 1);
        });
    });
}

fn pinned_work(vcpu: &Executor<ModelHost>) -> (Work, upshift_core::CoroutineId) {
    let work = Work::new();
    let id = work.spawn_pinned(vcpu, 20, Kind::Task);
    run(vcpu);
    (work, id)
}
