//! Runs the microbenchmarks: the same futures on every poll-based runtime, with one line of JSON
//! per figure.
//!
//! A runtime implements [`Host`]; the code is generic, and nothing is boxed. A figure is the median
//! of [`SAMPLES`] samples after a discarded first sample. It is printed with the smallest and the
//! largest sample, in ns per operation (bytes for memory):
//! `{"bench":"yield-2","peer":"tokio-ct","ns":56.1,"min":55.8,"max":57.0}`.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::words;

/// Number of samples per figure.
pub const SAMPLES: usize = 7;

/// Number of tasks spawned before any is joined, in `spawn-join-1000`.
const BATCH: usize = 1000;

/// Number of idle tasks of the memory figure.
const IDLE: usize = 1_000_000;

/// Interface of a poll-based runtime. Every method is called from inside the runtime.
pub trait Host {
    /// Handle that `spawn` returns.
    type Handle;

    /// Starts a task.
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::Handle;

    /// Waits for the end of a task.
    fn join(handle: Self::Handle) -> impl Future<Output = ()>;

    /// Detaches a task, which continues without its handle.
    fn detach(handle: Self::Handle);

    /// Returns a timer, armed by its first poll and cancelled by its drop.
    fn sleep(time: Duration) -> impl Future<Output = ()>;

    /// Passes a token `rounds` times to and fro between two tasks, over two one-slot channels of
    /// the kind that users of this runtime choose for tasks of one thread.
    fn ping_pong(rounds: usize) -> impl Future<Output = ()>;
}

/// Selection of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `one-thread`: pinned to one CPU by the caller.
    OneThread,
    /// `two-threads`: free to use two CPUs.
    TwoThreads,
}

/// Parses the command line of a microbenchmark: `one-thread|two-threads [--variant V]`, where V
/// defaults to the first of `variants`.
///
/// Exits with status 2 and a message if the command line is invalid.
pub fn parse_part(variants: &[&'static str]) -> (Part, String) {
    let parts = [Part::OneThread, Part::TwoThreads];
    let names = ["one-thread", "two-threads"];
    let matches = words::command(&names, variants).get_matches();
    let part = parts[words::word(&matches, &names)];
    (part, words::variant(&matches))
}

/// Measures every figure of one thread. The process must be pinned to one CPU, and this future must
/// be the main task of the runtime.
///
/// The memory figure comes last and leaves a million tasks behind, so exit the process afterwards.
pub async fn one_thread<H: Host>(peer: &str) {
    let mut samples = Samples::new(peer, "spawn-join", 100_000);
    while samples.next() {
        for _ in 0..100_000 {
            H::join(H::spawn(async {})).await;
        }
    }

    let mut handles = Vec::with_capacity(BATCH);
    let mut samples = Samples::new(peer, "spawn-join-1000", 100 * BATCH);
    while samples.next() {
        for _ in 0..100 {
            handles.extend((0..BATCH).map(|_| H::spawn(async {})));
            for handle in handles.drain(..) {
                H::join(handle).await;
            }
        }
    }

    for (name, tasks, yields) in [("yield-2", 2, 200_000), ("yield-1000", 1000, 500)] {
        let mut samples = Samples::new(peer, name, tasks * yields);
        while samples.next() {
            handles.extend((0..tasks).map(|_| H::spawn(yield_times(yields))));
            for handle in handles.drain(..) {
                H::join(handle).await;
            }
        }
    }

    let mut samples = Samples::new(peer, "wake-hop", 2 * 100_000);
    while samples.next() {
        let [a, b] = token_pair(100_000);
        let (a, b) = (H::spawn(a), H::spawn(b));
        H::join(a).await;
        H::join(b).await;
    }

    let mut samples = Samples::new(peer, "channel-hop", 2 * 100_000);
    while samples.next() {
        H::ping_pong(100_000).await;
    }

    let mut samples = Samples::new(peer, "timer", 100_000);
    while samples.next() {
        for _ in 0..100_000 {
            let mut timer = pin!(H::sleep(Duration::from_secs(60)));
            poll_fn(|cx| {
                let _ = black_box(timer.as_mut().poll(cx));
                Poll::Ready(())
            })
            .await;
        }
    }

    let bytes_before = resident_bytes();
    for _ in 0..IDLE / BATCH {
        for _ in 0..BATCH {
            H::detach(H::spawn(Idle::default()));
        }
        // A new task runs after the spawned tasks. A self-wake would not suffice, since some
        // runtimes then poll the same task again first.
        H::join(H::spawn(async {})).await;
    }
    while POLLED.load(Ordering::Relaxed) < IDLE {
        H::join(H::spawn(async {})).await;
    }
    let bytes_per_task = (resident_bytes().saturating_sub(bytes_before)) as f64 / IDLE as f64;
    print_figure("bytes-per-task", peer, &mut [bytes_per_task]);
}

/// Measures how long it takes to wake a parked runtime from another thread, per hop: a token goes
/// to and fro between two threads, on CPU 0 and on CPU 1, each in its own runtime.
///
/// `block_on` runs a future to its end on a fresh runtime of the calling thread.
pub fn two_threads(peer: &str, block_on: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Sync) {
    const ROUNDS: usize = 2_000;
    let mut samples = Samples::new(peer, "cross-wake", 2 * ROUNDS);
    let block_on = &block_on;
    while samples.next() {
        let [a, b] = token_pair(ROUNDS);
        std::thread::scope(|scope| {
            for (cpu, future) in [
                Box::pin(a) as Pin<Box<dyn Future<Output = ()> + Send>>,
                Box::pin(b),
            ]
            .into_iter()
            .enumerate()
            {
                scope.spawn(move || {
                    pin_to(cpu);
                    block_on(future);
                });
            }
        });
    }
}

/// Binds this thread, and the threads that it will start, to one CPU. Without permission the thread
/// runs on any CPU.
fn pin_to(cpu: usize) {
    // SAFETY: an all-zero cpu_set_t is a valid empty set, and `cpu` is below its 1024 bits. The
    // pointer is valid, because the call only reads this local.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Measures one figure: `while samples.next() { the work of one sample }`. The first sample warms
/// up and is discarded; the figure is printed after the last sample.
#[derive(Debug)]
pub struct Samples<'a> {
    peer: &'a str,
    name: &'a str,
    operations: usize,
    sample_start: Option<Instant>,
    values: Vec<f64>,
}

impl<'a> Samples<'a> {
    /// Creates a figure; `operations` is the number of operations per sample.
    pub fn new(peer: &'a str, name: &'a str, operations: usize) -> Self {
        Self {
            peer,
            name,
            operations,
            sample_start: None,
            values: Vec::with_capacity(SAMPLES + 1),
        }
    }

    /// Ends the current sample and begins the next; prints the figure and returns false after the
    /// last sample.
    #[expect(
        clippy::should_implement_trait,
        reason = "not an iterator: it measures the time between two calls"
    )]
    pub fn next(&mut self) -> bool {
        if let Some(sample_start) = self.sample_start {
            self.values
                .push(sample_start.elapsed().as_nanos() as f64 / self.operations as f64);
        }
        if self.values.len() > SAMPLES {
            print_figure(self.name, self.peer, &mut self.values[1..]);
            return false;
        }
        self.sample_start = Some(Instant::now());
        true
    }
}

/// Prints one figure from its samples, which must not be empty; sorts them.
pub fn print_figure(name: &str, peer: &str, samples: &mut [f64]) {
    samples.sort_by(f64::total_cmp);
    let (median, min, max) = (
        samples[samples.len() / 2],
        samples[0],
        samples[samples.len() - 1],
    );
    println!(
        r#"{{"bench":"{name}","peer":"{peer}","ns":{median:.1},"min":{min:.1},"max":{max:.1}}}"#
    );
}

/// Returns the resident memory of this process in bytes, without file pages.
///
/// # Panics
///
/// Panics if /proc is not available.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let mut pages = statm
        .split(' ')
        .skip(1)
        .map(|word| word.parse::<usize>().unwrap_or(0));
    let (resident, files) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    (resident - files) * 4096
}

/// Yields `yields` times; each yield wakes the task first.
pub async fn yield_times(yields: usize) {
    for _ in 0..yields {
        Yield::default().await;
    }
}

/// A future that wakes itself and yields once.
#[derive(Default)]
pub(crate) struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A task of three words that waits for an event that never occurs. It holds its waker, as a task
/// that waits for I/O does, because otherwise a runtime may detect that nothing can wake the task,
/// and free it.
#[derive(Default)]
struct Idle {
    waker: Option<Waker>,
    polls: u64,
}

static POLLED: AtomicUsize = AtomicUsize::new(0);

impl Future for Idle {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polls += 1;
        self.waker = Some(cx.waker().clone());
        POLLED.fetch_add(1, Ordering::Relaxed);
        Poll::Pending
    }
}

/// Returns two futures that hand a token to each other `rounds` times: the simplest wake possible.
pub fn token_pair(rounds: usize) -> [impl Future<Output = ()> + Send + 'static; 2] {
    let (ping, pong) = (
        Arc::new(TokenSlot::default()),
        Arc::new(TokenSlot::default()),
    );
    ping.put();
    [(ping.clone(), pong.clone()), (pong, ping)].map(|(take, give)| async move {
        for _ in 0..rounds {
            take.take().await;
            give.put();
        }
    })
}

/// Holds a token, or the waker of the task that waits for it.
#[derive(Default)]
pub(crate) struct TokenSlot {
    state: Mutex<(bool, Option<Waker>)>,
}

impl TokenSlot {
    pub(crate) fn put(&self) {
        let waker = {
            let mut state = self.state.lock().expect("no panic while locked");
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn take(&self) -> impl Future<Output = ()> + Send {
        poll_fn(|cx| {
            let mut state = self.state.lock().expect("no panic while locked");
            if std::mem::take(&mut state.0) {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}
