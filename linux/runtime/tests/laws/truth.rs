//! Truth: a ready coroutine is in the bitmap, a poll is asked to give way to a more urgent
//! coroutine of its vCPU, and the holder of a mutex or an awaited coroutine is as urgent as its
//! waiters, also as seen by other threads.
//!
//! With preemption a more urgent coroutine may have run before the poll looks; then nothing was
//! hidden from the poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use upshift::sync::Mutex;
use upshift::task::JoinHandle;
use upshift::{Level, current_level, need_preempt, reprio, spawn, time, yield_now};

use crate::{runtime, spin_until, spin_until_set};

const URGENT: Level = Level::at::<5>();
const HOLDER: Level = Level::at::<40>();
const LESS: Level = Level::at::<50>();

fn flag() -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    (flag.clone(), flag)
}

/// A poll sees at once that a coroutine which it has woken on its own vCPU is ready.
async fn a_coroutine_that_a_poll_makes_ready_shows(vcpus: usize) {
    let handle = upshift::Handle::current().unwrap();
    spawn(
        async move {
            for _ in 0..50 {
                let (ran, set) = flag();
                let child = spawn(async move { set.store(true, Ordering::SeqCst) }, URGENT);
                let shown = handle.bitmap() & URGENT.bit() != 0;
                // An idle vCPU may have stolen it, and be about to poll it.
                assert!(
                    shown || ran.load(Ordering::SeqCst) || vcpus > 1,
                    "not in the bitmap"
                );
                assert!(
                    need_preempt() || spin_until_set(&ran),
                    "not asked to give way"
                );
                child.await.unwrap();
            }
        },
        HOLDER,
    )
    .await
    .unwrap();
}

/// Runs a poll on each vCPU, counted in `polling`, that ends when it is asked to give way, or when
/// `ran` is set. Returns whether each ended in time.
fn polls_until_told(
    vcpus: usize,
    polling: &Arc<AtomicUsize>,
    ran: &Arc<AtomicBool>,
) -> Vec<JoinHandle<bool>> {
    (0..vcpus)
        .map(|_| {
            let (polling, ran) = (polling.clone(), ran.clone());
            let poll = async move {
                polling.fetch_add(1, Ordering::SeqCst);
                let seen = spin_until(|| need_preempt() || ran.load(Ordering::SeqCst));
                yield_now().await;
                seen
            };
            spawn(poll, HOLDER)
        })
        .collect()
}

/// Every vCPU is in a poll that sees only requests to give way. A wake from a thread outside of the
/// runtime asks one of them to give way.
async fn a_wake_from_outside_asks_a_poll_to_give_way(vcpus: usize) {
    let polling = Arc::new(AtomicUsize::new(0));
    let (ran, set) = flag();
    let polls = polls_until_told(vcpus, &polling, &ran);
    let handle = upshift::Handle::current().unwrap();
    let outside = std::thread::spawn(move || {
        let all = spin_until(|| polling.load(Ordering::SeqCst) == vcpus);
        std::thread::sleep(Duration::from_millis(1));
        let urgent = async move { set.store(true, Ordering::SeqCst) };
        handle.spawn(urgent, URGENT).unwrap().detach();
        all
    });
    for poll in polls {
        assert!(poll.await.unwrap(), "not asked to give way");
    }
    assert!(outside.join().unwrap());
    assert!(ran.load(Ordering::SeqCst));
}

/// A ready coroutine becomes more urgent than the polls that are under way.
async fn a_raise_of_a_ready_coroutine_asks_a_poll_to_give_way(vcpus: usize) {
    let polling = Arc::new(AtomicUsize::new(0));
    let (ran, set) = flag();
    let polls = polls_until_told(vcpus, &polling, &ran);
    let handle = upshift::Handle::current().unwrap();
    let outside = std::thread::spawn(move || {
        let all = spin_until(|| polling.load(Ordering::SeqCst) == vcpus);
        let less = async move { set.store(true, Ordering::SeqCst) };
        let less = handle.spawn(less, LESS).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        // The coroutine has ended if the polls have.
        let _ = handle.reprio(less.id(), URGENT);
        all
    });
    for poll in polls {
        assert!(poll.await.unwrap(), "not asked to give way");
    }
    assert!(outside.join().unwrap());
}

/// The holder of a mutex sees its level rise in the middle of its work, and fall again.
async fn a_holder_is_as_urgent_as_its_waiter() {
    let mutex = Arc::new(Mutex::new(()));
    let (held, set) = flag();
    let lock = mutex.clone();
    let holder = async move {
        let guard = lock.lock().await;
        set.store(true, Ordering::SeqCst);
        let mut raised = false;
        for _ in 0..20_000 {
            raised = current_level() == Some(URGENT);
            if raised {
                break;
            }
            time::sleep(Duration::from_micros(500)).await;
        }
        drop(guard);
        (raised, current_level())
    };
    let holder = spawn(holder, HOLDER);
    while !held.load(Ordering::SeqCst) {
        yield_now().await;
    }
    let waiter = spawn(async move { drop(mutex.lock().await) }, URGENT);
    waiter.await.unwrap();
    assert_eq!(holder.await.unwrap(), (true, Some(HOLDER)));
}

async fn a_child_is_as_urgent_as_its_waiter() {
    let (awaited, set) = flag();
    let child = async move {
        while !awaited.load(Ordering::SeqCst) {
            time::sleep(Duration::from_micros(100)).await;
        }
        for _ in 0..20_000 {
            if current_level() == Some(URGENT) {
                return true;
            }
            time::sleep(Duration::from_micros(500)).await;
        }
        false
    };
    let child = spawn(child, HOLDER);
    let parent = async move {
        set.store(true, Ordering::SeqCst);
        child.await.unwrap()
    };
    assert!(
        spawn(parent, URGENT).await.unwrap(),
        "the child was not raised"
    );
}

/// Ready coroutines are polled in the order of the levels that they have been given since they
/// became ready.
async fn a_level_that_is_given_counts() {
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let all = order.clone();
    let parent = async move {
        let children: Vec<_> = [30, 31, 32]
            .map(|level| {
                let order = order.clone();
                let child = async move { order.lock().unwrap().push(level) };
                spawn(child, Level::new(level).unwrap())
            })
            .into_iter()
            .collect();
        reprio(children[2].id(), Level::at::<28>()).unwrap();
        reprio(children[0].id(), Level::at::<33>()).unwrap();
        children
    };
    for child in spawn(parent, Level::at::<3>()).await.unwrap() {
        while !child.is_finished() {
            yield_now().await;
        }
    }
    assert_eq!(*all.lock().unwrap(), [32, 31, 30]);
}

/// A holder that never leaves its poll sees the level that is lent to it from the other vCPU.
async fn a_level_lent_from_another_vcpu_shows() {
    let mutex = Arc::new(Mutex::new(()));
    let (held, set) = flag();
    let lock = mutex.clone();
    let holder = async move {
        let guard = lock.lock().await;
        set.store(true, Ordering::SeqCst);
        let raised = spin_until(|| current_level() == Some(URGENT));
        drop(guard);
        raised
    };
    let holder = spawn(holder, HOLDER);
    let waiter = async move {
        assert!(spin_until_set(&held));
        drop(mutex.lock().await);
    };
    spawn(waiter, URGENT).await.unwrap();
    assert!(holder.await.unwrap(), "the holder did not see its waiter");
}

fn holds(vcpus: usize, preemption: bool) {
    let Some(runtime) = runtime(vcpus, preemption) else {
        return;
    };
    for _ in 0..5 {
        runtime.block_on(async {
            a_coroutine_that_a_poll_makes_ready_shows(vcpus).await;
            a_wake_from_outside_asks_a_poll_to_give_way(vcpus).await;
            a_raise_of_a_ready_coroutine_asks_a_poll_to_give_way(vcpus).await;
            a_holder_is_as_urgent_as_its_waiter().await;
            a_child_is_as_urgent_as_its_waiter().await;
            if vcpus == 1 {
                a_level_that_is_given_counts().await;
            } else {
                a_level_lent_from_another_vcpu_shows().await;
            }
        });
    }
}

#[test]
fn truth_on_a_vcpu() {
    holds(1, false);
    holds(1, true);
}

#[test]
fn truth_across_vcpus() {
    holds(2, false);
    holds(2, true);
}
