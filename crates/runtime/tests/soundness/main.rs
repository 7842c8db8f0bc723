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
use upshift::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
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

/// A hook and what it throws: each panics, on every thread that polls.
#[test]
fn hooks_may_throw_what_panics_when_it_is_dropped() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let builder = Runtime::builder().vcpus(2).preemption(preemption);
        let builder = builder.on_vcpu_start(|| std::panic::panic_any(Grenade));
        let builder = builder.on_vcpu_stop(|| std::panic::panic_any(Grenade));
        let runtime = builder.build().unwrap();
        for _ in 0..3 {
            runtime.block_on(still_works());
        }
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
        assert!(dropped.is_ok());
        // This thread polls for no runtime any more.
        assert!(upshift::get_cid().is_none() && upshift::current_level().is_none());
        assert!(upshift::try_spawn(async {}, Level::at::<1>()).is_err());
    }
}

/// Threads for functions that block are few, and outlive what they come upon.
#[test]
fn blocking_threads_outlive_what_is_not_wanted_any_more() {
    let runtime = Runtime::builder().vcpus(1).blocking_threads(1);
    let runtime = runtime.build().unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            let (began, has_begun) = upshift::sync::oneshot::channel();
            let (go, may_go) = std::sync::mpsc::channel::<()>();
            let unwanted = upshift::spawn_blocking(move || {
                began.send(()).unwrap();
                may_go.recv().unwrap();
                Grenade
            });
            let has_begun = upshift::time::timeout(Duration::from_secs(20), has_begun).await;
            has_begun.expect("there is a thread").unwrap();
            unwanted.cancel();
            assert!(unwanted.await.is_err());
            go.send(()).unwrap();
        }
        let wanted = upshift::spawn_blocking(|| 7);
        let wanted = upshift::time::timeout(Duration::from_secs(20), wanted).await;
        assert_eq!(wanted.expect("there is a thread").unwrap(), 7);
    });
}

/// A number is what a program makes of its input: what cannot be is an error, and nothing else.
#[test]
fn settings_may_be_of_any_size() {
    let change: [fn(upshift::Builder) -> upshift::Builder; 16] = [
        |builder| builder.vcpus(usize::MAX),
        |builder| builder.vcpus(0),
        |builder| builder.pin([usize::MAX]),
        |builder| builder.ring_entries(u32::MAX),
        |builder| builder.ring_entries(0),
        |builder| builder.buffers(u16::MAX, u32::MAX),
        |builder| builder.buffers(1 << 15, u32::MAX),
        |builder| builder.aging(std::num::NonZeroU32::MAX),
        |builder| builder.chaos(u64::MAX),
        |builder| builder.spin(Duration::MAX),
        |builder| builder.reap_interval(Duration::MAX),
        |builder| builder.quantum(Duration::MAX),
        |builder| builder.max_suspended(usize::MAX),
        |builder| builder.blocking_threads(usize::MAX).tokio(true),
        |builder| builder.stall_limit(Duration::MAX),
        |builder| builder.name("\u{10ffff}".repeat(1000)),
    ];
    for preemption in [Preemption::Off, Preemption::Preferred] {
        for (n, change) in change.iter().enumerate() {
            let builder = change(Runtime::builder().vcpus(1)).preemption(preemption);
            let built = catch_unwind(AssertUnwindSafe(|| builder.build()));
            let Ok(built) = built else {
                panic!("setting {n} panics");
            };
            // What takes for ever by request, such as a spin, is not run.
            drop(built);
        }
    }
}

#[test]
fn numbers_may_be_of_any_size() {
    use upshift::sync::{RwLock, Semaphore, mpsc};
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let ids = [0, 1, 255, 256, 257, u64::from(u32::MAX), u64::MAX, 1 << 32];
        let handle = Handle::current().unwrap();
        for id in ids.map(upshift::CoroutineId::from_u64) {
            if upshift::get_cid() == Some(id) {
                continue;
            }
            let _ = (handle.wake(id), handle.state(id));
            let _ = (handle.reprio(id, Level::at::<9>()), handle.cancel(id));
            let _ = (upshift::wake(id), upshift::reprio(id, Level::at::<9>()));
        }
        for time in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
            let mut nap = Box::pin(sleep(time));
            assert!(futures_util::poll!(&mut nap).is_pending());
            let deadline = nap.deadline();
            nap.as_mut().reset(deadline);
            assert!(futures_util::poll!(&mut nap).is_pending());
            let late = upshift::time::timeout(time, yield_now()).await;
            assert!(late.is_ok());
            let mut interval = upshift::time::interval(time);
            interval.tick().await;
            assert!(futures_util::poll!(Box::pin(interval.tick())).is_pending());
            interval.reset_after(time);
            assert_eq!(interval.period().min(time), interval.period());
        }
        let semaphore = Semaphore::new(Semaphore::MAX_PERMITS);
        drop(semaphore.acquire_many(u32::MAX).await.unwrap());
        assert_eq!(semaphore.forget_permits(usize::MAX), Semaphore::MAX_PERMITS);
        assert!(catch_unwind(AssertUnwindSafe(|| semaphore.add_permits(usize::MAX))).is_err());
        semaphore.add_permits(1);
        drop(semaphore.acquire().await.unwrap());
        let (sender, mut receiver) = mpsc::channel::<u8>(usize::MAX);
        assert!(sender.try_reserve_many(usize::MAX).is_err());
        let all = sender.reserve_many(usize::MAX - 1).await.unwrap();
        assert!(sender.try_send(1).is_err() && sender.capacity() == 0);
        drop(all);
        sender.send(1).await.unwrap();
        assert!(sender.try_reserve_many(usize::MAX).is_err());
        let mut got = Vec::new();
        assert_eq!(receiver.recv_many(&mut got, usize::MAX).await, 1);
        let lock = RwLock::with_max_readers((), u32::MAX >> 3);
        drop((lock.read().await, lock.try_read().unwrap()));
        let file = upshift::fs::File::open("/proc/self/exe").await.unwrap();
        for offset in [1 << 63, u64::MAX - 1, u64::MAX >> 1, u64::MAX] {
            drop(file.read_at(vec![0; 1 << 20], offset).await);
            drop(file.read_vectored_at(vec![vec![0; 9]; 2000], offset).await);
            let (result, _) = file.write_all_at(vec![0; 1 << 20], offset).await;
            assert!(result.is_err());
            assert!(file.set_len(offset).await.is_err());
            let mut stream = upshift::fs::FileStream::at(file.clone(), offset);
            drop(AsyncReadExt::read(&mut stream, &mut [0; 100]).await);
            drop(AsyncWriteExt::write_all(&mut stream, &[0; 100]).await);
            drop(AsyncWriteExt::flush(&mut stream).await);
            let sought = stream.seek(std::io::SeekFrom::Start(offset)).await;
            assert_eq!(sought.is_ok(), i64::try_from(offset).is_ok());
            assert!(
                stream
                    .seek(std::io::SeekFrom::Current(i64::MAX))
                    .await
                    .is_err()
            );
        }
        still_works().await;
    });
}

#[test]
fn more_is_consumed_than_there_is() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        use upshift::io::AsyncBufReadExt;
        let (mut reader, mut writer) = upshift::io::pipe().unwrap();
        let (mut socket, mut peer) = UnixStream::pair().unwrap();
        let mut file = File::open("/proc/self/exe").await.unwrap().into_stream();
        AsyncWriteExt::write_all(&mut writer, b"pipe")
            .await
            .unwrap();
        AsyncWriteExt::write_all(&mut peer, b"socket")
            .await
            .unwrap();
        let mut all: [&mut (dyn upshift::io::AsyncBufRead + Unpin); 3] =
            [&mut reader, &mut socket, &mut file];
        for source in &mut all {
            let there = source.fill_buf().await.unwrap().len();
            Pin::new(&mut **source).consume(1);
            Pin::new(&mut **source).consume(usize::MAX);
            assert!(there > 1);
        }
    });
}

/// No more wakers of the coroutine can be made after this.
async fn leak_wakers() {
    poll_fn(|cx| {
        let clone = || std::mem::forget(cx.waker().clone());
        while catch_unwind(AssertUnwindSafe(clone)).is_ok() {}
        Poll::Ready(())
    })
    .await;
}

#[test]
fn a_coroutine_that_has_leaked_its_wakers_ends_by_a_panic_where_it_waits() {
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
        type Waits = Pin<Box<dyn Future<Output = ()> + Send>>;
        let waits: Vec<Waits> = vec![
            Box::pin(sleep(Duration::from_millis(1))),
            Box::pin(async move { drop(locks.lock().await) }),
            Box::pin(notified),
            Box::pin(async move { drop(acquires.await) }),
            Box::pin(async move { messages.recv().await.unwrap_or_default() }),
            Box::pin(async move { value.await.unwrap_or_default() }),
            Box::pin(async move { drop(one.recv().await) }),
        ];
        for (n, waits) in waits.into_iter().enumerate() {
            let leaks = async move {
                leak_wakers().await;
                waits.await;
            };
            let ended = upshift::spawn(leaks, Level::at::<3>()).await;
            assert!(ended.is_err_and(|error| error.is_panic()), "{n}");
        }
        // A join needs no waker.
        let child = upshift::spawn(sleep(Duration::from_millis(1)), Level::at::<60>());
        let leaks = async move {
            leak_wakers().await;
            child.await.unwrap();
        };
        upshift::spawn(leaks, Level::at::<3>()).await.unwrap();
        // All of them go on for others.
        drop(held);
        drop(mutex.lock().await);
        notify.notify_one();
        notify.notified().await;
        semaphore.add_permits(1);
        drop(semaphore.acquire().await.unwrap());
        assert!(sender.send(()).await.is_err() && once.send(()).is_err());
        let _ = AsyncWriteExt::write_all(&mut other, b"there").await;
        still_works().await;
    });
}

/// What comes to a pipe in pieces has no position: that of the file itself, which is no number to count from.
#[test]
fn what_has_no_position_is_written_in_pieces() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let (mut reader, writer) = upshift::io::pipe().unwrap();
        let writer = writer.into_owned_fd().unwrap();
        let file = File::from_std(std::fs::File::from(writer));
        let reads = async {
            let mut all = vec![0; 1 << 20];
            AsyncReadExt::read_exact(&mut reader, &mut all)
                .await
                .unwrap();
            all
        };
        let (read, (written, _)) =
            futures_util::join!(reads, file.write_all_at(vec![7; 1 << 20], u64::MAX));
        written.unwrap();
        assert!(read.iter().all(|&byte| byte == 7));
    });
}

/// It waits before a coroutine does, and its waker panics: the coroutine is woken all the same.
async fn before_it<F: Future + Send + 'static>(
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
    assert!(released.is_ok(), "it has no part in the panic");
    let woken = upshift::time::timeout(Duration::from_secs(20), second).await;
    woken.expect("it is woken").unwrap();
}

#[test]
fn a_waker_that_panics_keeps_no_other_from_its_wake() {
    use upshift::sync::{Notify, RwLock, Semaphore, mpsc};
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let notify = Arc::new(Notify::new());
        let notified = || notify.clone().notified_owned();
        before_it(notified(), notified(), || notify.notify_waiters()).await;
        let semaphore = Arc::new(Semaphore::new(0));
        let acquire = || semaphore.clone().acquire_owned();
        before_it(acquire(), acquire(), || semaphore.add_permits(2)).await;
        semaphore.forget_permits(2);
        before_it(acquire(), acquire(), || semaphore.close()).await;
        let lock = Arc::new(RwLock::new(()));
        let writer = lock.clone().write_owned().await;
        let read = || Box::pin(lock.clone().read_owned());
        before_it(read(), read(), || drop(writer)).await;
        for closes in [false, true] {
            let (sender, mut receiver) = mpsc::channel(2);
            let full = sender.reserve_many(2).await.unwrap();
            let send = || {
                let sender = sender.clone();
                Box::pin(async move { sender.send(1).await })
            };
            let release = || match closes {
                true => receiver.close(),
                false => drop(full),
            };
            before_it(send(), send(), release).await;
        }
        still_works().await;
    });
}
