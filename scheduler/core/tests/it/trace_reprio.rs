//! Tests `reprio` in every state of a coroutine, the bitmap of levels with ready coroutines, and
//! locks whose waiters lend their levels.

use crate::support::{
    Server, Trace, at, block_once, domain, finish, level, run, serving, step, yield_now,
};
use upshift_core::{Config, State};

#[test]
fn reprio_moves_a_queued_coroutine_to_the_tail_of_its_new_level() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let spawn = |name, n| {
        let spawned = serving(&vcpu, || domain.spawn(trace.say(name), at(n)));
        spawned.unwrap().id()
    };
    let (_a, b, c) = (spawn("a", 20), spawn("b", 20), spawn("c", 20));
    let (_d, e) = (spawn("d", 10), spawn("e", 30));
    for (id, n) in [(b, 10), (c, 40), (e, 10), (b, 10)] {
        domain.reprio(id, level(n)).unwrap();
        assert_eq!(domain.level(id), Ok(level(n)));
    }
    run(&vcpu, 10);
    assert_eq!(trace.take(), "d b e a c");
}

#[test]
fn invariant_5_bitmap_follows_every_operation() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let assert_bitmap = |levels: &[u8]| {
        let expected = levels.iter().fold(0, |all, &n| all | level(n).bit());
        assert_eq!(vcpu.bitmap(), expected);
        assert_eq!(domain.bitmap(), expected);
    };
    assert_bitmap(&[]);
    let a = serving(&vcpu, || domain.spawn(block_once(), at(20))).unwrap();
    assert_bitmap(&[20]);
    let b = serving(&vcpu, || domain.spawn(block_once(), at(0))).unwrap();
    assert_bitmap(&[0, 20]);
    let c = domain.spawn(yield_now(), at(63)).unwrap();
    assert_bitmap(&[0, 20, 63]);
    domain.reprio(a.id(), level(21)).unwrap();
    assert_bitmap(&[0, 21, 63]);
    assert_eq!(step(&vcpu).unwrap().0, b.id());
    assert_bitmap(&[21, 63]);
    domain.reprio(b.id(), level(1)).unwrap();
    assert_bitmap(&[21, 63]);
    domain.wake(b.id()).unwrap();
    assert_bitmap(&[1, 21, 63]);
    b.cancel();
    assert_bitmap(&[1, 21, 63]);
    step(&vcpu);
    assert_bitmap(&[21, 63]);
    step(&vcpu);
    assert_bitmap(&[63]);
    assert_eq!(step(&vcpu).unwrap().0, c.id());
    assert_bitmap(&[63]);
    step(&vcpu);
    assert_bitmap(&[]);
    a.cancel();
    assert_bitmap(&[21]);
    step(&vcpu);
    assert_bitmap(&[]);
}

#[test]
fn reprio_of_a_blocked_coroutine_counts_at_its_next_wake() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let t = trace.clone();
    let blocked = async move {
        block_once().await;
        t.push("woken");
    };
    let handle = domain.spawn(blocked, at(40)).unwrap();
    run(&vcpu, 10);
    domain.reprio(handle.id(), level(5)).unwrap();
    assert_eq!(vcpu.bitmap(), 0);
    domain.spawn(trace.say("other"), at(20)).unwrap().detach();
    domain.wake(handle.id()).unwrap();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "woken other");
}

#[test]
fn reprio_moves_a_coroutine_in_the_inbox() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    // Both are in the inbox, since they were spawned from outside.
    let first = domain.spawn(async {}, at(20)).unwrap().id();
    let second = domain.spawn(async {}, at(30)).unwrap().id();
    domain.reprio(second, level(10)).unwrap();
    assert_eq!(step(&vcpu).unwrap().0, second);
    assert_eq!(step(&vcpu).unwrap().0, first);
}

#[test]
fn a_coroutine_that_changes_its_level_in_the_inbox_keeps_its_place_among_arrivals() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let moved = domain.spawn(trace.say("moved"), at(30)).unwrap().id();
    domain.spawn(trace.say("later"), at(20)).unwrap().detach();
    domain.reprio(moved, level(20)).unwrap();
    // The old level shows until the next pick, the new one at once.
    assert_eq!(vcpu.bitmap(), level(20).bit() | level(30).bit());
    domain.reprio(moved, level(10)).unwrap();
    assert_ne!(vcpu.bitmap() & level(10).bit(), 0);
    domain.reprio(moved, level(20)).unwrap();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "moved later");
    assert_eq!(vcpu.bitmap(), 0);
}

#[test]
fn reprio_leaves_the_inbox_to_its_owner() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let queued = serving(&vcpu, || domain.spawn(async {}, at(40))).unwrap();
    let arrived = domain.spawn(async {}, at(20)).unwrap();
    // `ready_len` does not count coroutines in the inbox.
    domain.reprio(queued.id(), level(30)).unwrap();
    domain.reprio(arrived.id(), level(50)).unwrap();
    assert_eq!(
        (vcpu.ready_len(level(30)), vcpu.ready_len(level(50))),
        (1, 0)
    );
}

#[test]
fn a_level_that_rises_in_the_inbox_asks_the_running_poll_to_yield() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let woken = domain.spawn(block_once(), at(40)).unwrap().id();
    run(&vcpu, 10);
    let (d, t, server) = (domain.clone(), trace.clone(), Server::of(&vcpu));
    let running = async move {
        let wake = || d.wake(woken);
        std::thread::scope(|scope| scope.spawn(wake).join().unwrap()).unwrap();
        t.push(server.get().need_preempt().to_string());
        d.reprio(woken, level(5)).unwrap();
        t.push(server.get().need_preempt().to_string());
    };
    domain.spawn(running, at(10)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "false true");
}

#[test]
fn reprio_of_the_running_coroutine_to_a_less_urgent_level_asks_it_to_yield() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t, server) = (domain.clone(), trace.clone(), Server::of(&vcpu));
    let running = async move {
        let me = d.current_id().unwrap();
        for n in [15, 25] {
            d.reprio(me, level(n)).unwrap();
            assert_eq!(server.get().running_level(), Some(level(n)));
            t.push(format!("{n}:{}", server.get().need_preempt()));
        }
        yield_now().await;
        t.push("again");
    };
    domain.spawn(running, at(10)).unwrap().detach();
    domain.spawn(trace.say("other"), at(20)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "15:false 25:true other again");
}

#[test]
fn reprio_of_a_queued_coroutine_above_the_running_level_requests_a_yield() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t, server) = (domain.clone(), trace.clone(), Server::of(&vcpu));
    let queued = domain.spawn(trace.say("queued"), at(40)).unwrap().id();
    let running = async move {
        d.reprio(queued, level(20)).unwrap();
        t.push(server.get().need_preempt().to_string());
        d.reprio(queued, level(5)).unwrap();
        t.push(server.get().need_preempt().to_string());
    };
    domain.spawn(running, at(20)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "false true queued");
}

#[test]
fn reprio_moves_a_suspended_coroutine() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t, server) = (domain.clone(), trace.clone(), Server::of(&vcpu));
    let suspended = async move {
        let (me, d2) = (d.current_id().unwrap(), d.clone());
        let meddle = async move {
            assert_eq!(d2.state(me), State::Suspended);
            d2.reprio(me, level(30)).unwrap();
        };
        d.spawn(meddle, at(10)).unwrap().detach();
        server.suspend();
        t.push("resumes");
    };
    domain.spawn(suspended, at(20)).unwrap().detach();
    domain.spawn(trace.say("between"), at(25)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "between resumes");
}

#[test]
fn a_waiter_for_a_lock_lends_its_level_to_the_holder() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t) = (domain.clone(), trace.clone());
    let holder = async move {
        let _ = d.record_lock();
        let _ = d.record_lock();
        t.push("holds");
        yield_now().await;
        let me = d.current_id().unwrap();
        t.push(format!("lent:{}", d.current_level().unwrap()));
        d.record_unlock(me);
        t.push(format!("one_left:{}", d.current_level().unwrap()));
        d.record_unlock(me);
        t.push(format!("back:{}", d.current_level().unwrap()));
        yield_now().await;
        t.push("holder");
    };
    let holder = domain.spawn(holder, at(40)).unwrap().id();
    step(&vcpu);
    domain.spawn(trace.say("middle"), at(10)).unwrap().detach();
    let d = domain.clone();
    let waiter = async move {
        d.lend_to_holder(holder);
    };
    domain.spawn(waiter, at(3)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(
        trace.take(),
        "holds lent:3 one_left:3 back:40 middle holder"
    );
}

#[test]
fn a_less_urgent_waiter_for_a_lock_does_not_undo_the_loan_of_another() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let d = domain.clone();
    let holder = domain
        .spawn(
            async move {
                let _ = d.record_lock();
                block_once().await;
            },
            at(40),
        )
        .unwrap()
        .id();
    run(&vcpu, 10);
    for n in [5, 20, 50] {
        let d = domain.clone();
        domain
            .spawn(async move { d.lend_to_holder(holder) }, at(n))
            .unwrap()
            .detach();
        run(&vcpu, 10);
        assert_eq!(domain.level(holder), Ok(level(5)));
    }
    // A base level that is more urgent than the lent level counts.
    domain.reprio(holder, level(2)).unwrap();
    assert_eq!(domain.level(holder), Ok(level(2)));
    domain.reprio(holder, level(60)).unwrap();
    assert_eq!(domain.level(holder), Ok(level(5)));
    domain.record_unlock(holder);
    assert_eq!(domain.level(holder), Ok(level(60)));
    finish(&domain, &vcpu);
}

#[test]
fn lending_through_a_lock_is_transitive() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let d = domain.clone();
    let last = domain
        .spawn(
            async move {
                let _ = d.record_lock();
                block_once().await;
            },
            at(50),
        )
        .unwrap()
        .id();
    let d = domain.clone();
    let middle = domain
        .spawn(
            async move {
                let _ = d.record_lock();
                std::future::poll_fn(|_| {
                    d.lend_to_holder(last);
                    std::task::Poll::<()>::Pending
                })
                .await;
            },
            at(40),
        )
        .unwrap()
        .id();
    run(&vcpu, 10);
    assert_eq!(domain.level(last), Ok(level(40)));
    let d = domain.clone();
    domain
        .spawn(async move { d.lend_to_holder(middle) }, at(7))
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(domain.level(middle), Ok(level(7)));
    assert_eq!(domain.level(last), Ok(level(7)));
    finish(&domain, &vcpu);
}
