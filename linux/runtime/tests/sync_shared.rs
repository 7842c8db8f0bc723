//! Tests of synchronization primitives with many waiters: watch and broadcast channels, barriers,
//! cells, and cancellation tokens.

use std::time::Duration;

use upshift::sync::{CancellationToken, broadcast, mpsc, watch};
use upshift::{Level, Priority, Runtime, time};

fn runtime_with_two_vcpus() -> Runtime {
    Runtime::builder().vcpus(2).build().unwrap()
}

/// Returns the order in which four coroutines run that wait for the same event.
async fn order<F, Fut>(wait: F, wake: impl FnOnce()) -> Vec<u8>
where
    F: Fn() -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for level in [40_u8, 8, 20, 4] {
        let (sender, wait) = (sender.clone(), wait());
        let waiter = async move {
            wait.await;
            sender.send(level).unwrap();
        };
        upshift::spawn(waiter, Level::new(level).unwrap()).detach();
    }
    drop(sender);
    time::sleep(Duration::from_millis(2)).await;
    wake();
    let mut order = Vec::new();
    while let Some(level) = receiver.recv().await {
        order.push(level);
    }
    order
}

#[test]
fn waiters_are_woken_most_urgent_first() {
    let urgent_first = [4, 8, 20, 40];
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (sender, receiver) = watch::channel(0);
            let wait = || {
                let mut receiver = receiver.clone();
                async move { receiver.changed().await.unwrap() }
            };
            assert_eq!(order(wait, || sender.send(1).unwrap()).await, urgent_first);

            let (sender, _receiver) = broadcast::channel(4);
            let wait = || {
                let mut receiver = sender.subscribe();
                async move { assert_eq!(receiver.recv().await, Ok(1)) }
            };
            assert_eq!(
                order(wait, || assert!(sender.send(1).is_ok())).await,
                urgent_first
            );

            let token = CancellationToken::new();
            let wait = || token.child_token().cancelled_owned();
            // Each coroutine has its own token. The tokens are cancelled in no particular order,
            // but the coroutines run by level.
            assert_eq!(order(wait, || token.cancel()).await, urgent_first);
        });
}

#[test]
fn a_token_cancels_its_descendants_but_not_its_parents() {
    let root = CancellationToken::new();
    let middle = root.child_token();
    let leaf = middle.child_token();
    let other = root.child_token();
    // The drop of a clone cancels nothing.
    drop(middle.clone());
    middle.cancel();
    assert!(leaf.is_cancelled() && !root.is_cancelled() && !other.is_cancelled());
    let orphan = {
        let parent = root.child_token();
        parent.child_token()
    };
    root.cancel();
    assert!(orphan.is_cancelled() && other.is_cancelled());
    assert!(root.child_token().is_cancelled());
}

#[test]
fn a_long_chain_of_tokens_is_cancelled_and_dropped() {
    let root = CancellationToken::new();
    let mut last = root.clone();
    for _ in 0..100_000 {
        last = last.child_token();
    }
    root.cancel();
    assert!(last.is_cancelled());
}

#[test]
fn a_future_run_until_cancelled_ends_with_its_token() {
    runtime_with_two_vcpus().block_on(async {
        let token = CancellationToken::new();
        let guard = token.clone().drop_guard();
        let inner = token.clone();
        let run = async move {
            inner
                .run_until_cancelled(std::future::pending::<()>())
                .await
        };
        let run = upshift::spawn(run, Priority::Inherit);
        assert_eq!(token.run_until_cancelled(async { 1 }).await, Some(1));
        drop(guard);
        assert_eq!(run.await.unwrap(), None);
    });
}

#[test]
fn a_reserved_slot_remains_after_the_close() {
    runtime_with_two_vcpus().block_on(async {
        let (sender, mut receiver) = mpsc::channel(2);
        let permit = sender.clone().reserve_owned().await.unwrap();
        receiver.close();
        assert!(sender.try_send(1).is_err());
        let sender_task = upshift::spawn(
            async move {
                time::sleep(Duration::from_millis(1)).await;
                permit.send(7)
            },
            Priority::Inherit,
        );
        assert_eq!(receiver.recv().await, Some(7));
        assert_eq!(receiver.recv().await, None);
        drop(sender_task.await);
    });
}

#[test]
fn the_most_urgent_waiter_reserves_first_and_gets_all_its_slots_at_once() {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (sender, mut receiver) = mpsc::channel::<u32>(4);
            let (level_sender, mut order) = mpsc::unbounded_channel();
            let all_permits = sender.reserve_many(4).await.unwrap();
            for (level, wanted) in [(20_u8, 3_usize), (30, 1), (8, 2)] {
                let (sender, level_sender) = (sender.clone(), level_sender.clone());
                let wait = async move {
                    let permits = sender.reserve_many(wanted).await.unwrap();
                    level_sender.send(level).unwrap();
                    drop(permits);
                };
                upshift::spawn(wait, Level::new(level).unwrap()).detach();
            }
            time::sleep(Duration::from_millis(2)).await;
            drop(all_permits);
            let mut levels = Vec::new();
            for _ in 0..3 {
                levels.extend(order.recv().await);
            }
            assert_eq!(levels, [8, 20, 30]);
            assert_eq!(sender.capacity(), 4);
            assert!(receiver.try_recv().is_err());
        });
}
