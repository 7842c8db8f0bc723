//! Code that needs a runtime of tokio, in coroutines: on one and several vCPUs, with preemption,
//! in `block_on` and at the end.
#![cfg(feature = "tokio-rt")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use upshift::task::JoinSet;
use upshift::{Level, Preemption, Priority, Runtime, current_level};

/// Inline with one vCPU and with two, and preemptible.
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
fn time_net_fs_process_signal_and_blocking_calls_work() {
    for runtime in runtimes() {
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let never = std::future::pending::<()>();
            let late = tokio::time::timeout(Duration::from_millis(1), never).await;
            assert!(late.is_err());
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

/// Whichever thread polls them.
#[test]
fn many_coroutines_of_all_levels_find_it_and_keep_their_levels() {
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
                    // Joining lends the level of the main coroutine at most.
                    current_level().unwrap() <= level
                };
                set.spawn_at(work, level);
            }
            assert!(set.join_all().await.into_iter().all(|at_most| at_most));
        });
    }
}

/// Round trips of level 2 beside busy coroutines of level 40: they end long before.
#[test]
fn urgent_work_overtakes_in_its_waits_for_tokio() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let over = Arc::new(AtomicBool::new(false));
            let finished = Arc::new(AtomicUsize::new(0));
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            upshift::spawn(echo(listener), Level::at::<2>()).detach();
            let mut busy = JoinSet::new();
            for _ in 0..4 {
                let (over, finished) = (over.clone(), finished.clone());
                let compute = async move {
                    let began = std::time::Instant::now();
                    // Bounded, should the urgent one starve.
                    while !over.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20)
                    {
                        for n in 0..1000_u32 {
                            std::hint::black_box(n);
                        }
                        upshift::yield_if_needed().await;
                    }
                    if !over.load(Ordering::Relaxed) {
                        finished.fetch_add(1, Ordering::Relaxed);
                    }
                };
                busy.spawn_at(compute, Level::at::<40>());
            }
            upshift::spawn(ping(address, 50), Level::at::<2>())
                .await
                .unwrap();
            assert_eq!(finished.load(Ordering::Relaxed), 0);
            over.store(true, Ordering::Relaxed);
            busy.join_all().await;
        });
    }
}

/// The remaining coroutines are dropped within tokio's runtime.
#[test]
fn a_runtime_ends_with_sockets_timers_and_tasks_of_tokio_in_use() {
    struct Within(Arc<AtomicUsize>);
    impl Drop for Within {
        fn drop(&mut self) {
            drop(tokio::time::sleep(Duration::from_secs(1)));
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for runtime in runtimes() {
        let dropped = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            for n in 0..20 {
                let within = Within(dropped.clone());
                let wait = async move {
                    let _within = within;
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

/// Tasks of tokio's belong to the runtime: they spawn coroutines, and its timers and handles work
/// in them.
#[test]
fn a_task_of_tokios_uses_the_runtime() {
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
                let late = upshift::time::timeout(Duration::from_millis(1), never).await;
                assert!(late.is_err());
                // Left alone in the middle of a wait.
                let mut long = Box::pin(upshift::time::sleep(Duration::from_secs(3600)));
                assert!(futures_util::poll!(long.as_mut()).is_pending());
            });
            task.await.unwrap();
        });
    }
    assert!(upshift::Handle::current().is_err());
}

#[test]
fn each_thread_that_polls_is_told_of_before_and_after() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (starts, stops) = (begun.clone(), ended.clone());
        let runtime = Runtime::builder()
            .vcpus(2)
            .preemption(preemption)
            .on_vcpu_start(move || {
                starts.fetch_add(1, Ordering::SeqCst);
            })
            .on_vcpu_stop(move || {
                stops.fetch_add(1, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        runtime.block_on(async { assert!(begun.load(Ordering::SeqCst) > 0) });
        drop(runtime);
        let (begun, ended) = (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        assert!(begun >= 2 && begun == ended, "{begun} and {ended}");
    }
}

/// Beside one that blocks for long.
#[test]
fn tasks_of_tokio_have_been_dropped_when_the_runtime_has() {
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    for runtime in runtimes() {
        let alive = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            for _ in 0..500 {
                alive.fetch_add(1, Ordering::SeqCst);
                let counts = Counts(alive.clone());
                tokio::spawn(async move {
                    let _counts = counts;
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

/// A thread of tokio's has no ring, and says so.
#[test]
fn a_system_call_in_a_task_of_tokios_is_an_error() {
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

/// Whether tokio's context is on the calling thread.
fn is_within() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

#[test]
fn blocking_functions_are_within_tokio_and_belong_to_the_runtime() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let function = || {
                let tokio = tokio::runtime::Handle::current();
                tokio.block_on(tokio::time::sleep(Duration::from_millis(1)));
                assert_eq!(tokio.block_on(tokio::spawn(async { 1 })).unwrap(), 1);
                let level = upshift::spawn(async { current_level() }, Level::at::<5>());
                let inner =
                    upshift::spawn_blocking(|| (is_within(), upshift::Handle::current().is_ok()));
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

/// Each kind of thread that runs code of users: hooks, the main coroutine, coroutines, also those
/// that were suspended and their successors, and the watchdog.
#[test]
fn tokio_is_there_in_hooks_and_whichever_thread_polls() {
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let (asked, missing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let ask = {
            let (asked, missing) = (asked.clone(), missing.clone());
            move || {
                asked.fetch_add(1, Ordering::SeqCst);
                missing.fetch_add(usize::from(!is_within()), Ordering::SeqCst);
            }
        };
        let stalled = Arc::new(AtomicBool::new(false));
        let (on_start, on_stop, on_stall) = (ask.clone(), ask.clone(), ask.clone());
        let told = stalled.clone();
        let runtime = Runtime::builder()
            .vcpus(1)
            .preemption(preemption)
            .on_vcpu_start(on_start)
            .on_vcpu_stop(on_stop)
            .stall_limit(Duration::from_millis(10))
            .on_stall(move |_| {
                on_stall();
                told.store(true, Ordering::SeqCst);
            })
            .build()
            .unwrap();
        runtime.block_on(async {
            ask();
            let mut set = JoinSet::new();
            for level in [40, 8, 30, 2] {
                let ask = ask.clone();
                let work = async move {
                    for _ in 0..4 {
                        ask();
                        let began = std::time::Instant::now();
                        while began.elapsed() < Duration::from_millis(30) {
                            std::hint::black_box(0);
                        }
                        ask();
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
        assert!(asked.load(Ordering::SeqCst) > 32);
        assert_eq!(missing.load(Ordering::SeqCst), 0);
    }
}

/// The error of a call that needs a vCPU names the kind of thread, and the call to use instead;
/// that call works.
#[test]
fn errors_on_threads_beside_the_vcpus_lead_on() {
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
                // Calls that need a thread and no vCPU work there.
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
                panic!("the read waits");
            };
            let error = read.unwrap_err().to_string();
            assert!(
                error.contains("blocking functions") && error.contains("upshift::spawn"),
                "{error}"
            );
        });
    }
}
