//! Tests join handles by the order of recorded events, in particular results, the drop of the
//! output, and the level that awaiting lends.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::support::{
    Drops, TestHost, Trace, at, block_once, domain, finish, join, level, run, step, yield_now,
};
use upshift_core::{Config, Domain, JoinHandle};

#[derive(Default)]
struct Counting(AtomicU64);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_result_comes_through_the_handle_before_and_after_the_exit() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = domain.spawn(async { "result" }, at(40)).unwrap();
    let exited = domain.spawn(async { "earlier" }, at(1)).unwrap();
    let t = trace.clone();
    domain
        .spawn(
            async move {
                t.push(exited.await.unwrap());
                t.push(child.await.unwrap());
            },
            at(20),
        )
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "earlier result");
}

#[test]
fn a_handle_is_one_word_and_knows_its_coroutine_after_the_result() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let mut handle = domain.spawn(async { 7u64 }, at(20)).unwrap();
    assert_eq!(size_of_val(&handle), size_of::<usize>());
    let id = handle.id();
    run(&vcpu, 10);
    let mut context = Context::from_waker(Waker::noop());
    let result = Pin::new(&mut handle).poll(&mut context);
    assert!(matches!(result, Poll::Ready(Ok(7))));
    assert!(handle.is_finished() && handle.cancel_handle().is_none());
    handle.cancel();
    // Its slot is not reused while the handle exists.
    let next = domain.spawn(async {}, at(20)).unwrap();
    assert_eq!(handle.id(), id);
    assert_ne!(next.id().index(), id.index());
    drop(handle);
}

#[test]
fn every_output_is_dropped_exactly_once() {
    let drops = Drops::default();
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let spawn = || {
        let token = drops.token();
        domain.spawn(async move { token }, at(20)).unwrap()
    };
    // The handle is dropped before the exit.
    spawn().detach();
    run(&vcpu, 10);
    assert_eq!(drops.count(), 1);
    // The handle is dropped after the exit.
    let handle = spawn();
    run(&vcpu, 10);
    assert_eq!(drops.count(), 1);
    drop(handle);
    assert_eq!(drops.count(), 2);
    // The handle takes the output.
    let handle = spawn();
    let output = join(&vcpu, handle).unwrap();
    assert_eq!(drops.count(), 2);
    drop(output);
    assert_eq!(drops.count(), 3);
    // The handle has a waiter, and is dropped before the exit.
    let mut handle = spawn();
    let waker = Waker::from(Arc::new(Counting::default()));
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut handle).poll(&mut cx).is_pending());
    drop(handle);
    run(&vcpu, 10);
    assert_eq!(drops.count(), 4);
    // The coroutine is cancelled, so there is no output, and the future is dropped.
    let handle = spawn();
    handle.cancel();
    run(&vcpu, 10);
    assert_eq!(drops.count(), 5);
    drop(handle);
    assert_eq!(drops.count(), 5);
}

#[test]
fn only_the_last_waker_that_was_registered_is_woken() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (first, second) = (Arc::new(Counting::default()), Arc::new(Counting::default()));
    let mut handle = domain.spawn(async { 5 }, at(20)).unwrap();
    for waker in [&first, &second, &second] {
        let waker = Waker::from(waker.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut handle).poll(&mut cx).is_pending());
    }
    assert_eq!(
        (Arc::strong_count(&first), Arc::strong_count(&second)),
        (1, 2)
    );
    run(&vcpu, 10);
    assert_eq!(first.0.load(Ordering::SeqCst), 0);
    assert_eq!(second.0.load(Ordering::SeqCst), 1);
    assert_eq!(Arc::strong_count(&second), 1);
    assert_eq!(join(&vcpu, handle).unwrap(), 5);
}

#[test]
fn a_waker_that_panics_does_not_stop_the_vcpu() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a foreign waker");
        }
    }
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let mut handle = domain.spawn(async { 5 }, at(20)).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut handle).poll(&mut cx).is_pending());
    domain.spawn(trace.say("lives"), at(20)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "lives");
    assert_eq!(join(&vcpu, handle).unwrap(), 5);
}

#[test]
fn a_handle_that_moves_wakes_the_coroutine_that_has_it_now() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = domain.spawn(block_once(), at(40)).unwrap();
    let id = child.id();
    let (d, t) = (domain.clone(), trace.clone());
    let first = async move {
        let mut child = child;
        std::future::poll_fn(|cx| {
            assert!(Pin::new(&mut child).poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let t2 = t.clone();
        let second = async move { t2.push(format!("second:{}", child.await.is_ok())) };
        d.spawn(second, at(30)).unwrap().detach();
        std::future::poll_fn(|_| {
            t.push("first");
            Poll::<()>::Pending
        })
        .await;
    };
    domain.spawn(first, at(20)).unwrap().detach();
    run(&vcpu, 10);
    trace.take();
    domain.wake(id).unwrap();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "second:true");
    finish(&domain, &vcpu);
}

#[test]
fn awaiting_lends_the_level_of_the_waiter_and_takes_it_back() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let t = trace.clone();
    let child = domain
        .spawn(
            async move {
                t.push("child");
                block_once().await;
            },
            at(40),
        )
        .unwrap();
    let id = child.id();
    domain.spawn(trace.say("middle"), at(10)).unwrap().detach();
    let t = trace.clone();
    let waiter = domain
        .spawn(
            async move {
                t.push("waits");
                child.await.unwrap();
            },
            at(3),
        )
        .unwrap();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "waits child middle");
    assert_eq!(domain.level(id), Ok(level(3)));
    waiter.cancel();
    run(&vcpu, 10);
    assert_eq!(domain.level(id), Ok(level(40)));
    domain.wake(id).unwrap();
    assert_eq!(step(&vcpu), Some((id, level(40))));
}

#[test]
fn a_less_urgent_waiter_lends_nothing() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = domain.spawn(block_once(), at(10)).unwrap();
    let id = child.id();
    domain
        .spawn(async move { child.await.unwrap() }, at(50))
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(domain.level(id), Ok(level(10)));
}

#[test]
fn lending_moves_a_queued_child_and_its_bit() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = domain.spawn(yield_now(), at(40)).unwrap();
    let id = child.id();
    domain
        .spawn(async move { child.await.unwrap() }, at(3))
        .unwrap()
        .detach();
    assert_eq!(step(&vcpu).unwrap().1, level(3));
    assert_eq!(vcpu.bitmap(), level(3).bit());
    assert_eq!(
        (vcpu.ready_len(level(3)), vcpu.ready_len(level(40))),
        (1, 0)
    );
    assert_eq!(step(&vcpu), Some((id, level(3))));
}

#[test]
fn lending_is_transitive() {
    let (domain, trace) = (domain(Config::default()), Trace::default());
    let vcpu = domain.add_vcpu().unwrap();
    let t = trace.clone();
    let c = domain
        .spawn(
            async move {
                block_once().await;
                t.push("c");
            },
            at(50),
        )
        .unwrap();
    let c_id = c.id();
    let t = trace.clone();
    let b = domain
        .spawn(
            async move {
                c.await.unwrap();
                t.push("b");
            },
            at(40),
        )
        .unwrap();
    let b_id = b.id();
    run(&vcpu, 10);
    assert_eq!(domain.level(c_id), Ok(level(40)));
    let t = trace.clone();
    domain
        .spawn(
            async move {
                b.await.unwrap();
                t.push("a");
            },
            at(3),
        )
        .unwrap()
        .detach();
    run(&vcpu, 10);
    assert_eq!(domain.level(b_id), Ok(level(3)));
    assert_eq!(domain.level(c_id), Ok(level(3)));
    domain.spawn(trace.say("middle"), at(20)).unwrap().detach();
    domain.wake(c_id).unwrap();
    run(&vcpu, 10);
    assert_eq!(trace.take(), "c b a middle");
}

#[test]
fn reprio_of_a_waiter_reaches_the_coroutine_that_it_awaits() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = domain.spawn(block_once(), at(50)).unwrap();
    let id = child.id();
    let waiter = domain
        .spawn(async move { child.await.unwrap() }, at(40))
        .unwrap();
    run(&vcpu, 10);
    domain.reprio(waiter.id(), level(5)).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id), Ok(level(5)));
}

#[test]
fn a_handle_outlives_its_domain() {
    let drops = Drops::default();
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let token = drops.token();
    let done = domain.spawn(async move { token }, at(20)).unwrap();
    let never = domain.spawn(block_once(), at(20)).unwrap();
    run(&vcpu, 10);
    drop(vcpu);
    drop(domain);
    assert_eq!(drops.count(), 0);
    std::thread::spawn(move || drop((done, never)))
        .join()
        .unwrap();
    assert_eq!(drops.count(), 1);
}

/// A coroutine that awaits a handle. Each poll polls the handle first, as `timeout` does, and gives
/// up after a call of `give_up`. Then the coroutine blocks on another future and keeps the handle.
struct Timeout {
    gives_up: Arc<AtomicBool>,
    waiter: JoinHandle<(), TestHost>,
}

impl Timeout {
    fn spawn<T: Send + 'static>(
        domain: &Domain<TestHost>,
        mut handle: JoinHandle<T, TestHost>,
        level: u8,
    ) -> Timeout {
        let gives_up = Arc::new(AtomicBool::new(false));
        let flag = gives_up.clone();
        let wait = async move {
            poll_fn(|cx| {
                let polled = Pin::new(&mut handle).poll(cx).map(drop);
                let flag = flag.load(Ordering::Relaxed);
                if flag { Poll::Ready(()) } else { polled }
            })
            .await;
            let _kept = handle;
            std::future::pending::<()>().await;
        };
        let waiter = domain.spawn(wait, at(level)).unwrap();
        Timeout { gives_up, waiter }
    }

    fn give_up(&self, domain: &Domain<TestHost>) {
        self.gives_up.store(true, Ordering::Relaxed);
        domain.wake(self.waiter.id()).unwrap();
    }
}

fn forever(domain: &Domain<TestHost>, level: u8) -> JoinHandle<(), TestHost> {
    domain
        .spawn(std::future::pending::<()>(), at(level))
        .unwrap()
}

#[test]
fn a_wait_that_is_given_up_ends_its_loan_while_the_handle_is_kept() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = forever(&domain, 50);
    let id = child.id();
    let timeout = Timeout::spawn(&domain, child, 5);
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(5));
    // Another poll of the handle changes nothing.
    domain.wake(timeout.waiter.id()).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(5));
    timeout.give_up(&domain);
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(50));
}

#[test]
fn a_wait_that_is_given_up_in_its_first_poll_lends_nothing() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = forever(&domain, 50);
    let id = child.id();
    let timeout = Timeout::spawn(&domain, child, 5);
    timeout.give_up(&domain);
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(50));
}

#[test]
fn a_wait_that_is_given_up_ends_the_loans_of_a_chain() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let last = forever(&domain, 50);
    let last_id = last.id();
    let middle = Timeout::spawn(&domain, last, 20);
    let middle_id = middle.waiter.id();
    let first = Timeout::spawn(&domain, middle.waiter, 5);
    run(&vcpu, 20);
    assert_eq!(domain.level(middle_id).unwrap(), level(5));
    assert_eq!(domain.level(last_id).unwrap(), level(5));
    first.give_up(&domain);
    run(&vcpu, 20);
    assert_eq!(domain.level(middle_id).unwrap(), level(20));
    assert_eq!(domain.level(last_id).unwrap(), level(20));
}

#[test]
fn a_waiter_that_exits_and_leaves_the_handle_lends_no_longer() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let mut child = forever(&domain, 50);
    let id = child.id();
    let gives_up = Arc::new(AtomicBool::new(false));
    let flag = gives_up.clone();
    let wait = async move {
        poll_fn(|cx| {
            let _ = Pin::new(&mut child).poll(cx);
            if flag.load(Ordering::Relaxed) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        Some(child)
    };
    let waiter = domain.spawn(wait, at(5)).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(5));
    gives_up.store(true, Ordering::Relaxed);
    domain.wake(waiter.id()).unwrap();
    let _kept = join(&vcpu, waiter).unwrap();
    assert_eq!(domain.level(id).unwrap(), level(50));
}

#[test]
fn a_handle_that_moves_keeps_the_loan_of_the_coroutine_that_awaits_it_now() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = forever(&domain, 50);
    let id = child.id();
    let place = Arc::new(Mutex::new(child));
    let wait = |place: &Arc<Mutex<JoinHandle<(), TestHost>>>, level| {
        let place = place.clone();
        let poll_once = async move {
            poll_fn(|cx| {
                let _ = Pin::new(&mut *place.lock().unwrap()).poll(cx);
                Poll::Ready(())
            })
            .await;
            std::future::pending::<()>().await;
        };
        domain.spawn(poll_once, at(level)).unwrap()
    };
    // The first coroutine polls the handle and then blocks on another future.
    let first = wait(&place, 5);
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(50));
    let shared_place = place.clone();
    let await_again = poll_fn(move |cx| {
        Pin::new(&mut *shared_place.lock().unwrap())
            .poll(cx)
            .map(drop)
    });
    let second = domain.spawn(await_again, at(10)).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(10));
    domain.wake(first.id()).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(10));
    drop(second);
}

#[test]
fn a_coroutine_that_becomes_less_urgent_than_its_waiter_is_lent_that_level() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let child = forever(&domain, 5);
    let id = child.id();
    let timeout = Timeout::spawn(&domain, child, 5);
    run(&vcpu, 10);
    domain.reprio(id, level(50)).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(5));
    timeout.give_up(&domain);
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(50));
    // After the wait is given up, a change of the child's level lends nothing.
    domain.reprio(id, level(60)).unwrap();
    run(&vcpu, 10);
    assert_eq!(domain.level(id).unwrap(), level(60));
}

#[test]
fn a_wait_for_two_handles_that_gives_up_one_ends_its_loan() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (mut kept, mut abandoned) = (forever(&domain, 50), forever(&domain, 60));
    let ids = [kept.id(), abandoned.id()];
    let gives_up = Arc::new(AtomicBool::new(false));
    let (flag, mut has_given_up) = (gives_up.clone(), false);
    let wait = poll_fn(move |cx| {
        let _ = Pin::new(&mut kept).poll(cx);
        if !has_given_up {
            let _ = Pin::new(&mut abandoned).poll(cx);
        }
        has_given_up = flag.load(Ordering::Relaxed);
        Poll::<()>::Pending
    });
    let waiter = domain.spawn(wait, at(5)).unwrap();
    run(&vcpu, 10);
    assert_eq!(ids.map(|id| domain.level(id).unwrap()), [level(5); 2]);
    gives_up.store(true, Ordering::Relaxed);
    domain.wake(waiter.id()).unwrap();
    run(&vcpu, 10);
    assert_eq!(
        ids.map(|id| domain.level(id).unwrap()),
        [level(5), level(60)]
    );
}
