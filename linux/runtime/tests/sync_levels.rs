//! The primitives in a runtime: waiters are served by level, the mutex lends, and
//! futures that are always ready yield.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::{Duration, Instant};

use futures_lite::future;
use upshift::sync::{Mutex, Notify, OnceCell, RwLock, Semaphore, mpsc};
use upshift::time::{sleep, timeout};
use upshift::{Level, Runtime, yield_now};

const LEVELS: [u8; 6] = [40, 10, 40, 20, 10, 30];
/// Indices of [`LEVELS`] by level, then by arrival.
const BY_LEVEL: [usize; 6] = [1, 4, 3, 5, 0, 2];

fn one() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

/// Starts one waiter per level one after the other, lets `release` serve them,
/// and returns the order in which they were served.
fn order<W, F>(waiter: W, release: impl AsyncFnOnce()) -> Vec<usize>
where
    W: Fn(usize, Arc<StdMutex<Vec<usize>>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let log = Arc::new(StdMutex::new(Vec::new()));
    one().block_on(async {
        let mut handles = Vec::new();
        for (number, level) in LEVELS.into_iter().enumerate() {
            let level = Level::new(level).unwrap();
            handles.push(upshift::spawn(waiter(number, log.clone()), level));
            // It waits before the next one comes.
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
fn a_mutex_is_handed_to_the_most_urgent() {
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
    let order = order(waiter, async || drop(guard));
    assert_eq!(order, BY_LEVEL);
}

#[test]
fn a_semaphore_serves_the_most_urgent() {
    let semaphore = Arc::new(Semaphore::new(0));
    let waiter = |number, log: Arc<StdMutex<Vec<usize>>>| {
        let semaphore = semaphore.clone();
        async move {
            let _permit = semaphore.acquire().await.unwrap();
            log.lock().unwrap().push(number);
            yield_now().await;
        }
    };
    let order = order(waiter, async || semaphore.add_permits(1));
    assert_eq!(order, BY_LEVEL);
}

#[test]
fn a_notification_goes_to_the_most_urgent() {
    let notify = Arc::new(Notify::new());
    let waiter = |number, log: Arc<StdMutex<Vec<usize>>>| {
        let notify = notify.clone();
        async move {
            notify.notified().await;
            log.lock().unwrap().push(number);
            notify.notify_one();
        }
    };
    let order = order(waiter, async || notify.notify_one());
    assert_eq!(order, BY_LEVEL);
}

#[test]
fn room_in_a_channel_goes_to_the_most_urgent() {
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
    order(waiter, async || {
        for _ in 0..=LEVELS.len() {
            received.push(receiver.recv().await.unwrap());
        }
    });
    assert_eq!(received[1..], BY_LEVEL);
}

#[test]
fn a_waiter_that_becomes_more_urgent_moves_up() {
    let mutex = Arc::new(Mutex::new(Vec::new()));
    one().block_on(async {
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
fn a_waiter_lends_its_level_until_the_lock_is_given_back() {
    let mutex = Arc::new(Mutex::new(()));
    let log = Arc::new(StdMutex::new(Vec::new()));
    one().block_on(async {
        let (theirs, holder_log) = (mutex.clone(), log.clone());
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
                let guard = theirs.lock().await;
                let middle = upshift::spawn(async move { middle_note() }, Level::at::<20>());
                let mutex = theirs.clone();
                let urgent = upshift::spawn(
                    async move {
                        let _guard = mutex.lock().await;
                        urgent_note();
                    },
                    Level::at::<3>(),
                );
                // The urgent one runs, waits and lends; so we go before the middle.
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
    let (urgent, middle, late) = (Level::at::<3>(), Level::at::<20>(), Level::at::<50>());
    assert_eq!(
        *log.lock().unwrap(),
        [
            ("holding", Some(urgent)),
            ("released", Some(late)),
            ("urgent", Some(urgent)),
            ("middle", Some(middle)),
            ("done", Some(late)),
        ]
    );
}

#[test]
fn a_waiter_that_gives_up_does_not_leave_its_level_behind() {
    use futures_lite::future::poll_once;

    let mutex = Arc::new(Mutex::new(()));
    one().block_on(async {
        let guard = mutex.lock().await;
        let theirs = mutex.clone();
        let child = upshift::spawn(
            async move {
                let mut lock = theirs.lock();
                assert!(poll_once(&mut lock).await.is_none());
                yield_now().await;
                // Handed over by now, and something urgent waits behind it.
                drop(lock);
                yield_now().await;
                upshift::current_level()
            },
            Level::at::<50>(),
        );
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        yield_now().await;
        drop(guard);
        let theirs = mutex.clone();
        let urgent = upshift::spawn(async move { drop(theirs.lock().await) }, Level::at::<3>());
        urgent.await.unwrap();
        // Awaiting lends as well: the main coroutine is the least urgent.
        assert_eq!(child.await.unwrap(), Some(Level::at::<50>()));
    });
}

#[test]
fn a_primitive_that_is_always_ready_yields() {
    one().block_on(async {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let done = Arc::new(Notify::new());
        let theirs = done.clone();
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
        let other = upshift::spawn(async move { theirs.notify_one() }, Level::DEFAULT);
        done.notified().await;
        other.await.unwrap();
        greedy.cancel();
        assert!(greedy.await.is_err());
    });
}

#[test]
fn a_blocking_call_in_a_coroutine_panics_with_advice() {
    let panic = one().block_on(async {
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
    one().block_on(async {
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        let guard = mutex.lock().await;
        let theirs = mutex.clone();
        let next = upshift::spawn(
            async move {
                let guard = theirs.lock().await;
                let holding = upshift::current_level();
                drop(guard);
                (holding, upshift::current_level())
            },
            Level::at::<10>(),
        );
        yield_now().await;
        let theirs = mutex.clone();
        let urgent = upshift::spawn(async move { drop(theirs.lock().await) }, Level::at::<10>());
        yield_now().await;
        drop(guard);
        // It has the mutex now, and has not been polled.
        upshift::reprio(next.id(), Level::at::<40>()).unwrap();
        urgent.await.unwrap();
        let (lent, own) = (Level::at::<10>(), Level::at::<40>());
        assert_eq!(next.await.unwrap(), (Some(lent), Some(own)));
    });
}

/// Returns the level that the holder of a lock is lent: while a coroutine of level 3 waits as
/// `wait` does, and after that has become less urgent.
fn lent_while<F>(wait: impl FnOnce(Arc<Mutex<()>>) -> F + Send + 'static) -> [Option<Level>; 2]
where
    F: Future<Output = ()> + Send + 'static,
{
    let mutex = Arc::new(Mutex::new(()));
    let holder = async move {
        let guard = mutex.lock().await;
        let waiter = upshift::spawn(wait(mutex.clone()), Level::at::<3>());
        yield_now().await;
        let lent = upshift::current_level();
        // Dead if it has given up.
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
    one().block_on(async {
        upshift::reprio(upshift::get_cid().unwrap(), Level::LEAST_URGENT).unwrap();
        upshift::spawn(holder, Level::at::<50>()).await.unwrap()
    })
}

#[test]
fn a_waiter_that_becomes_less_urgent_withdraws_its_loan() {
    let levels = lent_while(|mutex| async move { drop(mutex.lock().await) });
    assert_eq!(levels, [Some(Level::at::<3>()), Some(Level::at::<30>())]);
}

#[test]
fn a_dropped_waiter_withdraws_its_loan() {
    let levels = lent_while(|mutex| async move {
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
    one().block_on(async {
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
        // It is not polled between the two.
        upshift::reprio(first.id(), Level::at::<30>()).unwrap();
        drop(guard);
        first.await.unwrap();
        second.await.unwrap();
        assert_eq!(*mutex.lock().await, ["second", "first"]);
    });
}

const OWN: Level = Level::at::<50>();
const LENT: Level = Level::at::<5>();

/// A coroutine of level 50 that says at which level it goes on when it is asked.
struct Watched {
    asks: mpsc::Sender<()>,
    says: mpsc::Receiver<Level>,
}

impl Watched {
    /// Starts it. Its first act is `holds`, whose output it keeps as long as it is asked.
    fn start<R: Send>(
        holds: impl Future<Output = R> + Send + 'static,
    ) -> (Watched, upshift::JoinHandle<()>) {
        let (asks, mut asked) = mpsc::channel(1);
        let (answers, says) = mpsc::channel(1);
        let coroutine = upshift::spawn(
            async move {
                let _held = holds.await;
                while asked.recv().await.is_some() {
                    let level = upshift::current_level().unwrap();
                    answers.send(level).await.unwrap();
                }
            },
            OWN,
        );
        (Watched { asks, says }, coroutine)
    }

    /// Asks until it is at this level.
    async fn gets_to(&mut self, level: Level) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            self.asks.send(()).await.unwrap();
            let now = self.says.recv().await.unwrap();
            if now == level {
                return;
            }
            assert!(Instant::now() < deadline, "{now:?}, not {level:?}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A coroutine of level 5 waits for one that holds something, and gives up when it is told to.
/// Then it waits for something else, with the rest of its wait. On one vCPU and on two.
fn lends_until_it_gives_up<R, H, W, F>(
    holds: impl Fn() -> H,
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
            let (mut watched, handle) = Watched::start(holds());
            watched.gets_to(OWN).await;
            let (gives_up, ends) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
            let waits = wait(handle, gives_up.clone());
            let end = ends.clone();
            let waiter = upshift::spawn(
                async move {
                    let _left = waits.await;
                    end.notified().await;
                },
                LENT,
            );
            watched.gets_to(LENT).await;
            gives_up.notify_one();
            watched.gets_to(OWN).await;
            ends.notify_one();
            waiter.await.unwrap();
        });
    }
}

type Handle = upshift::JoinHandle<()>;

#[test]
fn a_join_that_is_given_up_ends_its_loan_while_the_handle_is_kept() {
    lends_until_it_gives_up(
        async || (),
        |mut handle, gives_up| async move {
            let joins = async { (&mut handle).await.unwrap() };
            future::or(joins, gives_up.notified()).await;
            Some(handle)
        },
    );
}

#[test]
fn a_join_whose_time_is_over_ends_its_loan_while_the_handle_is_kept() {
    one().block_on(async {
        let (mut watched, mut handle) = Watched::start(async {});
        let waits = async move {
            let joined = timeout(Duration::from_millis(30), &mut handle).await;
            assert!(joined.is_err(), "it does not end");
            Some(handle)
        };
        // The handle is kept by the waiter, which exits, and then here.
        let waiter = upshift::spawn(waits, LENT);
        watched.gets_to(LENT).await;
        let _kept = waiter.await.unwrap();
        watched.gets_to(OWN).await;
    });
}

#[test]
fn a_chain_of_joins_that_is_given_up_ends_its_loans() {
    lends_until_it_gives_up(
        async || (),
        |handle, gives_up| async move {
            let mut middle = upshift::spawn(async { handle.await.unwrap() }, Level::at::<50>());
            let joins = async { (&mut middle).await.unwrap() };
            future::or(joins, gives_up.notified()).await;
            Some(middle)
        },
    );
}

#[test]
fn a_wait_for_a_readers_writer_lock_that_is_given_up_ends_its_loan() {
    let lock = Arc::new(RwLock::new(()));
    lends_until_it_gives_up(
        || lock.clone().write_owned(),
        |handle, gives_up| {
            let lock = lock.clone();
            async move {
                future::or(async { drop(lock.read().await) }, gives_up.notified()).await;
                Some(handle)
            }
        },
    );
}

#[test]
fn a_wait_for_a_cell_that_is_given_up_ends_its_loan() {
    let cell = Arc::new(OnceCell::<()>::new());
    lends_until_it_gives_up(
        || {
            let cell = cell.clone();
            async move {
                let mut makes = Box::pin(async move {
                    cell.get_or_init(future::pending).await;
                });
                assert!(future::poll_once(&mut makes).await.is_none());
                Some(makes)
            }
        },
        |handle, gives_up| {
            let cell = cell.clone();
            async move {
                let waits = async { _ = cell.get_or_init(async || ()).await };
                future::or(waits, gives_up.notified()).await;
                Some(handle)
            }
        },
    );
}
