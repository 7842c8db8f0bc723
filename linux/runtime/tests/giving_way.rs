//! The queue position of a coroutine that gives way: before its equals, until its quantum is used.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use upshift::sync::{Notify, mpsc};
use upshift::{Level, Preemption, Runtime, time};

const URGENT: Level = Level::at::<3>();
const EQUALS: Level = Level::at::<40>();

/// A coroutine that computes for ever, and tests whether to give way, ends when it is cancelled and
/// when its runtime is dropped, although nothing else is ready on its vCPU; without preemption and,
/// after a suspension, with it.
#[test]
fn a_coroutine_that_computes_and_tests_ends_when_it_is_cancelled() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let computes = |alive: &Arc<AtomicUsize>| {
        alive.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(alive.clone());
        async move {
            let _alive = alive;
            loop {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(100) {}
                upshift::yield_if_needed().await;
            }
        }
    };
    let modes = [
        (1, Preemption::Off),
        (2, Preemption::Off),
        (1, Preemption::Preferred),
        (2, Preemption::Preferred),
    ];
    for (vcpus, preemption) in modes {
        for _ in 0..5 {
            let alive = Arc::new(AtomicUsize::new(0));
            let builder = Runtime::builder().vcpus(vcpus).preemption(preemption);
            let runtime = builder.build().unwrap();
            runtime.block_on(async {
                let own: Vec<_> = (0..4)
                    .map(|_| upshift::spawn(computes(&alive), EQUALS))
                    .collect();
                time::sleep(Duration::from_millis(5)).await;
                for one in own {
                    let cancel = one.abort_handle();
                    // On its vCPU, beside it, and from a thread without a vCPU.
                    upshift::spawn_blocking(move || cancel.abort())
                        .await
                        .unwrap();
                    assert!(one.await.unwrap_err().is_cancelled());
                }
                assert_eq!(alive.load(Ordering::SeqCst), 0);
                for _ in 0..3 {
                    upshift::spawn(computes(&alive), EQUALS).detach();
                }
                time::sleep(Duration::from_millis(2)).await;
            });
            drop(runtime);
            assert_eq!(alive.load(Ordering::SeqCst), 0, "left behind");
        }
    }
}

/// Two equals make something more urgent ready again and again, and give way to it. Returns the
/// order in which they ran.
fn order(quantum: Duration) -> String {
    let builder = Runtime::builder().vcpus(1).quantum(quantum);
    let ran = Arc::new(Mutex::new(String::new()));
    builder.build().unwrap().block_on(async {
        let called = Arc::new(Notify::new());
        let urgent = {
            let (called, ran) = (called.clone(), ran.clone());
            async move {
                loop {
                    called.notified().await;
                    ran.lock().unwrap().push('u');
                }
            }
        };
        let urgent = upshift::spawn(urgent, URGENT);
        // The urgent coroutine waits before the others begin.
        upshift::yield_now().await;
        // Not through their handles, which would lend one of them the level of this coroutine.
        let (done, mut both) = mpsc::channel(2);
        for name in ['a', 'b'] {
            let (called, ran, done) = (called.clone(), ran.clone(), done.clone());
            let works = async move {
                for _ in 0..4 {
                    ran.lock().unwrap().push(name);
                    called.notify_one();
                    upshift::yield_if_needed().await;
                }
                done.send(()).await.unwrap();
            };
            upshift::spawn(works, EQUALS).detach();
        }
        for _ in 0..2 {
            both.recv().await.unwrap();
        }
        urgent.cancel();
    });
    std::mem::take(&mut *ran.lock().unwrap())
}

#[test]
fn a_coroutine_that_gives_way_to_a_more_urgent_one_continues_before_its_equals() {
    assert_eq!(order(Duration::from_secs(60)), "auauauaububububu");
}

#[test]
fn a_coroutine_that_has_used_its_quantum_goes_behind_its_equals() {
    assert_eq!(order(Duration::ZERO), "aubuaubuaubuaubu");
}

/// Many polls that give way in place count as one turn.
#[test]
fn a_quantum_goes_over_all_polls_of_a_turn() {
    let builder = Runtime::builder()
        .vcpus(1)
        .quantum(Duration::from_millis(20));
    let both = builder.build().unwrap().block_on(async {
        let called = Arc::new(Notify::new());
        let hears = called.clone();
        let urgent = upshift::spawn(
            async move {
                loop {
                    hears.notified().await;
                }
            },
            URGENT,
        );
        upshift::yield_now().await;
        // Until the other coroutine has run, however slow the machine is.
        let has_run = Arc::new(AtomicBool::new(false));
        let (done, mut ended) = mpsc::channel(2);
        let (tells, seen) = (done.clone(), has_run.clone());
        let busy = async move {
            let began = Instant::now();
            while !seen.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(20) {
                called.notify_one();
                upshift::yield_if_needed().await;
            }
            tells.send(seen.load(Ordering::SeqCst)).await.unwrap();
        };
        upshift::spawn(busy, EQUALS).detach();
        let waits = async move {
            has_run.store(true, Ordering::SeqCst);
            done.send(true).await.unwrap();
        };
        upshift::spawn(waits, EQUALS).detach();
        let both = [ended.recv().await, ended.recv().await];
        urgent.cancel();
        both
    });
    // Without the quantum the first coroutine would give up first.
    assert_eq!(both, [Some(true); 2]);
}
