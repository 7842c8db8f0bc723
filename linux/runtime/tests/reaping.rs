//! Tests of when a busy vCPU (a worker thread with ready coroutines) enters its io_uring to fetch
//! completions.

use std::io::Write;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use upshift::net::UnixStream;
use upshift::{Handle, Level, Runtime, time};

const URGENT: Level = Level::at::<3>();
const EQUAL: Level = Level::at::<32>();
/// Reap interval: the time after which a busy vCPU enters its ring.
const INTERVAL: Duration = Duration::from_millis(6);
const POLLS: usize = 240;
const POLL_LENGTH: Duration = Duration::from_micros(500);
/// Number of polls that may precede more urgent work: the twelve polls that fit into an interval,
/// and a few more.
const MAX_POLLS: usize = 16;

fn ring_enters() -> u64 {
    Handle::current().unwrap().metrics().vcpus[0].ring.enters
}

struct Outcome {
    /// Number of other coroutines that had ended when the waiting coroutine continued.
    ended_polls: usize,
    /// Number of times that the vCPU entered its ring while the other coroutines were polled.
    ring_enters: u64,
    elapsed: Duration,
}

/// Runs many coroutines, each of which is polled once for [`POLL_LENGTH`] and writes one byte.
/// Meanwhile another coroutine of `level` waits, either for these bytes or for a timer.
fn wait_beside_polls(level: Level, for_data: bool) -> Outcome {
    let runtime = Runtime::builder()
        .vcpus(1)
        .reap_interval(INTERVAL)
        .main_level(Level::LEAST_URGENT)
        .build()
        .unwrap();
    runtime.block_on(async {
        let (from, to) = StdStream::pair().unwrap();
        // The test keeps both ends open, because the polls write until the end.
        let (to, _from) = (Arc::new(to), from.try_clone().unwrap());
        let ended = Arc::new(AtomicUsize::new(0));
        let waiting = {
            let ended = ended.clone();
            async move {
                if for_data {
                    let mut from = UnixStream::from_std(from).unwrap();
                    assert!(!from.recv().await.unwrap().is_empty());
                } else {
                    time::sleep(POLL_LENGTH * 2).await;
                }
                ended.load(Ordering::SeqCst)
            }
        };
        let waiting = upshift::spawn(waiting, level);
        // Let the waiting coroutine run until it waits.
        upshift::spawn(upshift::yield_now(), Level::LEAST_URGENT)
            .await
            .unwrap();
        if for_data {
            time::sleep(Duration::from_millis(1)).await;
        }
        let (before, start) = (ring_enters(), Instant::now());
        let polls: Vec<_> = (0..POLLS)
            .map(|_| {
                let (to, ended) = (to.clone(), ended.clone());
                let poll = async move {
                    (&*to).write_all(b"x").unwrap();
                    let start = Instant::now();
                    while start.elapsed() < POLL_LENGTH {}
                    ended.fetch_add(1, Ordering::SeqCst);
                };
                upshift::spawn(poll, EQUAL)
            })
            .collect();
        for poll in polls {
            poll.await.unwrap();
        }
        let (elapsed, ring_enters) = (start.elapsed(), ring_enters() - before);
        let ended_polls = waiting.await.unwrap();
        Outcome {
            ended_polls,
            ring_enters,
            elapsed,
        }
    })
}

#[test]
fn completions_that_may_be_more_urgent_are_reaped_every_interval() {
    let data = wait_beside_polls(URGENT, true);
    assert!(
        data.ended_polls <= MAX_POLLS,
        "the data was received after {} polls",
        data.ended_polls
    );
    let timer = wait_beside_polls(URGENT, false);
    assert!(
        timer.ended_polls <= MAX_POLLS,
        "the timer fired after {} polls",
        timer.ended_polls
    );
}

/// To fetch a completion for the waiting coroutine more often would be useless, because the
/// coroutine would be queued behind the ready ones in any case.
#[test]
fn completions_no_more_urgent_than_ready_work_are_reaped_every_five_intervals() {
    let Outcome {
        ring_enters,
        elapsed,
        ..
    } = wait_beside_polls(EQUAL, true);
    // The vCPU may enter its ring twice in a row if data arrives in between. The constant is a
    // margin for the beginning and the end of the measurement.
    let max_enters = 2 * (elapsed.as_nanos() / (5 * INTERVAL).as_nanos()) + 4;
    assert!(
        u128::from(ring_enters) <= max_enters,
        "{ring_enters} calls of io_uring_enter in {elapsed:?}"
    );
    assert!(ring_enters >= 1);
}
