//! Tests that user code (destructors, wakers of other executors) never runs between
//! [`Host::enter_critical`] and [`Host::leave_critical`], and that user code that runs at the end
//! of a coroutine is still part of the coroutine's poll, so that a host can suspend it.
//!
//! [`Host::enter_critical`]: upshift_core::Host::enter_critical
//! [`Host::leave_critical`]: upshift_core::Host::leave_critical

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::support::{TestHost, Trace, at, block_once, domain, is_critical, run, serving};
use upshift_core::{Config, Domain, Executor};

/// A recorder of calls of user code. A `!` before the name of a call marks a call in a critical
/// section, and `outside` after the name marks a call outside of a poll.
#[derive(Clone)]
struct Probe {
    trace: Trace,
    domain: Domain<TestHost>,
}

impl Probe {
    fn new(domain: &Domain<TestHost>) -> Probe {
        Probe {
            trace: Trace::default(),
            domain: domain.clone(),
        }
    }

    fn say(&self, name: &str) {
        let polling = self.domain.vcpus().any(|vcpu| vcpu.is_polling());
        let critical = if is_critical() { "!" } else { "" };
        let outside = if polling { "" } else { " outside" };
        self.trace.push(format!("{critical}{name}{outside}"));
    }

    /// Returns a foreign waker, as another executor would make it.
    fn waker(&self) -> Waker {
        let data = Arc::into_raw(Arc::new(self.clone())).cast();
        // SAFETY: the table below keeps the contract for an `Arc<Probe>`.
        unsafe { Waker::from_raw(RawWaker::new(data, &TABLE)) }
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: the data of a waker is an `Arc<Probe>`.
        let probe = unsafe { &*data.cast::<Probe>() };
        probe.say("clone");
        // SAFETY: the data of a waker is an `Arc<Probe>`.
        unsafe { Arc::increment_strong_count(data.cast::<Probe>()) };
        RawWaker::new(data, &TABLE)
    },
    |data| {
        // SAFETY: the data is an `Arc<Probe>`, and the waker is consumed.
        unsafe { Arc::from_raw(data.cast::<Probe>()) }.say("wake");
    },
    // SAFETY: the data of a waker is an `Arc<Probe>`.
    |data| unsafe { &*data.cast::<Probe>() }.say("wake_by_ref"),
    |data| {
        // SAFETY: the data is an `Arc<Probe>`, and the waker is consumed.
        unsafe { Arc::from_raw(data.cast::<Probe>()) }.say("drop");
    },
);

struct Dropped(Probe, &'static str);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.say(self.1);
    }
}

fn machine() -> (Domain<TestHost>, Executor<TestHost>, Probe) {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let probe = Probe::new(&domain);
    (domain, vcpu, probe)
}

#[test]
fn the_output_of_a_detached_coroutine_is_dropped_by_its_poll() {
    let (domain, vcpu, probe) = machine();
    let output = Dropped(probe.clone(), "output");
    domain.spawn(async { output }, at(7)).unwrap().detach();
    run(&vcpu, 10);
    assert_eq!(probe.trace.take(), "output");
}

#[test]
fn the_output_of_a_coroutine_that_its_own_poll_detaches_is_dropped_by_that_poll() {
    let (domain, vcpu, probe) = machine();
    let output = Dropped(probe.clone(), "output");
    let place = Arc::new(std::sync::Mutex::new(None));
    let shared_place = place.clone();
    let future = async move {
        drop(shared_place.lock().unwrap().take());
        output
    };
    *place.lock().unwrap() = Some(domain.spawn(future, at(7)).unwrap());
    run(&vcpu, 10);
    assert_eq!(probe.trace.take(), "output");
}

#[test]
fn the_future_of_a_cancelled_coroutine_is_dropped_by_its_poll() {
    let (domain, vcpu, probe) = machine();
    let future = Dropped(probe.clone(), "future");
    let blocked = async move {
        let _future = future;
        pending::<()>().await;
    };
    let handle = domain.spawn(blocked, at(7)).unwrap();
    run(&vcpu, 10);
    handle.cancel();
    run(&vcpu, 10);
    assert_eq!(probe.trace.take(), "future");
}

#[test]
fn a_foreign_waker_of_a_handle_is_woken_by_the_poll_that_ends() {
    let (domain, vcpu, probe) = machine();
    let mut handle = domain.spawn(block_once(), at(7)).unwrap();
    run(&vcpu, 10);
    let waker = probe.waker();
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut handle).poll(&mut cx).is_pending());
    assert_eq!(probe.trace.take(), "clone outside");
    domain.wake(handle.id()).unwrap();
    run(&vcpu, 10);
    assert_eq!(probe.trace.take(), "wake");
    assert!(Pin::new(&mut handle).poll(&mut cx).is_ready());
}

#[test]
fn a_coroutine_that_awaits_with_foreign_wakers_clones_and_drops_them_interruptibly() {
    let (domain, vcpu, probe) = machine();
    let mut child = serving(&vcpu, || domain.spawn(pending::<()>(), at(9))).unwrap();
    let parent_probe = probe.clone();
    let parent = poll_fn(move |_| {
        for _ in 0..2 {
            let waker = parent_probe.waker();
            let mut cx = Context::from_waker(&waker);
            assert!(Pin::new(&mut child).poll(&mut cx).is_pending());
        }
        child.cancel();
        Poll::Ready(())
    });
    domain.spawn(parent, at(7)).unwrap().detach();
    run(&vcpu, 10);
    // The second waker replaces the first, and is dropped with the handle.
    assert_eq!(probe.trace.take(), "clone drop drop clone drop drop");
}

#[test]
fn a_future_that_cannot_be_spawned_is_dropped_interruptibly() {
    let (domain, vcpu, probe) = machine();
    let spawn_refused = |domain: &Domain<TestHost>| {
        let future = Dropped(probe.clone(), "future");
        let spawned = domain.spawn(async move { drop(future) }, at(7));
        assert!(spawned.is_err());
    };
    drop(vcpu);
    spawn_refused(&domain);
    domain.close();
    spawn_refused(&domain);
    assert_eq!(probe.trace.take(), "future outside future outside");
}
