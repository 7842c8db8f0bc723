//! Tests the limits of safe code. Some programs must not compile, and others compile and must do no
//! harm.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::support::{
    TestHost, Trace, at, domain, keep_place, level, need_preempt, polled_here, quantum_began, run,
    serving, yield_now,
};
use upshift_core::{
    CancelHandle, Config, Domain, Executor, JoinHandle, Picked, Polled, Running, Vcpu, Yielded,
};

/// Fails to compile if the type has the trait, because `choose` is then ambiguous.
macro_rules! assert_not {
    ($type:ty: $trait:path) => {
        const _: () = {
            trait Ambiguous<A> {
                fn choose() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct Has;
            impl<T: ?Sized + $trait> Ambiguous<Has> for T {}
            let _ = <$type as Ambiguous<_>>::choose;
        };
    };
}

// A coroutine is polled where it was picked, since it may be pinned and not `Send`.
assert_not!(Running<'static, TestHost>: Send);
assert_not!(Running<'static, TestHost>: Sync);
assert_not!(Yielded<'static, TestHost>: Send);
assert_not!(Picked<'static, TestHost>: Send);
assert_not!(Polled<'static, TestHost>: Send);
// One thread at a time serves a vCPU.
assert_not!(Executor<TestHost>: Sync);
// The result moves with the handle.
assert_not!(JoinHandle<Rc<()>, TestHost>: Send);
assert_not!(JoinHandle<Rc<()>, TestHost>: Sync);

const fn assert_send_and_sync<T: Send + Sync>() {}
const _: () = {
    assert_send_and_sync::<Domain<TestHost>>();
    assert_send_and_sync::<JoinHandle<(), TestHost>>();
};

#[test]
fn a_coroutine_that_yielded_in_another_domain_returns_there() {
    let (one, other) = (domain(Config::default()), domain(Config::default()));
    let (here, there) = (one.add_vcpu().unwrap(), other.add_vcpu().unwrap());
    let handle = other.spawn(yield_now(), at(7)).unwrap();
    let yielded = serving(&there, || {
        let Some(Picked::Poll(running)) = there.pick(None) else {
            panic!("no coroutine is ready")
        };
        match running.poll() {
            Polled::Yielded(yielded) => yielded,
            _ => panic!("the coroutine does not yield"),
        }
    });
    assert!(serving(&here, || here.pick(Some(yielded)).is_none()));
    assert_eq!(one.bitmap(), 0);
    assert_eq!(other.bitmap(), level(7).bit());
    assert_eq!(run(&there, 10), 1);
    assert!(handle.is_finished());
}

#[test]
fn a_coroutine_that_was_kept_while_others_were_polled_is_current_in_its_poll() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let observations = Arc::new(Mutex::new(Vec::new()));
    let spawn = |level| {
        let observations = observations.clone();
        let observe = async move {
            observations.lock().unwrap().push(polled_here());
            yield_now().await;
            observations.lock().unwrap().push(polled_here());
        };
        domain.spawn(observe, at(level)).unwrap()
    };
    let kept = spawn(5);
    let other = serving(&vcpu, || {
        let Some(Picked::Poll(running)) = vcpu.pick(None) else {
            panic!("no coroutine is ready")
        };
        let other = spawn(9);
        let Some(Picked::Poll(second)) = vcpu.pick(None) else {
            panic!("no coroutine is ready")
        };
        assert!(matches!(second.poll(), Polled::Yielded(_)));
        // The kept coroutine is neither queued nor current.
        domain.reprio(kept.id(), level(7)).unwrap();
        assert!(matches!(running.poll(), Polled::Yielded(_)));
        assert_eq!(polled_here().0, None);
        other
    });
    assert_eq!(run(&vcpu, 10), 2);
    let [kept, other] =
        [(&kept, 7), (&other, 9)].map(|(handle, n)| (Some(handle.id()), Some(level(n))));
    assert_eq!(*observations.lock().unwrap(), [other, kept, kept, other]);
}

/// The coroutine has kept its place in the queue and used a part of its quantum (the time that a
/// poll may run while one of its level waits). `make_current` does not begin another quantum.
#[test]
fn make_current_changes_nothing_for_the_current_coroutine() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let time = || &domain.host().time;
    time().store(100, Relaxed);
    let future = async {
        let mut polls = 0;
        std::future::poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            keep_place();
            match polls {
                1 => std::task::Poll::Pending,
                _ => std::task::Poll::Ready(()),
            }
        })
        .await;
    };
    let _handle = domain.spawn(future, at(7)).unwrap();
    serving(&vcpu, || {
        let Some(Picked::Poll(running)) = vcpu.pick(None) else {
            panic!("no coroutine is ready")
        };
        let Polled::Yielded(yielded) = running.poll() else {
            panic!("the coroutine does not yield")
        };
        time().store(105, Relaxed);
        let Some(Picked::Poll(running)) = vcpu.pick(Some(yielded)) else {
            panic!("no coroutine is ready")
        };
        assert_eq!(quantum_began(), 100);
        running.make_current();
        assert_eq!(quantum_began(), 100);
        let _ = running.poll();
    });
}

/// Any thread reaches a vCPU through its domain. A call of `keep_place` from another thread has no
/// effect, since the coroutine that is polled may be gone before the call.
#[test]
fn only_the_thread_that_polls_keeps_a_place() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let trace = Trace::default();
    let yield_once = |name: &'static str, from_elsewhere: bool| {
        let (trace, domain) = (trace.clone(), domain.clone());
        let mut polls = 0;
        std::future::poll_fn(move |cx| {
            trace.push(name);
            polls += 1;
            if polls == 2 {
                return std::task::Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            if from_elsewhere {
                let keep_places = || domain.vcpus().for_each(Vcpu::keep_place);
                std::thread::scope(|scope| scope.spawn(keep_places).join().unwrap());
            }
            std::task::Poll::Pending
        })
    };
    let first = domain.spawn(yield_once("first", true), at(7)).unwrap();
    let second = domain.spawn(yield_once("second", false), at(7)).unwrap();
    assert_eq!(run(&vcpu, 10), 4);
    assert_eq!(trace.take(), "first second first second");
    assert!(first.is_finished() && second.is_finished());
}

#[test]
fn times_of_any_length_are_accepted() {
    let longest = Config {
        coarse_below: u64::MAX,
        notify_above: u64::MAX,
        long_poll_after: u64::MAX,
        suspended_delay: u64::MAX,
        ..Config::default()
    };
    let domain = domain(longest);
    let (one, other) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
    for time in [0, 1, u64::MAX / 16] {
        domain.host().time.store(time, Relaxed);
        let handles: Vec<_> = (0..3)
            .map(|_| serving(&one, || domain.spawn(yield_now(), at(7)).unwrap()))
            .collect();
        for _ in 0..2 {
            let _ = serving(&other, || other.look(|_| false));
            if other.prepare_park() {
                let _ = other.sleep_limit();
                other.charge_fruitless_wait();
            }
            other.unpark();
            assert!(!one.is_look_due());
        }
        run(&one, 100);
        run(&other, 100);
        assert!(handles.iter().all(JoinHandle::is_finished));
    }
}

/// `need_preempt` is true in a poll whose coroutine is cancelled while the poll runs, even if no
/// other coroutine is ready.
#[test]
fn a_cancelled_poll_is_asked_to_yield() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let ask = || need_preempt();
    type CancelFn = fn(&Domain<TestHost>, &CancelHandle<TestHost>);
    let cancels: [CancelFn; 3] = [
        |domain, handle| domain.cancel(handle.id()).unwrap(),
        |_, handle| handle.cancel(),
        |domain, _| assert_eq!(domain.cancel_all(), 1),
    ];
    for cancel in cancels {
        let (handle_sender, handle_receiver) = std::sync::mpsc::channel::<(Domain<TestHost>, _)>();
        let compute = async move {
            let (domain, own_handle) = handle_receiver.recv().unwrap();
            assert!(!ask());
            cancel(&domain, &own_handle);
            assert!(ask());
            drop((domain, own_handle));
            yield_now().await;
            unreachable!("the coroutine is cancelled");
        };
        let computing = domain.spawn(compute, at(7)).unwrap();
        let cancel_handle = computing.cancel_handle().unwrap();
        handle_sender.send((domain.clone(), cancel_handle)).unwrap();
        assert_eq!(run(&vcpu, 10), 2);
        assert!(computing.is_finished());
        // Polls of other coroutines are not asked to yield.
        let later = domain.spawn(async move { assert!(!ask()) }, at(7)).unwrap();
        assert_eq!(run(&vcpu, 10), 1);
        assert!(later.is_finished());
    }
}

#[test]
#[cfg_attr(miri, ignore = "the test leaks on purpose")]
fn a_coroutine_that_is_picked_and_forgotten_is_never_polled_again() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let handle = domain.spawn(yield_now(), at(7)).unwrap();
    std::mem::forget(vcpu.pick(None));
    // The vCPU continues with other coroutines.
    assert_eq!(vcpu.current_id(), Some(handle.id()));
    assert_eq!(vcpu.current_poll().map(|poll| poll.id), Some(handle.id()));
    domain.wake(handle.id()).unwrap();
    domain.reprio(handle.id(), level(3)).unwrap();
    handle.cancel();
    let other = domain.spawn(yield_now(), at(9)).unwrap();
    assert_eq!(run(&vcpu, 10), 2);
    assert!(other.is_finished() && !handle.is_finished());
    // The domain would wait for the end of the coroutine, so the domain is leaked, too.
    std::mem::forget((domain, vcpu));
}
