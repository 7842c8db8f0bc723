//! Models moves of coroutines between vCPUs, while the coroutines are woken, change their levels,
//! or their vCPUs park (`vcpu/balance.rs`). See `loom_state.rs` for the command, and `models` for
//! the bounds.

#![cfg(loom)]

mod models;

use loom::thread;
use models::{
    Work, check, domain, level, poll_next, polling, reprio_elsewhere, run, run_elsewhere, serving,
};
use upshift_core::Kind;

/// Invariants 2, 3 and 5: the published bitmap never lacks the new, more urgent level.
#[test]
fn work_stolen_while_its_level_changes_is_polled_once_and_shows_its_level() {
    check(3, || {
        let domain = domain(0);
        let (busy, thief) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        Work::new().spawn_pinned(&busy, 20, Kind::Task);
        polling(&busy, || {
            let work = Work::new();
            let id = work.spawn(&domain, 40);
            let stealer = thread::spawn(move || {
                poll_next(&thief);
                thief
            });
            domain.reprio(id, level(30)).unwrap();
            if work.polls() == 0 {
                assert_eq!(domain.level(id), Ok(level(30)));
            }
            let thief = stealer.join().unwrap();
            if work.polls() == 0 {
                assert_ne!(domain.bitmap() & level(30).bit(), 0);
            }
            run(&thief);
            assert_eq!(work.polls(), 1);
            assert_eq!(domain.bitmap(), 0);
        });
    });
}

/// A thief moves the inbox of its victim into the queues, including a pinned coroutine.
#[test]
fn a_pinned_coroutine_is_not_left_when_a_thief_empties_the_inbox_and_its_vcpu_parks() {
    check(2, || {
        let domain = domain(0);
        let (owner, thief) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let work = Work::new();
        let id = work.spawn_pinned(&owner, 20, Kind::Task);
        run(&owner);
        let waker = work.wake_elsewhere(&domain, id);
        let stealer = run_elsewhere(thief);
        run(&owner);
        let parked = serving(&owner, || owner.prepare_park());
        waker.join().unwrap();
        drop(stealer.join().unwrap());
        if parked && domain.host().kicks(0) == 0 {
            assert_eq!(owner.bitmap(), 0);
            assert_eq!(work.polls(), 2);
        }
        owner.unpark();
        run(&owner);
        assert_eq!(work.polls(), 2);
        assert!(work.has_seen());
        assert_eq!(owner.bitmap(), 0);
    });
}

/// A thief picks while a wake comes from outside and the owner begins its next poll.
#[test]
fn work_woken_while_its_vcpu_and_a_thief_pick_is_polled_once() {
    check(2, || {
        let domain = domain(0);
        let (owner, thief) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (work, id) = Work::blocked(&domain, &owner, 20);
        let waker = work.wake_elsewhere(&domain, id);
        let stealer = run_elsewhere(thief);
        run(&owner);
        waker.join().unwrap();
        let thief = stealer.join().unwrap();
        run(&owner);
        run(&thief);
        assert_eq!(work.polls(), 2);
        assert!(work.has_seen());
        assert_eq!(domain.bitmap(), 0);
    });
}

/// The level changes while the coroutine is on its way to a vCPU that parks. The bitmap of a parked
/// vCPU must not keep the bit of the old level.
#[test]
fn a_change_of_level_in_the_inbox_of_a_vcpu_that_parks_leaves_no_bit() {
    check(3, || {
        let domain = domain(0);
        let owner = domain.add_vcpu().unwrap();
        let (work, id) = Work::blocked(&domain, &owner, 20);
        let waker = thread::spawn({
            let (domain, work) = (domain.clone(), work.clone());
            move || {
                work.wake(&domain, id);
                domain.reprio(id, level(10)).unwrap();
            }
        });
        run(&owner);
        let parked = serving(&owner, || owner.prepare_park());
        waker.join().unwrap();
        if parked && domain.host().kicks(0) == 0 {
            assert_eq!(owner.bitmap(), 0);
            assert_eq!(work.polls(), 2);
        }
        if work.polls() == 1 {
            assert_eq!(owner.bitmap().trailing_zeros(), 10);
        }
        owner.unpark();
        run(&owner);
        assert_eq!(work.polls(), 2);
        assert_eq!(owner.bitmap(), 0);
    });
}

/// A wake moves a coroutine away from its parked home vCPU while the coroutine's level changes.
#[test]
fn work_moved_by_a_wake_while_its_level_changes_shows_its_level() {
    check(3, || {
        let domain = domain(0);
        let (home, other) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (work, id) = Work::blocked(&domain, &home, 40);
        assert!(home.prepare_park());
        let raiser = reprio_elsewhere(&domain, id, 30);
        serving(&other, || work.wake(&domain, id));
        raiser.join().unwrap();
        assert_ne!(other.bitmap() & level(30).bit(), 0);
        assert_eq!(domain.level(id), Ok(level(30)));
        home.unpark();
        run(&other);
        assert_eq!(work.polls(), 2);
        assert_eq!(other.bitmap(), 0);
    });
}

#[test]
fn work_woken_while_its_vcpu_retires_is_passed_on() {
    check(3, || {
        let domain = domain(0);
        let (leaver, successor) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (work, id) = Work::blocked(&domain, &leaver, 20);
        let waker = work.wake_elsewhere(&domain, id);
        serving(&leaver, || leaver.retire());
        let parked = serving(&successor, || successor.prepare_park());
        waker.join().unwrap();
        assert!(!parked || domain.host().kicks(1) != 0);
        successor.unpark();
        run(&successor);
        assert_eq!(work.polls(), 2);
        assert!(work.has_seen());
        assert_eq!(domain.bitmap(), 0);
    });
}

#[test]
fn work_passed_on_while_its_level_changes_shows_its_level() {
    check(3, || {
        let domain = domain(0);
        let (leaver, successor) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let work = Work::new();
        let id = serving(&leaver, || work.spawn(&domain, 40));
        let raiser = reprio_elsewhere(&domain, id, 30);
        serving(&leaver, || leaver.retire());
        raiser.join().unwrap();
        assert_ne!(
            successor.bitmap() & level(30).bit(),
            0,
            "the new level has no bit"
        );
        run(&successor);
        assert_eq!(work.polls(), 1);
        assert_eq!(domain.bitmap(), 0, "a bit is left");
    });
}
