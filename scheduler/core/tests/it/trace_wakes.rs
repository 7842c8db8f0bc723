//! Tests wakes by id and by waker, at any moment, of living and dead coroutines.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use crate::support::{Trace, at, block_once, domain, join, level, run, serving, yield_now};
use upshift_core::{Config, CoroutineId, Dead, SpawnOptions, State};

/// Returns a future that records `name` at every poll, stores its waker, and never ends.
fn endless(
    trace: &Trace,
    name: &'static str,
) -> (
    impl Future<Output = ()> + Send + use<>,
    Arc<Mutex<Option<Waker>>>,
) {
    let (trace, waker) = (trace.clone(), Arc::new(Mutex::new(None)));
    let shared_waker = waker.clone();
    let future = poll_fn(move |cx| {
        trace.push(name);
        *shared_waker.lock().unwrap() = Some(cx.waker().clone());
        Poll::Pending
    });
    (future, waker)
}

#[test]
fn invariant_2_wakes_by_id_and_by_waker_poll_exactly_once_each() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (future, waker) = endless(&trace, "poll");
    let handle = domain.spawn(future, at(7)).unwrap();
    assert_eq!(run(&vcpu, 10), 1);
    assert_eq!(run(&vcpu, 10), 0);
    domain.wake(handle.id()).unwrap();
    assert_eq!(run(&vcpu, 10), 1);
    waker.lock().unwrap().as_ref().unwrap().wake_by_ref();
    assert_eq!(run(&vcpu, 10), 1);
    let last_waker = waker.lock().unwrap().take();
    last_waker.unwrap().wake();
    assert_eq!(run(&vcpu, 10), 1);
    assert_eq!(trace.take(), "poll poll poll poll");
}

#[test]
fn invariant_2_wakes_before_a_poll_are_absorbed_by_it() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (future, waker) = endless(&trace, "poll");
    let handle = domain.spawn(future, at(7)).unwrap();
    domain.wake(handle.id()).unwrap();
    domain.wake(handle.id()).unwrap();
    assert_eq!(run(&vcpu, 10), 1);
    domain.wake(handle.id()).unwrap();
    waker.lock().unwrap().as_ref().unwrap().wake_by_ref();
    assert_eq!(run(&vcpu, 10), 1);
    assert_eq!(trace.take(), "poll poll");
}

#[test]
fn invariant_2_wakes_during_a_poll_poll_once_more() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let t = trace.clone();
    let future = async move {
        for _ in 0..2 {
            t.push("poll");
            let mut woken = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut woken, true) {
                    return Poll::Ready(());
                }
                let waker = cx.waker().clone();
                std::thread::spawn(move || waker.wake()).join().unwrap();
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
        t.push("blocks");
        block_once().await;
    };
    domain.spawn(future, at(7)).unwrap().detach();
    assert_eq!(run(&vcpu, 10), 3);
    assert_eq!(trace.take(), "poll poll blocks");
}

#[test]
fn a_wake_of_a_dead_id_is_an_error_value() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let handle = domain.spawn(async {}, at(7)).unwrap();
    let id = handle.id();
    assert_eq!(domain.wake(id), Ok(()));
    run(&vcpu, 10);
    // The coroutine has exited, though the handle still refers to it.
    assert_eq!(domain.wake(id), Err(Dead));
    assert_eq!(domain.cancel(id), Err(Dead));
    assert_eq!(domain.reprio(id, level(3)), Err(Dead));
    assert_eq!(domain.level(id), Err(Dead));
    assert_eq!(domain.state(id), State::Exited);
    drop(handle);
    assert_eq!(domain.wake(id), Err(Dead));
    domain.record_unlock(id);
    assert_eq!(run(&vcpu, 10), 0);
}

#[test]
fn a_slot_is_used_again_with_another_generation() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let first = domain.spawn(async {}, at(7)).unwrap().id();
    run(&vcpu, 10);
    // A vCPU caches slots that are given back on it for its own spawns.
    let second = serving(&vcpu, || domain.spawn(block_once(), at(7)).unwrap());
    assert_eq!(second.id().index(), first.index());
    assert_ne!(second.id().generation(), first.generation());
    assert_eq!(domain.wake(first), Err(Dead));
    assert_eq!(domain.wake(second.id()), Ok(()));
    // An id of a later generation is dead, too.
    let later = u64::from(second.id().generation() + 1) << 32 | u64::from(first.index());
    assert_eq!(domain.wake(CoroutineId::from_u64(later)), Err(Dead));
    assert_eq!(CoroutineId::from_u64(first.to_u64()), first);
}

#[test]
fn forged_ids_are_dead() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let alive = domain.spawn(block_once(), at(7)).unwrap();
    let index = u64::from(alive.id().index());
    let generations = [0u64, 1, u64::from(u32::MAX)];
    let indices = [
        0,
        index,
        index + 1,
        255,
        256,
        257,
        1 << 20,
        u64::from(u32::MAX),
    ];
    for word in generations
        .iter()
        .flat_map(|g| indices.map(|i| g << 32 | i))
        .chain([u64::MAX, 1 << 63])
    {
        let id = CoroutineId::from_u64(word);
        if id != alive.id() {
            assert_eq!(domain.wake(id), Err(Dead), "{id}");
            assert_eq!(domain.reprio(id, level(1)), Err(Dead), "{id}");
            assert_eq!(domain.cancel(id), Err(Dead), "{id}");
            assert_eq!(domain.state(id), State::Exited);
        }
    }
    assert_eq!(run(&vcpu, 10), 1);
}

#[test]
fn a_coroutine_created_unstarted_begins_at_its_first_wake() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let options = SpawnOptions {
        priority: at(7),
        start: false,
        ..SpawnOptions::default()
    };
    let handle = domain.spawn(trace.say("started"), options).unwrap();
    assert_eq!(run(&vcpu, 10), 0);
    assert_eq!(domain.state(handle.id()), State::Created);
    assert_eq!(domain.bitmap(), 0);
    domain.reprio(handle.id(), level(9)).unwrap();
    domain.wake(handle.id()).unwrap();
    assert_eq!(domain.bitmap(), level(9).bit());
    assert_eq!(run(&vcpu, 10), 1);
    assert_eq!(trace.take(), "started");
}

#[test]
fn a_waker_outlives_its_coroutine_and_its_domain() {
    let trace = Trace::default();
    let (blocked, waker) = endless(&trace, "poll");
    let (exited, exited_waker) = endless(&trace, "poll");
    {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        domain.spawn(blocked, at(7)).unwrap().detach();
        let handle = domain.spawn(exited, at(7)).unwrap();
        run(&vcpu, 10);
        handle.cancel();
        assert!(join(&vcpu, handle).unwrap_err().is_cancelled());
        exited_waker.lock().unwrap().as_ref().unwrap().wake_by_ref();
        assert_eq!(run(&vcpu, 10), 0);
    }
    for waker in [waker, exited_waker] {
        let waker = waker.lock().unwrap().take().unwrap();
        let another = waker.clone();
        another.wake();
        waker.wake_by_ref();
        std::thread::spawn(move || drop(waker)).join().unwrap();
    }
    assert_eq!(trace.take(), "poll poll");
}

#[test]
fn a_wake_in_the_destructor_of_the_woken_coroutine_is_harmless() {
    struct WakesItself(Arc<Mutex<Option<Waker>>>);
    impl Drop for WakesItself {
        fn drop(&mut self) {
            if let Some(waker) = self.0.lock().unwrap().take() {
                waker.wake();
            }
        }
    }
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (future, waker) = endless(&trace, "poll");
    let guard = WakesItself(waker);
    let handle = domain
        .spawn(
            async move {
                let _guard = guard;
                future.await;
            },
            at(7),
        )
        .unwrap();
    run(&vcpu, 10);
    handle.cancel();
    assert!(join(&vcpu, handle).unwrap_err().is_cancelled());
    assert_eq!(run(&vcpu, 10), 0);
}

#[test]
fn a_child_inherits_the_level_of_its_parent() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (d, t) = (domain.clone(), trace.clone());
    let orphan = domain.spawn(block_once(), SpawnOptions::default()).unwrap();
    assert_eq!(domain.level(orphan.id()), Ok(upshift_core::Level::DEFAULT));
    domain
        .spawn(
            async move {
                let child = d.spawn(block_once(), SpawnOptions::default()).unwrap();
                t.push(d.level(child.id()).unwrap().to_string());
                d.reprio(d.current_id().unwrap(), level(50)).unwrap();
                assert_eq!(d.current_level(), Some(level(50)));
                let child = d.spawn(block_once(), SpawnOptions::default()).unwrap();
                t.push(d.level(child.id()).unwrap().to_string());
                yield_now().await;
            },
            at(11),
        )
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "11 50");
    assert_eq!((domain.current_id(), domain.current_level()), (None, None));
}
