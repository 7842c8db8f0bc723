//! What a host that traces is told: each change of state, once, in order.

#![cfg(not(loom))]

use std::cell::Cell;
use std::future::poll_fn;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use upshift_core::{
    Config, CoroutineId, Domain, Executor, Host, Level, Picked, Polled, Priority, State, Vcpu,
};

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<Tracing>>>> = const { Cell::new(None) };
}

type Changes = Arc<Mutex<Vec<(CoroutineId, State)>>>;

struct Tracing(Changes);

// SAFETY: `SERVED` is set by the one test, which has the executor.
unsafe impl Host for Tracing {
    fn is_tracing(&self) -> bool {
        true
    }

    fn changed(&self, id: CoroutineId, _: Level, state: State) {
        self.0.lock().unwrap().push((id, state));
    }
    fn now(&self) -> u64 {
        0
    }
    fn current(&self) -> Option<NonNull<Vcpu<Tracing>>> {
        SERVED.get()
    }
    fn pend(&self, _: usize) {}
}

fn run(executor: &Executor<Tracing>) {
    let mut back = None;
    while let Some(Picked::Poll(coroutine)) = executor.pick(back.take()) {
        if let Polled::Yielded(yielded) = coroutine.poll() {
            back = Some(yielded);
        }
    }
}

#[test]
fn each_change_is_told_once_in_order() {
    use State::{Blocked, Created, Exited, Ready, Running};
    let changes = Changes::default();
    let domain = Domain::new(Tracing(changes.clone()), Config::default());
    let executor = domain.add_vcpu().unwrap();
    SERVED.set(Some(executor.vcpu()));
    let mut polls = 0;
    let future = poll_fn(move |cx| {
        polls += 1;
        match polls {
            // It yields, then blocks, then ends.
            1 => cx.waker().wake_by_ref(),
            2 => {}
            _ => return Poll::Ready(()),
        }
        Poll::Pending
    });
    let handle = domain
        .spawn(future, Priority::At(Level::at::<9>()))
        .unwrap();
    let id = handle.id();
    run(&executor);
    domain.wake(id).unwrap();
    // The second finds it ready.
    domain.wake(id).unwrap();
    run(&executor);
    let seen: Vec<_> = changes.lock().unwrap().drain(..).collect();
    let expected = [
        Created, Ready, Running, Ready, Running, Blocked, Ready, Running, Exited,
    ];
    assert_eq!(seen, expected.map(|state| (id, state)));
    drop(executor);
    SERVED.set(None);
}
