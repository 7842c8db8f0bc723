//! Conservation across vCPUs: while one of two vCPUs idles, no coroutine that may run there waits
//! for the end of a long poll on the other. No rights are needed. There is a test for each way to
//! become ready, without preemption and with it.
//!
//! In a round a *neighbour* of level 40 makes the *other* coroutine wait on the neighbour's vCPU,
//! lets everything park, makes the other coroutine ready in one of the ways below, and computes in
//! the same poll until that coroutine has run, for at most [`LONG`]. A round is won if it has run
//! by then: a stranded coroutine runs after the poll, so the length of the poll distinguishes the
//! cases on any machine.

use std::io::Write;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use upshift::net::UnixStream;
use upshift::sync::{Mutex, MutexGuard, mpsc};
use upshift::{JoinHandle, Level, Runtime, time, yield_now};

use crate::alone;

/// Time for which the neighbour computes if the other coroutine does not run.
const LONG: Duration = Duration::from_secs(2);
/// Time after which everything has parked, and after which events from outside and timers come in
/// the middle of the poll.
const SETTLE: Duration = Duration::from_millis(5);
const ROUNDS: usize = 10;
/// Rounds to win: the machine may spoil one.
const WON: usize = 9;
const NEIGHBOUR: Level = Level::at::<40>();
/// Levels of the other coroutine: equal to the neighbour's, less urgent, more urgent.
const LEVELS: [Level; 3] = [Level::at::<40>(), Level::at::<50>(), Level::at::<10>()];

/// State of a round, shared with the other coroutine.
#[derive(Default)]
struct Round {
    /// The thread of the other coroutine's latest poll.
    polled_by: StdMutex<Option<ThreadId>>,
    /// Set when the other coroutine has run.
    got_on: AtomicBool,
}

impl Round {
    /// Called in the poll in which the other coroutine begins to wait.
    fn notify_local_arrival(&self) {
        *self.polled_by.lock().unwrap() = Some(thread::current().id());
    }

    fn is_over(&self) -> bool {
        self.got_on.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.got_on.store(true, Ordering::Release);
    }
}

/// Runs `wait` as the other coroutine of a round.
fn start<F>(level: Level, round: &Arc<Round>, wait: F) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let round = round.clone();
    upshift::spawn(
        async move {
            round.notify_local_arrival();
            wait.await;
            round.end();
        },
        level,
    )
}

/// Computes until the round is over. Returns false if it is not after [`LONG`].
fn compute(round: &Round) -> bool {
    let began = Instant::now();
    while !round.is_over() {
        if began.elapsed() > LONG {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// A way to wait and to be made ready.
trait Way: Send + 'static {
    /// Starts the other coroutine, which waits.
    fn other(level: Level, round: &Arc<Round>) -> (Self, JoinHandle<()>)
    where
        Self: Sized;

    /// Makes the other coroutine ready now, or lets it become ready while the neighbour computes.
    /// The poll in which this ends continues with the computation.
    fn release(self) -> impl Future<Output = ()> + Send;
}

/// Starts the other coroutine so that it waits on the calling vCPU. The other vCPU, or the
/// neighbour itself, may have taken it: then it is started again. A coroutine that never waits here
/// is not stranded, so the last attempt counts in any case.
async fn side_by_side<W: Way>(level: Level) -> (Arc<Round>, W, JoinHandle<()>) {
    let mut attempts = 20;
    loop {
        let round = Arc::new(Round::default());
        let (way, other) = W::other(level, &round);
        time::sleep(SETTLE).await;
        let here = Some(thread::current().id());
        attempts -= 1;
        if attempts == 0 || *round.polled_by.lock().unwrap() == here {
            return (round, way, other);
        }
        other.cancel();
        let _ = other.await;
    }
}

/// Plays the rounds of one way at all levels.
fn hold<W: Way>() {
    hold_rounds(|level| async move {
        let (round, way, other) = side_by_side::<W>(level).await;
        way.release().await;
        let won = compute(&round);
        (won, other)
    });
}

/// Plays `round` as the neighbour [`ROUNDS`] times on each level, and asserts that it was won.
fn hold_rounds<F>(round: impl Fn(Level) -> F)
where
    F: Future<Output = (bool, JoinHandle<()>)> + Send + 'static,
{
    for preemption in [false, true] {
        let Some(runtime) = crate::runtime(2, preemption) else {
            return;
        };
        let won: Vec<usize> = runtime.block_on(async {
            let mut won = Vec::new();
            for level in LEVELS {
                let mut count = 0;
                for _ in 0..ROUNDS {
                    let neighbour = upshift::spawn(round(level), NEIGHBOUR);
                    let (in_time, other) = neighbour.await.unwrap();
                    other.await.unwrap();
                    count += usize::from(in_time);
                }
                won.push(count);
            }
            won
        });
        assert!(
            won.iter().all(|&count| count >= WON),
            "preemption {preemption}, at levels {LEVELS:?} beside a poll of {NEIGHBOUR:?}: {won:?} of {ROUNDS} got on during the poll"
        );
    }
}

#[test]
fn a_child_starts_beside_a_long_poll() {
    hold_rounds(|level| async move {
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

impl Way for Woken {
    fn other(level: Level, round: &Arc<Round>) -> (Woken, JoinHandle<()>) {
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
    hold::<Woken>();
}

/// The other coroutine is woken by a thread outside of the runtime.
struct WokenFromOutside(Woken);

impl Way for WokenFromOutside {
    fn other(level: Level, round: &Arc<Round>) -> (WokenFromOutside, JoinHandle<()>) {
        let (inner, other) = Woken::other(level, round);
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
    hold::<WokenFromOutside>();
}

/// The other coroutine waits for one that ends on the neighbour's vCPU just before its long poll.
struct Join(Woken);

impl Way for Join {
    fn other(level: Level, round: &Arc<Round>) -> (Join, JoinHandle<()>) {
        let (inner, joined) = Woken::other(NEIGHBOUR, &Arc::default());
        let other = start(level, round, async { joined.await.unwrap() });
        (Join(inner), other)
    }

    async fn release(self) {
        self.0.release().await;
        // The joined coroutine ends in this gap: its turn comes before that of the neighbour.
        yield_now().await;
    }
}

#[test]
fn a_join_ends_beside_a_long_poll() {
    hold::<Join>();
}

impl Way for mpsc::Sender<()> {
    fn other(level: Level, round: &Arc<Round>) -> (Self, JoinHandle<()>) {
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
    hold::<mpsc::Sender<()>>();
}

/// The other coroutine waits for a lock that the neighbour holds.
struct Held(MutexGuard<'static, ()>);

impl Way for Held {
    fn other(level: Level, round: &Arc<Round>) -> (Held, JoinHandle<()>) {
        // Guards of this mutex borrow it: some bytes a round are leaked.
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
    hold::<Held>();
}

/// The other coroutine waits for a timer that is due in the middle of the neighbour's poll.
struct Timer;

impl Way for Timer {
    fn other(level: Level, round: &Arc<Round>) -> (Timer, JoinHandle<()>) {
        (Timer, start(level, round, time::sleep(4 * SETTLE)))
    }

    async fn release(self) {}
}

#[test]
fn a_timer_fires_beside_a_long_poll() {
    hold::<Timer>();
}

/// The other coroutine waits for data that a thread writes in the middle of the neighbour's poll.
struct Data(StdStream);

impl Way for Data {
    fn other(level: Level, round: &Arc<Round>) -> (Data, JoinHandle<()>) {
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
    hold::<Data>();
}

#[test]
fn a_runtime_ends_when_coroutines_that_it_waits_for_exit_on_another_vcpu() {
    let _alone = alone();
    let (ended, has_ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for _ in 0..4 * ROUNDS {
            let runtime = Runtime::builder().vcpus(2).build().unwrap();
            // No thread serves vCPU 0 now, so the coroutines are on the other vCPU.
            for _ in 0..2_000 {
                let waits = std::future::pending::<()>();
                runtime.handle().spawn(waits, NEIGHBOUR).unwrap().detach();
            }
            thread::sleep(SETTLE);
        }
        ended.send(()).unwrap();
    });
    assert!(has_ended.recv_timeout(Duration::from_secs(60)).is_ok());
}

#[test]
fn a_vcpu_that_looks_around_notices_that_it_is_to_stop() {
    let _alone = alone();
    let (ended, has_ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for round in 0..500 {
            let runtime = Runtime::builder().vcpus(2).build().unwrap();
            // The other vCPU waits and looks, and the stop comes at any time between two looks.
            runtime.block_on(async {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(100 + 2 * round) {
                    std::hint::spin_loop();
                }
            });
        }
        ended.send(()).unwrap();
    });
    assert!(has_ended.recv_timeout(Duration::from_secs(60)).is_ok());
}
