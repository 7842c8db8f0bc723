//! Tests that the scheduler's published state is correct, also as other threads see it. This is the
//! law *Truth* (see `main.rs`):
//!
//! * The bitmap has the bit of each level with a ready coroutine.
//! * A poll is asked to yield if a more urgent coroutine of its vCPU is ready.
//! * The holder of a mutex, and an awaited coroutine, are as urgent as their waiters.
//!
//! With preemption, a more urgent coroutine may have run before the poll checks whether to yield.
//! The poll then has nothing to observe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use upshift::sync::Mutex;
use upshift::task::JoinHandle;
use upshift::{Level, current_level, need_preempt, reprio, spawn, time, yield_now};

use crate::{runtime, spin_until, spin_until_set};

const URGENT: Level = Level::at::<5>();
const HOLDER: Level = Level::at::<40>();
const LESS_URGENT: Level = Level::at::<50>();

/// Returns a new flag, and a second reference to it.
fn flag() -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    (flag.clone(), flag)
}

/// A poll observes at once that a coroutine which it has started on its vCPU is ready.
async fn a_coroutine_that_a_poll_makes_ready_is_in_the_bitmap(vcpus: usize) {
    let handle = upshift::Handle::current().unwrap();
    spawn(
        async move {
            for _ in 0..50 {
                let (ran, setter) = flag();
                let child = spawn(async move { setter.store(true, Ordering::SeqCst) }, URGENT);
                let is_in_bitmap = handle.bitmap() & URGENT.bit() != 0;
                // An idle vCPU may have stolen the coroutine and not polled it yet.
                assert!(
                    is_in_bitmap || ran.load(Ordering::SeqCst) || vcpus > 1,
                    "the coroutine is not in the bitmap"
                );
                assert!(
                    need_preempt() || spin_until_set(&ran),
                    "the poll was not asked to yield"
                );
                child.await.unwrap();
            }
        },
        HOLDER,
    )
    .await
    .unwrap();
}

/// Starts a poll for each vCPU, counted in `polling`, that ends when it is asked to yield or when
/// `ran` is set. The result of a poll is whether it ended within the limit.
fn polls_until_asked_to_yield(
    vcpus: usize,
    polling: &Arc<AtomicUsize>,
    ran: &Arc<AtomicBool>,
) -> Vec<JoinHandle<bool>> {
    (0..vcpus)
        .map(|_| {
            let (polling, ran) = (polling.clone(), ran.clone());
            let poll = async move {
                polling.fetch_add(1, Ordering::SeqCst);
                let is_in_time = spin_until(|| need_preempt() || ran.load(Ordering::SeqCst));
                yield_now().await;
                is_in_time
            };
            spawn(poll, HOLDER)
        })
        .collect()
}

/// Every vCPU is in a poll that checks only for requests to yield. A wake from a thread outside of
/// the runtime makes one of them yield.
async fn a_wake_from_outside_asks_a_poll_to_yield(vcpus: usize) {
    let polling = Arc::new(AtomicUsize::new(0));
    let (ran, setter) = flag();
    let polls = polls_until_asked_to_yield(vcpus, &polling, &ran);
    let handle = upshift::Handle::current().unwrap();
    let outside = std::thread::spawn(move || {
        let all_poll = spin_until(|| polling.load(Ordering::SeqCst) == vcpus);
        std::thread::sleep(Duration::from_millis(1));
        let urgent = async move { setter.store(true, Ordering::SeqCst) };
        handle.spawn(urgent, URGENT).unwrap().detach();
        all_poll
    });
    for poll in polls {
        assert!(poll.await.unwrap(), "the poll was not asked to yield");
    }
    assert!(outside.join().unwrap());
    assert!(ran.load(Ordering::SeqCst));
}

/// A ready coroutine becomes more urgent than the current polls.
async fn raising_a_ready_coroutine_asks_a_poll_to_yield(vcpus: usize) {
    let polling = Arc::new(AtomicUsize::new(0));
    let (ran, setter) = flag();
    let polls = polls_until_asked_to_yield(vcpus, &polling, &ran);
    let handle = upshift::Handle::current().unwrap();
    let outside = std::thread::spawn(move || {
        let all_poll = spin_until(|| polling.load(Ordering::SeqCst) == vcpus);
        let less_urgent = async move { setter.store(true, Ordering::SeqCst) };
        let less_urgent = handle.spawn(less_urgent, LESS_URGENT).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        // The coroutine has ended if the polls have.
        let _ = handle.reprio(less_urgent.id(), URGENT);
        all_poll
    });
    for poll in polls {
        assert!(poll.await.unwrap(), "the poll was not asked to yield");
    }
    assert!(outside.join().unwrap());
}

/// The holder of a mutex observes that its level rises while a more urgent coroutine waits, and
/// falls again.
async fn a_holder_is_as_urgent_as_its_waiter() {
    let mutex = Arc::new(Mutex::new(()));
    let (held, setter) = flag();
    let lock = mutex.clone();
    let holder = async move {
        let guard = lock.lock().await;
        setter.store(true, Ordering::SeqCst);
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
    let (awaited, setter) = flag();
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
        setter.store(true, Ordering::SeqCst);
        child.await.unwrap()
    };
    assert!(
        spawn(parent, URGENT).await.unwrap(),
        "the child was not raised"
    );
}

/// Ready coroutines are polled in the order of levels that were set after they had become ready.
async fn ready_coroutines_are_polled_by_their_new_levels() {
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let result = order.clone();
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
    assert_eq!(*result.lock().unwrap(), [32, 31, 30]);
}

/// A holder that stays in its poll observes the level that is lent to it from the other vCPU.
async fn a_level_lent_from_another_vcpu_is_observed() {
    let mutex = Arc::new(Mutex::new(()));
    let (held, setter) = flag();
    let lock = mutex.clone();
    let holder = async move {
        let guard = lock.lock().await;
        setter.store(true, Ordering::SeqCst);
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
    assert!(
        holder.await.unwrap(),
        "the holder did not observe the level of its waiter"
    );
}

fn check_truth(vcpus: usize, preemption: bool) {
    let Some(runtime) = runtime(vcpus, preemption) else {
        return;
    };
    for _ in 0..5 {
        runtime.block_on(async {
            a_coroutine_that_a_poll_makes_ready_is_in_the_bitmap(vcpus).await;
            a_wake_from_outside_asks_a_poll_to_yield(vcpus).await;
            raising_a_ready_coroutine_asks_a_poll_to_yield(vcpus).await;
            a_holder_is_as_urgent_as_its_waiter().await;
            a_child_is_as_urgent_as_its_waiter().await;
            if vcpus == 1 {
                ready_coroutines_are_polled_by_their_new_levels().await;
            } else {
                a_level_lent_from_another_vcpu_is_observed().await;
            }
        });
    }
}

#[test]
fn truth_on_a_vcpu() {
    check_truth(1, false);
    check_truth(1, true);
}

#[test]
fn truth_across_vcpus() {
    check_truth(2, false);
    check_truth(2, true);
}
