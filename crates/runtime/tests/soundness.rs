//! Whatever safe code does with a runtime and its handles: no undefined behaviour (the address sanitizer watches), no lost wake, no
//! hang.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use upshift::fs::File;
use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream, UnixStream};
use upshift::time::sleep;
use upshift::{Handle, JoinHandle, Level, Preemption, Priority, Runtime, yield_now};

/// Runtimes of each kind.
fn kinds() -> [fn() -> Runtime; 3] {
    [
        || Runtime::builder().vcpus(1).build().unwrap(),
        || Runtime::builder().vcpus(2).build().unwrap(),
        || {
            let builder = Runtime::builder()
                .vcpus(2)
                .preemption(Preemption::Preferred);
            builder.build().unwrap()
        },
    ]
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = futures_util::join!(TcpStream::connect(address), listener.accept());
    (client.unwrap(), server.unwrap().0)
}

async fn still_works() {
    let (mut one, mut other) = pair().await;
    one.write_all("still works").await.0.unwrap();
    assert_eq!(&other.recv().await.unwrap()[..], b"still works");
    sleep(Duration::from_micros(100)).await;
    let handle = upshift::spawn(async { 7 }, Level::at::<3>());
    assert_eq!(handle.await.unwrap(), 7);
}

/// Polls once, and keeps the future and all it owns for ever.
async fn forget<F: Future + 'static>(future: F) {
    let mut future = Box::pin(future);
    let _ = futures_util::poll!(&mut future);
    std::mem::forget(future);
}

#[test]
fn futures_forgotten_in_flight_keep_what_the_kernel_uses() {
    for runtime in kinds() {
        let runtime = runtime();
        runtime.block_on(async {
            let (mut one, mut other) = pair().await;
            // Their own descriptors go first; the operations keep theirs.
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
        // Its threads go on.
        let handle = runtime.handle();
        std::mem::forget(runtime);
        drop(handle);
    }
}

thread_local! {
    static KEPT: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

#[test]
fn a_runtime_may_go_anywhere() {
    for outer in kinds() {
        for inner in kinds() {
            // In a poll of another one, with work of its own.
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
            // With another one below it, which goes first.
            let first = outer();
            let second = inner();
            drop(first);
            second.block_on(still_works());
        }
        // When its thread ends.
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
    KEPT.set(Some(runtime));
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

/// Has it not been polled yet?
fn is_unpolled(waits: &JoinHandle<()>) -> bool {
    Handle::current().unwrap().state(waits.id()) != upshift::State::Blocked
}

/// A waker that comes back into the runtime, whatever is done with it.
struct ComesBack {
    handle: Handle,
    inner: Mutex<Option<Waker>>,
}

impl ComesBack {
    fn come_back(&self) {
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

impl Wake for ComesBack {
    fn wake(self: Arc<Self>) {
        self.come_back();
        let inner = self.inner.lock().unwrap().take();
        if let Some(inner) = inner {
            inner.wake();
        }
    }
}

impl Drop for ComesBack {
    fn drop(&mut self) {
        self.come_back();
    }
}

/// Awaits through a waker that is not the runtime's own.
async fn through_a_foreign_waker<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let waker = Waker::from(Arc::new(ComesBack {
            handle: Handle::current().unwrap(),
            inner: Mutex::new(Some(cx.waker().clone())),
        }));
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

#[test]
fn wakers_of_others_may_come_back_into_the_runtime() {
    for runtime in kinds() {
        let runtime = runtime();
        let all = async || {
            for _ in 0..20 {
                through_a_foreign_waker(sleep(Duration::from_micros(200))).await;
                let child = upshift::spawn(
                    async { sleep(Duration::from_micros(100)).await },
                    Level::at::<8>(),
                );
                through_a_foreign_waker(child).await.unwrap();
                let (mut one, mut other) = UnixStream::pair().unwrap();
                let writes = upshift::spawn(
                    async move {
                        yield_now().await;
                        AsyncWriteExt::write_all(&mut one, &[4; 10]).await.unwrap();
                    },
                    Level::at::<30>(),
                );
                let mut bytes = [0; 10];
                let reads = AsyncReadExt::read_exact(&mut other, &mut bytes);
                through_a_foreign_waker(reads).await.unwrap();
                writes.await.unwrap();
                let blocking =
                    upshift::spawn_blocking(|| std::thread::sleep(Duration::from_micros(50)));
                through_a_foreign_waker(blocking).await.unwrap();
                // Given up before it is called.
                let gives_up = through_a_foreign_waker(sleep(Duration::from_secs(100)));
                let mut gives_up = Box::pin(gives_up);
                let _ = futures_util::poll!(&mut gives_up);
                drop(gives_up);
            }
        };
        runtime.block_on(async {
            let there = upshift::spawn(async move { all().await }, Level::at::<12>());
            all().await;
            there.await.unwrap();
            still_works().await;
        });
    }
}

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
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
fn panics_in_destructors_and_wakers_stay_where_they_are() {
    for runtime in kinds() {
        let runtime = runtime();
        runtime.block_on(async {
            // An output that is not wanted, one whose handle goes later, one that is taken.
            upshift::spawn(async { Grenade }, Level::at::<1>()).detach();
            let later = upshift::spawn(async { Grenade }, Level::at::<1>());
            while !later.is_finished() {
                yield_now().await;
            }
            // Quiet or not, the runtime goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(later)));
            let taken = upshift::spawn(async { Grenade }, Level::at::<1>());
            std::mem::forget(taken.await.unwrap());
            // A future that panics when it is cancelled, and one that ends by a panic and then panics again.
            let cancelled = upshift::spawn(
                async {
                    let _grenade = Grenade;
                    pending::<()>().await;
                },
                Level::at::<1>(),
            );
            yield_now().await;
            cancelled.cancel();
            assert!(cancelled.await.is_err());
            let panics = upshift::spawn(
                async {
                    let _grenade = Grenade;
                    panic!("a poll that panics");
                },
                Level::at::<1>(),
            );
            let panics: Result<(), _> = panics.await;
            assert!(panics.unwrap_err().is_panic());
            let blocking = upshift::spawn_blocking(|| Grenade);
            std::mem::forget(blocking.await.unwrap());
            upshift::spawn_blocking(|| Grenade).detach();
        });
        runtime.block_on(async {
            // A waker that panics, called for a timer, a coroutine and by the ring.
            let (mut one, mut other) = UnixStream::pair().unwrap();
            let mut byte = [0];
            let mut all: Vec<Pin<Box<dyn Future<Output = ()>>>> = vec![
                Box::pin(sleep(Duration::from_millis(1))),
                Box::pin(async {
                    let child = upshift::spawn(sleep(Duration::from_millis(1)), Level::at::<3>());
                    child.await.unwrap();
                }),
                Box::pin(async {
                    AsyncReadExt::read_exact(&mut other, &mut byte)
                        .await
                        .unwrap();
                }),
            ];
            for (n, future) in all.iter_mut().enumerate() {
                if n == 2 {
                    one.write_all("x").await.0.unwrap();
                }
                poll_fn(|cx| {
                    let waker =
                        Waker::from(Arc::new(PanicsOnWake(Mutex::new(Some(cx.waker().clone())))));
                    future.as_mut().poll(&mut Context::from_waker(&waker))
                })
                .await;
            }
            drop(all);
            still_works().await;
        });
        let output = runtime.block_on(async { Grenade });
        std::mem::forget(output);
        runtime.block_on(still_works());
    }
}
