//! When a vCPU that has coroutines ready enters its ring.

use std::io::Write;
use std::os::unix::net::UnixStream as Std;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upshift::net::UnixStream;
use upshift::{Handle, Level, Runtime, time};

const URGENT: Level = Level::at::<3>();
const EQUAL: Level = Level::at::<32>();
const INTERVAL: Duration = Duration::from_millis(6);
const POLLS: usize = 240;
/// A poll.
const LENGTH: Duration = Duration::from_micros(500);
/// Number of polls that may precede more urgent work: the twelve of an interval, and a few.
const SOON: usize = 16;

fn enters() -> u64 {
    Handle::current().unwrap().metrics().vcpus[0].ring.enters
}

/// The result of a coroutine that waits while others are polled.
struct Seen {
    /// Number of the other coroutines that had ended when it continued.
    after: usize,
    enters: u64,
    took: Duration,
}

/// Makes a coroutine of `level` wait for data, of which a byte comes in each of many polls, or for
/// a timer.
fn wait_beside_polls(level: Level, for_data: bool) -> Seen {
    let runtime = Runtime::builder()
        .vcpus(1)
        .reap_interval(INTERVAL)
        .main_level(Level::LEAST_URGENT)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (from, to) = Std::pair().unwrap();
        // Written to until the end.
        let (to, _from) = (Arc::new(to), from.try_clone().unwrap());
        let ended = Arc::new(AtomicUsize::new(0));
        let waits = {
            let ended = ended.clone();
            async move {
                if for_data {
                    let mut from = UnixStream::from_std(from).unwrap();
                    assert!(!from.recv().await.unwrap().is_empty());
                } else {
                    time::sleep(LENGTH * 2).await;
                }
                ended.load(Ordering::SeqCst)
            }
        };
        let waits = upshift::spawn(waits, level);
        // It waits, and the ring knows of it.
        upshift::spawn(upshift::yield_now(), Level::LEAST_URGENT)
            .await
            .unwrap();
        if for_data {
            time::sleep(Duration::from_millis(1)).await;
        }
        let (before, began) = (enters(), Instant::now());
        let polls: Vec<_> = (0..POLLS)
            .map(|_| {
                let (to, ended) = (to.clone(), ended.clone());
                let poll = async move {
                    (&*to).write_all(b"x").unwrap();
                    let began = Instant::now();
                    while began.elapsed() < LENGTH {}
                    ended.fetch_add(1, Ordering::SeqCst);
                };
                upshift::spawn(poll, EQUAL)
            })
            .collect();
        for poll in polls {
            poll.await.unwrap();
        }
        let (took, enters) = (began.elapsed(), enters() - before);
        let after = waits.await.unwrap();
        Seen {
            after,
            enters,
            took,
        }
    })
}

#[test]
fn completions_that_may_be_more_urgent_are_looked_at_every_interval() {
    let data = wait_beside_polls(URGENT, true);
    assert!(data.after <= SOON, "after {} polls", data.after);
    let timer = wait_beside_polls(URGENT, false);
    assert!(timer.after <= SOON, "after {} polls", timer.after);
}

/// The coroutine is queued at the tail all the same.
#[test]
fn completions_not_above_the_ready_level_are_left_for_five_intervals() {
    let Seen { enters, took, .. } = wait_beside_polls(EQUAL, true);
    // One enters twice where more comes meanwhile.
    let most = 2 * (took.as_nanos() / (5 * INTERVAL).as_nanos()) + 4;
    assert!(u128::from(enters) <= most, "{enters} in {took:?}");
    assert!(enters >= 1);
}
