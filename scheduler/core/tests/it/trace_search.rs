//! Tests how an idle vCPU searches the other vCPUs for long polls and for work behind them
//! (`vcpu/search.rs`). A *look* is one such search. The tests check which vCPU looks, when, and
//! with which result. They set the clock.

use std::sync::atomic::Ordering::Relaxed;

use crate::support::{at, block_once, domain, run, serving};
use upshift_core::{Config, Domain, Executor, Picked};

/// Ticks after which a poll is long.
const AFTER: u64 = 50;
/// Ticks between two looks that find nothing.
const PERIOD: u64 = 20 * AFTER;

type Host = crate::support::TestHost;

fn two_vcpus() -> (Domain<Host>, Executor<Host>, Executor<Host>) {
    let domain = domain(Config {
        long_poll_after: AFTER,
        ..Config::default()
    });
    domain.host().time.store(1_000_000, Relaxed);
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    (domain, a, b)
}

fn advance_clock(domain: &Domain<Host>, ticks: u64) {
    domain.host().time.fetch_add(ticks, Relaxed);
}

fn take_kicks(domain: &Domain<Host>) -> Vec<usize> {
    std::mem::take(&mut *domain.host().kicked.lock().unwrap())
}

/// Polls a coroutine on `vcpu`, and calls `during` in the middle of its poll.
fn polling<R: Send + 'static>(
    domain: &Domain<Host>,
    vcpu: &Executor<Host>,
    during: impl FnOnce() -> R,
) -> R {
    serving(vcpu, || {
        domain.spawn(async {}, at(40)).unwrap().detach();
        let Some(Picked::Poll(running)) = vcpu.pick(None) else {
            panic!("no coroutine is ready")
        };
        let result = during();
        let _ = running.poll();
        result
    })
}

#[test]
fn a_parked_vcpu_sleeps_while_nothing_is_polled() {
    let (_domain, a, b) = two_vcpus();
    assert!(a.prepare_park());
    assert!(b.prepare_park());
    assert_eq!(b.sleep_limit(), None);
    assert_eq!(a.sleep_limit(), None);
}

#[test]
fn a_poll_that_begins_wakes_a_vcpu_that_sleeps() {
    let (domain, a, b) = two_vcpus();
    assert!(a.prepare_park());
    assert!(b.prepare_park());
    assert_eq!((a.sleep_limit(), b.sleep_limit()), (None, None));
    a.unpark();
    polling(&domain, &a, || {
        assert_eq!(take_kicks(&domain), [1]);
        b.unpark();
        assert!(b.prepare_park());
        assert_eq!(b.sleep_limit(), Some(AFTER));
    });
    // A vCPU that already wakes to look is not woken again.
    polling(&domain, &a, || assert_eq!(take_kicks(&domain), []));
}

#[test]
fn work_behind_a_long_poll_is_found_when_the_poll_is_long() {
    let (domain, a, b) = two_vcpus();
    assert!(b.prepare_park());
    polling(&domain, &a, || {
        domain.spawn(block_once(), at(50)).unwrap().detach();
        advance_clock(&domain, AFTER - 1);
        assert!(!b.look(|_| false), "found before it is long");
        assert!(!a.is_long());
        advance_clock(&domain, 1);
        let mut long_vcpus = Vec::new();
        assert!(b.look(|vcpu| {
            long_vcpus.push(vcpu.index());
            false
        }));
        assert_eq!(long_vcpus, [a.index()]);
        assert!(a.is_long());
        b.unpark();
        assert_eq!(run(&b, 10), 1);
    });
    run(&a, 10);
    assert!(!a.is_long(), "the mark ends with the poll");
}

#[test]
fn work_that_becomes_ready_during_a_long_poll_is_announced_at_once() {
    let (domain, a, b) = two_vcpus();
    assert!(b.prepare_park());
    polling(&domain, &a, || {
        advance_clock(&domain, AFTER);
        assert!(!b.look(|_| false));
        // A poll that is known to be long needs no more looks.
        assert_eq!(b.sleep_limit(), None);
        take_kicks(&domain);
        domain.spawn(async {}, at(50)).unwrap().detach();
        assert_eq!(take_kicks(&domain), [1]);
        b.unpark();
        assert_eq!(run(&b, 10), 1);
    });
}

#[test]
fn fruitless_looks_eventually_come_once_a_period() {
    let (domain, a, b) = two_vcpus();
    assert!(b.prepare_park());
    let mut looks = 0;
    let began = domain.host().time.load(Relaxed);
    polling(&domain, &a, || {
        while domain.host().time.load(Relaxed) < began + 100 * PERIOD {
            let limit = b.sleep_limit().expect("polls may become long");
            assert!((AFTER..=PERIOD).contains(&limit), "{limit}");
            advance_clock(&domain, limit);
            // Polls are short, since the one under way has just begun.
            a.refresh_clock();
            assert!(!b.look(|_| panic!("a short poll is called long")));
            b.charge_fruitless_wait();
            looks += 1;
        }
    });
    // One look a period, 20 more from the full budget, and a margin of 5.
    assert!((100..=125).contains(&looks), "{looks} looks in 100 periods");
}

#[test]
fn an_idle_vcpu_that_has_looked_too_often_pays_off_its_budget_and_sleeps() {
    let (domain, a, b) = two_vcpus();
    assert!(b.prepare_park());
    polling(&domain, &a, || {
        for _ in 0..200 {
            b.charge_fruitless_wait();
        }
    });
    assert!(a.prepare_park());
    let mut waits = 0;
    while let Some(limit) = b.sleep_limit() {
        waits += 1;
        // One wait pays off the debt; the bound has a margin.
        assert!(waits < 10, "it wakes every {limit} ticks");
        advance_clock(&domain, limit);
        b.charge_fruitless_wait();
    }
}

#[test]
fn a_vcpu_that_is_not_served_does_not_keep_others_awake() {
    let (domain, a, b) = two_vcpus();
    polling(&domain, &a, || ());
    run(&a, 10);
    advance_clock(&domain, PERIOD);
    // `a` is not parked and not polling, as after the return of `block_on`.
    assert!(b.prepare_park());
    assert_eq!(b.sleep_limit(), None);
    // Work that is left on a vCPU that is not served is taken.
    serving(&a, || domain.spawn(async {}, at(7)).unwrap().detach());
    assert!(b.look(|_| false));
}

#[test]
fn one_of_several_idle_vcpus_looks_and_the_next_takes_its_place() {
    let (domain, a, b) = two_vcpus();
    let c = domain.add_vcpu().unwrap();
    let d = domain.add_vcpu().unwrap();
    for vcpu in [&b, &c, &d] {
        assert!(vcpu.prepare_park());
    }
    polling(&domain, &a, || {
        assert_eq!(b.sleep_limit(), Some(AFTER));
        assert_eq!((c.sleep_limit(), d.sleep_limit()), (None, None));
        assert_eq!(take_kicks(&domain), []);
        // The vCPU that looked has found work.
        b.unpark();
        polling(&domain, &b, || assert_eq!(take_kicks(&domain), [2]));
        c.unpark();
        assert!(c.prepare_park());
        assert_eq!(c.sleep_limit(), Some(AFTER));
    });
}

#[test]
fn a_vcpu_that_is_not_parked_looks_once_a_period() {
    let (domain, a, b) = two_vcpus();
    b.refresh_clock();
    assert!(b.is_look_due());
    polling(&domain, &a, || {
        assert!(!b.look(|_| false));
        advance_clock(&domain, PERIOD - 1);
        b.refresh_clock();
        assert!(!b.is_look_due());
        advance_clock(&domain, 1);
        b.refresh_clock();
        assert!(b.is_look_due());
        assert!(b.look(|_| true));
    });
}

#[test]
fn without_long_polls_no_vcpu_looks() {
    let domain = domain(Config::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    assert!(b.prepare_park());
    polling(&domain, &a, || {
        advance_clock(&domain, 1_000_000);
        assert_eq!(b.sleep_limit(), None);
        domain.spawn(async {}, at(50)).unwrap().detach();
        assert!(!b.look(|_| true));
        assert_eq!(take_kicks(&domain), []);
    });
    run(&a, 10);
}

#[test]
fn a_vcpu_that_is_kicked_and_leaves_work_kicks_another() {
    let domain = domain(Config::default());
    let [a, b, c, d] = [(); 4].map(|()| domain.add_vcpu().unwrap());
    for idle in [&b, &c, &d] {
        assert!(idle.prepare_park());
    }
    serving(&a, || {
        for _ in 0..3 {
            domain.spawn(async {}, at(50)).unwrap().detach();
        }
    });
    polling(&domain, &a, || {
        assert_eq!(take_kicks(&domain), [b.index()]);
        b.unpark();
        serving(&b, || {
            let first = b.pick(None);
            assert!(matches!(first, Some(Picked::Poll(_))));
            // `b` has taken two of the three coroutines, and one of the two waits for the end of
            // its poll.
            assert_eq!(take_kicks(&domain), [c.index()]);
            c.unpark();
            serving(&c, || {
                // `c` takes another coroutine; `a` and `b` are in their polls.
                let third = c.pick(None);
                assert!(matches!(third, Some(Picked::Poll(_))));
                assert_eq!(take_kicks(&domain), [d.index()]);
                d.unpark();
                assert_eq!(run(&d, 10), 1);
                let Some(Picked::Poll(third)) = third else {
                    unreachable!()
                };
                let _ = third.poll();
            });
            let Some(Picked::Poll(first)) = first else {
                unreachable!()
            };
            let _ = first.poll();
        });
    });
}
