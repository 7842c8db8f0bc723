//! Two threads that meet at the end of something: the smallest runs in which
//! they can. Under Miri each run is a schedule of its own.

#![cfg(not(loom))]

mod support;

use std::future::poll_fn;
use std::sync::mpsc::channel;
use std::task::{Poll, Waker};
use std::thread;

use support::{at, block_once, domain, level, run, serving, step};
use upshift_core::{Config, Domain, Executor, JoinHandle};

use support::TestHost;

const ROUNDS: usize = if cfg!(miri) { 2 } else { 2_000 };

/// A coroutine that gives away its waker and blocks.
fn blocked(
    domain: &Domain<TestHost>,
    vcpu: &Executor<TestHost>,
) -> (JoinHandle<(), TestHost>, Waker) {
    let (give, take) = channel();
    let future = poll_fn(move |cx| {
        let _ = give.send(cx.waker().clone());
        Poll::<()>::Pending
    });
    let handle = domain.spawn(future, at(7)).unwrap();
    run(vcpu, 10);
    (handle, take.recv().unwrap())
}

#[test]
fn the_last_waker_may_go_while_its_domain_goes() {
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

#[test]
fn a_wake_may_come_while_its_domain_goes() {
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
        let drops = support::Drops::default();
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
fn a_handle_may_be_awaited_elsewhere_while_its_coroutine_exits() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let handle = domain.spawn(async { 5 }, at(7)).unwrap();
        let thread = thread::spawn(move || support::block_on(handle).unwrap());
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
        // `a` is parked: it moves.
        serving(&b, || domain.wake(id).unwrap());
        thread.join().unwrap();
        assert_eq!(b.bitmap(), level(3).bit());
        a.unpark();
        assert_eq!(step(&b), Some((id, level(3))));
    }
}

#[test]
fn a_wake_may_come_while_its_vcpu_retires() {
    for _ in 0..ROUNDS {
        let domain = domain(Config::default());
        let (a, b) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let handle = serving(&a, || domain.spawn(block_once(), at(7))).unwrap();
        // SAFETY: the future is `Send`.
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
