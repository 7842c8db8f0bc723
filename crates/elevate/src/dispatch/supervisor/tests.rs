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
        worth: Worth::START,
        hits: 0,
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
        worth: Worth::START,
        hits: 0,
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

/// After `polls` that were suspended and ran for `ran` ns.
fn after(worth: Worth, polls: usize, ran: u64) -> Worth {
    (0..polls).fold(worth, |worth, _| worth.and(ran, &Limits::default()))
}

#[test]
fn equals_wait_longer_while_suspending_is_not_worth_it() {
    let mut s = supervisor();
    let (quantum, grace) = (s.limits().quantum, s.limits().grace);
    let not_worth = after(Worth::START, 50, quantum + 1);
    let look = |worth, now, poll, ready| Observation {
        worth,
        ..seen(now, poll, ready, 0)
    };
    let begun = MS;
    for (worth, slice) in [(not_worth, 4 * quantum), (Worth::START, quantum)] {
        let equal = look(worth, begun + 1, poll(begun, 4), 1 << 4);
        assert_eq!(s.decide(Wake::Bell, &equal), Decision::Look(begun + slice));
        assert_eq!(s.slice(), slice);
        let late = look(worth, begun + slice, poll(begun, 4), 1 << 4);
        assert_eq!(s.decide(Wake::Timer, &late), Decision::Suspend);
        // The more urgent do not wait.
        let urgent = look(worth, begun + 1, poll(begun, 4), 1 << 3);
        assert_eq!(s.decide(Wake::Bell, &urgent), Decision::Suspend);
    }
    let resumed_at = begun + quantum;
    let resumed = Poll {
        resumed: Some(resumed_at),
        ..poll(begun, 4)
    };
    for (worth, slice) in [(Worth::START, grace), (not_worth, 4 * quantum)] {
        let seen = look(worth, resumed_at + 1, resumed, 1 << 4);
        let decision = s.decide(Wake::Bell, &seen);
        assert_eq!(decision, Decision::Look(resumed_at + slice));
    }
}

#[test]
fn what_suspensions_are_worth_is_learnt_and_forgotten() {
    let limits = Limits::default();
    let (little, much) = (limits.quantum + 50_000, limits.quantum + 25 * MS);
    let not_worth = after(Worth::START, 50, little);
    assert!(Worth::START.is_enough() && !not_worth.is_enough());
    // One that stood still changes nothing, but some that were long do, in any order.
    assert!(!after(not_worth, 1, much).is_enough());
    assert!(after(not_worth, 12, much).is_enough());
    let mixed = (0..100).fold(not_worth, |worth, _| {
        after(after(worth, 1, little), 1, much)
    });
    assert!(mixed.is_enough());
    // Who was suspended for the urgent and ended before the quantum says nothing.
    assert_eq!(after(not_worth, 100, limits.quantum - 1), not_worth);
    assert_eq!(Worth::from_bits(not_worth.to_bits()), not_worth);
    assert!(after(not_worth, 10_000, u64::MAX).to_bits() <= Worth::START.to_bits());
}

/// Polls without end, during each of which something arrives that may be more urgent.
#[test]
fn guesses_cost_no_more_than_their_share_unless_they_are_right() {
    for right in [false, true] {
        let mut s = supervisor();
        let mut worst = 0;
        let (mut now, mut guesses) = (0, 0u64);
        while now < 2_000 * MS {
            let begun = now;
            let seen = |now| Observation {
                hits: if right { guesses } else { 0 },
                ..seen(now, poll(begun, 4), 0, 1 << 3)
            };
            assert!(seen(now).is_guess());
            while let Decision::Look(at) = s.decide(Wake::Timer, &seen(now)) {
                now = at;
            }
            worst = worst.max(now - begun);
            guesses += 1;
        }
        let limits = s.limits();
        let cost = guesses * limits_burst(limits.look_cost, SUSPENSION) as u64;
        if right {
            assert_eq!(worst, limits.hidden);
        } else {
            let bound = 2_000 * MS / SUSPENSIONS_SHARE;
            let burst = limits_burst(limits.look_cost, SUSPENSIONS + SUSPENSION) as u64;
            // Beyond that a poll still ends after four quanta.
            assert!(
                cost <= bound + burst || worst == STRETCH * limits.quantum,
                "{guesses}"
            );
            assert!(worst <= STRETCH * limits.quantum, "{worst}");
        }
    }
}
