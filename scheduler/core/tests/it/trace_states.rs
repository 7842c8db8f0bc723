//! Tests the life of a coroutine by the order of recorded events. The tests check its six states,
//! and its end by return, by panic and by cancellation in each state.

use std::panic::panic_any;
use std::sync::atomic::Ordering;

use crate::support::{
    Drops, Server, Trace, at, block_once, domain, join, level, run, step, yield_now,
};
use upshift_core::preempt::WaitingWork;
use upshift_core::{Config, CoroutineId, Kind, Picked, QueueEnd, SpawnOptions, State};

#[test]
fn all_six_states_are_observed() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t, server) = (domain.clone(), trace.clone(), Server::of(&vcpu));
    let options = SpawnOptions {
        priority: at(20),
        start: false,
        ..SpawnOptions::default()
    };
    let handle = domain
        .spawn(
            async move {
                let me = d.current_id().unwrap();
                let (d2, t2) = (d.clone(), t.clone());
                d.spawn(
                    async move { t2.push(format!("{:?}", d2.state(me))) },
                    at(10),
                )
                .unwrap()
                .detach();
                t.push(format!("{:?}", d.state(me)));
                server.suspend();
                t.push(format!("{:?}", d.state(me)));
                assert_eq!(d.current_id(), Some(me));
                block_once().await;
            },
            options,
        )
        .unwrap();
    let id = handle.id();
    let state = || domain.state(id);
    assert_eq!(state(), State::Created);
    crate::support::serving(&vcpu, || domain.wake(id).unwrap());
    assert_eq!(state(), State::Ready);
    assert!(step(&vcpu).is_some());
    assert_eq!(trace.take(), "Running Suspended Running");
    assert_eq!(state(), State::Blocked);
    domain.wake(id).unwrap();
    run(&vcpu, 10);
    assert_eq!(state(), State::Exited);
    assert!(handle.is_finished());
}

#[test]
fn a_suspended_coroutine_waits_its_turn_like_any_other() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (t, server) = (trace.clone(), Server::of(&vcpu));
    domain
        .spawn(
            async move {
                t.push("begins");
                server.suspend();
                t.push("resumes");
            },
            at(20),
        )
        .unwrap()
        .detach();
    domain.spawn(trace.say("equal"), at(20)).unwrap().detach();
    domain.spawn(trace.say("lazy"), at(30)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "begins equal resumes lazy");
}

/// Runs a coroutine of level 20 that is suspended at time 0, and two that yield three times each,
/// with `step` ticks per poll. Returns the order of their polls.
fn suspended_among_yielding(suspended_delay: u64, step: u64) -> String {
    let config = Config {
        suspended_delay,
        ..Config::default()
    };
    let (domain, trace) = (domain(config), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (t, server) = (trace.clone(), Server::of(&vcpu));
    let long = async move {
        server.suspend();
        t.push("long");
    };
    domain.spawn(long, at(20)).unwrap().detach();
    for name in ["a", "b"] {
        let (t, d) = (trace.clone(), domain.clone());
        let short = async move {
            for _ in 0..3 {
                t.push(name);
                d.host().time.fetch_add(step, Ordering::Relaxed);
                yield_now().await;
            }
        };
        domain.spawn(short, at(20)).unwrap().detach();
    }
    run(&vcpu, 20);
    trace.take()
}

#[test]
fn a_suspended_coroutine_lets_fresh_ones_of_its_level_go_first() {
    assert_eq!(suspended_among_yielding(0, 10), "a b long a b a b");
    assert_eq!(suspended_among_yielding(1000, 10), "a b a b a b long");
}

#[test]
fn a_suspended_coroutine_waits_for_fresh_ones_for_a_bounded_time() {
    assert_eq!(suspended_among_yielding(25, 10), "a b a b a long b");
}

#[test]
fn a_resumed_coroutine_gets_a_turn_if_fresh_ones_wait() {
    for (spawns_other, level, expected) in [(true, 20, true), (true, 30, false), (false, 20, false)]
    {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let (server, d) = (Server::of(&vcpu), domain.clone());
        let long = async move {
            let executor = server.get();
            // SAFETY: the test has one thread, and the poll continues only after it was picked
            // again, below.
            unsafe { executor.suspend_current(QueueEnd::Tail) }.unwrap();
            if spawns_other {
                d.spawn(async {}, at(level)).unwrap().detach();
            }
            match executor.pick(None) {
                Some(Picked::Resume { for_a_turn, .. }) => assert_eq!(for_a_turn, expected),
                _ => panic!("another coroutine is picked, or none"),
            }
        };
        let handle = domain.spawn(long, at(20)).unwrap();
        run(&vcpu, 20);
        join(&vcpu, handle).unwrap();
    }
}

#[test]
fn suspensions_are_counted() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let server = Server::of(&vcpu);
    let long = async move {
        let executor = server.get();
        assert_eq!(executor.suspended(), 0);
        // SAFETY: the test has one thread, and the poll continues only after it was picked again.
        unsafe { executor.suspend_current(QueueEnd::Tail) }.unwrap();
        assert_eq!(executor.suspended(), 1);
        assert!(matches!(executor.pick(None), Some(Picked::Resume { .. })));
        assert_eq!(executor.suspended(), 0);
    };
    domain.spawn(long, at(20)).unwrap().detach();
    run(&vcpu, 20);
    assert_eq!(vcpu.level_stats(level(20)).suspensions, 1);
    assert_eq!(vcpu.level_stats(level(21)).suspensions, 0);
}

#[test]
fn the_host_is_notified_of_coroutines_that_become_ready_during_a_poll() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    vcpu.set_arrival_notice(true);
    let d = domain.clone();
    let busy = async move {
        let (notified, waiting) = (&d.host().notified, &d.host().waiting);
        assert!(waiting.lock().unwrap().is_empty(), "queued between polls");
        for level in [30, 20, 10] {
            d.spawn(async {}, at(level)).unwrap().detach();
        }
        assert_eq!(
            *waiting.lock().unwrap(),
            [
                WaitingWork::Nothing,
                WaitingWork::Equal,
                WaitingWork::Urgent
            ]
        );
        let from_outside = || {
            std::thread::scope(|scope| {
                scope.spawn(|| d.spawn(async {}, at(30)).unwrap().detach());
            });
        };
        from_outside();
        assert_eq!(notified.lock().unwrap().len(), 1);
        from_outside();
        assert_eq!(notified.lock().unwrap().len(), 1, "once is enough");
        d.vcpus().next().unwrap().set_arrival_notice(true);
        from_outside();
        assert_eq!(notified.lock().unwrap().len(), 2);
    };
    crate::support::serving(&vcpu, || domain.spawn(busy, at(20)).unwrap().detach());
    run(&vcpu, 20);
    assert_eq!(domain.host().notified.lock().unwrap().len(), 2);
}

#[test]
fn the_host_is_notified_of_a_change_of_level_only_if_a_poll_may_have_to_yield() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let d = domain.clone();
    let queued = domain.spawn(async {}, at(30)).unwrap();
    let other = queued.id();
    let busy = async move {
        let me = d.current_id().unwrap();
        let notifies = |id: CoroutineId, new_level: u8| {
            d.vcpus().next().unwrap().set_arrival_notice(true);
            let before = d.host().notified.lock().unwrap().len();
            d.reprio(id, level(new_level)).unwrap();
            d.host().notified.lock().unwrap().len() > before
        };
        assert!(!notifies(me, 20), "as it was");
        assert!(!notifies(me, 15), "more urgent than before");
        assert!(notifies(me, 20), "less urgent than before");
        assert!(!notifies(other, 25), "less urgent than the running poll");
        assert!(notifies(other, 20));
        assert!(notifies(other, 10));
        assert!(!notifies(other, 40));
        // The last release takes back a loan of an equal, which changes nothing.
        d.vcpus().next().unwrap().set_arrival_notice(true);
        let before = d.host().notified.lock().unwrap().len();
        let _ = d.record_lock();
        d.lend_to_holder(me);
        d.record_unlock(me);
        assert_eq!(d.host().notified.lock().unwrap().len(), before);
    };
    let busy = crate::support::serving(&vcpu, || domain.spawn(busy, at(20)).unwrap());
    run(&vcpu, 20);
    assert!(join(&vcpu, busy).is_ok() && queued.is_finished());
}

#[test]
fn wakes_and_cancellation_of_a_suspended_coroutine_take_effect_after_its_poll() {
    for cancel in [false, true] {
        let (domain, trace) = (domain(Config::default()), Trace::default());
        let vcpu = domain.add_vcpu().unwrap();
        let (d, t, server) = (domain.clone(), trace.clone(), Server::of(&vcpu));
        let handle = domain
            .spawn(
                async move {
                    let me = d.current_id().unwrap();
                    let d2 = d.clone();
                    let meddle = async move {
                        if cancel { d2.cancel(me) } else { d2.wake(me) }.unwrap();
                    };
                    d.spawn(meddle, at(10)).unwrap().detach();
                    server.suspend();
                    t.push("resumes");
                    block_once().await;
                    t.push("again");
                },
                at(20),
            )
            .unwrap();
        run(&vcpu, 10);
        let joined = join(&vcpu, handle);
        assert_eq!(joined.is_err(), cancel);
        assert_eq!(
            trace.take(),
            if cancel { "resumes" } else { "resumes again" }
        );
    }
}

#[test]
fn without_a_poll_no_coroutine_is_suspended() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    domain.spawn(async {}, at(20)).unwrap().detach();
    run(&vcpu, 10);
    // SAFETY: no poll is under way.
    assert!(unsafe { vcpu.suspend_current(QueueEnd::Tail) }.is_none());
}

#[test]
fn cancellation_in_each_state_drops_the_future_unpolled() {
    for state in [State::Created, State::Ready, State::Blocked] {
        let (domain, drops, trace) = (
            domain(Config::default()),
            Drops::default(),
            Trace::default(),
        );
        let vcpu = domain.add_vcpu().unwrap();
        let (token, t) = (drops.token(), trace.clone());
        let options = SpawnOptions {
            priority: at(20),
            start: state != State::Created,
            ..SpawnOptions::default()
        };
        let handle = domain
            .spawn(
                async move {
                    let _token = token;
                    t.push("polled");
                    block_once().await;
                    t.push("polled");
                },
                options,
            )
            .unwrap();
        if state == State::Blocked {
            run(&vcpu, 10);
            assert_eq!(domain.state(handle.id()), state);
        }
        trace.take();
        handle.cancel();
        handle.cancel();
        assert_eq!(drops.count(), 0);
        assert!(!handle.is_finished());
        assert_eq!(run(&vcpu, 10), 1);
        assert_eq!((drops.count(), trace.take().as_str()), (1, ""));
        assert!(join(&vcpu, handle).unwrap_err().is_cancelled());
        assert_eq!(domain.bitmap(), 0);
    }
}

#[test]
fn cancellation_of_the_running_coroutine_waits_for_the_end_of_its_poll() {
    for kind in [Kind::Task, Kind::Completion, Kind::Switching] {
        let (domain, trace) = (domain(Config::default()), Trace::default());
        let vcpu = domain.add_vcpu().unwrap();
        let (d, t) = (domain.clone(), trace.clone());
        let options = SpawnOptions {
            priority: at(20),
            kind,
            start: true,
        };
        let handle = domain
            .spawn(
                async move {
                    d.cancel(d.current_id().unwrap()).unwrap();
                    t.push("resumes");
                    block_once().await;
                    t.push("never");
                },
                options,
            )
            .unwrap();
        assert_eq!(run(&vcpu, 10), 2);
        assert!(join(&vcpu, handle).unwrap_err().is_cancelled());
        assert_eq!(trace.take(), "resumes");
    }
}

#[test]
fn a_coroutine_that_finishes_in_the_poll_that_cancels_it_has_its_result() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let d = domain.clone();
    let handle = domain
        .spawn(
            async move {
                d.cancel(d.current_id().unwrap()).unwrap();
                7
            },
            at(20),
        )
        .unwrap();
    assert_eq!(join(&vcpu, handle).unwrap(), 7);
}

#[test]
fn a_panic_ends_its_coroutine_and_no_other() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let literal = domain.spawn(async { panic!("one") }, at(1)).unwrap();
    let n = 2;
    let formatted = domain
        .spawn(async move { panic!("number {n}") }, at(1))
        .unwrap();
    let other = domain.spawn(async { panic_any(3u8) }, at(1)).unwrap();
    domain
        .spawn(async { panic!("nobody reads this") }, at(1))
        .unwrap()
        .detach();
    let (t, blocks) = (trace.clone(), block_once());
    let alive = domain
        .spawn(
            async move {
                blocks.await;
                t.push("lives");
            },
            at(1),
        )
        .unwrap();
    run(&vcpu, 10);
    assert_eq!(vcpu.exits(), (4, 4));
    let error = join::<()>(&vcpu, literal).unwrap_err();
    assert!(error.is_panic() && !error.is_cancelled());
    assert_eq!(error.to_string(), "the coroutine panicked: one");
    let error = join::<()>(&vcpu, formatted).unwrap_err();
    assert_eq!(format!("{error:?}"), "Panicked(Some(\"number 2\"))");
    let payload = join::<()>(&vcpu, other).unwrap_err().into_panic().unwrap();
    assert_eq!(payload.downcast_ref::<u8>(), Some(&3));
    domain.wake(alive.id()).unwrap();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "lives");
    assert_eq!(vcpu.exits(), (5, 4));
}

struct PanicsInDrop(&'static str);

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic_any(self.0);
    }
}

#[test]
fn a_panic_in_the_destructor_of_a_future_is_reported() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let bomb = PanicsInDrop("drop");
    let cancelled = domain
        .spawn(
            async move {
                let _bomb = bomb;
                block_once().await;
            },
            at(20),
        )
        .unwrap();
    run(&vcpu, 10);
    cancelled.cancel();
    let error = join(&vcpu, cancelled).unwrap_err();
    assert_eq!(error.to_string(), "the coroutine panicked: drop");
    assert_eq!(vcpu.exits(), (1, 1));
}

#[test]
fn a_panic_in_the_destructor_of_an_output_or_a_payload_goes_no_further() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    // Detached before its exit, so the vCPU drops the output.
    domain
        .spawn(async { PanicsInDrop("output") }, at(20))
        .unwrap()
        .detach();
    domain
        .spawn(async { panic_any(PanicsInDrop("payload")) }, at(20))
        .unwrap()
        .detach();
    // Detached after its exit, so the output is dropped with the handle.
    let handle = domain
        .spawn(async { PanicsInDrop("output") }, at(20))
        .unwrap();
    assert_eq!(run(&vcpu, 10), 3);
    drop(handle);
    domain.spawn(yield_now(), at(20)).unwrap().detach();
    assert_eq!(run(&vcpu, 10), 2);
}

#[test]
fn a_coroutine_that_is_alive_at_the_end_of_its_domain_is_cancelled() {
    let drops = Drops::default();
    let handles: Vec<_> = {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let mut handles = Vec::new();
        for (n, start) in [(1, true), (2, true), (3, false)] {
            let token = drops.token();
            let future = async move {
                let _token = token;
                block_once().await;
            };
            let options = SpawnOptions {
                priority: at(n),
                start,
                ..SpawnOptions::default()
            };
            handles.push(domain.spawn(future, options).unwrap());
        }
        // One is blocked, one ready, one created.
        assert_eq!(step(&vcpu).unwrap().1, level(1));
        handles
    };
    assert_eq!(drops.count(), 3);
    for mut handle in handles {
        assert!(handle.is_finished());
        handle.cancel();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = std::pin::Pin::new(&mut handle).poll(&mut cx);
        assert!(matches!(polled, std::task::Poll::Ready(Err(e)) if e.is_cancelled()));
    }
}

#[test]
fn cancel_all_ends_everything_and_returns_the_number() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    for n in 0..10 {
        domain.spawn(block_once(), at(n)).unwrap().detach();
    }
    run(&vcpu, 5);
    domain.close();
    assert_eq!(domain.cancel_all(), 10);
    run(&vcpu, 100);
    assert_eq!(domain.cancel_all(), 0);
    assert_eq!(vcpu.exits(), (10, 0));
}

#[test]
fn a_poll_that_is_suspended_for_urgent_work_resumes_first() {
    let domain = domain(Config {
        suspended_delay: 1_000,
        ..Config::default()
    });
    let vcpu = domain.add_vcpu().unwrap();
    let (server, d, trace) = (Server::of(&vcpu), domain.clone(), Trace::default());
    let t = trace.clone();
    let long = async move {
        let executor = server.get();
        for (level, name) in [(20, "equal"), (10, "urgent")] {
            d.spawn(t.say(name), at(level)).unwrap().detach();
        }
        // SAFETY: the test has one thread, and the poll continues only after it was picked again.
        let me = unsafe { executor.suspend_current(QueueEnd::Head) }.unwrap();
        loop {
            match executor.pick(None) {
                Some(Picked::Resume { id, .. }) => break assert_eq!(id, me),
                Some(Picked::Poll(running)) => drop(running.poll()),
                None => panic!("the suspended coroutine is not ready"),
            }
        }
        t.push("long");
    };
    domain.spawn(long, at(20)).unwrap().detach();
    run(&vcpu, 20);
    assert_eq!(trace.take(), "urgent long equal");
}

#[test]
fn a_coroutine_that_is_set_aside_is_in_no_queue_until_it_resumes() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (server, d) = (Server::of(&vcpu), domain.clone());
    let long = async move {
        let executor = server.get();
        // SAFETY: the test has one thread and holds the domain, and the poll continues only after
        // it was picked again.
        let set_aside = unsafe { executor.set_aside_current() }.unwrap();
        let me = set_aside.id();
        assert_eq!(d.state(me), State::Suspended);
        assert!(executor.pick(None).is_none());
        assert_eq!((executor.bitmap(), executor.suspended()), (0, 0));
        d.reprio(me, upshift_core::Level::at::<7>()).unwrap();
        std::thread::spawn(|| set_aside.requeue()).join().unwrap();
        assert_ne!(executor.bitmap() & 1 << 7, 0);
        assert!(matches!(executor.pick(None), Some(Picked::Resume { id, .. }) if id == me));
    };
    domain.spawn(long, at(20)).unwrap().detach();
    run(&vcpu, 20);
}

#[test]
fn a_suspended_coroutine_is_picked_out_of_turn() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (server, d, trace) = (Server::of(&vcpu), domain.clone(), Trace::default());
    let t = trace.clone();
    let long = async move {
        let executor = server.get();
        d.spawn(t.say("urgent"), at(2)).unwrap().detach();
        let current = d.current_id().unwrap();
        // SAFETY: the test has one thread, and the poll continues only after it was picked again.
        let me = unsafe { executor.suspend_current(QueueEnd::Head) }.unwrap();
        assert_eq!(me, current);
        let picked = executor.pick_suspended(me);
        assert!(matches!(picked, Some(Picked::Resume { id, .. }) if id == me));
        assert!(executor.pick_suspended(me).is_none(), "already running");
        t.push("long");
    };
    domain.spawn(long, at(20)).unwrap().detach();
    run(&vcpu, 20);
    assert_eq!(trace.take(), "long urgent");
}
