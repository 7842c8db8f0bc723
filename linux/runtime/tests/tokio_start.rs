//! Tests that the thread of tokio's runtime starts at the first use of that runtime. This file has
//! its own process, in which no test handles signals through tokio, because a signal is an event
//! for all of tokio's runtimes.
#![cfg(feature = "tokio-rt")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use upshift::{Level, Preemption, Runtime};

/// Serializes the tests, because descriptors that other tests open and close would hide tokio's
/// driver, and the thread would then start at once.
fn serialize_tests() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of threads of this process whose name begins with `name`.
fn threads_named(name: &str) -> usize {
    let has_name = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .filter(|thread| has_name(thread.as_ref().unwrap()))
        .count()
}

/// A name, and a use of tokio's runtime that ends only if tokio's driver runs.
type Use = (
    &'static str,
    fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>,
);

#[test]
fn tokios_thread_starts_at_the_first_use() {
    let _lock = serialize_tests();
    let uses: [Use; 4] = [
        ("timer", || {
            Box::pin(tokio::time::sleep(Duration::from_millis(1)))
        }),
        ("task", || {
            Box::pin(async { tokio::spawn(async {}).await.unwrap() })
        }),
        ("socket", || {
            Box::pin(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let connect = tokio::net::TcpStream::connect(address);
                let (accepted, connected) = futures_util::join!(listener.accept(), connect);
                assert!(accepted.is_ok() && connected.is_ok());
            })
        }),
        ("blocking", || {
            Box::pin(async {
                let tokio = tokio::runtime::Handle::current();
                let sleeps = move || tokio.block_on(tokio::time::sleep(Duration::from_millis(1)));
                upshift::spawn_blocking(sleeps).await.unwrap();
            })
        }),
    ];
    for driver in [upshift::Driver::Auto, upshift::Driver::Readiness] {
        for preemption in [Preemption::Off, Preemption::Preferred] {
            for (n, (case, use_tokio)) in uses.iter().enumerate() {
                let name = format!("u{n}{}{}", driver as u8, preemption as u8);
                let thread = format!("{name}-tokio");
                let builder = Runtime::builder().vcpus(1).driver(driver);
                let runtime = builder.preemption(preemption).name(&name).build().unwrap();
                runtime.block_on(async {
                    upshift::time::sleep(Duration::from_millis(2)).await;
                    assert_eq!(threads_named(&thread), 0, "{case}");
                    use_tokio().await;
                    assert_eq!(threads_named(&thread), 1, "{case}");
                });
                drop(runtime);
                assert_eq!(threads_named(&thread), 0, "{case}");
            }
        }
    }
}

#[test]
fn tokios_driver_is_found_among_other_tokio_runtimes() {
    let _lock = serialize_tests();
    let tokio = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let _others = [tokio(), tokio()];
    let first = Runtime::builder().vcpus(1).name("first").build().unwrap();
    let second = Runtime::builder().vcpus(1).name("second").build().unwrap();
    let sleep = || tokio::time::sleep(Duration::from_millis(1));
    second.block_on(async { sleep().await });
    assert_eq!(
        (threads_named("first-tokio"), threads_named("second-tokio")),
        (0, 1)
    );
    first.block_on(async { sleep().await });
    assert_eq!(threads_named("first-tokio"), 1);
}

#[test]
fn a_runtime_without_tokio_has_no_tokio_context() {
    let _lock = serialize_tests();
    let runtime = Runtime::builder().vcpus(1).tokio(false).build().unwrap();
    runtime.block_on(async {
        assert!(tokio::runtime::Handle::try_current().is_err());
        assert!(
            !upshift::spawn_blocking(|| tokio::runtime::Handle::try_current().is_ok())
                .await
                .unwrap()
        );
    });
}

/// The first use must not wait for the CPU-bound coroutine.
#[test]
fn the_first_use_does_not_wait_for_less_urgent_coroutines() {
    let _lock = serialize_tests();
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = stop.clone();
        let compute = async move {
            let began = std::time::Instant::now();
            while !stop_flag.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(20) {
                upshift::yield_if_needed().await;
            }
            stop_flag.load(Ordering::Relaxed)
        };
        let busy = upshift::spawn(compute, Level::at::<40>());
        let first_use = upshift::spawn(
            async { tokio::time::sleep(Duration::from_millis(1)).await },
            Level::at::<8>(),
        );
        first_use.await.unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(busy.await.unwrap());
    });
}

/// The vCPU is pinned, and its coroutine starts the threads of tokio. They do not inherit the pin.
#[test]
fn tokios_threads_may_run_on_all_cpus_of_the_process() {
    let _lock = serialize_tests();
    let cpus = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        line.unwrap().to_owned()
    };
    let all_cpus = cpus();
    let runtime = Runtime::builder().vcpus(1).pin([0]).build().unwrap();
    let (task, blocking) = runtime.block_on(async {
        let task = tokio::spawn(async move { cpus() }).await.unwrap();
        (task, tokio::task::spawn_blocking(cpus).await.unwrap())
    });
    assert_eq!((&task, &blocking), (&all_cpus, &all_cpus));
}

/// A task that never ends its poll delays the end of the runtime only briefly.
#[test]
fn a_blocking_tokio_task_outlives_its_runtime() {
    let _lock = serialize_tests();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        drop(tokio::spawn(async move { blocked.recv().is_err() }));
        while tokio::runtime::Handle::current()
            .metrics()
            .global_queue_depth()
            != 0
        {
            upshift::time::sleep(Duration::from_millis(1)).await;
        }
    });
    drop(runtime);
    drop(unblock);
}
