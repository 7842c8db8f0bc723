//! What many look at or wait for: watch and broadcast channels, barriers, cells, tokens.

use std::sync::Arc;
use std::time::Duration;

use upshift::sync::{Barrier, CancellationToken, OnceCell, SetOnce, broadcast, mpsc, watch};
use upshift::task::JoinSet;
use upshift::{Level, Priority, Runtime, time};

fn two() -> Runtime {
    Runtime::builder().vcpus(2).build().unwrap()
}

/// The order in which four coroutines are woken by the same event.
async fn order<F, Fut>(wait: F, wake: impl FnOnce()) -> Vec<u8>
where
    F: Fn() -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for level in [40_u8, 8, 20, 4] {
        let (sender, wait) = (sender.clone(), wait());
        let waits = async move {
            wait.await;
            sender.send(level).unwrap();
        };
        upshift::spawn(waits, Level::new(level).unwrap()).detach();
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
fn those_that_wait_are_woken_most_urgent_first() {
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
            // One token each: they are cancelled in some order, and run by level all the same.
            assert_eq!(order(wait, || token.cancel()).await, urgent_first);
        });
}

#[test]
fn a_watcher_sees_the_last_value_and_the_end() {
    two().block_on(async {
        let (sender, mut receiver) = watch::channel(0);
        let send = async move {
            for n in 1..=1000 {
                sender.send(n).unwrap();
                upshift::yield_if_needed().await;
            }
        };
        let sent = upshift::spawn(send, Priority::Inherit);
        let mut last = 0;
        while receiver.changed().await.is_ok() {
            let now = *receiver.borrow_and_update();
            assert!(now > last);
            last = now;
        }
        assert_eq!(last, 1000);
        sent.await.unwrap();
    });
}

#[test]
fn every_receiver_gets_every_message_in_order_or_is_told() {
    two().block_on(async {
        let (sender, first) = broadcast::channel::<u64>(16);
        let mut receivers = JoinSet::new();
        for mut receiver in [first, sender.subscribe(), sender.subscribe()] {
            receivers.spawn(async move {
                let (mut next, mut got) = (0, 0);
                loop {
                    match receiver.recv().await {
                        Ok(n) => {
                            assert_eq!(n, next);
                            (next, got) = (next + 1, got + 1);
                        }
                        Err(broadcast::error::RecvError::Lagged(missed)) => next += missed,
                        Err(broadcast::error::RecvError::Closed) => return (next, got),
                    }
                }
            });
        }
        for n in 0..5000 {
            sender.send(n).unwrap();
            upshift::yield_if_needed().await;
        }
        drop(sender);
        for (next, got) in receivers.join_all().await {
            assert_eq!(next, 5000);
            assert!(got >= 16);
        }
    });
}

/// A value is dropped with the last receiver that has not received it.
#[test]
fn messages_do_not_outlive_their_receivers() {
    let value = Arc::new(());
    let (sender, receiver) = broadcast::channel(128);
    for _ in 0..100 {
        assert!(sender.send(value.clone()).is_ok());
    }
    assert_eq!((Arc::strong_count(&value), sender.len()), (101, 100));
    drop(receiver);
    assert_eq!((Arc::strong_count(&value), sender.len()), (1, 0));
}

#[test]
fn a_barrier_has_one_leader_a_round() {
    const ROUNDS: usize = 200;
    two().block_on(async {
        let barrier = Arc::new(Barrier::new(4));
        let mut set = JoinSet::new();
        for _ in 0..4 {
            let barrier = barrier.clone();
            set.spawn(async move {
                let mut led = 0;
                for _ in 0..ROUNDS {
                    led += usize::from(barrier.wait().await.is_leader());
                }
                led
            });
        }
        assert_eq!(set.join_all().await.into_iter().sum::<usize>(), ROUNDS);
    });
}

#[test]
fn a_value_is_made_once_and_again_if_that_fails() {
    two().block_on(async {
        let cell = Arc::new(OnceCell::new());
        let failed = cell.get_or_try_init(async || Err::<u32, _>("no")).await;
        assert_eq!(failed, Err("no"));
        let mut set = JoinSet::new();
        for n in 0..16 {
            let cell = cell.clone();
            set.spawn(async move {
                let make = async || {
                    upshift::yield_now().await;
                    n
                };
                *cell.get_or_init(make).await
            });
        }
        let made = set.join_all().await;
        assert!(made.iter().all(|n| *n == made[0]));
    });
}

#[test]
fn a_cell_that_is_set_wakes_those_that_wait() {
    two().block_on(async {
        let cell = Arc::new(SetOnce::new());
        let mut set = JoinSet::new();
        for _ in 0..8 {
            let cell = cell.clone();
            set.spawn(async move { *cell.wait().await });
        }
        time::sleep(Duration::from_millis(1)).await;
        assert!(cell.set(5).is_ok() && cell.set(6).is_err());
        assert_eq!(set.join_all().await, [5; 8]);
    });
}

#[test]
fn a_token_cancels_what_is_below_it_and_nothing_above() {
    let root = CancellationToken::new();
    let middle = root.child_token();
    let leaf = middle.child_token();
    let other = root.child_token();
    // Its tokens are reached without it.
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
fn a_long_line_of_tokens_is_cancelled_and_dropped() {
    let root = CancellationToken::new();
    let mut last = root.clone();
    for _ in 0..100_000 {
        last = last.child_token();
    }
    root.cancel();
    assert!(last.is_cancelled());
}

#[test]
fn what_is_run_until_cancelled_ends_with_its_token() {
    two().block_on(async {
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
fn reserved_room_outlives_the_close() {
    two().block_on(async {
        let (sender, mut receiver) = mpsc::channel(2);
        let permit = sender.clone().reserve_owned().await.unwrap();
        receiver.close();
        assert!(sender.try_send(1).is_err());
        let late = upshift::spawn(
            async move {
                time::sleep(Duration::from_millis(1)).await;
                permit.send(7)
            },
            Priority::Inherit,
        );
        assert_eq!(receiver.recv().await, Some(7));
        assert_eq!(receiver.recv().await, None);
        drop(late.await);
    });
}

#[test]
fn room_for_many_goes_to_the_most_urgent_and_is_not_taken_piecewise() {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (sender, mut receiver) = mpsc::channel::<u32>(4);
            let (told, mut order) = mpsc::unbounded_channel();
            let all = sender.reserve_many(4).await.unwrap();
            for (level, wanted) in [(20_u8, 3_usize), (30, 1), (8, 2)] {
                let (sender, told) = (sender.clone(), told.clone());
                let wait = async move {
                    let permits = sender.reserve_many(wanted).await.unwrap();
                    told.send(level).unwrap();
                    drop(permits);
                };
                upshift::spawn(wait, Level::new(level).unwrap()).detach();
            }
            time::sleep(Duration::from_millis(2)).await;
            drop(all);
            let mut got = Vec::new();
            for _ in 0..3 {
                got.extend(order.recv().await);
            }
            assert_eq!(got, [8, 20, 30]);
            assert_eq!(sender.capacity(), 4);
            assert!(receiver.try_recv().is_err());
        });
}
