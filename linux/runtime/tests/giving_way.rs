//! Tests of the queue position of a coroutine that yields to a more urgent one. The coroutine stays
//! before the other coroutines of its level until its quantum (time slice) is used up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use upshift::sync::{Notify, mpsc};
use upshift::{Level, Preemption, Runtime, time};

const URGENT: Level = Level::at::<3>();
const EQUAL: Level = Level::at::<40>();

/// A coroutine that computes for ever, and checks whether to yield, must end when it is cancelled
/// and when its runtime is dropped, although no other coroutine is ready on its vCPU. This is
/// tested without preemption and, after a suspension, with preemption.
#[test]
fn a_coroutine_that_computes_and_checks_for_a_yield_can_be_cancelled() {
    struct LiveCount(Arc<AtomicUsize>);
    impl Drop for LiveCount {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let compute = |alive: &Arc<AtomicUsize>| {
        alive.fetch_add(1, Ordering::SeqCst);
        let alive = LiveCount(alive.clone());
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
                let coroutines: Vec<_> = (0..4)
                    .map(|_| upshift::spawn(compute(&alive), EQUAL))
                    .collect();
                time::sleep(Duration::from_millis(5)).await;
                for coroutine in coroutines {
                    let cancel = coroutine.abort_handle();
                    // The cancellation comes from a thread without a vCPU.
                    upshift::spawn_blocking(move || cancel.abort())
                        .await
                        .unwrap();
                    assert!(coroutine.await.unwrap_err().is_cancelled());
                }
                assert_eq!(alive.load(Ordering::SeqCst), 0);
                for _ in 0..3 {
                    upshift::spawn(compute(&alive), EQUAL).detach();
                }
                time::sleep(Duration::from_millis(2)).await;
            });
            drop(runtime);
            assert_eq!(
                alive.load(Ordering::SeqCst),
                0,
                "a coroutine outlived its runtime"
            );
        }
    }
}

/// Runs two equal coroutines that repeatedly make a more urgent coroutine ready and yield to it.
/// Returns the order in which the three ran.
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
        // The urgent coroutine waits before the other coroutines begin.
        upshift::yield_now().await;
        // The main coroutine does not join the two tasks, because a join would lend its level to
        // one of them.
        let (end_sender, mut end_receiver) = mpsc::channel(2);
        for name in ['a', 'b'] {
            let (called, ran) = (called.clone(), ran.clone());
            let end_sender = end_sender.clone();
            let task = async move {
                for _ in 0..4 {
                    ran.lock().unwrap().push(name);
                    called.notify_one();
                    upshift::yield_if_needed().await;
                }
                end_sender.send(()).await.unwrap();
            };
            upshift::spawn(task, EQUAL).detach();
        }
        for _ in 0..2 {
            end_receiver.recv().await.unwrap();
        }
        urgent.cancel();
    });
    std::mem::take(&mut *ran.lock().unwrap())
}

#[test]
fn a_coroutine_that_yields_to_a_more_urgent_coroutine_continues_before_its_equals() {
    assert_eq!(order(Duration::from_secs(60)), "auauauaububububu");
}

#[test]
fn a_coroutine_that_has_used_its_quantum_is_queued_behind_its_equals() {
    assert_eq!(order(Duration::ZERO), "aubuaubuaubuaubu");
}

/// The polls between which a coroutine keeps its place share one quantum.
#[test]
fn a_quantum_covers_all_polls_between_which_a_coroutine_keeps_its_place() {
    let builder = Runtime::builder()
        .vcpus(1)
        .quantum(Duration::from_millis(20));
    let ends = builder.build().unwrap().block_on(async {
        let called = Arc::new(Notify::new());
        let notified = called.clone();
        let urgent = upshift::spawn(
            async move {
                loop {
                    notified.notified().await;
                }
            },
            URGENT,
        );
        upshift::yield_now().await;
        // The coroutine yields until the other coroutine has run, no matter how slow the machine
        // is.
        let has_run = Arc::new(AtomicBool::new(false));
        let (end_sender, mut end_receiver) = mpsc::channel(2);
        let (busy_end_sender, has_other_run) = (end_sender.clone(), has_run.clone());
        let busy = async move {
            let began = Instant::now();
            while !has_other_run.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(20)
            {
                called.notify_one();
                upshift::yield_if_needed().await;
            }
            busy_end_sender
                .send(has_other_run.load(Ordering::SeqCst))
                .await
                .unwrap();
        };
        upshift::spawn(busy, EQUAL).detach();
        let other = async move {
            has_run.store(true, Ordering::SeqCst);
            end_sender.send(true).await.unwrap();
        };
        upshift::spawn(other, EQUAL).detach();
        let ends = [end_receiver.recv().await, end_receiver.recv().await];
        urgent.cancel();
        ends
    });
    // Without the quantum, the first coroutine would reach its time limit.
    assert_eq!(ends, [Some(true); 2]);
}
