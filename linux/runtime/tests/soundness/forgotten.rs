//! Futures, handles and runtimes that are forgotten, moved, or outlive each other.

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

use super::{forget, kinds, pair, still_works};

#[test]
fn futures_forgotten_in_flight_keep_the_memory_that_the_kernel_uses() {
    for runtime in kinds() {
        let runtime = runtime();
        runtime.block_on(async {
            let (mut one, mut other) = pair().await;
            // Their own descriptors are closed first; the operations keep theirs.
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
            let theirs = mutex.clone();
            forget(async move { drop(theirs.lock().await) }).await;
            drop(guard);
            sleep(Duration::from_millis(3)).await;
            still_works().await;
        });
        drop(runtime);
    }
}

#[test]
fn forgotten_handles_and_runtimes() {
    for runtime in kinds() {
        let runtime = runtime();
        runtime.block_on(async {
            std::mem::forget(upshift::spawn(async { vec![1; 100] }, Priority::Inherit));
            std::mem::forget(upshift::spawn_local(pending::<()>(), Priority::Inherit));
            still_works().await;
        });
        // The threads of the runtime go on.
        let handle = runtime.handle();
        std::mem::forget(runtime);
        drop(handle);
    }
}

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

#[test]
fn a_runtime_may_go_anywhere() {
    for outer in kinds() {
        for inner in kinds() {
            // In a poll of another runtime, with work of its own.
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
                // A handle that has outlived its runtime.
                let held = nested.await.unwrap().unwrap();
                assert!(held.await.unwrap_err().is_cancelled());
                still_works().await;
            });
            // With another runtime below it, which is dropped first.
            let first = outer();
            let second = inner();
            drop(first);
            second.block_on(still_works());
        }
        // At the end of its thread.
        std::thread::spawn(move || {
            let runtime = outer();
            runtime.block_on(still_works());
            keep(runtime);
        })
        .join()
        .unwrap();
    }
}

fn keep(runtime: Runtime) {
    RUNTIME.set(Some(runtime));
}

#[test]
fn handles_outlive_their_runtime() {
    for runtime in kinds() {
        let runtime = runtime();
        let wakers = Arc::new(Mutex::new(Vec::new()));
        let theirs = wakers.clone();
        let (finished, waits, handle) = runtime.block_on(async move {
            let finished = upshift::spawn(async { vec![3; 1000] }, Level::at::<1>());
            let waits = upshift::spawn(
                poll_fn(move |cx| {
                    theirs.lock().unwrap().push(cx.waker().clone());
                    Poll::<()>::Pending
                }),
                Level::at::<1>(),
            );
            while !finished.is_finished() || is_unpolled(&waits) {
                yield_now().await;
            }
            (finished, waits, Handle::current().unwrap())
        });
        drop(runtime);
        let id = waits.id();
        for waker in wakers.lock().unwrap().drain(..) {
            waker.wake_by_ref();
            waker.wake();
        }
        assert!(waits.is_finished() && handle.wake(id).is_err() && handle.cancel(id).is_err());
        waits.cancel();
        assert!(handle.reprio(id, Level::at::<0>()).is_err());
        let (metrics, stats) = (handle.metrics(), handle.preemption_stats());
        drop((metrics, stats, handle.trace()));
        let other = Runtime::builder().vcpus(1).build().unwrap();
        other.block_on(async {
            assert_eq!(finished.await.unwrap(), vec![3; 1000]);
            assert!(waits.await.unwrap_err().is_cancelled());
        });
    }
}

/// Returns whether it has not been polled yet.
fn is_unpolled(waits: &JoinHandle<()>) -> bool {
    Handle::current().unwrap().state(waits.id()) != upshift::State::Blocked
}
