//! Tests several vCPUs, which one thread drives in turn. The tests check stealing, parking,
//! retiring, and returning to service.

use std::cell::Cell;
use std::rc::Rc;

use crate::support::{Drops, Trace, at, block_once, domain, level, run, serving, step, yield_now};
use upshift_core::{Config, Dead, MAX_VCPUS, Picked, SpawnError, SpawnOptions};

#[test]
fn spawn_returns_the_reason_for_a_failure() {
    let domain = domain(Config::default());
    assert_eq!(
        domain.spawn(async {}, at(1)).unwrap_err(),
        SpawnError::NoVcpu
    );
    let vcpu = domain.add_vcpu().unwrap();
    vcpu.retire();
    assert_eq!(
        domain.spawn(async {}, at(1)).unwrap_err(),
        SpawnError::NoVcpu
    );
    // SAFETY: the future and its output are `Send`.
    let pinned = unsafe { vcpu.spawn_pinned(async {}, at(1)) };
    assert_eq!(pinned.unwrap_err(), SpawnError::Closed);
    let vcpu = domain.add_vcpu().unwrap();
    let drops = Drops::default();
    let token = drops.token();
    domain.close();
    let spawned = domain.spawn(async move { drop(token) }, at(1));
    assert_eq!(spawned.unwrap_err(), SpawnError::Closed);
    assert_eq!(drops.count(), 1);
    assert_eq!(run(&vcpu, 10), 0);
}

#[test]
fn a_domain_has_a_bounded_number_of_vcpus() {
    let domain = domain(Config::default());
    let max_vcpus = if cfg!(miri) { 3 } else { MAX_VCPUS };
    let vcpus: Vec<_> = (0..max_vcpus).map(|_| domain.add_vcpu().unwrap()).collect();
    for (index, vcpu) in vcpus.iter().enumerate() {
        assert_eq!(vcpu.index(), index);
    }
    if !cfg!(miri) {
        let error = domain.add_vcpu().unwrap_err();
        assert!(error.to_string().contains("256"));
    }
    assert_eq!(domain.active_vcpus(), max_vcpus);
    drop(vcpus);
    assert_eq!(domain.active_vcpus(), 0);
    assert_eq!(domain.add_vcpu().unwrap().index(), 0);
}

#[test]
fn invariant_1_order_holds_across_vcpus() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    serving(&a, || {
        for n in [10, 20, 30] {
            domain
                .spawn(trace.say(&format!("a{n}")), at(n))
                .unwrap()
                .detach();
        }
    });
    serving(&b, || {
        domain.spawn(trace.say("b15"), at(15)).unwrap().detach();
        domain.spawn(trace.say("b20"), at(20)).unwrap().detach();
    });
    // Stolen, since it is more urgent than the work of `b`.
    step(&b);
    assert_eq!(trace.take(), "a10");
    assert_eq!(b.stolen(), 1);
    step(&b);
    assert_eq!(trace.take(), "b15");
    // At equal levels, `b` polls its own coroutine first.
    step(&b);
    assert_eq!(trace.take(), "b20");
    step(&b);
    assert_eq!(trace.take(), "a20");
    assert_eq!(domain.bitmap(), level(30).bit());
    assert_eq!(run(&a, 10), 1);
}

#[test]
fn an_idle_vcpu_takes_half_of_a_level() {
    let domain = domain(Config::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    serving(&a, || {
        for _ in 0..10 {
            domain.spawn(async {}, at(20)).unwrap().detach();
        }
    });
    assert!(step(&b).is_some());
    assert_eq!((a.ready_len(level(20)), b.ready_len(level(20))), (5, 4));
}

#[test]
fn a_steal_from_the_inbox_asks_the_poll_of_the_victim_to_yield() {
    let domain = domain(Config::default());
    let a = domain.add_vcpu().unwrap();
    let ids = [7, 7].map(|l| domain.spawn(block_once(), at(l)).unwrap().id());
    run(&a, 10);
    let b = domain.add_vcpu().unwrap();
    serving(&a, || {
        domain.spawn(async {}, at(40)).unwrap().detach();
        let Some(Picked::Poll(running)) = a.pick(None) else {
            panic!("no coroutine is ready")
        };
        serving(&b, || {
            ids.into_iter().for_each(|id| domain.wake(id).unwrap());
        });
        // One of the two coroutines is left. The thief has moved it from the inbox to the queue.
        assert_eq!(step(&b).unwrap().1, level(7));
        assert_eq!(a.bitmap(), level(7).bit());
        assert!(a.need_preempt());
        let _ = running.poll();
    });
    run(&a, 10);
}

#[test]
fn a_pinned_coroutine_is_never_taken() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    let t = trace.clone();
    let served = Rc::new(Cell::new(0));
    let (counter, index) = (served.clone(), a.index());
    let future = async move {
        counter.set(counter.get() + 1);
        block_once().await;
        counter.set(counter.get() + 1);
        t.push(format!("on {index}"));
    };
    // SAFETY: the future need not be `Send`, since one thread serves all vCPUs here.
    let handle = unsafe { a.spawn_pinned(future, at(1)) }.unwrap();
    assert_eq!(step(&b), None);
    assert_eq!(step(&a).unwrap().0, handle.id());
    // Woken from the other vCPU, it returns to its home.
    serving(&b, || domain.wake(handle.id())).unwrap();
    assert_eq!(step(&b), None);
    assert_eq!(run(&a, 10), 1);
    assert_eq!((served.get(), trace.take().as_str()), (2, "on 0"));
}

#[test]
fn a_suspended_coroutine_is_not_taken() {
    let domain = domain(Config::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    let (server, other) = (
        crate::support::Server::of(&a),
        crate::support::Server::of(&b),
    );
    let (d, trace) = (domain.clone(), Trace::default());
    let t = trace.clone();
    domain
        .spawn(
            async move {
                let t2 = t.clone();
                let try_to_steal = async move {
                    let has_stolen = serving(other.get(), || other.get().pick(None).is_some());
                    t2.push(has_stolen.to_string());
                };
                d.spawn(try_to_steal, at(10)).unwrap().detach();
                server.suspend();
                t.push("resumes");
            },
            at(20),
        )
        .unwrap()
        .detach();
    run(&a, 10);
    assert_eq!(trace.take(), "false resumes");
}

#[test]
fn a_wake_ends_the_wait_of_a_parked_vcpu_once() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let kicked = || std::mem::take(&mut *domain.host().kicked.lock().unwrap());
    let first = domain.spawn(block_once(), at(7)).unwrap();
    let second = domain.spawn(block_once(), at(7)).unwrap();
    assert!(!vcpu.prepare_park());
    run(&vcpu, 10);
    assert!(kicked().is_empty());
    // A second call of `prepare_park` and a second wake change nothing.
    assert!(vcpu.prepare_park());
    assert!(vcpu.prepare_park());
    assert_eq!(domain.idle_vcpus(), 1);
    domain.wake(first.id()).unwrap();
    domain.wake(second.id()).unwrap();
    assert_eq!(kicked(), [0]);
    assert_eq!(domain.idle_vcpus(), 0);
    vcpu.unpark();
    assert_eq!(domain.idle_vcpus(), 0);
    assert_eq!(run(&vcpu, 10), 2);
    assert!(vcpu.prepare_park());
    vcpu.unpark();
    assert_eq!(domain.idle_vcpus(), 0);
}

#[test]
fn a_surplus_wakes_an_idle_vcpu() {
    let domain = domain(Config::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    assert!(b.prepare_park());
    serving(&a, || {
        for _ in 0..3 {
            domain.spawn(yield_now(), at(7)).unwrap().detach();
        }
    });
    assert!(domain.host().kicked.lock().unwrap().is_empty());
    step(&a);
    assert_eq!(*domain.host().kicked.lock().unwrap(), [1]);
    b.unpark();
    assert!(step(&b).is_some());
}

#[test]
fn a_vcpu_does_not_park_while_another_has_work_to_give() {
    let domain = domain(Config::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    serving(&a, || domain.spawn(async {}, at(7)).unwrap().detach());
    assert!(!b.prepare_park());
    assert_eq!(domain.idle_vcpus(), 0);
    assert!(step(&b).is_some());
    assert!(b.prepare_park());
    assert!(a.prepare_park());
}

#[test]
fn retiring_cancels_pinned_coroutines_and_passes_on_the_rest() {
    let (domain, trace, drops) = (
        domain(Config::default()),
        Trace::default(),
        Drops::default(),
    );
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    let mut pinned = Vec::new();
    for start in [true, false] {
        for n in [3, 20] {
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
            // SAFETY: the future and its output are `Send`.
            pinned.push(unsafe { a.spawn_pinned(future, options) }.unwrap());
        }
    }
    step(&a);
    serving(&a, || {
        domain.spawn(trace.say("second"), at(9)).unwrap().detach();
        domain.spawn(trace.say("first"), at(5)).unwrap().detach();
    });
    serving(&a, || a.retire());
    assert_eq!(drops.count(), 4);
    assert!(pinned.iter().all(|handle| handle.is_finished()));
    assert_eq!(domain.active_vcpus(), 1);
    assert_eq!(domain.bitmap(), level(5).bit() | level(9).bit());
    run(&b, 10);
    assert_eq!(trace.take(), "first second");
}

#[test]
fn a_coroutine_that_blocked_on_a_retired_vcpu_wakes_on_another() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    let t = trace.clone();
    let future = async move {
        block_once().await;
        t.push("woken");
    };
    let handle = serving(&a, || domain.spawn(future, at(7))).unwrap();
    run(&a, 10);
    drop(a);
    domain.wake(handle.id()).unwrap();
    assert_eq!(run(&b, 10), 1);
    assert_eq!(trace.take(), "woken");
}

#[test]
fn work_left_without_a_vcpu_goes_to_the_next_vcpu() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    let t = trace.clone();
    let blocked = async move {
        block_once().await;
        t.push("woken");
    };
    let blocked = serving(&b, || domain.spawn(blocked, at(7))).unwrap();
    run(&b, 10);
    serving(&b, || {
        domain.spawn(trace.say("2"), at(20)).unwrap().detach();
        domain.spawn(trace.say("3"), at(20)).unwrap().detach();
        domain.spawn(trace.say("1"), at(10)).unwrap().detach();
    });
    drop(a);
    drop(b);
    assert_eq!(domain.bitmap(), level(10).bit() | level(20).bit());
    domain.wake(blocked.id()).unwrap();
    let revived = domain.add_vcpu().unwrap();
    assert_eq!(revived.index(), 0);
    assert_eq!(run(&revived, 10), 4);
    assert_eq!(trace.take(), "woken 1 2 3");
}

#[test]
fn a_vcpu_has_one_executor_at_a_time() {
    let domain = domain(Config::default());
    let first = domain.add_vcpu().unwrap();
    first.retire();
    first.retire();
    assert_eq!(domain.active_vcpus(), 0);
    // The first vCPU is retired, but a thread may still serve it.
    let second = domain.add_vcpu().unwrap();
    assert_ne!(first.index(), second.index());
    let handle = domain.spawn(block_once(), at(7)).unwrap();
    drop(first);
    assert_eq!(domain.active_vcpus(), 1);
    assert_eq!(run(&second, 10), 1);
    let third = domain.add_vcpu().unwrap();
    assert_eq!((third.index(), domain.active_vcpus()), (0, 2));
    drop(second);
    assert_eq!(domain.wake(handle.id()), Ok(()));
    assert_eq!(run(&third, 10), 1);
    assert_eq!(domain.wake(handle.id()), Err(Dead));
}

#[test]
fn time_out_of_service_is_charged_to_no_poll() {
    let domain = domain(Config::default());
    let time = |t| {
        domain
            .host()
            .time
            .store(t, std::sync::atomic::Ordering::Relaxed)
    };
    let vcpu = domain.add_vcpu().unwrap();
    domain.spawn(async {}, at(7)).unwrap().detach();
    step(&vcpu);
    time(5);
    drop(vcpu);
    time(1_000);
    let vcpu = domain.add_vcpu().unwrap();
    assert_eq!(step(&vcpu), None);
    assert_eq!(vcpu.level_stats(level(7)).run_ticks, 5);
}
