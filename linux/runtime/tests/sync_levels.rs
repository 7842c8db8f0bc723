//! Tests of the synchronization primitives in a runtime. Waiters must be served in the order of
//! their levels, waiters for a mutex must lend their level to its holder, and futures that are
//! always ready must yield.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use futures_lite::future;
use upshift::sync::{Mutex, Notify, OnceCell, RwLock, Semaphore, mpsc};
use upshift::time::{sleep, timeout};
use upshift::{Level, Runtime, yield_now};

/// Levels of the waiters, in the order of their arrival.
const LEVELS: [u8; 6] = [40, 10, 40, 20, 10, 30];
/// Indices of [`LEVELS`] by level, then by arrival.
const BY_LEVEL: [usize; 6] = [1, 4, 3, 5, 0, 2];

fn runtime_with_one_vcpu() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

/// Starts a waiter of each level, lets `release` serve them, and returns the order in which they
/// were served.
fn order_of_waiters<W, F>(waiter: W, release: impl AsyncFnOnce()) -> Vec<usize>
where
    W: Fn(usize, Arc<StdMutex<Vec<usize>>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let log = Arc::new(StdMutex::new(Vec::new()));
    runtime_with_one_vcpu().block_on(async {
        let mut handles = Vec::new();
        for (number, level) in LEVELS.into_iter().enumerate() {
            let level = Level::new(level).unwrap();
            handles.push(upshift::spawn(waiter(number, log.clone()), level));
            // The coroutine waits before the next coroutine is started.
            upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
            yield_now().await;
        }
        assert!(log.lock().unwrap().is_empty());
        release().await;
        for handle in handles {
            handle.await.unwrap();
        }
    });
    Arc::into_inner(log).unwrap().into_inner().unwrap()
}

#[test]
fn a_mutex_is_handed_to_the_most_urgent_waiter() {
    let mutex = Arc::new(Mutex::new(()));
    let guard = mutex.try_lock().unwrap();
    let waiter = |number, log: Arc<StdMutex<Vec<usize>>>| {
        let mutex = mutex.clone();
        async move {
            let _guard = mutex.lock().await;
            log.lock().unwrap().push(number);
            yield_now().await;
        }
    };
    let order = order_of_waiters(waiter, async || drop(guard));
    assert_eq!(order, BY_LEVEL);
}

#[test]
fn a_semaphore_serves_the_most_urgent_waiter() {
    let semaphore = Arc::new(Semaphore::new(0));
    let waiter = |number, log: Arc<StdMutex<Vec<usize>>>| {
        let semaphore = semaphore.clone();
        async move {
            let _permit = semaphore.acquire().await.unwrap();
            log.lock().unwrap().push(number);
            yield_now().await;
        }
    };
    let order = order_of_waiters(waiter, async || semaphore.add_permits(1));
    assert_eq!(order, BY_LEVEL);
}

#[test]
fn a_notification_goes_to_the_most_urgent_waiter() {
    let notify = Arc::new(Notify::new());
    let waiter = |number, log: Arc<StdMutex<Vec<usize>>>| {
        let notify = notify.clone();
        async move {
            notify.notified().await;
            log.lock().unwrap().push(number);
            notify.notify_one();
        }
    };
    let order = order_of_waiters(waiter, async || notify.notify_one());
    assert_eq!(order, BY_LEVEL);
}

#[test]
fn room_in_a_channel_goes_to_the_most_urgent_sender() {
    let (sender, mut receiver) = mpsc::channel(1);
    sender.try_send(usize::MAX).unwrap();
    let waiter = |number, log: Arc<StdMutex<Vec<usize>>>| {
        let sender = sender.clone();
        async move {
            sender.send(number).await.unwrap();
            log.lock().unwrap().push(number);
        }
    };
    let mut received = Vec::new();
    order_of_waiters(waiter, async || {
        for _ in 0..=LEVELS.len() {
            received.push(receiver.recv().await.unwrap());
        }
    });
    assert_eq!(received[1..], BY_LEVEL);
}

#[test]
fn a_waiter_that_becomes_more_urgent_moves_up() {
    let mutex = Arc::new(Mutex::new(Vec::new()));
    runtime_with_one_vcpu().block_on(async {
        let guard = mutex.lock().await;
        let start = |name, level| {
            let mutex = mutex.clone();
            upshift::spawn(async move { mutex.lock().await.push(name) }, level)
        };
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        let first = start("first", Level::at::<20>());
        let second = start("second", Level::at::<30>());
        yield_now().await;
        upshift::reprio(second.id(), Level::at::<5>()).unwrap();
        yield_now().await;
        drop(guard);
        first.await.unwrap();
        second.await.unwrap();
        assert_eq!(*mutex.lock().await, ["second", "first"]);
    });
}

#[test]
fn a_waiter_lends_its_level_until_the_lock_is_released() {
    let mutex = Arc::new(Mutex::new(()));
    let log = Arc::new(StdMutex::new(Vec::new()));
    runtime_with_one_vcpu().block_on(async {
        let (shared, holder_log) = (mutex.clone(), log.clone());
        let note = |name| {
            let log = log.clone();
            move || log.lock().unwrap().push((name, upshift::current_level()))
        };
        let (middle_note, urgent_note) = (note("middle"), note("urgent"));
        let holder = upshift::spawn(
            async move {
                let note = |name| {
                    let level = upshift::current_level();
                    holder_log.lock().unwrap().push((name, level));
                };
                let guard = shared.lock().await;
                let middle = upshift::spawn(async move { middle_note() }, Level::at::<20>());
                let mutex = shared.clone();
                let urgent = upshift::spawn(
                    async move {
                        let _guard = mutex.lock().await;
                        urgent_note();
                    },
                    Level::at::<3>(),
                );
                // The urgent coroutine waits and lends its level, so this coroutine runs before the
                // middle coroutine.
                yield_now().await;
                note("holding");
                drop(guard);
                note("released");
                yield_now().await;
                note("done");
                urgent.await.unwrap();
                middle.await.unwrap();
            },
            Level::at::<50>(),
        );
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        holder.await.unwrap();
    });
    let (urgent, middle, holder) = (Level::at::<3>(), Level::at::<20>(), Level::at::<50>());
    assert_eq!(
        *log.lock().unwrap(),
        [
            ("holding", Some(urgent)),
            ("released", Some(holder)),
            ("urgent", Some(urgent)),
            ("middle", Some(middle)),
            ("done", Some(holder)),
        ]
    );
}

#[test]
fn a_dropped_lock_future_ends_the_loan_to_its_coroutine() {
    use futures_lite::future::poll_once;

    let mutex = Arc::new(Mutex::new(()));
    runtime_with_one_vcpu().block_on(async {
        let guard = mutex.lock().await;
        let shared = mutex.clone();
        let child = upshift::spawn(
            async move {
                let mut lock = shared.lock();
                assert!(poll_once(&mut lock).await.is_none());
                yield_now().await;
                // By now the mutex was handed over to this coroutine, and an urgent coroutine waits
                // for the mutex.
                drop(lock);
                yield_now().await;
                upshift::current_level()
            },
            Level::at::<50>(),
        );
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        yield_now().await;
        drop(guard);
        let shared = mutex.clone();
        let urgent = upshift::spawn(async move { drop(shared.lock().await) }, Level::at::<3>());
        urgent.await.unwrap();
        // The main coroutine is the least urgent, so this join lends no level.
        assert_eq!(child.await.unwrap(), Some(Level::at::<50>()));
    });
}

#[test]
fn a_primitive_that_is_always_ready_yields() {
    runtime_with_one_vcpu().block_on(async {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let done = Arc::new(Notify::new());
        let shared = done.clone();
        let greedy = upshift::spawn(
            async move {
                for n in 0_u32.. {
                    sender.send(n).unwrap();
                    receiver.recv().await.unwrap();
                    drop(Mutex::new(()).lock().await);
                    drop(Semaphore::new(1).acquire().await);
                }
            },
            Level::DEFAULT,
        );
        let other = upshift::spawn(async move { shared.notify_one() }, Level::DEFAULT);
        done.notified().await;
        other.await.unwrap();
        greedy.cancel();
        assert!(greedy.await.is_err());
    });
}

#[test]
fn a_blocking_call_in_a_coroutine_panics() {
    let panic = runtime_with_one_vcpu().block_on(async {
        let (sender, _receiver) = mpsc::channel(1);
        upshift::spawn(async move { sender.blocking_send(1) }, Level::DEFAULT)
            .await
            .unwrap_err()
    });
    assert!(format!("{panic:?}").contains("Panic"), "{panic:?}");
}

#[test]
fn coroutines_of_two_vcpus_lose_nothing() {
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    runtime.block_on(async {
        let (sender, mut receiver) = mpsc::channel(4);
        let total = Arc::new(Mutex::new(0_u64));
        let limit = Arc::new(Semaphore::new(3));
        for worker in 0..16_u64 {
            let (sender, total, limit) = (sender.clone(), total.clone(), limit.clone());
            let level = Level::new((worker % 8 * 8) as u8).unwrap();
            upshift::spawn(
                async move {
                    for n in 0..500 {
                        let _permit = limit.acquire_many(1 + (n % 2) as u32).await.unwrap();
                        *total.lock().await += n;
                        sender.send(n).await.unwrap();
                    }
                },
                level,
            )
            .detach();
        }
        drop(sender);
        let mut received = 0;
        while let Some(n) = receiver.recv().await {
            received += n;
        }
        assert_eq!(received, 16 * 499 * 500 / 2);
        assert_eq!(*total.lock().await, received);
        assert_eq!(limit.available_permits(), 3);
    });
}

#[test]
fn the_next_holder_of_a_mutex_is_lent_the_levels_of_the_waiters_behind_it() {
    let mutex = Arc::new(Mutex::new(()));
    runtime_with_one_vcpu().block_on(async {
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        let guard = mutex.lock().await;
        let shared = mutex.clone();
        let next = upshift::spawn(
            async move {
                let guard = shared.lock().await;
                let holding = upshift::current_level();
                drop(guard);
                (holding, upshift::current_level())
            },
            Level::at::<10>(),
        );
        yield_now().await;
        let shared = mutex.clone();
        let urgent = upshift::spawn(async move { drop(shared.lock().await) }, Level::at::<10>());
        yield_now().await;
        drop(guard);
        // The coroutine `next` holds the mutex now, and has not been polled since.
        upshift::reprio(next.id(), Level::at::<40>()).unwrap();
        urgent.await.unwrap();
        let (lent, assigned) = (Level::at::<10>(), Level::at::<40>());
        assert_eq!(next.await.unwrap(), (Some(lent), Some(assigned)));
    });
}

/// Returns two levels of the holder of a lock. The first is the holder's level while a coroutine of
/// level 3 waits through `wait`, and the second its level after that coroutine has become less
/// urgent.
fn levels_of_holder<F>(
    wait: impl FnOnce(Arc<Mutex<()>>) -> F + Send + 'static,
) -> [Option<Level>; 2]
where
    F: Future<Output = ()> + Send + 'static,
{
    let mutex = Arc::new(Mutex::new(()));
    let holder = async move {
        let guard = mutex.lock().await;
        let waiter = upshift::spawn(wait(mutex.clone()), Level::at::<3>());
        yield_now().await;
        let lent = upshift::current_level();
        // The call fails if the waiter has ended.
        let _ = upshift::reprio(waiter.id(), Level::at::<30>());
        let mut afterwards = lent;
        for _ in 0..5_000 {
            if afterwards != lent {
                break;
            }
            sleep(Duration::from_millis(1)).await;
            afterwards = upshift::current_level();
        }
        drop(guard);
        waiter.await.unwrap();
        [lent, afterwards]
    };
    runtime_with_one_vcpu().block_on(async {
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        upshift::spawn(holder, Level::at::<50>()).await.unwrap()
    })
}

#[test]
fn a_waiter_that_becomes_less_urgent_withdraws_its_loan() {
    let levels = levels_of_holder(|mutex| async move { drop(mutex.lock().await) });
    assert_eq!(levels, [Some(Level::at::<3>()), Some(Level::at::<30>())]);
}

#[test]
fn a_dropped_waiter_withdraws_its_loan() {
    let levels = levels_of_holder(|mutex| async move {
        let mut lock = mutex.lock();
        assert!(futures_lite::future::poll_once(&mut lock).await.is_none());
        sleep(Duration::from_millis(1)).await;
        drop(lock);
    });
    assert_eq!(levels[0], Some(Level::at::<3>()));
    assert_eq!(levels[1], Some(Level::at::<50>()));
}

#[test]
fn a_waiter_that_has_become_less_urgent_does_not_get_the_lock_first() {
    let mutex = Arc::new(Mutex::new(Vec::new()));
    runtime_with_one_vcpu().block_on(async {
        let guard = mutex.lock().await;
        let start = |name, level| {
            let mutex = mutex.clone();
            upshift::spawn(async move { mutex.lock().await.push(name) }, level)
        };
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        let second = start("second", Level::at::<20>());
        yield_now().await;
        let first = start("first", Level::at::<5>());
        yield_now().await;
        // The waiter is not polled between this call and the release.
        upshift::reprio(first.id(), Level::at::<30>()).unwrap();
        drop(guard);
        first.await.unwrap();
        second.await.unwrap();
        assert_eq!(*mutex.lock().await, ["second", "first"]);
    });
}

const HOLDER_LEVEL: Level = Level::at::<50>();
const WAITER_LEVEL: Level = Level::at::<5>();

/// A coroutine of level 50 that holds a resource and, on request, reports its current level.
struct Holder {
    requests: mpsc::Sender<()>,
    replies: mpsc::Receiver<Level>,
}

impl Holder {
    /// Starts the coroutine, which first awaits `acquire`, and keeps the output until it ends.
    fn start<R: Send>(
        acquire: impl Future<Output = R> + Send + 'static,
    ) -> (Holder, upshift::JoinHandle<()>) {
        let (requests, mut request_receiver) = mpsc::channel(1);
        let (reply_sender, replies) = mpsc::channel(1);
        let coroutine = upshift::spawn(
            async move {
                let _held = acquire.await;
                while request_receiver.recv().await.is_some() {
                    let level = upshift::current_level().unwrap();
                    reply_sender.send(level).await.unwrap();
                }
            },
            HOLDER_LEVEL,
        );
        (Holder { requests, replies }, coroutine)
    }

    /// Requests the holder's level until the answer is `level`.
    async fn wait_for_level(&mut self, level: Level) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            self.requests.send(()).await.unwrap();
            let reply = self.replies.recv().await.unwrap();
            if reply == level {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the level is {reply:?}, not {level:?}"
            );
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Checks that a coroutine of level 5 lends its level to a holder while it waits, and no longer
/// after it has dropped the wait, on one vCPU and on two. `acquire` acquires the resource of the
/// holder, and `wait` waits for the holder until its `Notify` is notified.
fn check_loan_of_dropped_wait<R, H, W, F>(
    acquire: impl Fn() -> H,
    wait: impl Fn(Handle, Arc<Notify>) -> F,
) where
    R: Send,
    H: Future<Output = R> + Send + 'static,
    W: Send + 'static,
    F: Future<Output = W> + Send + 'static,
{
    for vcpus in [1, 2] {
        let runtime = Runtime::builder().vcpus(vcpus).build().unwrap();
        runtime.block_on(async {
            let (mut holder, handle) = Holder::start(acquire());
            holder.wait_for_level(HOLDER_LEVEL).await;
            let (cancel, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let waiting = wait(handle, cancel.clone());
            let end = finish.clone();
            let waiter = upshift::spawn(
                async move {
                    let _left = waiting.await;
                    end.notified().await;
                },
                WAITER_LEVEL,
            );
            holder.wait_for_level(WAITER_LEVEL).await;
            cancel.notify_one();
            holder.wait_for_level(HOLDER_LEVEL).await;
            finish.notify_one();
            waiter.await.unwrap();
        });
    }
}

type Handle = upshift::JoinHandle<()>;

#[test]
fn a_dropped_join_ends_its_loan_while_the_handle_exists() {
    check_loan_of_dropped_wait(
        async || (),
        |mut handle, cancel| async move {
            let join = async { (&mut handle).await.unwrap() };
            future::or(join, cancel.notified()).await;
            Some(handle)
        },
    );
}

#[test]
fn a_join_that_times_out_ends_its_loan_while_the_handle_exists() {
    runtime_with_one_vcpu().block_on(async {
        let (mut holder, mut handle) = Holder::start(async {});
        let waiting = async move {
            let joined = timeout(Duration::from_millis(30), &mut handle).await;
            assert!(joined.is_err(), "the holder has ended");
            Some(handle)
        };
        // The waiter keeps the handle until it exits and returns it.
        let waiter = upshift::spawn(waiting, WAITER_LEVEL);
        holder.wait_for_level(WAITER_LEVEL).await;
        let _handle = waiter.await.unwrap();
        holder.wait_for_level(HOLDER_LEVEL).await;
    });
}

#[test]
fn a_dropped_chain_of_joins_ends_its_loans() {
    check_loan_of_dropped_wait(
        async || (),
        |handle, cancel| async move {
            let mut middle = upshift::spawn(async { handle.await.unwrap() }, Level::at::<50>());
            let join = async { (&mut middle).await.unwrap() };
            future::or(join, cancel.notified()).await;
            Some(middle)
        },
    );
}

#[test]
fn a_dropped_wait_for_a_readers_writer_lock_ends_its_loan() {
    let lock = Arc::new(RwLock::new(()));
    check_loan_of_dropped_wait(
        || lock.clone().write_owned(),
        |handle, cancel| {
            let lock = lock.clone();
            async move {
                future::or(async { drop(lock.read().await) }, cancel.notified()).await;
                Some(handle)
            }
        },
    );
}

#[test]
fn a_dropped_wait_for_a_cell_ends_its_loan() {
    let cell = Arc::new(OnceCell::<()>::new());
    check_loan_of_dropped_wait(
        || {
            let cell = cell.clone();
            async move {
                let mut initialize = Box::pin(async move {
                    cell.get_or_init(future::pending).await;
                });
                assert!(future::poll_once(&mut initialize).await.is_none());
                Some(initialize)
            }
        },
        |handle, cancel| {
            let cell = cell.clone();
            async move {
                let waiting = async { _ = cell.get_or_init(async || ()).await };
                future::or(waiting, cancel.notified()).await;
                Some(handle)
            }
        },
    );
}
