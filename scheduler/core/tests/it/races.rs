//! Tests races of two threads, most of them at the end of a coroutine, a vCPU (run queue) or a
//! domain, each in the smallest program that has the race. Under Miri each round has another
//! schedule.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Poll, Waker};
use std::thread;

use crate::support::{at, block_once, domain, level, run, serving, step, when_leaving};
use upshift_core::{Config, Domain, Executor, JoinHandle};

use crate::support::TestHost;

const ROUNDS: usize = if cfg!(miri) { 2 } else { 2_000 };

/// Returns a coroutine that has blocked, and its waker.
fn blocked(
    domain: &Domain<TestHost>,
    vcpu: &Executor<TestHost>,
) -> (JoinHandle<(), TestHost>, Waker) {
    let (waker_sender, waker_receiver) = channel();
    let future = poll_fn(move |cx| {
        let _ = waker_sender.send(cx.waker().clone());
        Poll::<()>::Pending
    });
    let handle = domain.spawn(future, at(7)).unwrap();
    run(vcpu, 10);
    (handle, waker_receiver.recv().unwrap())
}

#[test]
fn the_last_waker_may_be_dropped_while_its_domain_is_dropped() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let (handle, waker) = blocked(&domain, &vcpu);
        handle.cancel();
        drop(handle);
        run(&vcpu, 10);
        let thread = thread::spawn(move || drop(waker));
        drop(vcpu);
        drop(domain);
        thread.join().unwrap();
    }
}

/// The domain is dropped as soon as the last slot has been given back, although the function that
/// gave the slot back has not returned. That function must not use the domain any more; Miri
/// detects such a use.
#[test]
fn a_domain_may_be_dropped_while_its_last_slot_is_being_given_back() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let (handle, waker) = blocked(&domain, &vcpu);
    handle.cancel();
    drop(handle);
    run(&vcpu, 10);
    let (returned_sender, returned_receiver) = channel();
    let (dropped_sender, dropped_receiver) = channel();
    let thread = thread::spawn(move || {
        when_leaving(move || {
            returned_sender.send(()).unwrap();
            dropped_receiver.recv().unwrap();
        });
        drop(waker);
    });
    returned_receiver.recv().unwrap();
    drop(vcpu);
    drop(domain);
    dropped_sender.send(()).unwrap();
    thread.join().unwrap();
}

#[test]
fn any_thread_may_ask_for_the_current_coroutine() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let rounds = ROUNDS * 20;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for vcpu in domain.vcpus() {
                    // Slots are reused, so their indices stay small.
                    assert!(vcpu.current_id().is_none_or(|id| id.index() < 1_000));
                }
            }
        });
        for _ in 0..rounds {
            domain.spawn(async { [0_u8; 100] }, at(7)).unwrap().detach();
            run(&vcpu, 10);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_lock_released_on_another_thread_leaves_the_loan_for_the_next_lock() {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let lender = |holder| {
        let d = domain.clone();
        async move { d.lend_to_holder(holder) }
    };
    let holder = serving(&vcpu, || domain.spawn(std::future::pending::<()>(), at(40)));
    let holder = holder.unwrap();
    let id = holder.id();
    run(&vcpu, 10);
    for _ in 0..ROUNDS {
        domain.record_handover(id).unwrap();
        serving(&vcpu, || domain.spawn(lender(id), at(9)))
            .unwrap()
            .detach();
        run(&vcpu, 10);
        thread::scope(|scope| {
            // The first lock is released while the second is taken and a level is lent for it.
            scope.spawn(|| domain.record_unlock(id));
            domain.record_handover(id).unwrap();
            serving(&vcpu, || domain.spawn(lender(id), at(7)))
                .unwrap()
                .detach();
            run(&vcpu, 10);
        });
        assert_eq!(domain.level(id), Ok(level(7)));
        domain.record_unlock(id);
        assert_eq!(domain.level(id), Ok(level(40)));
    }
}

#[test]
fn a_wake_may_come_while_its_domain_is_dropped() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let (handle, waker) = blocked(&domain, &vcpu);
        let thread = thread::spawn(move || waker.wake());
        drop(vcpu);
        drop(domain);
        thread.join().unwrap();
        assert!(handle.is_finished());
    }
}

#[test]
fn a_handle_may_be_dropped_while_its_coroutine_exits() {
    for _ in 0..ROUNDS {
        let drops = crate::support::Drops::default();
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let token = drops.token();
        let handle = domain.spawn(async move { token }, at(7)).unwrap();
        let thread = thread::spawn(move || drop(handle));
        run(&vcpu, 10);
        thread.join().unwrap();
        assert_eq!(drops.count(), 1);
    }
}

#[test]
fn a_handle_may_be_awaited_on_a_thread_while_its_coroutine_exits() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let handle = domain.spawn(async { 5 }, at(7)).unwrap();
        let thread = thread::spawn(move || crate::support::block_on(handle).unwrap());
        run(&vcpu, 10);
        assert_eq!(thread.join().unwrap(), 5);
    }
}

#[test]
fn reprio_is_not_lost_while_its_coroutine_moves_to_another_vcpu() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let handle = serving(&a, || domain.spawn(block_once(), at(40))).unwrap();
        let id = handle.id();
        assert!(step(&a).is_some());
        assert!(a.prepare_park());
        let d = domain.clone();
        let thread = thread::spawn(move || d.reprio(id, level(3)).unwrap());
        // `a` is parked, so the coroutine moves, unless its new level, published before the move,
        // has ended the wait of `a`.
        serving(&b, || domain.wake(id).unwrap());
        thread.join().unwrap();
        let has_moved = a.is_parked();
        a.unpark();
        let (there, other) = if has_moved { (&b, &a) } else { (&a, &b) };
        assert_eq!(there.bitmap() | other.bitmap(), level(3).bit());
        assert_eq!(step(there), Some((id, level(3))));
    }
}

#[test]
fn a_wake_may_come_while_its_vcpu_retires() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let handle = serving(&a, || domain.spawn(block_once(), at(7))).unwrap();
        // SAFETY: the future and its output are `Send`.
        let pinned = unsafe { a.spawn_pinned(block_once(), at(7)) }.unwrap();
        run(&a, 10);
        let (d, ids) = (domain.clone(), [handle.id(), pinned.id()]);
        let thread = thread::spawn(move || {
            for id in ids {
                let _ = d.wake(id);
            }
        });
        drop(a);
        thread.join().unwrap();
        run(&b, 10);
        assert!(handle.is_finished() && pinned.is_finished());
    }
}
