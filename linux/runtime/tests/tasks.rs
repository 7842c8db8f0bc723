//! Tests of the parts of the interface that have tokio's names: sets, abort handles, the budget,
//! paused time.

use std::sync::Arc;
use std::time::Duration;

use upshift::task::{self, JoinSet, LocalSet};
use upshift::time::{self, Instant};
use upshift::{Level, Runtime, current_level};

fn runtime_with_one_vcpu() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

fn runtime_with_two_vcpus() -> Runtime {
    Runtime::builder().vcpus(2).build().unwrap()
}

/// A coroutine that waits for a set lends its level to all members.
#[test]
fn the_members_of_a_set_are_as_urgent_as_its_waiter() {
    runtime_with_one_vcpu().block_on(async {
        let mut set = JoinSet::new();
        set.spawn_at(
            async {
                while current_level() == Level::new(50).ok() {
                    upshift::yield_now().await;
                }
                current_level()
            },
            Level::at::<50>(),
        );
        let wait = async move { set.join_next().await.unwrap().unwrap() };
        let level = upshift::spawn(wait, Level::at::<3>()).await.unwrap();
        assert_eq!(level, Level::new(3).ok());
    });
}

#[test]
fn an_abort_handle_works_without_its_join_handle_and_after_the_end() {
    let abort = runtime_with_two_vcpus().block_on(async {
        let endless = task::spawn(std::future::pending::<()>());
        let abort = endless.abort_handle();
        let copy = abort.clone();
        std::thread::spawn(move || copy.abort()).join().unwrap();
        let error = endless.await.unwrap_err();
        assert!(error.is_cancelled() && abort.is_finished());
        assert_eq!(error.id(), abort.id());
        abort
    });
    // The runtime has been dropped.
    abort.abort();
    assert!(abort.is_finished());
}

#[test]
fn an_unconstrained_future_uses_no_budget() {
    runtime_with_one_vcpu().block_on(async {
        let count_pending_polls = async |times: u32| {
            let (sender, mut receiver) = upshift::sync::mpsc::unbounded_channel();
            for n in 0..times {
                sender.send(n).unwrap();
            }
            let mut pending = 0;
            for _ in 0..times {
                let mut receive = receiver.recv();
                std::future::poll_fn(|cx| {
                    let polled = std::pin::Pin::new(&mut receive).poll(cx);
                    pending += u32::from(polled.is_pending());
                    polled
                })
                .await;
            }
            pending
        };
        assert!(count_pending_polls(1000).await > 0);
        assert_eq!(task::unconstrained(count_pending_polls(1000)).await, 0);
    });
}

#[test]
fn a_local_set_waits_for_its_coroutines() {
    runtime_with_one_vcpu().block_on(async {
        let local = LocalSet::new();
        let value = std::rc::Rc::new(std::cell::Cell::new(0));
        let shared = value.clone();
        drop(local.spawn_local(async move {
            time::sleep(Duration::from_millis(1)).await;
            shared.set(1);
        }));
        local.await;
        assert_eq!(value.get(), 1);
    });
}

#[test]
fn paused_time_moves_to_the_next_timer_when_nothing_is_ready() {
    runtime_with_one_vcpu().block_on(async {
        time::pause();
        let began = Instant::now();
        let long = task::spawn(time::sleep(Duration::from_secs(86_400)));
        time::sleep(Duration::from_secs(60)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(60));
        assert!(!long.is_finished());
        long.await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(86_400));
    });
}

#[test]
fn timers_of_paused_time_fire_in_order_during_advances_and_sleeps() {
    runtime_with_one_vcpu().block_on(async {
        time::pause();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        for seconds in [3_u64, 1, 2] {
            let order = order.clone();
            drop(task::spawn(async move {
                time::sleep(Duration::from_secs(seconds)).await;
                order.lock().unwrap().push(seconds);
            }));
        }
        task::yield_now().await;
        time::advance(Duration::from_secs(2)).await;
        assert_eq!(*order.lock().unwrap(), [1, 2]);
        time::sleep(Duration::from_secs(2)).await;
        assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
        let began = Instant::now();
        time::resume();
        time::sleep(Duration::from_millis(1)).await;
        assert!(began.elapsed() >= Duration::from_millis(1));
    });
    // Another runtime of the thread has its own clock.
    runtime_with_one_vcpu().block_on(async {
        let began = std::time::Instant::now();
        time::sleep(Duration::from_millis(2)).await;
        assert!(began.elapsed() >= Duration::from_millis(2));
    });
}
