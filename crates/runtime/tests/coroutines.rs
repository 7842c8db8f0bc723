//! Coroutines of a runtime: order, names, priorities, vCPUs, panics, shutdown.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use upshift::{Dead, Driver, Level, Priority, Runtime, State, yield_now};

fn one() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

fn two() -> Runtime {
    Runtime::builder().vcpus(2).build().unwrap()
}

const URGENT: Level = Level::at::<2>();
const MIDDLE: Level = Level::at::<20>();
const LESS_URGENT: Level = Level::at::<50>();

#[test]
fn block_on_returns_what_the_main_coroutine_returns_and_may_borrow() {
    let text = String::from("borrowed");
    let runtime = one();
    assert_eq!(runtime.block_on(async { text.len() }), 8);
    assert_eq!(runtime.block_on(async { 2 }), 2);
}

#[test]
fn a_cancelled_main_coroutine_is_an_error() {
    let runtime = one();
    let cancels_itself = async || {
        let me = upshift::get_cid().unwrap();
        upshift::Handle::current().unwrap().cancel(me).unwrap();
        std::future::pending::<()>().await;
    };
    let error = runtime.try_block_on(cancels_itself()).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(runtime.try_block_on(async { 2 }).unwrap(), 2);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(cancels_itself());
    }));
    assert!(caught.is_err());
}

#[test]
fn a_function_that_blocks_outside_a_runtime_is_an_error() {
    let error = upshift::try_spawn_blocking(|| 1).unwrap_err();
    let inner = error.get_ref().unwrap().downcast_ref();
    assert_eq!(inner, Some(&upshift::SpawnError::NoVcpu));
}

#[test]
fn a_panic_of_the_main_coroutine_comes_out_of_block_on() {
    let runtime = one();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async { panic!("on purpose") })
    }));
    assert_eq!(
        *caught.unwrap_err().downcast::<&str>().unwrap(),
        "on purpose"
    );
    assert_eq!(runtime.block_on(async { 3 }), 3);
}

#[test]
fn more_urgent_coroutines_run_first_and_equals_in_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    one().block_on(async {
        let mut handles = Vec::new();
        for (name, level) in [
            ("c", LESS_URGENT),
            ("b", MIDDLE),
            ("a", URGENT),
            ("a2", URGENT),
        ] {
            let log = log.clone();
            handles.push(upshift::spawn(
                async move { log.lock().unwrap().push(name) },
                level,
            ));
        }
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        yield_now().await;
        for handle in handles {
            handle.await.unwrap();
        }
    });
    assert_eq!(*log.lock().unwrap(), ["a", "a2", "b", "c"]);
}

#[test]
fn children_inherit_the_level() {
    one().block_on(async {
        let child = upshift::spawn(async { upshift::current_level() }, Priority::Inherit);
        assert_eq!(child.await.unwrap(), Some(Level::DEFAULT));
        let child = upshift::spawn(
            async {
                upshift::spawn(async { upshift::current_level() }, Priority::Inherit)
                    .await
                    .unwrap()
            },
            MIDDLE,
        );
        assert_eq!(child.await.unwrap(), Some(MIDDLE));
    });
}

#[test]
fn reprio_moves_a_queued_coroutine() {
    let log = Arc::new(Mutex::new(Vec::new()));
    one().block_on(async {
        let spawn = |name, level| {
            let log = log.clone();
            upshift::spawn(async move { log.lock().unwrap().push(name) }, level)
        };
        let late = spawn("was late", LESS_URGENT);
        let middle = spawn("middle", MIDDLE);
        upshift::reprio(late.id(), URGENT).unwrap();
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        yield_now().await;
        late.await.unwrap();
        middle.await.unwrap();
    });
    assert_eq!(*log.lock().unwrap(), ["was late", "middle"]);
}

#[test]
fn a_dead_id_is_an_error_value() {
    one().block_on(async {
        let handle = upshift::spawn(async {}, Priority::Inherit);
        let id = handle.id();
        handle.await.unwrap();
        assert_eq!(upshift::wake(id), Err(Dead));
        assert_eq!(upshift::reprio(id, URGENT), Err(Dead));
        assert_eq!(upshift::Handle::current().unwrap().state(id), State::Exited);
    });
    let nobody = upshift::CoroutineId::from_u64(7);
    assert_eq!(upshift::wake(nobody), Err(Dead));
}

#[test]
fn a_panicking_coroutine_reports_it_and_the_rest_lives() {
    one().block_on(async {
        let bad = upshift::spawn(async { panic!("broken: {}", 7) }, Priority::Inherit);
        let good = upshift::spawn(async { 5 }, Priority::Inherit);
        let error = bad.await.unwrap_err();
        assert!(error.is_panic());
        let said = format!("task {} panicked with message \"broken: 7\"", error.id());
        assert_eq!(error.to_string(), said);
        assert_eq!(good.await.unwrap(), 5);
    });
}

#[test]
fn spawn_local_stays_on_its_thread_and_need_not_be_send() {
    two().block_on(async {
        let shared = Rc::new(Cell::new(0));
        let here = std::thread::current().id();
        let mut handles = Vec::new();
        for _ in 0..50 {
            let shared = shared.clone();
            handles.push(upshift::spawn_local(
                async move {
                    for _ in 0..20 {
                        assert_eq!(std::thread::current().id(), here);
                        shared.set(shared.get() + 1);
                        yield_now().await;
                    }
                },
                Priority::Inherit,
            ));
        }
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(shared.get(), 1000);
    });
}

/// Computes without yielding.
fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[test]
fn work_moves_to_an_idle_vcpu() {
    let threads = Arc::new(Mutex::new(HashSet::new()));
    two().block_on(async {
        // The second thread may not get a CPU at once.
        for _ in 0..20 {
            let mut handles = Vec::new();
            for _ in 0..8 {
                let threads = threads.clone();
                handles.push(upshift::spawn(
                    async move {
                        threads.lock().unwrap().insert(std::thread::current().id());
                        burn(Duration::from_millis(20));
                    },
                    Priority::Inherit,
                ));
            }
            for handle in handles {
                handle.await.unwrap();
            }
            if threads.lock().unwrap().len() == 2 {
                return;
            }
        }
        panic!("nothing moved");
    });
}

#[test]
fn vcpus_come_and_go() {
    one().block_on(async {
        let handle = upshift::Handle::current().unwrap();
        assert!(upshift::release_cpu().is_err(), "the last vCPU stays");
        for _ in 0..5 {
            upshift::alloc_cpu().unwrap();
            assert_eq!(handle.vcpus(), 2);
            let work: Vec<_> = (0..200)
                .map(|n| {
                    upshift::spawn(
                        async move {
                            for _ in 0..10 {
                                yield_now().await;
                            }
                            n
                        },
                        Priority::Inherit,
                    )
                })
                .collect();
            upshift::release_cpu().unwrap();
            let mut sum = 0;
            for work in work {
                sum += work.await.unwrap();
            }
            assert_eq!(sum, 199 * 200 / 2);
            while handle.vcpus() != 1 {
                yield_now().await;
            }
        }
    });
}

#[test]
fn blocking_functions_run_beside_the_coroutines() {
    one().block_on(async {
        let blocking = upshift::spawn_blocking(|| {
            std::thread::sleep(Duration::from_millis(20));
            std::thread::current().id()
        });
        assert_ne!(blocking.await.unwrap(), std::thread::current().id());
        let broken = upshift::spawn_blocking(|| panic!("in a thread"));
        assert!(broken.await.unwrap_err().is_panic());
    });
}

#[test]
fn a_blocking_function_does_not_wait_for_another_while_threads_may_be_started() {
    one().block_on(async {
        // Leaves a thread idle, which all of the following might count upon.
        upshift::spawn_blocking(|| ()).await.unwrap();
        let runtime = upshift::Handle::current().unwrap();
        while runtime.metrics().blocking.idle != 1 {
            upshift::time::sleep(Duration::from_millis(1)).await;
        }
        let here = Arc::new(AtomicUsize::new(0));
        let meet = || {
            let here = here.clone();
            upshift::spawn_blocking(move || {
                here.fetch_add(1, Ordering::SeqCst);
                let limit = Instant::now() + Duration::from_secs(20);
                while here.load(Ordering::SeqCst) < 4 && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(1));
                }
                here.load(Ordering::SeqCst)
            })
        };
        for meeting in [meet(), meet(), meet(), meet()] {
            assert_eq!(meeting.await.unwrap(), 4);
        }
    });
}

#[test]
fn wakes_from_other_threads_reach_a_parked_vcpu() {
    let runtime = one();
    let handle = runtime.handle();
    let rounds = 200;
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    runtime.block_on(async move {
        let me = upshift::get_cid().unwrap();
        let thread = std::thread::spawn(move || {
            for round in 0..rounds {
                while seen.load(Ordering::Acquire) != round {
                    std::thread::yield_now();
                }
                handle.wake(me).unwrap();
            }
        });
        for _ in 0..rounds {
            // Pending once, until a wake.
            let mut waited = false;
            std::future::poll_fn(|_| {
                if std::mem::replace(&mut waited, true) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
            count.fetch_add(1, Ordering::Release);
        }
        thread.join().unwrap();
    });
}

#[test]
fn dropping_the_runtime_drops_every_future() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let runtime = two();
    runtime.block_on(async {
        for _ in 0..100 {
            let count = Count(dropped.clone());
            upshift::spawn(
                async move {
                    let _count = count;
                    std::future::pending::<()>().await;
                },
                Priority::Inherit,
            )
            .detach();
            let count = Count(dropped.clone());
            upshift::spawn_local(
                async move {
                    let _count = count;
                    std::future::pending::<()>().await;
                },
                Priority::Inherit,
            )
            .detach();
        }
        yield_now().await;
    });
    let handle = runtime.handle();
    drop(runtime);
    assert_eq!(dropped.load(Ordering::Relaxed), 200);
    assert!(handle.spawn(async {}, Priority::Inherit).is_err());
}

#[test]
fn yield_if_needed_lets_the_more_urgent_pass() {
    let ran = Arc::new(AtomicBool::new(false));
    one().block_on(async {
        let urgent = {
            let ran = ran.clone();
            upshift::spawn(async move { ran.store(true, Ordering::Relaxed) }, URGENT)
        };
        assert!(upshift::need_preempt());
        assert!(!ran.load(Ordering::Relaxed));
        upshift::yield_if_needed().await;
        assert!(ran.load(Ordering::Relaxed));
        assert!(!upshift::need_preempt());
        urgent.await.unwrap();
    });
}

#[test]
fn a_cancelled_coroutine_says_so() {
    one().block_on(async {
        let handle = upshift::spawn(std::future::pending::<()>(), Priority::Inherit);
        yield_now().await;
        handle.cancel();
        assert!(handle.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn chaos_changes_the_order_and_nothing_else() {
    for seed in 1..20 {
        let runtime = Runtime::builder().vcpus(1).chaos(seed).build().unwrap();
        let total = runtime.block_on(async {
            let handles: Vec<_> = (0..50u64)
                .map(|n| {
                    upshift::spawn(
                        async move {
                            upshift::yield_if_needed().await;
                            n
                        },
                        Priority::Inherit,
                    )
                })
                .collect();
            let mut total = 0;
            for handle in handles {
                total += handle.await.unwrap();
            }
            total
        });
        assert_eq!(total, 49 * 50 / 2);
    }
}

/// Leaf futures that are told to give way whenever they are polled would never end.
#[test]
fn with_chaos_everything_that_is_waited_for_ends() {
    for driver in [Driver::Ring, Driver::Readiness] {
        let builder = Runtime::builder().vcpus(1).driver(driver);
        if let Err(error) = builder.build() {
            println!("skipped: no such driver: {error}");
            continue;
        }
        for seed in [1, 7, 100, 12_345] {
            let (ended, ends) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let builder = Runtime::builder().vcpus(1).driver(driver).chaos(seed);
                builder.build().unwrap().block_on(wait_in_every_way());
                ended.send(()).unwrap();
            });
            let ended = ends.recv_timeout(Duration::from_secs(60));
            assert!(ended.is_ok(), "seed {seed}: something does not end");
        }
    }
}

async fn wait_in_every_way() {
    upshift::time::sleep(Duration::from_millis(1)).await;
    let limit = Duration::from_millis(2);
    let never = upshift::time::timeout(limit, std::future::pending::<()>());
    assert!(never.await.is_err());
    let (send, mut recv) = upshift::sync::mpsc::channel(1);
    let counter = Arc::new(upshift::sync::Mutex::new(0u32));
    let sending = upshift::spawn(
        {
            let counter = counter.clone();
            async move {
                for n in 0..20u32 {
                    *counter.lock().await += 1;
                    send.send(n).await.unwrap();
                }
            }
        },
        Priority::Inherit,
    );
    for n in 0..20 {
        assert_eq!(recv.recv().await, Some(n));
        *counter.lock().await += 1;
    }
    sending.await.unwrap();
    assert_eq!(*counter.lock().await, 40);
    assert_eq!(upshift::spawn_blocking(|| 3).await.unwrap(), 3);
    let listener = upshift::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let echo = upshift::spawn(
        async move {
            let (mut peer, _) = listener.accept().await.unwrap();
            let bytes = peer.recv().await.unwrap();
            peer.write_all(bytes.to_vec()).await.0.unwrap();
        },
        Priority::Inherit,
    );
    let mut peer = upshift::net::TcpStream::connect(address).await.unwrap();
    peer.write_all(b"ping".to_vec()).await.0.unwrap();
    assert_eq!(&*peer.recv().await.unwrap(), b"ping");
    echo.await.unwrap();
}

#[test]
fn wrong_settings_are_errors() {
    for wrong in [
        Runtime::builder().vcpus(0),
        Runtime::builder().vcpus(10_000),
        Runtime::builder().name("a\0b"),
        Runtime::builder().blocking_threads(0),
        Runtime::builder().stall_limit(std::time::Duration::ZERO),
    ] {
        let error = wrong.build().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    let error = Runtime::builder()
        .vcpus(1)
        .pin([100_000])
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("CPU 100000"), "{error}");
    let error = Runtime::builder()
        .vcpus(1)
        .buffers(3, 100)
        .build()
        .unwrap_err();
    assert!(error.to_string().contains("power of two"), "{error}");
}

#[test]
fn outside_a_runtime_everything_says_so() {
    assert!(upshift::alloc_cpu().is_err());
    assert!(upshift::get_cid().is_none());
    assert!(upshift::try_spawn(async {}, Priority::Inherit).is_err());
    assert!(upshift::Handle::current().is_err());
}

#[test]
fn the_counters_count() {
    let runtime = one();
    let handle = runtime.handle();
    runtime.block_on(async {
        upshift::spawn(
            async {
                for _ in 0..10 {
                    burn(Duration::from_micros(200));
                    yield_now().await;
                }
            },
            MIDDLE,
        )
        .await
        .unwrap();
    });
    let stats = handle.level_stats(MIDDLE);
    assert_eq!(stats.polls(), 11);
    assert!(stats.run_time() >= Duration::from_millis(1), "{stats:?}");
    assert_eq!(handle.level_stats(LESS_URGENT).polls(), 0);
}

#[upshift::test(vcpus = 2, level = 7)]
async fn the_test_attribute_builds_a_runtime() {
    assert_eq!(upshift::current_level(), Some(Level::at::<7>()));
}

#[test]
fn tests_that_take_long_all_look_at_the_clock() {
    one().block_on(async {
        let due = Instant::now() + Duration::from_millis(5);
        let woken = Arc::new(AtomicBool::new(false));
        let timer = woken.clone();
        let urgent = upshift::spawn(
            async move {
                upshift::time::sleep_until(due).await;
                timer.store(true, Ordering::Relaxed);
            },
            URGENT,
        );
        let batch = upshift::spawn(
            async move {
                // A loop that tests often looks at the clock now and then.
                for _ in 0..100 {
                    upshift::yield_if_needed().await;
                }
                let mut late = 0;
                while !woken.load(Ordering::Relaxed) {
                    burn(Duration::from_micros(20));
                    late += u32::from(Instant::now() > due);
                    upshift::yield_if_needed().await;
                }
                late
            },
            LESS_URGENT,
        );
        let late = batch.await.unwrap();
        urgent.await.unwrap();
        // The timers' clock may be a step behind.
        assert!(late <= 3, "{late} tests after the timer was due");
    });
}

#[test]
fn a_timer_interrupts_a_batch_that_asks() {
    one().block_on(async {
        let batch = upshift::spawn(
            async {
                loop {
                    upshift::yield_if_needed().await;
                }
            },
            LESS_URGENT,
        );
        let urgent = upshift::spawn(
            async {
                for _ in 0..20 {
                    upshift::time::sleep(Duration::from_millis(1)).await;
                }
            },
            URGENT,
        );
        urgent.await.unwrap();
        batch.cancel();
        assert!(batch.await.is_err());
    });
}

#[test]
fn timers_of_a_released_vcpu_still_fire() {
    one().block_on(async {
        upshift::alloc_cpu().unwrap();
        let sleepers: Vec<_> = (0..100)
            .map(|_| {
                upshift::spawn(
                    async {
                        burn(Duration::from_micros(100));
                        upshift::time::sleep(Duration::from_millis(20)).await;
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        upshift::time::sleep(Duration::from_millis(10)).await;
        upshift::release_cpu().unwrap();
        for sleeper in sleepers {
            sleeper.await.unwrap();
        }
    });
}
