//! Tests of code that needs a tokio runtime, in coroutines: on one and several vCPUs, with
//! preemption, in `block_on` and at the end.
#![cfg(feature = "tokio-rt")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use upshift::task::JoinSet;
use upshift::{Level, Preemption, Priority, Runtime, current_level};

/// Returns runtimes with one inline vCPU, with two, and with two preemptible vCPUs.
fn runtimes() -> impl Iterator<Item = Runtime> {
    [
        (1, Preemption::Off),
        (2, Preemption::Off),
        (2, Preemption::Preferred),
    ]
    .into_iter()
    .map(|(vcpus, preemption)| {
        let builder = Runtime::builder().vcpus(vcpus).preemption(preemption);
        builder.build().unwrap()
    })
}

async fn echo(listener: tokio::net::TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let serve = async move {
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() {
                if stream.write_all(&byte).await.is_err() {
                    return;
                }
            }
        };
        upshift::spawn(serve, Priority::Inherit).detach();
    }
}

async fn ping(address: std::net::SocketAddr, times: u8) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    for n in 0..times {
        stream.write_all(&[n]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), n);
    }
}

#[test]
fn tokios_time_net_fs_process_signal_and_blocking_calls_work() {
    for runtime in runtimes() {
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let never = std::future::pending::<()>();
            let outcome = tokio::time::timeout(Duration::from_millis(1), never).await;
            assert!(outcome.is_err());
            assert_eq!(tokio::spawn(async { 7 }).await.unwrap(), 7);
            assert_eq!(tokio::task::spawn_blocking(|| 8).await.unwrap(), 8);
            assert!(!tokio::fs::read("/proc/self/stat").await.unwrap().is_empty());
            let status = tokio::process::Command::new("true").status().await;
            assert!(status.unwrap().success());
            let kind = tokio::signal::unix::SignalKind::user_defined2();
            let mut signal = tokio::signal::unix::signal(kind).unwrap();
            // SAFETY: the signal is handled since the line above.
            unsafe { libc::raise(libc::SIGUSR2) };
            signal.recv().await.unwrap();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            upshift::spawn(echo(listener), Level::at::<8>()).detach();
            upshift::spawn(ping(address, 20), Level::at::<8>())
                .await
                .unwrap();
        });
    }
}

/// The context of tokio exists on every thread that polls.
#[test]
fn many_coroutines_of_all_levels_use_tokio_and_keep_their_levels() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let mut set = JoinSet::new();
            for n in 0..400_u16 {
                let level = Level::new((n % 64) as u8).unwrap();
                let work = async move {
                    for _ in 0..3 {
                        tokio::time::sleep(Duration::from_micros(100)).await;
                        upshift::yield_now().await;
                    }
                    // A join lends at most the level of the main coroutine.
                    current_level().unwrap() <= level
                };
                set.spawn_at(work, level);
            }
            assert!(
                set.join_all()
                    .await
                    .into_iter()
                    .all(|is_at_most_own| is_at_most_own)
            );
        });
    }
}

/// Urgent round trips, of level 2, must end long before the busy coroutines of level 40 that run
/// beside them.
#[test]
fn urgent_work_that_waits_for_tokio_precedes_other_work() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let stop = Arc::new(AtomicBool::new(false));
            let finished = Arc::new(AtomicUsize::new(0));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            upshift::spawn(echo(listener), Level::at::<2>()).detach();
            let mut busy = JoinSet::new();
            for _ in 0..4 {
                let (stop, finished) = (stop.clone(), finished.clone());
                let compute = async move {
                    let began = std::time::Instant::now();
                    // The loop is bounded, in case the urgent coroutine starves.
                    while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20)
                    {
                        for n in 0..1000_u32 {
                            std::hint::black_box(n);
                        }
                        upshift::yield_if_needed().await;
                    }
                    if !stop.load(Ordering::Relaxed) {
                        finished.fetch_add(1, Ordering::Relaxed);
                    }
                };
                busy.spawn_at(compute, Level::at::<40>());
            }
            upshift::spawn(ping(address, 50), Level::at::<2>())
                .await
                .unwrap();
            assert_eq!(finished.load(Ordering::Relaxed), 0);
            stop.store(true, Ordering::Relaxed);
            busy.join_all().await;
        });
    }
}

/// The remaining coroutines are dropped in the context of tokio's runtime.
#[test]
fn a_runtime_ends_with_sockets_timers_and_tasks_of_tokio_in_use() {
    struct UsesTokioOnDrop(Arc<AtomicUsize>);
    impl Drop for UsesTokioOnDrop {
        fn drop(&mut self) {
            drop(tokio::time::sleep(Duration::from_secs(1)));
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for runtime in runtimes() {
        let dropped = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            for n in 0..20 {
                let value = UsesTokioOnDrop(dropped.clone());
                let wait = async move {
                    let _value = value;
                    let _listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                };
                upshift::spawn(wait, Level::new(n).unwrap()).detach();
            }
            drop(tokio::spawn(std::future::pending::<()>()));
            tokio::time::sleep(Duration::from_millis(2)).await;
        });
        drop(runtime);
        assert_eq!(dropped.load(Ordering::SeqCst), 20);
    }
}

/// A task of tokio belongs to the runtime, so it may spawn coroutines, and use timers and handles
/// of the runtime.
#[test]
fn a_tokio_task_uses_the_runtime() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let task = tokio::spawn(async {
                let level = upshift::spawn(async { current_level() }, Level::at::<5>());
                assert_eq!(level.await.unwrap(), Some(Level::at::<5>()));
                let handle = upshift::Handle::current().unwrap();
                assert!(handle.spawn(async {}, Priority::Inherit).is_ok());
                let began = std::time::Instant::now();
                upshift::time::sleep(Duration::from_millis(5)).await;
                assert!(began.elapsed() >= Duration::from_millis(5));
                let never = std::future::pending::<()>();
                let outcome = upshift::time::timeout(Duration::from_millis(1), never).await;
                assert!(outcome.is_err());
                // This wait is dropped before it ends.
                let mut long = Box::pin(upshift::time::sleep(Duration::from_secs(3600)));
                assert!(futures_util::poll!(long.as_mut()).is_pending());
            });
            task.await.unwrap();
        });
    }
    assert!(upshift::Handle::current().is_err());
}

#[test]
fn hooks_run_before_and_after_each_thread_polls() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let (starts, stops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (start_counter, stop_counter) = (starts.clone(), stops.clone());
        let runtime = Runtime::builder()
            .vcpus(2)
            .preemption(preemption)
            .on_vcpu_start(move || {
                start_counter.fetch_add(1, Ordering::SeqCst);
            })
            .on_vcpu_stop(move || {
                stop_counter.fetch_add(1, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        runtime.block_on(async { assert!(starts.load(Ordering::SeqCst) > 0) });
        drop(runtime);
        let (starts, stops) = (starts.load(Ordering::SeqCst), stops.load(Ordering::SeqCst));
        assert!(
            starts >= 2 && starts == stops,
            "{starts} starts and {stops} stops"
        );
    }
}

/// A blocking function is still running when the runtime is dropped.
#[test]
fn tokio_tasks_are_dropped_before_the_drop_of_the_runtime_returns() {
    struct LiveCount(Arc<AtomicUsize>);
    impl Drop for LiveCount {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    for runtime in runtimes() {
        let alive = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            for _ in 0..500 {
                alive.fetch_add(1, Ordering::SeqCst);
                let guard = LiveCount(alive.clone());
                tokio::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
            }
            drop(tokio::task::spawn_blocking(|| {
                std::thread::sleep(Duration::from_millis(300))
            }));
        });
        drop(runtime);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
}

/// A thread of tokio has no ring, so the call fails.
#[test]
fn an_asynchronous_system_call_in_a_tokio_task_is_an_error() {
    for runtime in runtimes() {
        let calls = async {
            let cid = upshift::get_cid().unwrap();
            let calls = async move {
                let null = std::fs::File::open("/dev/null").unwrap();
                let (read, buffer) = upshift::sys::read!(&null, vec![7; 4], cid).await;
                (read.is_err(), buffer)
            };
            tokio::spawn(calls).await.unwrap()
        };
        assert_eq!(runtime.block_on(calls), (true, vec![7; 4]));
    }
}

fn has_tokio_context() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

#[test]
fn blocking_functions_have_tokios_context_and_belong_to_the_runtime() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let function = || {
                let tokio = tokio::runtime::Handle::current();
                tokio.block_on(tokio::time::sleep(Duration::from_millis(1)));
                assert_eq!(tokio.block_on(tokio::spawn(async { 1 })).unwrap(), 1);
                let level = upshift::spawn(async { current_level() }, Level::at::<5>());
                let inner = upshift::spawn_blocking(|| {
                    (has_tokio_context(), upshift::Handle::current().is_ok())
                });
                let id = upshift::spawn(std::future::pending::<()>(), Level::at::<5>()).id();
                assert!(upshift::reprio(id, Level::at::<6>()).is_ok());
                (level, inner)
            };
            let (level, inner) = upshift::task::spawn_blocking(function).await.unwrap();
            assert_eq!(level.await.unwrap(), Some(Level::at::<5>()));
            assert_eq!(inner.await.unwrap(), (true, true));
        });
    }
}

/// The context exists on each kind of thread that runs user code: in hooks, the main coroutine,
/// other coroutines (even after a suspension), and the watchdog.
#[test]
fn tokios_context_exists_in_hooks_and_on_every_thread_that_polls() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let (checks, missing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let check = {
            let (checks, missing) = (checks.clone(), missing.clone());
            move || {
                checks.fetch_add(1, Ordering::SeqCst);
                missing.fetch_add(usize::from(!has_tokio_context()), Ordering::SeqCst);
            }
        };
        let stalled = Arc::new(AtomicBool::new(false));
        let (on_start, on_stop, on_stall) = (check.clone(), check.clone(), check.clone());
        let stall_flag = stalled.clone();
        let runtime = Runtime::builder()
            .vcpus(1)
            .preemption(preemption)
            .on_vcpu_start(on_start)
            .on_vcpu_stop(on_stop)
            .stall_limit(Duration::from_millis(10))
            .on_stall(move |_| {
                on_stall();
                stall_flag.store(true, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        runtime.block_on(async {
            check();
            let mut set = JoinSet::new();
            for level in [40, 8, 30, 2] {
                let check = check.clone();
                let work = async move {
                    for _ in 0..4 {
                        check();
                        let began = std::time::Instant::now();
                        while began.elapsed() < Duration::from_millis(30) {
                            std::hint::black_box(0);
                        }
                        check();
                        upshift::time::sleep(Duration::from_millis(3)).await;
                    }
                };
                set.spawn_at(work, Level::new(level).unwrap());
            }
            set.join_all().await;
            for _ in 0..2_000 {
                if stalled.load(Ordering::SeqCst) {
                    break;
                }
                upshift::time::sleep(Duration::from_millis(10)).await;
            }
        });
        drop(runtime);
        assert!(stalled.load(Ordering::SeqCst));
        // The four coroutines check eight times each; hooks and the main coroutine check, too.
        assert!(checks.load(Ordering::SeqCst) > 32);
        assert_eq!(missing.load(Ordering::SeqCst), 0);
    }
}

/// The error of a call that needs a vCPU names the kind of thread and an alternative, which works.
#[test]
fn errors_on_threads_without_a_vcpu_name_an_alternative() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
            let task = tokio::spawn(async move {
                let read = upshift::fs::read("/proc/self/stat").await.unwrap_err();
                let connect = upshift::net::TcpStream::connect(address).await.unwrap_err();
                for error in [read, connect].map(|error| error.to_string()) {
                    assert!(
                        error.contains("task of tokio's") && error.contains("upshift::spawn"),
                        "{error}"
                    );
                }
                // Calls that need a thread but no vCPU work in the task.
                assert_eq!(upshift::spawn_blocking(|| 3).await.unwrap(), 3);
                assert!(upshift::fs::canonicalize("/proc").await.is_ok());
                let read = upshift::spawn(upshift::fs::read("/proc/self/stat"), Priority::Inherit);
                assert!(!read.await.unwrap().unwrap().is_empty());
            });
            task.await.unwrap();
            let function = || {
                let mut read = Box::pin(upshift::fs::read("/proc/self/stat"));
                let waker = std::task::Waker::noop();
                read.as_mut()
                    .poll(&mut std::task::Context::from_waker(waker))
            };
            let std::task::Poll::Ready(read) = upshift::spawn_blocking(function).await.unwrap()
            else {
                panic!("the read is pending");
            };
            let error = read.unwrap_err().to_string();
            assert!(
                error.contains("blocking functions") && error.contains("upshift::spawn"),
                "{error}"
            );
        });
    }
}
