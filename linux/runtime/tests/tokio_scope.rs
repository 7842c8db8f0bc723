//! Tasks of `tokio::spawn` at the level of a coroutine: `task::tokio_scope`.
#![cfg(feature = "tokio-rt")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upshift::sync::mpsc;
use upshift::task::tokio_scope;
use upshift::{Driver, Level, Preemption, Priority, Runtime, current_level, get_vcpu};

/// Bound of a wait that a defect would make endless.
const BOUND: Duration = Duration::from_secs(20);

fn runtime(vcpus: usize, preemption: Preemption, driver: Driver) -> Runtime {
    let builder = Runtime::builder().vcpus(vcpus).preemption(preemption);
    builder.driver(driver).tokio(true).build().unwrap()
}

/// A runtime on each driver.
fn runtimes_with(vcpus: usize, preemption: Preemption) -> impl Iterator<Item = Runtime> {
    let drivers = [Driver::Ring, Driver::Readiness].into_iter();
    drivers.map(move |driver| runtime(vcpus, preemption, driver))
}

/// Runtimes on both drivers: inline with one vCPU and with two, and preemptible.
fn runtimes() -> impl Iterator<Item = Runtime> {
    let kinds = [
        (1, Preemption::Off),
        (2, Preemption::Off),
        (2, Preemption::Preferred),
    ];
    let kinds = kinds.into_iter();
    kinds.flat_map(|(vcpus, preemption)| runtimes_with(vcpus, preemption))
}

#[test]
fn tasks_of_tokio_have_the_level_of_the_scope_and_run_on_its_vcpu() {
    for runtime in runtimes() {
        let scope = tokio_scope(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..20 {
                tasks.spawn(async {
                    let first = (current_level(), get_vcpu());
                    tokio::task::yield_now().await;
                    let nested = tokio::spawn(async { (current_level(), get_vcpu()) });
                    [first, nested.await.unwrap()]
                });
            }
            tasks.join_all().await
        });
        // More urgent than the main coroutine, which lends its level while it joins.
        let seen = runtime.block_on(async { upshift::spawn(scope, Level::at::<8>()).await });
        for (level, vcpu) in seen.unwrap().unwrap().into_iter().flatten() {
            assert_eq!(level, Some(Level::at::<8>()));
            assert!(vcpu.is_some());
        }
    }
}

#[test]
fn time_net_fs_and_blocking_calls_work_in_a_scope() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for runtime in runtimes() {
        let scope = tokio_scope(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(tokio::task::spawn_blocking(|| 8).await.unwrap(), 8);
            assert!(!tokio::fs::read("/proc/self/stat").await.unwrap().is_empty());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let echo = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let byte = stream.read_u8().await.unwrap();
                stream.write_u8(byte).await.unwrap();
            });
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_u8(7).await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), 7);
            echo.await.unwrap();
        });
        runtime
            .block_on(async { upshift::spawn(scope, Level::at::<40>()).await })
            .unwrap()
            .unwrap();
    }
}

/// Coroutines, channels and timers of the runtime complete while their waiter is a task of tokio's.
#[test]
fn a_task_in_a_scope_waits_for_coroutines() {
    for runtime in runtimes_with(2, Preemption::Preferred) {
        let scope = tokio_scope(async {
            let task = tokio::spawn(async {
                let (sender, mut receiver) = mpsc::channel(1);
                let sends = async move {
                    for n in 0..50_u32 {
                        upshift::time::sleep(Duration::from_micros(50)).await;
                        sender.send(n).await.unwrap();
                    }
                };
                upshift::spawn(sends, Level::at::<8>()).detach();
                let mut sum = 0;
                while let Some(n) = receiver.recv().await {
                    sum += n;
                }
                sum
            });
            task.await.unwrap()
        });
        let sum = runtime.block_on(async { upshift::spawn(scope, Level::at::<40>()).await });
        assert_eq!(sum.unwrap().unwrap(), 1225);
    }
}

#[test]
fn a_computing_task_is_suspended_for_what_is_urgent() {
    for runtime in runtimes_with(1, Preemption::Preferred) {
        let urgent_ran = Arc::new(AtomicBool::new(false));
        let ran = urgent_ran.clone();
        let urgent = async move {
            upshift::time::sleep(Duration::from_millis(20)).await;
            ran.store(true, Ordering::Relaxed);
        };
        let scope = tokio_scope(async move {
            let task = tokio::spawn(async move {
                let began = Instant::now();
                while !urgent_ran.load(Ordering::Relaxed) && began.elapsed() < BOUND {
                    std::hint::spin_loop();
                }
                urgent_ran.load(Ordering::Relaxed)
            });
            task.await.unwrap()
        });
        let overtaken = runtime.block_on(async {
            upshift::spawn(urgent, Level::at::<4>()).detach();
            upshift::spawn(scope, Level::at::<40>()).await
        });
        assert!(overtaken.unwrap().unwrap());
    }
}

#[test]
fn a_scope_that_waits_leaves_the_vcpu_to_others() {
    for runtime in runtimes_with(1, Preemption::Preferred) {
        let (ends, end) = tokio::sync::oneshot::channel::<()>();
        let scope = tokio_scope(async move {
            let task = tokio::spawn(async { end.await.is_ok() });
            tokio::time::timeout(BOUND, task).await
        });
        let ended = runtime.block_on(async {
            let scope = upshift::spawn(scope, Level::at::<4>());
            let other = async move {
                upshift::time::sleep(Duration::from_millis(5)).await;
                ends.send(()).unwrap();
            };
            upshift::spawn(other, Level::at::<40>()).await.unwrap();
            scope.await
        });
        assert!(ended.unwrap().unwrap().unwrap().unwrap());
    }
}

/// Something more urgent is ready all the while: a leaf future that gave way to it would be polled
/// again at once, without end.
#[test]
fn leaf_futures_complete_in_a_scope_while_something_urgent_waits() {
    for runtime in runtimes_with(1, Preemption::Off) {
        let scope = tokio_scope(async {
            let task = tokio::spawn(async {
                let (sender, mut receiver) = mpsc::channel(1);
                let urgent = upshift::spawn(async {}, Level::at::<0>());
                assert!(upshift::need_preempt());
                for n in 0..1000 {
                    sender.send(n).await.unwrap();
                    assert_eq!(receiver.recv().await, Some(n));
                }
                urgent
            });
            let urgent = tokio::time::timeout(BOUND, task).await.unwrap().unwrap();
            urgent.await.unwrap();
        });
        runtime
            .block_on(async { upshift::spawn(scope, Level::at::<40>()).await })
            .unwrap()
            .unwrap();
    }
}

#[test]
fn tasks_end_with_their_scope_and_with_its_coroutine() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for runtime in runtimes() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let left = |future| {
            let counted = Counted(dropped.clone());
            tokio_scope(async move {
                drop(tokio::spawn(async move {
                    let _counted = counted;
                    std::future::pending::<()>().await;
                }));
                future
            })
        };
        runtime.block_on(async {
            let ended = upshift::spawn(left(()), Priority::Inherit).await;
            ended.unwrap().unwrap();
            assert_eq!(dropped.load(Ordering::SeqCst), 1);
            // Dropped before its first poll.
            drop(left(()));
            assert_eq!(dropped.load(Ordering::SeqCst), 2);
        });
    }
}

/// The scope's future gives way when it is polled, and is dropped there.
#[test]
fn a_scope_is_cancelled_when_its_future_is_polled() {
    for runtime in runtimes_with(1, Preemption::Off) {
        runtime.block_on(async {
            let began = Arc::new(AtomicBool::new(false));
            let begins = began.clone();
            let polled_forever = tokio_scope(async move {
                begins.store(true, Ordering::Relaxed);
                let until = Instant::now() + BOUND;
                while Instant::now() < until {
                    tokio::task::yield_now().await;
                }
            });
            let scope = upshift::spawn(polled_forever, Level::at::<40>());
            let aborts = scope.abort_handle();
            let other = async move {
                while !began.load(Ordering::Relaxed) {
                    upshift::time::sleep(Duration::from_millis(1)).await;
                }
                aborts.abort();
            };
            upshift::spawn(other, Level::at::<4>()).await.unwrap();
            assert!(scope.await.unwrap_err().is_cancelled());
        });
    }
}
