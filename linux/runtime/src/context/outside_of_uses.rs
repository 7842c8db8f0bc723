//! Tests that user code never runs within a *use*, which is a section in which the calling thread
//! works on state that its vCPU's threads share. User code must run outside of uses, because it may
//! take long, be suspended, or call the runtime again. The tests make the thread hold a permit,
//! which shows whether a use is under way.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use upshift_core::{Level, Priority, SpawnError};
use upshift_elevate::dispatch::Permit;

use crate::Runtime;
use crate::preempt::permit;

/// Number of calls of user code, and of those within a use.
#[derive(Default)]
struct Calls {
    total: AtomicUsize,
    within_use: AtomicUsize,
}

/// User code, as a value whose drop and wake are counted.
struct User {
    permit: &'static Permit,
    calls: Arc<Calls>,
}

impl User {
    fn call(&self) {
        self.calls.total.fetch_add(1, Relaxed);
        self.calls
            .within_use
            .fetch_add(usize::from(self.permit.in_use()), Relaxed);
    }

    fn another(&self) -> User {
        User {
            permit: self.permit,
            calls: self.calls.clone(),
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::new(self.another()))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.call();
    }
}

impl Wake for User {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

/// Runs `main` on a runtime with one vCPU. Asserts that user code is called at least `calls` times,
/// once for each `User` that `main` gives to the runtime, and never in the middle of a use.
fn outside_of_uses(calls: usize, main: impl AsyncFnOnce(&User)) {
    let permit: &'static Permit = Box::leak(Box::new(Permit::new()));
    let user = User {
        permit,
        calls: Arc::default(),
    };
    let hooks = permit::Hooks {
        notify: || (),
        wait: permit::wait_for_grant,
    };
    // SAFETY: the permit is never freed, so it lives until `restore`, and no use of a former permit
    // is under way on this thread.
    let previous = unsafe { permit::hold(permit, hooks) };
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(main(&user));
    drop(runtime);
    assert!(!permit.in_use());
    // SAFETY: `hold` returned this permit, which the thread held under the contract of `hold`.
    unsafe { permit::restore(previous) };
    assert!(user.calls.total.load(Relaxed) >= calls);
    assert_eq!(user.calls.within_use.load(Relaxed), 0);
}

#[test]
fn a_refused_coroutine_is_dropped_outside_of_uses() {
    /// A value whose drop, when the runtime ends, tries to spawn a coroutine.
    struct Late(User);

    impl Drop for Late {
        fn drop(&mut self) {
            let user = self.0.another();
            let refused = crate::try_spawn(async move { drop(user) }, Priority::Inherit);
            assert_eq!(refused.unwrap_err(), SpawnError::Closed);
        }
    }

    outside_of_uses(2, async |user| {
        let late = Late(user.another());
        let waiter = async move {
            let _late = late;
            pending::<()>().await;
        };
        crate::spawn(waiter, Level::at::<0>()).detach();
        crate::yield_now().await;
    });
}

#[test]
fn a_refused_blocking_function_is_dropped_outside_of_uses() {
    outside_of_uses(2, async |user| {
        crate::context::with(|worker| worker.shared().clone())
            .unwrap()
            .pool
            .shut_down();
        let first_user = user.another();
        let function = move || drop(first_user);
        assert!(crate::spawn_blocking(function).await.is_err());
        let second_user = user.another();
        let function = move || drop(second_user);
        let error = crate::try_spawn_blocking(function).unwrap_err();
        let inner = error.get_ref().unwrap().downcast_ref();
        assert_eq!(inner, Some(&SpawnError::Closed));
    });
}

#[test]
fn outputs_and_futures_are_dropped_outside_of_uses() {
    outside_of_uses(4, async |user| {
        // Drops the output of a detached coroutine, the future of a cancelled coroutine, and an
        // output whose handle is dropped later.
        let output = user.another();
        crate::spawn(async move { output }, Level::at::<0>()).detach();
        let held = user.another();
        let waiter = crate::spawn(
            async move {
                let _held = held;
                pending::<()>().await;
            },
            Level::at::<0>(),
        );
        let output = user.another();
        let handle = crate::spawn(async move { output }, Level::at::<0>());
        crate::yield_now().await;
        waiter.cancel();
        crate::yield_now().await;
        drop(handle);
        // A foreign waker, which belongs to no coroutine of the runtime, waits for a coroutine.
        let mut pending_handle = crate::spawn(pending::<()>(), Level::at::<0>());
        let waker = user.waker();
        let poll = pin!(&mut pending_handle).poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        pending_handle.cancel();
        crate::yield_now().await;
    });
}

struct Notes(std::sync::Mutex<Vec<&'static str>>);

struct Note(Arc<Notes>, &'static str);

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.0.0.lock().unwrap().push(self.1);
    }
}

/// Timers that are due together must take effect in the order of their levels, whether they wake a
/// coroutine or call a foreign waker.
#[test]
fn foreign_wakers_are_called_at_the_level_of_their_sleeper() {
    let notes = Arc::new(Notes(std::sync::Mutex::default()));
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let due = std::time::Instant::now() + Duration::from_millis(50);
        let mut sleeps = Vec::new();
        for (level, name) in [(40, "later"), (10, "soon")] {
            let notes = notes.clone();
            let sleeper = async move {
                // The less urgent sleeper is due first.
                let due = due - Duration::from_micros(level as u64 * 20);
                let mut sleep = Box::pin(crate::time::sleep_until(due));
                let waker = Waker::from(Arc::new(Note(notes, name)));
                let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
                Some(sleep)
            };
            let level = Level::new(level).unwrap();
            sleeps.push(crate::spawn(sleeper, Priority::At(level)).await.unwrap());
        }
        let own_notes = notes.clone();
        let coroutine = crate::spawn(
            async move {
                crate::time::sleep_until(due).await;
                own_notes.0.lock().unwrap().push("ours");
            },
            Level::at::<20>(),
        );
        crate::yield_now().await;
        crate::yield_now().await;
        // Spins until all three timers are due, so that the vCPU finds them together.
        while std::time::Instant::now() < due + Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        coroutine.await.unwrap();
        crate::spawn(async {}, Level::at::<50>()).await.unwrap();
    });
    assert_eq!(*notes.0.lock().unwrap(), ["soon", "ours", "later"]);
}
