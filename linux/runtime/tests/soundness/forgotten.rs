//! Tests of futures, handles and runtimes that are leaked, moved, or outlive each other.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use upshift::fs::File;
use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, UnixStream};
use upshift::time::sleep;
use upshift::{Handle, JoinHandle, Level, Priority, Runtime, yield_now};

use super::{assert_runtime_works, forget, pair, runtime_builders};

#[test]
fn futures_forgotten_in_flight_keep_the_memory_that_the_kernel_uses() {
    for runtime in runtime_builders() {
        let runtime = runtime();
        runtime.block_on(async {
            let (mut one, mut other) = pair().await;
            // The leaked futures own sockets, files and pipes. Their operations keep descriptors
            // and memory.
            forget(async move { one.read(vec![0; 1 << 16]).await.0.unwrap() }).await;
            let _ = other.write_all(vec![5; 1 << 10]).await;
            let (one, mut other) = UnixStream::pair().unwrap();
            forget(async move { one.into_split().0.recv().await.map(|_| ()) }).await;
            let _ = AsyncWriteExt::write_all(&mut other, &[1; 100]).await;
            let (mut one, _other) = UnixStream::pair().unwrap();
            forget(async move { AsyncWriteExt::write_all(&mut one, &[2; 2 << 20]).await }).await;
            forget(async {
                let file = File::open("/proc/self/exe").await.unwrap();
                file.read_at(vec![0; 1 << 18], 0).await.0.unwrap()
            })
            .await;
            let (mut reader, writer) = upshift::io::pipe().unwrap();
            forget(async move { reader.read(&mut [0; 10]).await.map(drop) }).await;
            drop(writer);
            forget(async {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                listener.accept().await.map(drop)
            })
            .await;
            forget(sleep(Duration::from_millis(1))).await;
            forget(sleep(Duration::from_secs(100))).await;
            let mutex = Arc::new(upshift::sync::Mutex::new(()));
            let guard = mutex.lock().await;
            let shared = mutex.clone();
            forget(async move { drop(shared.lock().await) }).await;
            drop(guard);
            sleep(Duration::from_millis(3)).await;
            assert_runtime_works().await;
        });
        drop(runtime);
    }
}

#[test]
fn leaked_handles_and_runtimes_are_harmless() {
    for runtime in runtime_builders() {
        let runtime = runtime();
        runtime.block_on(async {
            std::mem::forget(upshift::spawn(async { vec![1; 100] }, Priority::Inherit));
            std::mem::forget(upshift::spawn_local(pending::<()>(), Priority::Inherit));
            assert_runtime_works().await;
        });
        // The threads of a leaked runtime continue.
        let handle = runtime.handle();
        std::mem::forget(runtime);
        drop(handle);
    }
}

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

#[test]
fn a_runtime_may_be_dropped_in_a_poll_before_another_runtime_or_at_the_end_of_its_thread() {
    for outer in runtime_builders() {
        for inner in runtime_builders() {
            // The inner runtime is dropped in a poll of the outer runtime, while it has a sleeping
            // coroutine.
            outer().block_on(async move {
                let nested = upshift::spawn(
                    async move {
                        let runtime = inner();
                        let handle = runtime.handle();
                        let held = handle
                            .spawn(
                                async { sleep(Duration::from_secs(100)).await },
                                Level::at::<1>(),
                            )
                            .unwrap();
                        drop(runtime);
                        assert!(handle.spawn(async {}, Level::at::<1>()).is_err());
                        Some(held)
                    },
                    Level::at::<20>(),
                );
                // The handle has outlived its runtime.
                let held = nested.await.unwrap().unwrap();
                assert!(held.await.unwrap_err().is_cancelled());
                assert_runtime_works().await;
            });
            // Two runtimes of one thread are dropped in the order of their creation.
            let first = outer();
            let second = inner();
            drop(first);
            second.block_on(assert_runtime_works());
        }
        // The runtime is dropped at the end of its thread.
        std::thread::spawn(move || {
            let runtime = outer();
            runtime.block_on(assert_runtime_works());
            store_until_thread_end(runtime);
        })
        .join()
        .unwrap();
    }
}

/// Stores the runtime in a variable that is dropped when the thread ends.
fn store_until_thread_end(runtime: Runtime) {
    RUNTIME.set(Some(runtime));
}

#[test]
fn handles_outlive_their_runtime() {
    for runtime in runtime_builders() {
        let runtime = runtime();
        let wakers = Arc::new(Mutex::new(Vec::new()));
        let shared = wakers.clone();
        let (finished, waiting, handle) = runtime.block_on(async move {
            let finished = upshift::spawn(async { vec![3; 1000] }, Level::at::<1>());
            let waiting = upshift::spawn(
                poll_fn(move |cx| {
                    shared.lock().unwrap().push(cx.waker().clone());
                    Poll::<()>::Pending
                }),
                Level::at::<1>(),
            );
            while !finished.is_finished() || is_unpolled(&waiting) {
                yield_now().await;
            }
            (finished, waiting, Handle::current().unwrap())
        });
        drop(runtime);
        let id = waiting.id();
        for waker in wakers.lock().unwrap().drain(..) {
            waker.wake_by_ref();
            waker.wake();
        }
        assert!(waiting.is_finished() && handle.wake(id).is_err() && handle.cancel(id).is_err());
        waiting.cancel();
        assert!(handle.reprio(id, Level::at::<0>()).is_err());
        let (metrics, stats) = (handle.metrics(), handle.preemption_stats());
        drop((metrics, stats, handle.trace()));
        let other = Runtime::builder().vcpus(1).build().unwrap();
        other.block_on(async {
            assert_eq!(finished.await.unwrap(), vec![3; 1000]);
            assert!(waiting.await.unwrap_err().is_cancelled());
        });
    }
}

/// Returns true if the coroutine has not been polled yet.
fn is_unpolled(waiting: &JoinHandle<()>) -> bool {
    Handle::current().unwrap().state(waiting.id()) != upshift::State::Blocked
}
