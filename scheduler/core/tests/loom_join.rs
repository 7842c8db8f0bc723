//! Models a join handle and the exit of its coroutine on two threads. The control block must be
//! freed once, by its last user (`join.rs`); otherwise the end of the domain would wait for ever.
//! See `loom_state.rs` for the command, and `models` for the bounds.

#![cfg(loom)]

mod models;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use models::{ModelHost, biased_domain, check, level, run, run_elsewhere};
use upshift_core::{Executor, JoinHandle, Priority};

struct Output(Arc<AtomicUsize>);

impl Drop for Output {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Spawns a coroutine that ends in its first poll, and returns its handle and the count of drops of
/// its output.
fn child(vcpu: &Executor<ModelHost>) -> (JoinHandle<Output, ModelHost>, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let output = Output(drops.clone());
    let at = Priority::At(level(20));
    // SAFETY: the future and its output are `Send`.
    let handle = unsafe { vcpu.spawn_pinned(async move { output }, at) };
    (handle.unwrap(), drops)
}

fn spawn_detached(vcpu: &Executor<ModelHost>, future: impl Future<Output = ()> + Send + 'static) {
    // SAFETY: the future and its output are `Send`.
    let handle = unsafe { vcpu.spawn_pinned(future, Priority::At(level(20))) };
    handle.unwrap().detach();
}

#[test]
fn a_coroutine_that_awaits_another_one_elsewhere_gets_its_output() {
    check(3, || {
        let domain = biased_domain(0);
        let (here, there) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (handle, drops) = child(&there);
        let outputs_received = Arc::new(AtomicUsize::new(0));
        spawn_detached(&here, {
            let outputs_received = outputs_received.clone();
            async move {
                drop(handle.await.unwrap());
                outputs_received.fetch_add(1, Relaxed);
            }
        });
        let other = run_elsewhere(there);
        run(&here);
        drop(other.join().unwrap());
        run(&here);
        assert_eq!(
            (outputs_received.load(Relaxed), drops.load(Relaxed)),
            (1, 1)
        );
    });
}

#[test]
fn a_coroutine_that_gives_up_another_one_elsewhere_leaves_one_owner_of_its_output() {
    check(3, || {
        let domain = biased_domain(0);
        let (here, there) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (mut handle, drops) = child(&there);
        spawn_detached(&here, async move {
            poll_fn(|cx| Poll::Ready(drop(Pin::new(&mut handle).poll(cx)))).await;
            drop(handle);
        });
        let other = run_elsewhere(there);
        run(&here);
        drop(other.join().unwrap());
        assert_eq!(drops.load(Relaxed), 1);
    });
}

#[test]
fn a_loan_that_is_given_up_while_its_coroutine_exits_elsewhere_frees_its_slot_once() {
    check(2, || {
        let domain = biased_domain(0);
        let (here, there) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (mut handle, drops) = child(&there);
        let wait = async move {
            // The coroutine is polled again, without the handle, before it blocks.
            poll_fn(|cx| Poll::Ready(drop(Pin::new(&mut handle).poll(cx)))).await;
            poll_fn(|_| Poll::<()>::Pending).await;
            drop(handle);
        };
        // SAFETY: the future and its output are `Send`.
        let waiter = unsafe { here.spawn_pinned(wait, Priority::At(level(5))) };
        let other = run_elsewhere(there);
        run(&here);
        drop(other.join().unwrap());
        waiter.unwrap().cancel();
        run(&here);
        assert_eq!(drops.load(Relaxed), 1);
    });
}

#[test]
fn a_handle_that_a_coroutine_has_polled_may_then_be_polled_by_a_thread() {
    check(2, || {
        let domain = biased_domain(0);
        let (here, there) = (domain.add_vcpu().unwrap(), domain.add_vcpu().unwrap());
        let (mut handle, drops) = child(&there);
        let place = Arc::new(std::sync::Mutex::new(None));
        spawn_detached(&here, {
            let place = place.clone();
            async move {
                poll_fn(|cx| Poll::Ready(drop(Pin::new(&mut handle).poll(cx)))).await;
                *place.lock().unwrap() = Some(handle);
            }
        });
        run(&here);
        let mut handle = place.lock().unwrap().take().unwrap();
        let other = run_elsewhere(there);
        let mut cx = Context::from_waker(Waker::noop());
        let is_ready = Pin::new(&mut handle).poll(&mut cx).is_ready();
        let there = other.join().unwrap();
        assert!(is_ready || Pin::new(&mut handle).poll(&mut cx).is_ready());
        drop((handle, here, there));
        assert_eq!(drops.load(Relaxed), 1);
    });
}
