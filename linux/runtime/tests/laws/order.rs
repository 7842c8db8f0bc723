//! Order: no poll of a less urgent level begins on a vCPU while a more urgent coroutine that may
//! run there was ready when the pick began. On one vCPU, none overtakes an equal.
//!
//! A storm of coroutines of many levels wake each other. A ledger holds the ready coroutines, each
//! with the number of the moment from which it was known to be ready. A poll that begins looks up
//! the coroutines that were ready before the last poll on its thread ended: the pick that chose the
//! poll began after that.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::time::Duration;

use upshift::{CoroutineId, Level};

use crate::{burn, runtime};

const COROUTINES: usize = 24;
const POLLS: u64 = 8_000;
/// Number of polls of which one is long enough to be suspended for something more urgent.
const LONG_ONE_IN: u64 = 32;

thread_local! {
    /// Number of the moment at which the last poll of the storm ended on this thread.
    static LAST_END: Cell<u64> = const { Cell::new(0) };
}

struct Ready {
    k: usize,
    level: u8,
    /// Numbers of the moments before and after the call that woke the coroutine.
    before: u64,
    after: u64,
}

#[derive(Default)]
struct Storm {
    numbers: AtomicU64,
    ready: Mutex<Vec<Ready>>,
    /// The blocked coroutines.
    blocked: [AtomicBool; COROUTINES],
    ids: OnceLock<Vec<CoroutineId>>,
    polls: AtomicU64,
    /// Polls that had an alternative, and so may have been right or wrong.
    contested: AtomicU64,
    /// Polls that began although something more urgent, or an older equal, was ready.
    before_more_urgent: AtomicU64,
    before_older: AtomicU64,
}

/// SplitMix64.
fn random(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn level_of(k: usize) -> u8 {
    (k * 7 % 12 * 5) as u8
}

impl Storm {
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn is_over(&self) -> bool {
        self.polls.load(Ordering::Relaxed) >= POLLS
    }

    fn wake(&self, k: usize) {
        if !self.blocked[k].swap(false, Ordering::SeqCst) {
            return;
        }
        let (level, before) = (level_of(k), self.number());
        let entry = Ready {
            k,
            level,
            before,
            after: u64::MAX,
        };
        self.ready.lock().unwrap().push(entry);
        // The coroutine may have ended.
        let _ = upshift::wake(self.ids.get().unwrap()[k]);
        let after = self.number();
        let mut ready = self.ready.lock().unwrap();
        if let Some(entry) = ready.iter_mut().find(|it| it.before == before) {
            entry.after = after;
        }
    }

    /// Records that a poll of coroutine `k` begins. Returns false if nothing has woken it.
    fn begins(&self, k: usize) -> bool {
        let since = LAST_END.get();
        let mut ready = self.ready.lock().unwrap();
        let Some(place) = ready.iter().position(|it| it.k == k) else {
            return false;
        };
        let it = ready.swap_remove(place);
        let known = || ready.iter().filter(|other| other.after < since);
        let count = |what: &AtomicU64, so: bool| what.fetch_add(so.into(), Ordering::Relaxed);
        count(
            &self.contested,
            known().any(|other| other.level != it.level),
        );
        count(
            &self.before_more_urgent,
            known().any(|other| other.level < it.level),
        );
        let older = |other: &Ready| other.level == it.level && other.after < it.before;
        count(&self.before_older, known().any(older));
        true
    }

    fn poll(&self, k: usize) -> Poll<()> {
        if !self.is_over() && self.begins(k) {
            let n = self.polls.fetch_add(1, Ordering::Relaxed);
            let long = n.is_multiple_of(LONG_ONE_IN);
            burn(Duration::from_micros(if long {
                200
            } else {
                random(n) % 10
            }));
            let idle = self.ready.lock().unwrap().is_empty();
            let wakes = if idle { 12 } else { n % 3 };
            for nth in 0..wakes {
                self.wake(random(16 * n + nth) as usize % COROUTINES);
            }
            // At least one coroutine goes on.
            if idle {
                self.wake((k + 1) % COROUTINES);
            }
        }
        LAST_END.set(self.number());
        self.blocked[k].store(true, Ordering::SeqCst);
        if !self.is_over() {
            return Poll::Pending;
        }
        for other in 0..COROUTINES {
            self.wake(other);
        }
        Poll::Ready(())
    }
}

/// Runs a storm. At most one part in `spoilt` of the polls that had an alternative may look wrong;
/// none for 0.
fn holds(vcpus: usize, preemption: bool, spoilt: u64) {
    let Some(runtime) = runtime(vcpus, preemption) else {
        return;
    };
    let storm = Arc::new(Storm::default());
    runtime.block_on(async {
        let handles: Vec<_> = (0..COROUTINES)
            .map(|k| {
                let storm = storm.clone();
                let member = poll_fn(move |_| storm.poll(k));
                upshift::spawn(member, Level::new(level_of(k)).unwrap())
            })
            .collect();
        let ids = handles.iter().map(|handle| handle.id()).collect();
        storm.ids.set(ids).unwrap();
        // Until all have blocked, there may be no coroutine to wake.
        while !storm.blocked.iter().all(|it| it.load(Ordering::SeqCst)) {
            upshift::yield_now().await;
        }
        (0..COROUTINES).for_each(|k| storm.wake(k));
        for handle in handles {
            handle.await.unwrap();
        }
    });
    let read = |what: &AtomicU64| what.load(Ordering::Relaxed);
    let contested = read(&storm.contested);
    let wrong = (read(&storm.before_more_urgent), read(&storm.before_older));
    println!("{vcpus} vCPUs, preemption {preemption}: {contested} contested, {wrong:?} wrong");
    assert!(contested > POLLS / 10, "{contested} polls had a choice");
    let allowed = contested.checked_div(spoilt).unwrap_or(0);
    assert!(
        wrong.0 <= allowed && (vcpus > 1 || wrong.1 <= allowed),
        "of {contested} polls {wrong:?} began before something more urgent, before an older equal"
    );
}

/// Without preemption all polls run on one thread: none is spoilt.
#[test]
fn order_on_a_vcpu() {
    holds(1, false, 0);
    holds(1, true, 50);
}

/// A coroutine that a vCPU has picked and not begun to poll looks ready to the other vCPU, for
/// longer if that vCPU's thread is interrupted there.
#[test]
fn order_across_vcpus() {
    holds(2, false, 20);
    holds(2, true, 10);
}
