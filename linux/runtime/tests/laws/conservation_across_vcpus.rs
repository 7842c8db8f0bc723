//! Tests that two vCPUs (worker threads, each with a run queue) share their work: while one of them
//! idles, no coroutine that may run there waits for the end of a long poll on the other. This is
//! the law *Conservation* (see `main.rs`).
//!
//! A round has two coroutines, a *neighbour* of level 40 and the *other* coroutine. The neighbour
//! makes the other coroutine wait on the neighbour's vCPU, and sleeps until both vCPUs are idle.
//! Then the neighbour makes the other coroutine ready through a [`WakeSource`], and computes in the
//! same poll until the other coroutine has run, for at most [`POLL_LIMIT`]. A round succeeds if the
//! other coroutine has run by the end of the poll. If the idle vCPU does not take the coroutine,
//! the coroutine runs only after the poll, so the test needs no time measurement that depends on
//! the machine.
//!
//! There is a test for each way to become ready, without preemption and with it. The tests need no
//! privileges.

use std::io::Write;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use upshift::net::UnixStream;
use upshift::sync::{Mutex, MutexGuard, mpsc};
use upshift::{JoinHandle, Level, Runtime, time, yield_now};

use crate::lock_machine;

/// Time for which the neighbour computes if the other coroutine does not run.
const POLL_LIMIT: Duration = Duration::from_secs(2);
/// Time after which both vCPUs are idle. Timers and events from outside are due after a multiple of
/// it, in the middle of the poll.
const SETTLE: Duration = Duration::from_millis(5);
const ROUNDS: usize = 10;
/// Number of rounds that must succeed. A busy machine may spoil one round.
const REQUIRED: usize = 9;
const NEIGHBOUR: Level = Level::at::<40>();
/// Levels of the other coroutine: equal to the neighbour's, less urgent, more urgent.
const LEVELS: [Level; 3] = [Level::at::<40>(), Level::at::<50>(), Level::at::<10>()];

#[derive(Default)]
struct Round {
    /// Thread that polled the other coroutine when it began to wait.
    polled_by: StdMutex<Option<ThreadId>>,
    has_run: AtomicBool,
}

impl Round {
    /// Records the calling thread. Called in the poll in which the other coroutine begins to wait.
    fn record_thread(&self) {
        *self.polled_by.lock().unwrap() = Some(thread::current().id());
    }

    fn is_over(&self) -> bool {
        self.has_run.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.has_run.store(true, Ordering::Release);
    }
}

/// Starts the other coroutine of a round, which awaits `wait`.
fn start<F>(level: Level, round: &Arc<Round>, wait: F) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let round = round.clone();
    upshift::spawn(
        async move {
            round.record_thread();
            wait.await;
            round.end();
        },
        level,
    )
}

/// Computes until the other coroutine has run. Returns false if it has not run after
/// [`POLL_LIMIT`].
fn compute(round: &Round) -> bool {
    let start_time = Instant::now();
    while !round.is_over() {
        if start_time.elapsed() > POLL_LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// A way in which the other coroutine waits and becomes ready.
trait WakeSource: Send + 'static {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Self, JoinHandle<()>)
    where
        Self: Sized;

    /// Makes the other coroutine ready now, or lets it become ready while the neighbour computes.
    /// The poll in which this ends continues with the computation.
    fn release(self) -> impl Future<Output = ()> + Send;
}

/// Starts the other coroutine so that it waits on the calling vCPU. If the other vCPU has polled
/// the coroutine, or the neighbour itself has moved, the coroutine is started again. A coroutine
/// that never waits on this vCPU need not be taken by the other one, so the last attempt is
/// accepted in any case.
async fn start_on_this_vcpu<W: WakeSource>(level: Level) -> (Arc<Round>, W, JoinHandle<()>) {
    let mut attempts = 20;
    loop {
        let round = Arc::new(Round::default());
        let (source, other) = W::start_waiting(level, &round);
        time::sleep(SETTLE).await;
        let this_thread = Some(thread::current().id());
        attempts -= 1;
        if attempts == 0 || *round.polled_by.lock().unwrap() == this_thread {
            return (round, source, other);
        }
        other.cancel();
        let _ = other.await;
    }
}

fn check<W: WakeSource>() {
    check_rounds(|level| async move {
        let (round, source, other) = start_on_this_vcpu::<W>(level).await;
        source.release().await;
        let succeeded = compute(&round);
        (succeeded, other)
    });
}

/// Runs `round` as the neighbour [`ROUNDS`] times at each level, and asserts that at least
/// [`REQUIRED`] rounds succeed.
fn check_rounds<F>(round: impl Fn(Level) -> F)
where
    F: Future<Output = (bool, JoinHandle<()>)> + Send + 'static,
{
    for preemption in [false, true] {
        let Some(runtime) = crate::runtime(2, preemption) else {
            return;
        };
        let succeeded: Vec<usize> = runtime.block_on(async {
            let mut succeeded = Vec::new();
            for level in LEVELS {
                let mut count = 0;
                for _ in 0..ROUNDS {
                    let neighbour = upshift::spawn(round(level), NEIGHBOUR);
                    let (is_in_time, other) = neighbour.await.unwrap();
                    other.await.unwrap();
                    count += usize::from(is_in_time);
                }
                succeeded.push(count);
            }
            succeeded
        });
        assert!(
            succeeded.iter().all(|&count| count >= REQUIRED),
            "preemption {preemption}, at levels {LEVELS:?} beside a poll of {NEIGHBOUR:?}: {succeeded:?} of {ROUNDS} ran during the poll"
        );
    }
}

#[test]
fn a_child_starts_beside_a_long_poll() {
    check_rounds(|level| async move {
        time::sleep(SETTLE).await;
        let round = Arc::new(Round::default());
        let child = start(level, &round, async {});
        (compute(&round), child)
    });
}

/// The other coroutine waits for a wake by id.
struct Woken {
    id: upshift::CoroutineId,
    flag: Arc<AtomicBool>,
}

impl WakeSource for Woken {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Woken, JoinHandle<()>) {
        let flag = Arc::new(AtomicBool::new(false));
        let ready = flag.clone();
        let other = start(
            level,
            round,
            std::future::poll_fn(move |_| {
                if ready.load(Ordering::Acquire) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            }),
        );
        let id = other.id();
        (Woken { id, flag }, other)
    }

    async fn release(self) {
        self.flag.store(true, Ordering::Release);
        upshift::wake(self.id).unwrap();
    }
}

#[test]
fn a_coroutine_that_a_long_poll_wakes_runs_beside_it() {
    check::<Woken>();
}

/// The other coroutine is woken by a thread outside of the runtime.
struct WokenFromOutside(Woken);

impl WakeSource for WokenFromOutside {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (WokenFromOutside, JoinHandle<()>) {
        let (inner, other) = Woken::start_waiting(level, round);
        (WokenFromOutside(inner), other)
    }

    async fn release(self) {
        let handle = upshift::Handle::current().unwrap();
        thread::spawn(move || {
            thread::sleep(SETTLE);
            self.0.flag.store(true, Ordering::Release);
            handle.wake(self.0.id).unwrap();
        });
    }
}

#[test]
fn a_coroutine_that_another_thread_wakes_runs_beside_a_long_poll() {
    check::<WokenFromOutside>();
}

/// The other coroutine joins a coroutine that ends on the neighbour's vCPU just before its long
/// poll.
struct Join(Woken);

impl WakeSource for Join {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Join, JoinHandle<()>) {
        let (inner, joined) = Woken::start_waiting(NEIGHBOUR, &Arc::default());
        let other = start(level, round, async { joined.await.unwrap() });
        (Join(inner), other)
    }

    async fn release(self) {
        self.0.release().await;
        // The joined coroutine ends now, because it precedes the neighbour in the queue.
        yield_now().await;
    }
}

#[test]
fn a_join_ends_beside_a_long_poll() {
    check::<Join>();
}

impl WakeSource for mpsc::Sender<()> {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Self, JoinHandle<()>) {
        let (sender, mut receiver) = mpsc::channel(1);
        let other = start(level, round, async move {
            receiver.recv().await.unwrap();
        });
        (sender, other)
    }

    async fn release(self) {
        self.try_send(()).unwrap();
    }
}

#[test]
fn a_message_is_received_beside_a_long_poll() {
    check::<mpsc::Sender<()>>();
}

/// The other coroutine waits for a lock that the neighbour holds.
struct Held(MutexGuard<'static, ()>);

impl WakeSource for Held {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Held, JoinHandle<()>) {
        // A guard borrows the mutex, so the mutex is leaked, which costs a few bytes per round.
        let mutex: &'static Mutex<()> = Box::leak(Box::default());
        let guard = mutex.try_lock().unwrap();
        let other = start(level, round, async { drop(mutex.lock().await) });
        (Held(guard), other)
    }

    async fn release(self) {
        drop(self.0);
    }
}

#[test]
fn a_lock_is_taken_beside_a_long_poll() {
    check::<Held>();
}

/// The other coroutine waits for a timer that is due in the middle of the neighbour's poll.
struct Timer;

impl WakeSource for Timer {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Timer, JoinHandle<()>) {
        (Timer, start(level, round, time::sleep(4 * SETTLE)))
    }

    async fn release(self) {}
}

#[test]
fn a_timer_fires_beside_a_long_poll() {
    check::<Timer>();
}

/// The other coroutine waits for data that a thread writes in the middle of the neighbour's poll.
struct Data(StdStream);

impl WakeSource for Data {
    fn start_waiting(level: Level, round: &Arc<Round>) -> (Data, JoinHandle<()>) {
        let (outside, inside) = StdStream::pair().unwrap();
        let mut inside = UnixStream::from_std(inside).unwrap();
        let other = start(level, round, async move {
            assert_eq!(&inside.recv().await.unwrap()[..], b"!");
        });
        (Data(outside), other)
    }

    async fn release(mut self) {
        thread::spawn(move || {
            thread::sleep(SETTLE);
            self.0.write_all(b"!").unwrap();
            // The socket stays open until the reader has finished.
            thread::sleep(SETTLE);
        });
    }
}

#[test]
fn data_is_received_beside_a_long_poll() {
    check::<Data>();
}

#[test]
fn a_runtime_ends_when_coroutines_that_it_waits_for_exit_on_another_vcpu() {
    let _lock = lock_machine();
    let (end_sender, end_receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for _ in 0..4 * ROUNDS {
            let runtime = Runtime::builder().vcpus(2).build().unwrap();
            // Without `block_on` no thread serves vCPU 0, so the coroutines are on the other vCPU.
            for _ in 0..2_000 {
                let pending = std::future::pending::<()>();
                runtime.handle().spawn(pending, NEIGHBOUR).unwrap().detach();
            }
            thread::sleep(SETTLE);
        }
        end_sender.send(()).unwrap();
    });
    assert!(end_receiver.recv_timeout(Duration::from_secs(60)).is_ok());
}

#[test]
fn an_idle_vcpu_notices_a_stop_while_it_searches_for_work() {
    let _lock = lock_machine();
    let (end_sender, end_receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for round in 0..500 {
            let runtime = Runtime::builder().vcpus(2).build().unwrap();
            // The other vCPU alternates between waits and searches for work. The stop arrives at
            // various moments between two searches.
            runtime.block_on(async {
                let start_time = Instant::now();
                while start_time.elapsed() < Duration::from_micros(100 + 2 * round) {
                    std::hint::spin_loop();
                }
            });
        }
        end_sender.send(()).unwrap();
    });
    assert!(end_receiver.recv_timeout(Duration::from_secs(60)).is_ok());
}
