//! Conservation on one vCPU: while the vCPU idles, no coroutine that may run there waits for ever,
//! whenever it becomes ready. With preemption the vCPU also idles while its thread sleeps in the
//! middle of a poll.

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

/// Number of wakes of each kind: while the vCPU is on its way into a wait, in it, or out of it.
const WAKES: usize = 400;
const LEVEL: Level = Level::at::<20>();

/// Waits, on a thread outside of the runtime, until a coroutine has done the work for which it was
/// woken. Nothing else happens meanwhile, so a lost wake is never repaired.
fn has_got_on(count: &AtomicUsize, n: usize) -> bool {
    let began = Instant::now();
    while count.load(Ordering::Acquire) < n {
        if began.elapsed() > LIMIT {
            return false;
        }
        thread::yield_now();
    }
    // The pause varies, so that the next wake hits another moment of the vCPU's way into its wait.
    let pause = Duration::from_nanos((n as u64).wrapping_mul(7_919) % 60_000);
    let began = Instant::now();
    while began.elapsed() < pause {
        std::hint::spin_loop();
    }
    true
}

/// Returns, for each kind of event from outside (a spawn, a wake, data), whether its coroutine ran.
fn outside(handle: &upshift::Handle, mut stream: StdStream, received: &AtomicUsize) -> [bool; 3] {
    let spawned = Arc::new(AtomicUsize::new(0));
    let spawns = (1..=WAKES).all(|n| {
        let count = spawned.clone();
        let child = async move {
            count.fetch_add(1, Ordering::Release);
        };
        handle.spawn(child, LEVEL).unwrap().detach();
        has_got_on(&spawned, n)
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
    let wakes = has_got_on(&polled, 1)
        && (1..=WAKES).all(|n| {
            // A poll counts before it ends; a wake during the poll counts, too.
            handle.wake(sleeper.id()).unwrap();
            has_got_on(&polled, n + 1)
        });
    sleeper.cancel();
    let arrivals = (1..=WAKES).all(|n| {
        stream.write_all(b"!").unwrap();
        has_got_on(received, n)
    });
    [spawns, wakes, arrivals]
}

fn nothing_stays_behind(preemption: bool) {
    let Some(runtime) = runtime(1, preemption) else {
        return;
    };
    let handle = runtime.handle();
    let got_on = runtime.block_on(async move {
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
        let (tell, told) = upshift::sync::oneshot::channel();
        let outside =
            thread::spawn(move || tell.send(outside(&handle, stream, &received)).unwrap());
        let got_on = told.await.unwrap();
        outside.join().unwrap();
        receiver.await.unwrap();
        // A lost timer is never repaired, either.
        for n in 0..100 {
            time::sleep(Duration::from_micros(n)).await;
        }
        got_on
    });
    assert_eq!(
        got_on, [true; 3],
        "preemption {preemption}: spawned, woken, received"
    );
}

/// Runs a coroutine of `level` while the vCPU's thread sleeps in a poll, with preemption. Returns
/// whether another coroutine of the level ran meanwhile.
async fn beside_a_sleeping_poll(level: Level) -> bool {
    let (entered, over) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (set, end) = (entered.clone(), over.clone());
    let sleeps = async move {
        set.store(true, Ordering::Release);
        thread::sleep(Duration::from_millis(200));
        end.store(true, Ordering::Release);
    };
    let sleeps = upshift::spawn(sleeps, LEVEL);
    let other = async move {
        let began = entered.load(Ordering::Acquire);
        time::sleep(Duration::from_millis(1)).await;
        (began || entered.load(Ordering::Acquire)) && !over.load(Ordering::Acquire)
    };
    let in_time = upshift::spawn(other, level).await.unwrap();
    sleeps.await.unwrap();
    in_time
}

#[test]
fn conservation_on_a_vcpu() {
    nothing_stays_behind(false);
    nothing_stays_behind(true);
    let Some(runtime) = runtime(1, true) else {
        return;
    };
    for level in [Level::at::<10>(), LEVEL, Level::at::<50>()] {
        let rounds = async move {
            let mut won = 0;
            for _ in 0..5 {
                won += usize::from(beside_a_sleeping_poll(level).await);
            }
            won
        };
        let won = runtime.block_on(rounds);
        assert!(
            won >= 4,
            "{level:?}: {won} of 5 got on beside a sleeping poll"
        );
    }
}
