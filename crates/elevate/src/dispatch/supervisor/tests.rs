//! The rules, in virtual time.

use super::*;

const MS: u64 = 1_000_000;

fn supervisor() -> Supervisor {
    Supervisor::new(Limits::default(), 0)
}

fn poll(started: u64, level: u8) -> Poll {
    Poll {
        started,
        resumed: None,
        entitled: false,
        level,
        guard: Guard::None,
    }
}

fn seen(now: u64, poll: Poll, ready: u64, hidden: u64) -> Observation {
    Observation {
        now,
        poll: Some(poll),
        ready,
        hidden,
        free_seat: true,
    }
}

#[test]
fn something_more_urgent_suspends_at_once() {
    let look = seen(10, poll(5, 4), 1 << 3, 0);
    assert_eq!(supervisor().decide(Wake::Bell, &look), Decision::Suspend);
}

#[test]
fn something_that_may_be_more_urgent_waits_until_an_ordinary_poll_is_over() {
    let mut s = supervisor();
    let hidden = s.limits().hidden;
    assert!(hidden < s.limits().quantum);
    let at = |now| seen(now, poll(1000, 4), 0, 1 << 3);
    assert_eq!(
        s.decide(Wake::Bell, &at(2000)),
        Decision::Look(1000 + hidden)
    );
    assert_eq!(s.decide(Wake::Timer, &at(1000 + hidden)), Decision::Suspend);
}

#[test]
fn an_equal_waits_for_the_quantum() {
    let mut s = supervisor();
    let quantum = s.limits().quantum;
    let at = |now| seen(now, poll(1000, 4), 1 << 4, 0);
    assert_eq!(
        s.decide(Wake::Bell, &at(2000)),
        Decision::Look(1000 + quantum)
    );
    assert_eq!(
        s.decide(Wake::Timer, &at(1000 + quantum)),
        Decision::Suspend
    );
}

#[test]
fn the_less_urgent_wait_for_ever() {
    let look = seen(100 * MS, poll(0, 4), !0 << 5, !0 << 5);
    assert_eq!(supervisor().decide(Wake::Bell, &look), Decision::Rest);
}

#[test]
fn a_resumed_poll_runs_for_its_grace_or_if_entitled_for_a_quantum() {
    let limits = Limits::default();
    for (entitled, slice) in [(false, limits.grace), (true, limits.quantum)] {
        let resumed = Poll {
            resumed: Some(10 * MS),
            entitled,
            ..poll(0, 4)
        };
        let mut s = supervisor();
        let early = seen(10 * MS + 1, resumed, 1 << 4, 0);
        assert_eq!(
            s.decide(Wake::Bell, &early),
            Decision::Look(10 * MS + slice)
        );
        let late = seen(10 * MS + slice, resumed, 1 << 4, 0);
        assert_eq!(s.decide(Wake::Timer, &late), Decision::Suspend);
        // The more urgent does not wait for either.
        let urgent = seen(10 * MS + 1, resumed, 1 << 3, 0);
        assert_eq!(s.decide(Wake::Bell, &urgent), Decision::Suspend);
    }
}

#[test]
fn guards_are_asked_and_the_users_only_for_a_bounded_time() {
    let grace = Limits::default().guard_grace;
    let guarded = |guard| Poll {
        guard,
        ..poll(0, 4)
    };
    let mut s = supervisor();
    let runtime = seen(MS, guarded(Guard::Runtime), 1, 0);
    assert_eq!(s.decide(Wake::Bell, &runtime), Decision::Ask(MS + grace));
    let user = |now| seen(now, guarded(Guard::User(MS)), 1, 0);
    assert_eq!(s.decide(Wake::Bell, &user(MS)), Decision::Ask(MS + grace));
    assert_eq!(s.decide(Wake::Timer, &user(MS + grace)), Decision::Suspend);
}

#[test]
fn without_a_free_seat_it_looks_again_at_the_backstop() {
    let full = Observation {
        free_seat: false,
        ..seen(MS, poll(0, 4), 1, 0)
    };
    let mut s = supervisor();
    let backstop = s.limits().backstop;
    assert_eq!(s.decide(Wake::Bell, &full), Decision::Look(MS + backstop));
}

#[test]
fn between_polls_there_is_nothing_to_do() {
    let idle = Observation {
        now: 1,
        poll: None,
        ready: !0,
        hidden: !0,
        free_seat: true,
    };
    assert_eq!(supervisor().decide(Wake::Bell, &idle), Decision::Rest);
}

/// Polls of 1 µs without end, something of their level always waiting: looks are spaced so that they cost their share.
#[test]
fn useless_looks_cost_no_more_than_their_share() {
    let mut s = supervisor();
    let (mut now, mut looks) = (0, 0u64);
    while now < 2_000 * MS {
        looks += 1;
        match s.decide(Wake::Timer, &seen(now, poll(now, 4), 1 << 4, 0)) {
            Decision::Look(at) => {
                assert!(at > now && at <= now + s.limits().backstop);
                now = at;
            }
            other => panic!("{other:?}"),
        }
    }
    let cost = looks * s.limits().look_cost;
    assert!(cost <= 2_000 * MS / s.limits().share + 60 * s.limits().look_cost);
    assert!(looks > 1_000, "{looks}");
}

/// Equals that come all the time: when interrupting for them has taken its share, polls run for longer, but not for ever.
#[test]
fn suspensions_for_equals_become_rarer_and_those_for_the_urgent_do_not() {
    let mut s = supervisor();
    let limits = s.limits().clone();
    let slice = |s: &mut Supervisor, from: u64| {
        let resumed = Poll {
            resumed: Some(from),
            ..poll(0, 4)
        };
        let mut at = from;
        loop {
            match s.decide(Wake::Timer, &seen(at, resumed, 1 << 4, 0)) {
                Decision::Suspend => return at,
                Decision::Look(then) => at = then,
                other => panic!("{other:?}"),
            }
        }
    };
    let mut now = MS;
    assert_eq!(slice(&mut s, now), now + limits.grace);
    for _ in 0..5_000 {
        now = slice(&mut s, now) + 1;
    }
    let long = slice(&mut s, now) - now;
    assert!(
        long > limits.quantum && long <= STRETCH * limits.quantum,
        "{long}"
    );
    // Overdrawn as it is, something more urgent does not wait.
    let urgent = seen(now, poll(now, 4), 1, 0);
    assert_eq!(s.decide(Wake::Bell, &urgent), Decision::Suspend);
    // After a rest polls are interrupted early again.
    let rested = now + 20_000 * MS;
    assert_eq!(slice(&mut s, rested), rested + limits.grace);
}

/// Timers that find nothing soon stop; one that does brings them back.
#[test]
fn precautions_go_on_while_they_bring_something() {
    let mut s = supervisor();
    let short = seen(MS, poll(MS, 4), 0, 0);
    assert!(s.precautions_from() <= MS);
    for _ in 0..5 {
        assert_eq!(s.decide(Wake::Timer, &short), Decision::Rest);
    }
    assert!(s.precautions_from() > MS);
    let overrun = seen(MS, poll(0, 4), 1, 0);
    assert_eq!(s.decide(Wake::Timer, &overrun), Decision::Suspend);
    assert!(s.precautions_from() <= MS);
}

/// Deafness is bounded, and ends with the first suspension.
#[test]
fn an_overdrawn_allowance_recovers() {
    let mut s = supervisor();
    let useless = seen(MS, poll(MS, 4), 0, 0);
    for _ in 0..1000 {
        assert_eq!(s.decide(Wake::Bell, &useless), Decision::Rest);
    }
    assert!(s.deaf_until() > MS && s.deaf_until() <= MS + s.limits().backstop);
    let overrun = seen(MS, poll(0, 4), 1, 0);
    assert_eq!(s.decide(Wake::Timer, &overrun), Decision::Suspend);
    // Bit by bit: what it has spent it has spent.
    let before = s.deaf_until();
    assert_eq!(s.decide(Wake::Timer, &overrun), Decision::Suspend);
    assert!(s.deaf_until() <= before);
}

/// Every observation on a small grid: whoever waits at least as urgently is looked after within the backstop.
#[test]
fn nobody_who_may_wait_is_forgotten() {
    let guards = [
        Guard::None,
        Guard::Runtime,
        Guard::User(0),
        Guard::User(9 * MS),
    ];
    for level in [0u8, 1, 31, 63] {
        for waiting in 0..64 {
            for guard in guards {
                for resumed in [None, Some(10 * MS - 1), Some(MS)] {
                    for free_seat in [false, true] {
                        let now = 10 * MS;
                        let look = Observation {
                            free_seat,
                            ..seen(
                                now,
                                Poll {
                                    resumed,
                                    guard,
                                    ..poll(now - 1, level)
                                },
                                1 << waiting,
                                0,
                            )
                        };
                        let mut s = supervisor();
                        let decision = s.decide(Wake::Bell, &look);
                        match decision {
                            Decision::Rest => assert!(waiting > u32::from(level)),
                            Decision::Look(at) | Decision::Ask(at) => {
                                assert!(waiting <= u32::from(level));
                                assert!(at > now && at <= now + s.limits().backstop);
                            }
                            Decision::Suspend => {
                                assert!(waiting <= u32::from(level) && free_seat);
                                assert_ne!(guard, Guard::Runtime);
                            }
                        }
                    }
                }
            }
        }
    }
}
