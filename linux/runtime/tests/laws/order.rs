//! Tests that a vCPU (a worker thread with a run queue) polls the most urgent ready coroutine, and
//! on one vCPU the one that has been ready for longest. This is the law *Order* (see `main.rs`).
//!
//! Many coroutines of different levels wake each other; this is called a *storm*. A logical clock
//! numbers its events. A list holds the ready coroutines, each with the clock's value when it was
//! known to be ready. At the start of a poll, the test looks up the coroutines that had been ready
//! before the last poll on this thread ended. The scheduler chose the new poll after that end, so
//! it should have preferred any of these coroutines that is more urgent.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use upshift::{CoroutineId, Level};

use crate::{burn, runtime};

/// Number of coroutines of a storm.
const COROUTINES: usize = 24;
/// Number of polls after which a storm ends.
const POLLS: u64 = 8_000;
/// One in this many polls is long enough to be suspended.
const LONG_POLL_INTERVAL: u64 = 32;

thread_local! {
    /// The logical time at which the last poll of the storm ended on this thread.
    static LAST_END: Cell<u64> = const { Cell::new(0) };
}

/// A coroutine that is known to be ready.
struct Ready {
    index: usize,
    level: u8,
    /// The logical times before and after the call that woke the coroutine.
    before: u64,
    after: u64,
}

#[derive(Default)]
struct Storm {
    /// The logical clock.
    moments: AtomicU64,
    ready: Mutex<Vec<Ready>>,
    blocked: [AtomicBool; COROUTINES],
    ids: OnceLock<Vec<CoroutineId>>,
    polls: AtomicU64,
    /// Number of polls that began while a coroutine of another level was known to be ready.
    contested: AtomicU64,
    /// Number of polls that began although a more urgent coroutine was known to be ready.
    before_more_urgent: AtomicU64,
    /// Number of polls that began although a coroutine of the same level was known to be ready for
    /// longer.
    before_older: AtomicU64,
}

/// Returns a pseudo-random number (SplitMix64).
fn random(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn level_of(index: usize) -> u8 {
    (index * 7 % 12 * 5) as u8
}

impl Storm {
    fn next_moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn is_over(&self) -> bool {
        self.polls.load(Ordering::Relaxed) >= POLLS
    }

    fn wake(&self, index: usize) {
        if !self.blocked[index].swap(false, Ordering::SeqCst) {
            return;
        }
        let (level, before) = (level_of(index), self.next_moment());
        let entry = Ready {
            index,
            level,
            before,
            after: u64::MAX,
        };
        self.ready.lock().unwrap().push(entry);
        // The coroutine may have ended.
        let _ = upshift::wake(self.ids.get().unwrap()[index]);
        let after = self.next_moment();
        let mut ready = self.ready.lock().unwrap();
        if let Some(entry) = ready.iter_mut().find(|entry| entry.before == before) {
            entry.after = after;
        }
    }

    /// Records that a poll of coroutine `index` begins. Returns false if nothing has woken it.
    fn record_begin(&self, index: usize) -> bool {
        let last_end = LAST_END.get();
        let mut ready = self.ready.lock().unwrap();
        let Some(position) = ready.iter().position(|entry| entry.index == index) else {
            return false;
        };
        let polled = ready.swap_remove(position);
        let known_ready = || ready.iter().filter(|other| other.after < last_end);
        let count_if =
            |counter: &AtomicU64, holds: bool| counter.fetch_add(holds.into(), Ordering::Relaxed);
        count_if(
            &self.contested,
            known_ready().any(|other| other.level != polled.level),
        );
        count_if(
            &self.before_more_urgent,
            known_ready().any(|other| other.level < polled.level),
        );
        let older = |other: &Ready| other.level == polled.level && other.after < polled.before;
        count_if(&self.before_older, known_ready().any(older));
        true
    }

    fn poll(&self, index: usize) -> Poll<()> {
        if !self.is_over() && self.record_begin(index) {
            let n = self.polls.fetch_add(1, Ordering::Relaxed);
            let is_long = n.is_multiple_of(LONG_POLL_INTERVAL);
            burn(Duration::from_micros(if is_long {
                200
            } else {
                random(n) % 10
            }));
            let is_none_ready = self.ready.lock().unwrap().is_empty();
            let wakes = if is_none_ready { 12 } else { n % 3 };
            for nth in 0..wakes {
                self.wake(random(16 * n + nth) as usize % COROUTINES);
            }
            // At least one coroutine remains ready.
            if is_none_ready {
                self.wake((index + 1) % COROUTINES);
            }
        }
        LAST_END.set(self.next_moment());
        self.blocked[index].store(true, Ordering::SeqCst);
        if !self.is_over() {
            return Poll::Pending;
        }
        for other in 0..COROUTINES {
            self.wake(other);
        }
        Poll::Ready(())
    }
}

/// Runs a storm. Of the polls for which there was an alternative, at most one in
/// `polls_per_violation` may violate the order. If `polls_per_violation` is 0, none may.
fn check_order(vcpus: usize, preemption: bool, polls_per_violation: u64) {
    let Some(runtime) = runtime(vcpus, preemption) else {
        return;
    };
    let storm = Arc::new(Storm::default());
    runtime.block_on(async {
        let handles: Vec<_> = (0..COROUTINES)
            .map(|index| {
                let storm = storm.clone();
                let member = poll_fn(move |_| storm.poll(index));
                upshift::spawn(member, Level::new(level_of(index)).unwrap())
            })
            .collect();
        let ids = handles.iter().map(|handle| handle.id()).collect();
        storm.ids.set(ids).unwrap();
        // Only a blocked coroutine can be woken.
        while !storm.blocked.iter().all(|flag| flag.load(Ordering::SeqCst)) {
            upshift::yield_now().await;
        }
        (0..COROUTINES).for_each(|index| storm.wake(index));
        for handle in handles {
            handle.await.unwrap();
        }
    });
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let contested = read(&storm.contested);
    let violations = (read(&storm.before_more_urgent), read(&storm.before_older));
    println!(
        "{vcpus} vCPUs, preemption {preemption}: {contested} contested, {violations:?} violations"
    );
    assert!(
        contested > POLLS / 10,
        "only {contested} polls had an alternative"
    );
    let max_violations = contested.checked_div(polls_per_violation).unwrap_or(0);
    assert!(
        violations.0 <= max_violations && (vcpus > 1 || violations.1 <= max_violations),
        "of {contested} polls {violations:?} began before a more urgent coroutine and before an older equal"
    );
}

/// Without preemption all polls run on one thread, so the order is exact.
#[test]
fn order_on_a_vcpu() {
    check_order(1, false, 0);
    check_order(1, true, 50);
}

/// A few polls appear to violate the order. A coroutine that one vCPU has taken from its queue but
/// does not poll yet looks ready to the other vCPU, and for longer if the first vCPU's thread is
/// interrupted in between.
#[test]
fn order_across_vcpus() {
    check_order(2, false, 20);
    check_order(2, true, 10);
}
