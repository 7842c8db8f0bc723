//! Tests of user code that panics, calls back into the runtime, or leaks the values that it
//! receives.

use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::UnixStream;
use upshift::time::sleep;
use upshift::{Handle, Level, Preemption, Priority, Runtime, yield_now};

use super::{assert_runtime_works, runtime_builders};

/// A waker that uses the runtime when it is called and when it is dropped.
struct ReentrantWaker {
    handle: Handle,
    inner: Mutex<Option<Waker>>,
}

impl ReentrantWaker {
    fn call_runtime(&self) {
        let spawned = self
            .handle
            .spawn(async { yield_now().await }, Level::at::<5>());
        let metrics = self.handle.metrics();
        drop(upshift::try_spawn(async {}, Level::at::<0>()));
        let cid = upshift::get_cid();
        if let Some(cid) = cid {
            let _ = upshift::reprio(cid, Level::at::<40>());
        }
        if let Ok(spawned) = spawned {
            let _ = self.handle.reprio(spawned.id(), Level::at::<3>());
            spawned.cancel();
        }
        drop((metrics, upshift::current_level()));
        let mut nap = pin!(sleep(Duration::from_millis(1)));
        if cid.is_some() {
            let _ = nap.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

impl Wake for ReentrantWaker {
    fn wake(self: Arc<Self>) {
        self.call_runtime();
        let inner = self.inner.lock().unwrap().take();
        if let Some(inner) = inner {
            inner.wake();
        }
    }
}

impl Drop for ReentrantWaker {
    fn drop(&mut self) {
        self.call_runtime();
    }
}

/// Awaits `future` through a waker that is not the runtime's.
async fn await_through_foreign_waker<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let waker = Waker::from(Arc::new(ReentrantWaker {
            handle: Handle::current().unwrap(),
            inner: Mutex::new(Some(cx.waker().clone())),
        }));
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

#[test]
fn foreign_wakers_may_call_the_runtime() {
    for runtime in runtime_builders() {
        let runtime = runtime();
        let wait_in_every_way = async || {
            for _ in 0..20 {
                await_through_foreign_waker(sleep(Duration::from_micros(200))).await;
                let child = upshift::spawn(
                    async { sleep(Duration::from_micros(100)).await },
                    Level::at::<8>(),
                );
                await_through_foreign_waker(child).await.unwrap();
                let (mut one, mut other) = UnixStream::pair().unwrap();
                let writer_task = upshift::spawn(
                    async move {
                        yield_now().await;
                        AsyncWriteExt::write_all(&mut one, &[4; 10]).await.unwrap();
                    },
                    Level::at::<30>(),
                );
                let mut bytes = [0; 10];
                let read = AsyncReadExt::read_exact(&mut other, &mut bytes);
                await_through_foreign_waker(read).await.unwrap();
                writer_task.await.unwrap();
                let blocking =
                    upshift::spawn_blocking(|| std::thread::sleep(Duration::from_micros(50)));
                await_through_foreign_waker(blocking).await.unwrap();
                // This wait is dropped before its waker is called.
                let dropped_wait = await_through_foreign_waker(sleep(Duration::from_secs(100)));
                let mut dropped_wait = Box::pin(dropped_wait);
                let _ = futures_util::poll!(&mut dropped_wait);
                drop(dropped_wait);
            }
        };
        runtime.block_on(async {
            let other_coroutine =
                upshift::spawn(async move { wait_in_every_way().await }, Level::at::<12>());
            wait_in_every_way().await;
            other_coroutine.await.unwrap();
            assert_runtime_works().await;
        });
    }
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a destructor that panics");
        }
    }
}

struct PanicsOnWake(Mutex<Option<Waker>>);

impl Wake for PanicsOnWake {
    fn wake(self: Arc<Self>) {
        if let Some(waker) = self.0.lock().unwrap().take() {
            waker.wake();
        }
        panic!("a waker that panics");
    }
}

#[test]
fn panics_in_destructors_and_wakers_affect_nothing_else() {
    for runtime in runtime_builders() {
        let runtime = runtime();
        runtime.block_on(async {
            // The outputs are dropped by the runtime, dropped with their handle, or taken.
            upshift::spawn(async { PanicsOnDrop }, Level::at::<1>()).detach();
            let later = upshift::spawn(async { PanicsOnDrop }, Level::at::<1>());
            while !later.is_finished() {
                yield_now().await;
            }
            // The panic may reach this coroutine or not.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(later)));
            let taken = upshift::spawn(async { PanicsOnDrop }, Level::at::<1>());
            std::mem::forget(taken.await.unwrap());
            // One future panics when it is cancelled, and another panics again while it unwinds.
            let cancelled = upshift::spawn(
                async {
                    let _value = PanicsOnDrop;
                    pending::<()>().await;
                },
                Level::at::<1>(),
            );
            yield_now().await;
            cancelled.cancel();
            assert!(cancelled.await.is_err());
            let panics = upshift::spawn(
                async {
                    let _value = PanicsOnDrop;
                    panic!("a poll that panics");
                },
                Level::at::<1>(),
            );
            let panics: Result<(), _> = panics.await;
            assert!(panics.unwrap_err().is_panic());
            let blocking = upshift::spawn_blocking(|| PanicsOnDrop);
            std::mem::forget(blocking.await.unwrap());
            upshift::spawn_blocking(|| PanicsOnDrop).detach();
        });
        runtime.block_on(async {
            // Wakers that panic are called for a timer, for a coroutine and by the ring.
            let (mut one, mut other) = UnixStream::pair().unwrap();
            let mut byte = [0];
            let child = upshift::spawn(sleep(Duration::from_millis(1)), Level::at::<3>());
            let read = AsyncReadExt::read_exact(&mut other, &mut byte);
            let mut waits: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![
                Box::pin(sleep(Duration::from_millis(1))),
                Box::pin(child.map(|ended| ended.unwrap())),
                Box::pin(read.map(|read| read.unwrap())),
            ];
            for (n, future) in waits.iter_mut().enumerate() {
                if n == 2 {
                    one.write_all("x").await.0.unwrap();
                }
                poll_fn(|cx| {
                    let waker =
                        Waker::from(Arc::new(PanicsOnWake(Mutex::new(Some(cx.waker().clone())))));
                    let mut cx = Context::from_waker(&waker);
                    // A poll that yields calls its waker, which wakes the coroutine and then
                    // panics.
                    let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
                    polled.unwrap_or(Poll::Pending)
                })
                .await;
            }
            drop(waits);
            assert_runtime_works().await;
        });
        let output = runtime.block_on(async { PanicsOnDrop });
        std::mem::forget(output);
        runtime.block_on(assert_runtime_works());
    }
}

/// The hooks panic on every thread that polls, with payloads that panic when they are dropped.
#[test]
fn hooks_may_throw_payloads_that_panic_when_they_are_dropped() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let builder = Runtime::builder().vcpus(2).preemption(preemption);
        let builder = builder.on_vcpu_start(|| std::panic::panic_any(PanicsOnDrop));
        let builder = builder.on_vcpu_stop(|| std::panic::panic_any(PanicsOnDrop));
        let runtime = builder.build().unwrap();
        for _ in 0..3 {
            runtime.block_on(assert_runtime_works());
        }
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
        assert!(dropped.is_ok());
        // The thread has left the runtime.
        assert!(upshift::get_cid().is_none() && upshift::current_level().is_none());
        assert!(upshift::try_spawn(async {}, Level::at::<1>()).is_err());
    }
}

/// The runtime has one thread for blocking functions, which survives panics in them.
#[test]
fn blocking_threads_outlive_unwanted_results() {
    let runtime = Runtime::builder().vcpus(1).blocking_threads(1);
    let runtime = runtime.build().unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            let (start_sender, start_receiver) = upshift::sync::oneshot::channel();
            let (permission_sender, permission_receiver) = std::sync::mpsc::channel::<()>();
            let unwanted = upshift::spawn_blocking(move || {
                start_sender.send(()).unwrap();
                permission_receiver.recv().unwrap();
                PanicsOnDrop
            });
            let started = upshift::time::timeout(Duration::from_secs(20), start_receiver).await;
            started
                .expect("the thread for blocking functions has ended")
                .unwrap();
            unwanted.cancel();
            assert!(unwanted.await.is_err());
            permission_sender.send(()).unwrap();
        }
        let wanted = upshift::spawn_blocking(|| 7);
        let wanted = upshift::time::timeout(Duration::from_secs(20), wanted).await;
        assert_eq!(
            wanted
                .expect("the thread for blocking functions has ended")
                .unwrap(),
            7
        );
    });
}

/// Leaks wakers of the calling coroutine until no more can be created.
async fn leak_wakers() {
    poll_fn(|cx| {
        let clone = || std::mem::forget(cx.waker().clone());
        while catch_unwind(AssertUnwindSafe(clone)).is_ok() {}
        Poll::Ready(())
    })
    .await;
}

#[test]
fn a_coroutine_that_has_leaked_its_wakers_panics_when_it_waits() {
    use upshift::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let mutex = Arc::new(Mutex::new(()));
        let notify = Arc::new(Notify::new());
        let semaphore = Arc::new(Semaphore::new(0));
        let (sender, mut messages) = mpsc::channel::<()>(1);
        let (once, value) = oneshot::channel::<()>();
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let held = mutex.clone().lock_owned().await;
        let (locks, notified) = (mutex.clone(), notify.clone().notified_owned());
        let acquires = semaphore.clone().acquire_owned();
        type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;
        let waits: Vec<Wait> = vec![
            Box::pin(sleep(Duration::from_millis(1))),
            Box::pin(async move { drop(locks.lock().await) }),
            Box::pin(notified),
            Box::pin(async move { drop(acquires.await) }),
            Box::pin(async move { messages.recv().await.unwrap_or_default() }),
            Box::pin(async move { value.await.unwrap_or_default() }),
            Box::pin(async move { drop(one.recv().await) }),
        ];
        for (n, wait) in waits.into_iter().enumerate() {
            let leaking_coroutine = async move {
                leak_wakers().await;
                wait.await;
            };
            let ended = upshift::spawn(leaking_coroutine, Level::at::<3>()).await;
            assert!(ended.is_err_and(|error| error.is_panic()), "wait {n}");
        }
        // A join needs no waker.
        let child = upshift::spawn(sleep(Duration::from_millis(1)), Level::at::<60>());
        let leaking_coroutine = async move {
            leak_wakers().await;
            child.await.unwrap();
        };
        upshift::spawn(leaking_coroutine, Level::at::<3>())
            .await
            .unwrap();
        // The primitives still work for other coroutines.
        drop(held);
        drop(mutex.lock().await);
        notify.notify_one();
        notify.notified().await;
        semaphore.add_permits(1);
        drop(semaphore.acquire().await.unwrap());
        assert!(sender.send(()).await.is_err() && once.send(()).is_err());
        let _ = AsyncWriteExt::write_all(&mut other, b"there").await;
        assert_runtime_works().await;
    });
}

/// Queues a foreign waiter, whose waker panics, before a coroutine. Asserts that `release` does not
/// panic and wakes the coroutine.
async fn release_both<F: Future + Send + 'static>(
    mut first: impl Future + Unpin,
    second: F,
    release: impl FnOnce(),
) {
    let waker = Waker::from(Arc::new(PanicsOnWake(Mutex::new(None))));
    let polled = Pin::new(&mut first).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let second = upshift::spawn(async { drop(second.await) }, Priority::Inherit);
    while Handle::current().unwrap().state(second.id()) != upshift::State::Blocked {
        yield_now().await;
    }
    let released = catch_unwind(AssertUnwindSafe(release));
    assert!(released.is_ok(), "the panic of a waker left the primitive");
    let woken = upshift::time::timeout(Duration::from_secs(20), second).await;
    woken.expect("the coroutine was not woken").unwrap();
}

#[test]
fn a_waker_that_panics_does_not_prevent_other_wakes() {
    use upshift::sync::{Notify, RwLock, Semaphore, mpsc};
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let notify = Arc::new(Notify::new());
        let notified = || notify.clone().notified_owned();
        release_both(notified(), notified(), || notify.notify_waiters()).await;
        let semaphore = Arc::new(Semaphore::new(0));
        let acquire = || semaphore.clone().acquire_owned();
        release_both(acquire(), acquire(), || semaphore.add_permits(2)).await;
        semaphore.forget_permits(2);
        release_both(acquire(), acquire(), || semaphore.close()).await;
        let lock = Arc::new(RwLock::new(()));
        let writer = lock.clone().write_owned().await;
        let read = || Box::pin(lock.clone().read_owned());
        release_both(read(), read(), || drop(writer)).await;
        for closes in [false, true] {
            let (sender, mut receiver) = mpsc::channel(2);
            let full = sender.reserve_many(2).await.unwrap();
            let send = || {
                let sender = sender.clone();
                Box::pin(async move { sender.send(1).await })
            };
            let release = || {
                if closes {
                    receiver.close();
                } else {
                    drop(full);
                }
            };
            release_both(send(), send(), release).await;
        }
        assert_runtime_works().await;
    });
}
