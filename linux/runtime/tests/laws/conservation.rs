//! Tests that no wake is lost: while a vCPU (a worker thread with a run queue) idles, no coroutine
//! that may run there waits for ever, no matter at which moment it becomes ready. This is the law
//! *Conservation* (see `main.rs`) on one vCPU. With preemption, a vCPU also idles while its thread
//! sleeps in the middle of a poll.

use std::future::poll_fn;
use std::io::Write;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use upshift::net::UnixStream;
use upshift::{Level, time};

use crate::{LIMIT, runtime};

/// Number of wakes of each kind. They arrive before, during and after waits of the vCPU.
const WAKES: usize = 400;
const LEVEL: Level = Level::at::<20>();

/// Waits, on a thread outside of the runtime, until the counter of a coroutine has reached `n`.
/// Returns false if that takes longer than [`LIMIT`]. No other event reaches the vCPU meanwhile, so
/// a lost wake is never repaired.
fn has_reached(count: &AtomicUsize, n: usize) -> bool {
    let start = Instant::now();
    while count.load(Ordering::Acquire) < n {
        if start.elapsed() > LIMIT {
            return false;
        }
        thread::yield_now();
    }
    // The pause varies, so that the next wake arrives at another moment of the vCPU's transition
    // into its wait.
    let pause = Duration::from_nanos((n as u64).wrapping_mul(7_919) % 60_000);
    let start = Instant::now();
    while start.elapsed() < pause {
        std::hint::spin_loop();
    }
    true
}

/// Causes events from outside of the runtime: spawns, wakes and data. Returns, for each kind,
/// whether the coroutine ran after every event.
fn cause_events_from_outside(
    handle: &upshift::Handle,
    mut stream: StdStream,
    received: &AtomicUsize,
) -> [bool; 3] {
    let spawned = Arc::new(AtomicUsize::new(0));
    let spawns = (1..=WAKES).all(|n| {
        let count = spawned.clone();
        let child = async move {
            count.fetch_add(1, Ordering::Release);
        };
        handle.spawn(child, LEVEL).unwrap().detach();
        has_reached(&spawned, n)
    });
    let polled = Arc::new(AtomicUsize::new(0));
    let count = polled.clone();
    let sleeper = poll_fn(move |_| {
        let n = count.fetch_add(1, Ordering::Release);
        if n < WAKES {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    });
    let sleeper = handle.spawn(sleeper, LEVEL).unwrap();
    let wakes = has_reached(&polled, 1)
        && (1..=WAKES).all(|n| {
            // The counter is incremented before the poll ends, and a wake during a poll must not be
            // lost, either.
            handle.wake(sleeper.id()).unwrap();
            has_reached(&polled, n + 1)
        });
    sleeper.cancel();
    let arrivals = (1..=WAKES).all(|n| {
        stream.write_all(b"!").unwrap();
        has_reached(received, n)
    });
    [spawns, wakes, arrivals]
}

fn check_events(preemption: bool) {
    let Some(runtime) = runtime(1, preemption) else {
        return;
    };
    let handle = runtime.handle();
    let ran = runtime.block_on(async move {
        let (stream, inside) = StdStream::pair().unwrap();
        let mut inside = UnixStream::from_std(inside).unwrap();
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        let receiver = async move {
            while let Ok(bytes) = inside.recv().await {
                if bytes.is_empty() {
                    break;
                }
                count.fetch_add(bytes.len(), Ordering::Release);
            }
        };
        let receiver = upshift::spawn(receiver, LEVEL);
        let (sender, receiver_of_result) = upshift::sync::oneshot::channel();
        let outside = thread::spawn(move || {
            sender
                .send(cause_events_from_outside(&handle, stream, &received))
                .unwrap()
        });
        let ran = receiver_of_result.await.unwrap();
        outside.join().unwrap();
        receiver.await.unwrap();
        // A lost timer is never repaired, either, and would hang the test.
        for n in 0..100 {
            time::sleep(Duration::from_micros(n)).await;
        }
        ran
    });
    assert_eq!(
        ran, [true; 3],
        "preemption {preemption}: spawned, woken, received"
    );
}

/// Runs a coroutine of `level` while the vCPU's thread sleeps in a poll, with preemption. Returns
/// whether the coroutine ran meanwhile.
async fn runs_beside_a_sleeping_poll(level: Level) -> bool {
    let (entered, ended) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (setter, end) = (entered.clone(), ended.clone());
    let sleeper = async move {
        setter.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(200));
        end.store(true, Ordering::Release);
    };
    let sleeper = upshift::spawn(sleeper, LEVEL);
    let other = async move {
        let has_entered = entered.load(Ordering::Acquire);
        time::sleep(Duration::from_millis(1)).await;
        (has_entered || entered.load(Ordering::Acquire)) && !ended.load(Ordering::Acquire)
    };
    let in_time = upshift::spawn(other, level).await.unwrap();
    sleeper.await.unwrap();
    in_time
}

#[test]
fn conservation_on_a_vcpu() {
    check_events(false);
    check_events(true);
    let Some(runtime) = runtime(1, true) else {
        return;
    };
    for level in [Level::at::<10>(), LEVEL, Level::at::<50>()] {
        let rounds = async move {
            let mut succeeded = 0;
            for _ in 0..5 {
                succeeded += usize::from(runs_beside_a_sleeping_poll(level).await);
            }
            succeeded
        };
        let succeeded = runtime.block_on(rounds);
        // A busy machine may spoil one round.
        assert!(
            succeeded >= 4,
            "{level:?}: only {succeeded} of 5 coroutines ran beside a sleeping poll"
        );
    }
}
