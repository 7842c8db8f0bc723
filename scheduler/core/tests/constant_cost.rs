//! Tests invariant 4 of `upshift_core`: pick, enqueue, wake and `reprio` cost the same with 1 or 64
//! levels and with 1 or 100 000 coroutines.
//!
//! The cost is a median of many batches. A search of a list would be a thousand times slower with
//! many coroutines; the margin allows for cache misses.

#![cfg(all(not(loom), not(miri)))]

mod support;

use std::hint::black_box;
use std::time::Instant;

use support::{TestHost, at, domain, level, serving};
use upshift_core::{Config, CoroutineId, Domain, Executor, Picked, Polled};

/// Number of coroutines in the large cases.
const MANY: usize = 100_000;
/// Largest allowed ratio of the costs of the large and the small case.
const MARGIN: f64 = 4.0;
/// Number of operations in a batch.
const BATCH: usize = 64;
/// Number of batches per measurement; odd, so that one of them is the median.
const BATCHES: usize = 301;

/// Returns the median cost of an operation, in nanoseconds.
fn cost(mut operation: impl FnMut(usize)) -> f64 {
    let mut batches: Vec<u64> = (0..BATCHES)
        .map(|batch| {
            let began = Instant::now();
            for n in 0..BATCH {
                operation(batch * BATCH + n);
            }
            began.elapsed().as_nanos() as u64
        })
        .collect();
    batches.sort_unstable();
    batches[BATCHES / 2] as f64 / BATCH as f64
}

/// Asserts that the large case costs about as much as the small case. The smallest of five ratios
/// counts, since a machine that is busy for a while spoils single measurements.
fn assert_constant(name: &str, small: impl Fn() -> f64, large: impl Fn() -> f64) {
    let ratio = (0..5)
        .map(|_| large() / small())
        .fold(f64::INFINITY, f64::min);
    assert!(ratio <= MARGIN, "{name}: {ratio:.1} times as expensive");
}

/// Spawns coroutines that yield for ever, distributed over a number of levels.
fn yielding(
    coroutines: usize,
    levels: usize,
) -> (Domain<TestHost>, Executor<TestHost>, Vec<CoroutineId>) {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let ids = serving(&vcpu, || {
        (0..coroutines)
            .map(|n| {
                let future = std::future::poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    std::task::Poll::<()>::Pending
                });
                let handle = domain.spawn(future, at((n % levels) as u8)).unwrap();
                let id = handle.id();
                handle.detach();
                id
            })
            .collect()
    });
    (domain, vcpu, ids)
}

/// Returns the cost of a cycle: pick, poll, enqueue.
fn cycle(coroutines: usize, levels: usize) -> f64 {
    let (_domain, vcpu, _) = yielding(coroutines, levels);
    serving(&vcpu, || {
        let mut back = None;
        cost(|_| {
            let Some(Picked::Poll(running)) = vcpu.pick(back.take()) else {
                panic!("no coroutine is ready")
            };
            if let Polled::Yielded(yielded) = running.poll() {
                back = Some(yielded);
            }
        })
    })
}

#[test]
fn invariant_4_a_cycle_costs_the_same_with_many_coroutines() {
    assert_constant("coroutines", || cycle(1, 1), || cycle(MANY, 1));
    assert_constant("levels", || cycle(64, 1), || cycle(64, 64));
    assert_constant("both", || cycle(1, 1), || cycle(MANY, 64));
}

#[test]
fn invariant_4_reprio_of_a_queued_coroutine_costs_the_same_with_many() {
    // The coroutines move from the middle of a list to the tail of another, and lie close together
    // in memory.
    let reprio = |coroutines: usize, levels: usize| {
        let (domain, vcpu, ids) = yielding(coroutines, levels);
        let middle = &ids[coroutines / 2..];
        let middle = &middle[..middle.len().min(64)];
        serving(&vcpu, || {
            cost(|n| {
                let id = middle[n % middle.len()];
                domain
                    .reprio(id, level((n / middle.len() % 64) as u8))
                    .unwrap();
            })
        })
    };
    assert_constant("coroutines", || reprio(1, 1), || reprio(MANY, 1));
    assert_constant("both", || reprio(1, 1), || reprio(MANY, 64));
}

#[test]
fn invariant_4_reprio_costs_the_same_with_many_arrivals() {
    // Only the owner's next pick moves the arrivals, so the first `reprio` is as cheap as the last.
    let reprio = |arrived: usize| {
        let domain = domain(Config::default());
        let vcpu = domain.add_vcpu().unwrap();
        let spawn = || domain.spawn(async {}, at(20)).unwrap().id();
        let queued: Vec<CoroutineId> = serving(&vcpu, || (0..BATCH).map(|_| spawn()).collect());
        for _ in 0..arrived {
            spawn();
        }
        let began = Instant::now();
        for &id in &queued {
            domain.reprio(id, level(30)).unwrap();
        }
        began.elapsed().as_nanos() as f64
    };
    assert_constant("arrivals", || reprio(1), || reprio(MANY));
}

/// Returns the cost of a wake of a blocked coroutine, and of the poll after which it is blocked
/// again. `by_server` is true if the thread that serves the vCPU makes the wake.
fn wake(coroutines: usize, by_server: bool) -> f64 {
    let domain = domain(Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let ids: Vec<CoroutineId> = (0..coroutines)
        .map(|n| {
            let handle = domain.spawn(std::future::pending::<()>(), at((n % 64) as u8));
            handle.unwrap().id()
        })
        .collect();
    support::run(&vcpu, usize::MAX);
    let middle = &ids[coroutines / 2..];
    let middle = &middle[..middle.len().min(64)];
    let wake_and_poll = |n: usize| {
        let id = middle[n % middle.len()];
        if !by_server {
            domain.wake(id).unwrap();
        }
        serving(&vcpu, || {
            if by_server {
                domain.wake(id).unwrap();
            }
            let Some(Picked::Poll(running)) = vcpu.pick(None) else {
                panic!("the woken coroutine is not ready")
            };
            let _ = black_box(running.poll());
        });
    };
    cost(wake_and_poll)
}

#[test]
fn invariant_4_a_wake_costs_the_same_with_many_coroutines() {
    assert_constant("inside", || wake(1, true), || wake(MANY, true));
    assert_constant("outside", || wake(1, false), || wake(MANY, false));
}

#[test]
fn invariant_6_a_coroutine_in_a_queue_takes_no_memory_of_its_own() {
    // A coroutine contains its links, so the number of coroutines bounds every queue, and a
    // coroutine that is woken often is queued once.
    let (domain, vcpu, ids) = yielding(1_000, 7);
    for _ in 0..10 {
        for &id in &ids {
            domain.wake(id).unwrap();
        }
    }
    let queued: usize = (0..7).map(|n| vcpu.ready_len(level(n))).sum();
    assert_eq!(queued, 1_000);
}
