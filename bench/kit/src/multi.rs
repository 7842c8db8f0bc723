//! Measures the speed of two workers, with the workloads of tokio's benchmark `rt_multi_threaded`,
//! written from their description, and with a channel that has ten senders.
//!
//! A thread outside the runtime starts the workloads. The measured time ends when the last task
//! ends, not when that thread is woken. A figure is the median of 7 samples after a discarded first
//! sample, in ns per operation. A sample consists of several runs.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::micro::{SAMPLES, Yield, print_figure};

/// Number of spawned tasks in each workload that spawns independent tasks.
const SPAWNS: usize = 10_000;
/// Number of busy tasks: two for each worker. A busy task repeatedly computes for [`BUSY_POLL`] and
/// yields.
const BUSY_TASKS: usize = 4;
const BUSY_POLL: Duration = Duration::from_micros(10);
/// Number of yielding tasks, and number of yields by each of them.
const YIELDS: (usize, usize) = (200, 1_000);
/// Number of pairs of tasks that exchange a ping and a pong concurrently.
const PINGS: usize = 1_000;
/// Number of tasks in a chain, each of which spawns the next.
const CHAIN: usize = 1_000;
/// Number of senders of one channel, number of messages from each, and capacity of the channel.
const SENDERS: (usize, usize, usize) = (10, 1_000, 100);
/// Time within which the workers park.
const SETTLE: Duration = Duration::from_millis(1);

/// Interface of a runtime with two workers. The channels are of the kind that users of the runtime
/// choose.
pub trait Multi: Sized + 'static {
    /// A sender of a channel with several senders.
    type Sender: Clone + Send + 'static;
    /// The receiver of a channel.
    type Receiver: Send + 'static;

    /// Starts a task from inside the runtime.
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F);

    /// Starts a task from another thread.
    fn spawn_remotely<F: Future<Output = ()> + Send + 'static>(&self, future: F);

    /// Yields once.
    fn yield_now() -> impl Future<Output = ()> + Send {
        Yield::default()
    }

    /// Returns a closure that sends one message, and a future that waits for it.
    fn oneshot() -> (
        impl FnOnce() + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    );

    /// Creates a channel with the given capacity.
    fn channel(capacity: usize) -> (Self::Sender, Self::Receiver);

    /// Sends a message.
    fn send(sender: &Self::Sender, message: usize) -> impl Future<Output = ()> + Send;

    /// Receives a message; `None` after the last sender is dropped.
    fn receive(receiver: &mut Self::Receiver) -> impl Future<Output = Option<usize>> + Send;
}

/// Measures all workloads. Must run on a thread that is not a worker.
pub fn multi<H: Multi>(peer: &str, host: &H) {
    let measure = |name: &str, runs: usize, operations: usize, run: fn(&H) -> Duration| {
        let mut samples = Vec::with_capacity(SAMPLES);
        for sample in 0..=SAMPLES {
            let time: Duration = (0..runs).map(|_| run(host)).sum();
            if sample > 0 {
                samples.push(time.as_nanos() as f64 / (runs * operations) as f64);
            }
        }
        print_figure(name, peer, &mut samples);
    };
    measure("spawn local", 5, SPAWNS, spawn_local);
    measure("spawn remote, idle", 5, SPAWNS, spawn_remote);
    measure("spawn remote, busy", 2, SPAWNS, spawn_remote_busy);
    measure("yield", 1, YIELDS.0 * YIELDS.1, yield_many);
    measure("ping-pong", 10, PINGS, ping_pong);
    measure("chained spawn", 20, CHAIN, chained_spawn);
    measure("mpsc, 10 senders", 3, SENDERS.0 * SENDERS.1, ten_senders);
}

/// Counts tasks down; the last one reports its end.
#[derive(Clone)]
struct End(Arc<(AtomicUsize, mpsc::Sender<Instant>)>);

impl End {
    /// Creates a counter of `tasks` tasks, and the receiver of the time at which the last one ends.
    fn new(tasks: usize) -> (End, mpsc::Receiver<Instant>) {
        let (sender, receiver) = mpsc::channel();
        (End(Arc::new((AtomicUsize::new(tasks), sender))), receiver)
    }

    fn task_ended(&self) {
        if self.0.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.0.1.send(Instant::now());
        }
    }
}

/// Runs `work` in a task, and waits until `tasks` tasks have ended. Returns the time between the
/// start of `work` and the last end.
fn run_inside<H: Multi, F>(host: &H, tasks: usize, work: impl FnOnce(End) -> F) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let (end, end_receiver) = End::new(tasks);
    let (sender, start_receiver) = mpsc::channel();
    let work = work(end);
    host.spawn_remotely(async move {
        let _ = sender.send(Instant::now());
        work.await;
    });
    let start_time = start_receiver
        .recv()
        .expect("the first task reports its start");
    end_receiver.recv().expect("the last task reports its end") - start_time
}

fn spawn_local<H: Multi>(host: &H) -> Duration {
    run_inside(host, SPAWNS, |end| async move {
        for _ in 0..SPAWNS {
            let end = end.clone();
            H::spawn(async move { end.task_ended() });
        }
    })
}

fn spawn_remote<H: Multi>(host: &H) -> Duration {
    std::thread::sleep(SETTLE);
    spawn_from_outside(host)
}

fn spawn_from_outside<H: Multi>(host: &H) -> Duration {
    let (end, end_receiver) = End::new(SPAWNS);
    let start_time = Instant::now();
    for _ in 0..SPAWNS {
        let end = end.clone();
        host.spawn_remotely(async move { end.task_ended() });
    }
    end_receiver.recv().expect("the last task reports its end") - start_time
}

fn spawn_remote_busy<H: Multi>(host: &H) -> Duration {
    let stop = Arc::new(AtomicBool::new(false));
    let (end, end_receiver) = End::new(BUSY_TASKS);
    for _ in 0..BUSY_TASKS {
        let (stop, end) = (stop.clone(), end.clone());
        host.spawn_remotely(async move {
            while !stop.load(Ordering::Relaxed) {
                let start_time = Instant::now();
                while start_time.elapsed() < BUSY_POLL {
                    std::hint::spin_loop();
                }
                H::yield_now().await;
            }
            end.task_ended();
        });
    }
    std::thread::sleep(SETTLE);
    let time = spawn_from_outside(host);
    stop.store(true, Ordering::Relaxed);
    end_receiver.recv().expect("the busy tasks end");
    time
}

fn yield_many<H: Multi>(host: &H) -> Duration {
    let (tasks, yields) = YIELDS;
    run_inside(host, tasks, |end| async move {
        for _ in 0..tasks {
            let end = end.clone();
            H::spawn(async move {
                for _ in 0..yields {
                    H::yield_now().await;
                }
                end.task_ended();
            });
        }
    })
}

fn ping_pong<H: Multi>(host: &H) -> Duration {
    run_inside(host, PINGS, |end| async move {
        for _ in 0..PINGS {
            let end = end.clone();
            H::spawn(async move {
                let (send_ping, ping_received) = H::oneshot();
                let (send_pong, pong_received) = H::oneshot();
                H::spawn(async move {
                    ping_received.await;
                    send_pong();
                });
                send_ping();
                pong_received.await;
                end.task_ended();
            });
        }
    })
}

fn chained_spawn<H: Multi>(host: &H) -> Duration {
    fn link<H: Multi>(remaining: usize, end: End) {
        H::spawn(async move {
            match remaining {
                0 => end.task_ended(),
                _ => link::<H>(remaining - 1, end),
            }
        });
    }
    run_inside(host, 1, |end| async move { link::<H>(CHAIN, end) })
}

fn ten_senders<H: Multi>(host: &H) -> Duration {
    let (senders, messages, capacity) = SENDERS;
    run_inside(host, 1, |end| async move {
        let (sender, mut receiver) = H::channel(capacity);
        for _ in 0..senders {
            let sender = sender.clone();
            H::spawn(async move {
                for message in 0..messages {
                    H::send(&sender, message).await;
                }
            });
        }
        drop(sender);
        while H::receive(&mut receiver).await.is_some() {}
        end.task_ended();
    })
}
