//! Tests of the order of polls: levels, order within a level, `reprio`, and yielding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use upshift::{Driver, Level, Priority, Runtime, yield_now};

use super::{LESS_URGENT, MIDDLE, URGENT, burn, runtime_with_one_vcpu};

#[test]
fn more_urgent_coroutines_run_first_and_equal_coroutines_in_order() {
    let log = Arc::new(Mutex::new(Vec::new()));
    runtime_with_one_vcpu().block_on(async {
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
    runtime_with_one_vcpu().block_on(async {
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
    runtime_with_one_vcpu().block_on(async {
        let spawn = |name, level| {
            let log = log.clone();
            upshift::spawn(async move { log.lock().unwrap().push(name) }, level)
        };
        let raised = spawn("raised", LESS_URGENT);
        let middle = spawn("middle", MIDDLE);
        upshift::reprio(raised.id(), URGENT).unwrap();
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        yield_now().await;
        raised.await.unwrap();
        middle.await.unwrap();
    });
    assert_eq!(*log.lock().unwrap(), ["raised", "middle"]);
}

#[test]
fn yield_if_needed_lets_a_more_urgent_coroutine_run() {
    let ran = Arc::new(AtomicBool::new(false));
    runtime_with_one_vcpu().block_on(async {
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
fn chaos_changes_only_the_order() {
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

/// The chaos mode requests a yield from half of the polls. Every wait must end nevertheless; a leaf
/// future that yielded at every poll would never complete.
#[test]
fn with_chaos_every_wait_ends() {
    for driver in [Driver::Ring, Driver::Readiness] {
        let builder = Runtime::builder().vcpus(1).driver(driver);
        if let Err(error) = builder.build() {
            println!("skipped: the driver is not available: {error}");
            continue;
        }
        for seed in [1, 7, 100, 12_345] {
            let (end_sender, end_receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let builder = Runtime::builder().vcpus(1).driver(driver).chaos(seed);
                builder.build().unwrap().block_on(wait_in_every_way());
                end_sender.send(()).unwrap();
            });
            let end = end_receiver.recv_timeout(Duration::from_secs(60));
            assert!(end.is_ok(), "seed {seed}: a wait does not end");
        }
    }
}

/// Waits for timers, channels, mutexes, blocking functions, sockets and joins.
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
fn every_check_for_a_yield_after_long_work_reads_the_clock() {
    runtime_with_one_vcpu().block_on(async {
        let due = Instant::now() + Duration::from_millis(5);
        let woken = Arc::new(AtomicBool::new(false));
        let woken_flag = woken.clone();
        let urgent = upshift::spawn(
            async move {
                upshift::time::sleep_until(due).await;
                woken_flag.store(true, Ordering::Relaxed);
            },
            URGENT,
        );
        let batch = upshift::spawn(
            async move {
                // A loop that checks often reads the clock only at a few of the checks.
                for _ in 0..100 {
                    upshift::yield_if_needed().await;
                }
                let mut late_checks = 0;
                while !woken.load(Ordering::Relaxed) {
                    burn(Duration::from_micros(20));
                    late_checks += u32::from(Instant::now() > due);
                    upshift::yield_if_needed().await;
                }
                late_checks
            },
            LESS_URGENT,
        );
        let late_checks = batch.await.unwrap();
        urgent.await.unwrap();
        // The timers' clock may be a step behind, and the thread off its CPU. If only every 32nd
        // check read the clock, the number would be 32.
        assert!(
            late_checks <= 16,
            "{late_checks} checks after the timer was due"
        );
    });
}

#[test]
fn a_timer_interrupts_a_batch_that_checks_for_a_yield() {
    runtime_with_one_vcpu().block_on(async {
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
