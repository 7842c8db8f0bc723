//! Tests the order in which coroutines are polled.

use std::sync::atomic::Ordering;

use crate::support::{
    Server, TestHost, Trace, at, block_once, domain, keep_place, level, quantum_began, run,
    serving, step, yield_now,
};
use upshift_core::{Config, Domain, Floor, JoinHandle, Kind, Picked, SpawnOptions};

#[test]
fn invariant_1_order_the_most_urgent_level_is_polled_first() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    for n in [40, 0, 63, 5, 62, 1] {
        domain
            .spawn(trace.say(&n.to_string()), at(n))
            .unwrap()
            .detach();
    }
    assert_eq!(run(&vcpu, 100), 6);
    assert_eq!(trace.take(), "0 1 5 40 62 63");
}

#[test]
fn invariant_1_order_is_fifo_within_a_level() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    for name in ["a", "b", "c", "d"] {
        domain.spawn(trace.say(name), at(7)).unwrap().detach();
    }
    run(&vcpu, 100);
    assert_eq!(trace.take(), "a b c d");
}

#[test]
fn invariant_1_order_pinned_and_movable_coroutines_share_one_fifo() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    for (n, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let future = trace.say(name);
        if n % 2 == 0 {
            // SAFETY: the future and its output are `Send`.
            unsafe { vcpu.spawn_pinned(future, at(7)) }
                .unwrap()
                .detach();
        } else {
            domain.spawn(future, at(7)).unwrap().detach();
        }
    }
    run(&vcpu, 100);
    assert_eq!(trace.take(), "a b c d e");
}

#[test]
fn invariant_1_order_a_child_more_urgent_than_its_parent_is_polled_next() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t) = (domain.clone(), trace.clone());
    domain
        .spawn(
            async move {
                t.push("parent");
                d.spawn(t.say("urgent"), at(3)).unwrap().detach();
                d.spawn(t.say("lazy"), at(50)).unwrap().detach();
                t.push("yields");
                yield_now().await;
                t.push("parent");
            },
            at(30),
        )
        .unwrap()
        .detach();
    domain.spawn(trace.say("other"), at(30)).unwrap().detach();
    run(&vcpu, 100);
    assert_eq!(trace.take(), "parent yields urgent other parent lazy");
}

#[test]
fn a_yield_goes_to_the_tail_of_its_level() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    for name in ["a", "b"] {
        let t = trace.clone();
        let twice = async move {
            t.push(format!("{name}1"));
            yield_now().await;
            t.push(format!("{name}2"));
        };
        domain.spawn(twice, at(7)).unwrap().detach();
    }
    domain.spawn(trace.say("c"), at(7)).unwrap().detach();
    run(&vcpu, 100);
    assert_eq!(trace.take(), "a1 b1 c a2 b2");
}

#[test]
fn a_coroutine_dropped_unpolled_returns_to_the_tail() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    domain.spawn(trace.say("a"), at(7)).unwrap().detach();
    domain.spawn(trace.say("b"), at(7)).unwrap().detach();
    assert!(matches!(vcpu.pick(None), Some(Picked::Poll(_))));
    assert_eq!(vcpu.ready_len(level(7)), 2);
    run(&vcpu, 100);
    assert_eq!(trace.take(), "b a");
}

#[test]
fn a_switching_coroutine_is_ready_again_after_every_poll() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let t = trace.clone();
    let switching = std::future::poll_fn(move |_| {
        t.push("user");
        std::task::Poll::<()>::Pending
    });
    let options = SpawnOptions {
        priority: at(10),
        kind: Kind::Switching,
        start: true,
    };
    let handle = domain.spawn(switching, options).unwrap();
    domain.spawn(trace.say("kernel"), at(20)).unwrap().detach();
    assert_eq!(run(&vcpu, 4), 4);
    assert_eq!(trace.take(), "user user user user");
    // The level of the coroutine follows the program that the coroutine runs.
    domain.reprio(handle.id(), level(30)).unwrap();
    assert_eq!(run(&vcpu, 3), 3);
    assert_eq!(trace.take(), "kernel user user");
    handle.cancel();
    assert_eq!(run(&vcpu, 10), 1);
    assert!(handle.is_finished());
}

#[test]
fn need_preempt_is_set_by_a_more_urgent_wake_and_cleared_by_pick() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let urgent = domain.spawn(block_once(), at(3)).unwrap();
    let equal = domain.spawn(block_once(), at(9)).unwrap();
    run(&vcpu, 10);
    let (server, d, t) = (Server::of(&vcpu), domain.clone(), trace.clone());
    let ids = (urgent.id(), equal.id());
    domain
        .spawn(
            async move {
                d.wake(ids.1).unwrap();
                t.push(format!("equal:{}", server.get().need_preempt()));
                d.wake(ids.0).unwrap();
                t.push(format!("urgent:{}", server.get().need_preempt()));
                yield_now().await;
                t.push(format!("later:{}", server.get().need_preempt()));
            },
            at(9),
        )
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "equal:false urgent:true later:false");
}

#[test]
fn a_wake_from_another_thread_sets_need_preempt() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let urgent = domain.spawn(block_once(), at(3)).unwrap();
    run(&vcpu, 10);
    let (server, d, t, id) = (
        Server::of(&vcpu),
        domain.clone(),
        trace.clone(),
        urgent.id(),
    );
    domain
        .spawn(
            async move {
                std::thread::scope(|s| s.spawn(|| d.wake(id)).join().unwrap()).unwrap();
                t.push(server.get().need_preempt().to_string());
            },
            at(9),
        )
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "true");
}

#[test]
fn request_preempt_lasts_until_the_next_pick() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    assert!(!vcpu.need_preempt());
    vcpu.request_preempt();
    assert!(vcpu.need_preempt());
    assert!(vcpu.pick(None).is_none());
    assert!(!vcpu.need_preempt());
}

#[test]
fn without_a_floor_a_less_urgent_level_starves() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    domain.spawn(trace.say("starved"), at(40)).unwrap().detach();
    let busy = domain
        .spawn(
            async {
                loop {
                    yield_now().await
                }
            },
            at(1),
        )
        .unwrap();
    assert_eq!(run(&vcpu, 1000), 1000);
    assert_eq!(trace.take(), "");
    busy.cancel();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "starved");
}

/// Spawns a coroutine whose polls take `ticks` each, until it is cancelled.
fn spawn_worker(domain: &Domain<TestHost>, ticks: u64, l: u8) -> JoinHandle<(), TestHost> {
    let clock = domain.clone();
    let work = async move {
        loop {
            clock.host().time.fetch_add(ticks, Ordering::Relaxed);
            yield_now().await;
        }
    };
    domain.spawn(work, at(l)).unwrap()
}

/// Both bounds that `Config::floor` states hold in any window of time.
#[test]
fn a_floor_gets_its_share_and_no_more_of_any_time() {
    const QUANTUM: u64 = 500;
    let lengths: &[(u64, u64)] = if cfg!(miri) {
        &[(10, 70)]
    } else {
        &[(10, 10), (1, 300), (400, 3), (130, 170)]
    };
    for &(urgent, low) in lengths {
        for percent in [1, 10, 50, 90] {
            let domain = domain(Config {
                floor: Some(Floor {
                    from: level(32),
                    percent,
                    quantum: QUANTUM,
                }),
                // Has no effect if there is a floor.
                coarse_below: 1_000,
                ..Config::default()
            });
            let vcpu = domain.add_vcpu().unwrap();
            let all =
                [(urgent, 31), (low, 32), (low, 63)].map(|(t, l)| spawn_worker(&domain, t, l));
            // In hundredths of a tick.
            let bound = 100 * (QUANTUM + urgent.max(low));
            let (mut behind, mut ahead) = (0_u64, 0_u64);
            for _ in 0..if cfg!(miri) { 300 } else { 20_000 } {
                let (_, polled) = step(&vcpu).unwrap();
                let share = u64::from(percent);
                // Excess of the worst window so far, in hundredths of a tick.
                if polled == level(32) {
                    behind = behind.saturating_sub((100 - share) * low);
                    ahead += (100 - share) * low;
                } else {
                    assert_eq!(polled, level(31), "strict priority within the floor");
                    behind += share * urgent;
                    ahead = ahead.saturating_sub(share * urgent);
                }
                assert!(
                    behind <= bound,
                    "{percent} %, {urgent}, {low}: {behind} behind"
                );
                assert!(
                    ahead <= bound,
                    "{percent} %, {urgent}, {low}: {ahead} ahead"
                );
            }
            // Cancelled because the futures own the domain.
            all.iter().for_each(|work| work.cancel());
            run(&vcpu, 10);
        }
    }
}

#[test]
fn chaos_shuffles_a_level_but_keeps_the_order_of_levels() {
    let config = Config {
        chaos: Some(42),
        ..Config::default()
    };
    let (domain, trace) = (domain(config), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    for n in 0..16 {
        domain
            .spawn(trace.say(&format!("{n:02}")), at(7))
            .unwrap()
            .detach();
        domain.spawn(trace.say("urgent"), at(2)).unwrap().detach();
    }
    let mut asked = 0;
    for _ in 0..16 {
        assert_eq!(step(&vcpu).unwrap().1, level(2));
        asked += u32::from(vcpu.need_preempt());
    }
    // Some polls were asked to yield, and some were not.
    assert!((1..16).contains(&asked), "{asked} of 16 polls are asked");
    trace.take();
    run(&vcpu, 100);
    let order = trace.take();
    let mut sorted: Vec<&str> = order.split(' ').collect();
    sorted.sort_unstable();
    assert_ne!(order, sorted.join(" "));
    assert_eq!(sorted.len(), 16);
}

/// While polls are short, the clock is read at every fourth poll, and the four polls share the
/// elapsed time.
#[test]
fn ticks_between_two_readings_are_shared_out_by_level() {
    let domain = domain(Config {
        coarse_below: 1_000,
        ..Config::default()
    });
    let vcpu = domain.add_vcpu().unwrap();
    let poll_of = |ticks| {
        let d = domain.clone();
        async move {
            d.host().time.fetch_add(ticks, Ordering::Relaxed);
        }
    };
    // Polls between two readings of the clock: one; four of a level; two of that level and two of
    // the next; three.
    let all = [
        (7, &[8][..]),
        (20, &[1, 2, 3, 6, 10, 0]),
        (30, &[0, 2]),
        (40, &[1, 2, 6]),
    ];
    for (n, lengths) in all {
        for &ticks in lengths {
            domain.spawn(poll_of(ticks), at(n)).unwrap().detach();
        }
    }
    assert_eq!(run(&vcpu, 100), 12);
    vcpu.refresh_clock();
    let ran = |n| vcpu.level_stats(level(n)).run_ticks;
    assert_eq!([7, 20, 30, 40].map(ran), [8, 12 + 6, 6, 9]);
}

#[test]
fn stats_count_polls_waits_and_starvation_by_level() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let time = |t| domain.host().time.store(t, Ordering::Relaxed);
    time(1_000);
    assert!(step(&vcpu).is_none());
    domain.spawn(async {}, at(40)).unwrap().detach();
    time(1_100);
    vcpu.refresh_clock();
    let host = Server::of(&vcpu);
    domain
        .spawn(
            async move {
                host.get()
                    .domain()
                    .host()
                    .time
                    .store(1_300, Ordering::Relaxed);
            },
            at(4),
        )
        .unwrap()
        .detach();
    run(&vcpu, 10);
    let (urgent, lazy) = (vcpu.level_stats(level(4)), vcpu.level_stats(level(40)));
    assert_eq!((urgent.polls, lazy.polls), (1, 1));
    assert_eq!(urgent.run_ticks, 200);
    assert_eq!(urgent.starve_ticks, 0);
    assert_eq!(lazy.starve_ticks, 300);
    // The wait of 300 ticks is rounded down to its bucket.
    assert_eq!((lazy.wait.count(), lazy.wait.quantile(1.0)), (1, 256));
    assert_eq!(vcpu.level_stats(level(5)).polls, 0);
}

#[test]
fn a_level_that_was_empty_has_not_starved_when_reprio_fills_it() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    domain.host().time.store(1_000, Ordering::Relaxed);
    vcpu.refresh_clock();
    let handle = serving(&vcpu, || domain.spawn(async {}, at(40)).unwrap());
    domain.reprio(handle.id(), level(5)).unwrap();
    run(&vcpu, 10);
    assert_eq!(vcpu.level_stats(level(5)).starve_ticks, 0);
}

/// Returns a future that records its name and yields `times` times, each time keeping its place in
/// the queue.
fn yield_in_place(
    trace: &Trace,
    name: &'static str,
    times: usize,
) -> impl Future<Output = ()> + use<> {
    let (trace, mut remaining) = (trace.clone(), times);
    std::future::poll_fn(move |cx| {
        trace.push(name);
        if remaining == 0 {
            return std::task::Poll::Ready(());
        }
        remaining -= 1;
        cx.waker().wake_by_ref();
        keep_place();
        std::task::Poll::Pending
    })
}

#[test]
fn a_coroutine_that_yields_in_place_goes_before_others_of_its_level() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        let future = yield_in_place(&trace, name, 2);
        // Whether a coroutine is pinned makes no difference.
        if n == 1 {
            // SAFETY: the future and its output are `Send`.
            unsafe { vcpu.spawn_pinned(future, at(7)) }
                .unwrap()
                .detach();
        } else {
            domain.spawn(future, at(7)).unwrap().detach();
        }
    }
    assert!(step(&vcpu).is_some());
    domain.spawn(trace.say("urgent"), at(3)).unwrap().detach();
    domain.spawn(trace.say("d"), at(7)).unwrap().detach();
    run(&vcpu, 100);
    assert_eq!(trace.take(), "a urgent a a b b b c c c d");
}

#[test]
fn a_coroutine_that_yields_in_place_goes_before_one_that_arrives_at_the_same_tick() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let pinned = yield_in_place(&trace, "pinned", 1);
    // SAFETY: the future and its output are `Send`.
    unsafe { vcpu.spawn_pinned(pinned, at(7)) }
        .unwrap()
        .detach();
    domain.host().time.store(100, Ordering::Relaxed);
    assert!(step(&vcpu).is_some());
    serving(&vcpu, || {
        domain.spawn(trace.say("later"), at(7)).unwrap().detach();
    });
    run(&vcpu, 100);
    assert_eq!(trace.take(), "pinned pinned later");
}

#[test]
fn a_coroutine_that_yields_with_another_level_goes_to_the_tail() {
    let (plain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = plain.add_vcpu().unwrap();
    let (d, t) = (plain.clone(), trace.clone());
    let mut polled = false;
    let change_level = std::future::poll_fn(move |cx| {
        t.push("moves");
        if std::mem::replace(&mut polled, true) {
            return std::task::Poll::Ready(());
        }
        let id = d.current_id().unwrap();
        d.reprio(id, level(9)).unwrap();
        cx.waker().wake_by_ref();
        keep_place();
        std::task::Poll::Pending
    });
    plain.spawn(change_level, at(7)).unwrap().detach();
    plain.spawn(trace.say("b"), at(9)).unwrap().detach();
    run(&vcpu, 100);
    assert_eq!(trace.take(), "moves b moves");
}

#[test]
fn a_quantum_continues_over_polls_that_yield_in_place() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    domain.host().time.store(100, Ordering::Relaxed);
    let began = Trace::default();
    let (b, mut remaining, d) = (began.clone(), 2, domain.clone());
    let work = std::future::poll_fn(move |cx| {
        b.push(quantum_began().to_string());
        d.host().time.fetch_add(10, Ordering::Relaxed);
        if remaining == 0 {
            return std::task::Poll::Ready(());
        }
        remaining -= 1;
        cx.waker().wake_by_ref();
        keep_place();
        std::task::Poll::Pending
    });
    domain.spawn(work, at(7)).unwrap().detach();
    domain.spawn(trace.say("old"), at(7)).unwrap().detach();
    run(&vcpu, 100);
    // Each poll takes 10 ticks, and the quantum begins with the first.
    assert_eq!(began.take(), "100 100 100");
    assert_eq!(trace.take(), "old");
}
